"""A way to run the command line in this process, as a shell would see it."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from commands import Answer, Command

from tracegen.cli import main


@pytest.fixture
def tracegen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["tracegen", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        return Answer(int(code) if code is not None else 0, printed.out, printed.err)

    return run
