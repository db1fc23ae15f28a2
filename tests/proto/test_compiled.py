"""Kernels are cached under a name that changes with any of them, and the user is told when one is compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tracegen.proto import compiled

CALLEE = """
from tracegen.proto.compiled import kernel

@kernel
def step(value):
    return value + {add}
"""
CALLER = """
from callee_kernels import step
from tracegen.proto.compiled import kernel

@kernel
def run(value):
    return step(value) * 10
"""
SCRIPT = """
import sys
from pathlib import Path
from tracegen.proto import compiled
compiled.kernel_files = lambda: sorted(Path(sys.path[0]).glob("*_kernels.py"))
from caller_kernels import run
print(run(1), compiled.cache_folder())
"""


def run(folder: Path, cache: Path | str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TRACEGEN_CACHE": str(cache), "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, str(folder / "script.py")], env=environment, capture_output=True, text=True, check=True
    )


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "callee_kernels.py").write_text(CALLEE.format(add=1))
    (folder / "caller_kernels.py").write_text(CALLER)
    (folder / "script.py").write_text(SCRIPT)
    return folder


def test_an_edited_callee_in_another_file_takes_effect(kernels: Path, tmp_path: Path) -> None:
    """numba's own cache would answer 20 again: it looks at the caller's file only."""
    first = run(kernels, tmp_path / "cache").stdout.split()
    (kernels / "callee_kernels.py").write_text(CALLEE.format(add=2))
    second = run(kernels, tmp_path / "cache").stdout.split()
    assert (first[0], second[0]) == ("20", "30")
    assert first[1] != second[1]


def test_compiling_is_announced_once_and_loading_is_not(kernels: Path, tmp_path: Path) -> None:
    first, second = run(kernels, tmp_path / "cache"), run(kernels, tmp_path / "cache")
    assert first.stderr == "tracegen: compiling kernels, each once per installation (about 25 s in all)\n"
    assert second.stderr == ""
    assert first.stdout == second.stdout


def test_without_a_writable_cache_it_works_and_says_so(kernels: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()  # a folder below a file can be made by nobody, root included
    done = run(kernels, file / "cache")
    assert done.stdout == "20 None\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("tracegen: compiling kernels, on every run anew (about 25 s in all), since ")
    assert str(file / "cache") in line


def test_every_kernel_file_of_the_product_counts() -> None:
    names = {file.name for file in compiled.kernel_files()}
    assert {"encode_kernels.py", "decode_kernels.py"} <= names


def test_the_cache_may_be_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEGEN_CACHE", "/a")
    assert compiled.cache_root() == Path("/a")
    monkeypatch.delenv("TRACEGEN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert compiled.cache_root() == Path("/b/tracegen")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compiled.cache_root() == Path.home() / ".cache" / "tracegen"


def test_kernels_that_nobody_used_for_a_month_are_removed(kernels: Path, tmp_path: Path) -> None:
    old, used = tmp_path / "cache" / "kernels-old", tmp_path / "cache" / "kernels-used"
    for folder in (old, used):
        folder.mkdir(parents=True)
    month_ago = old.stat().st_mtime - 31 * 24 * 3600
    os.utime(old, (month_ago, month_ago))
    run(kernels, tmp_path / "cache")
    assert not old.exists()
    assert used.exists()
