"""A legal spec to change, and a way to say what a refusal must contain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tracegen.proto.errors import InputError
from tracegen.spec import Job, load_job

SPEC = """\
model: {layers: 32, hidden: 4096, ffn: 12288, heads: 32, vocab: 32000}
device: h100-sxm5-80gb
gpus: 8
network:
  dimensions:
    - {name: nvlink, topology: switch, bandwidth: 450 GB/s, latency: 0.5 us}
parallelism:
  tp: 8
workload:
  sequence_length: 4096
  global_batch: 64
"""

Load = Callable[..., Job]
Refused = Callable[..., str]


@pytest.fixture
def spec_text() -> str:
    """The legal spec."""
    return SPEC


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a spec's text (by default `SPEC`) with ``--set`` overrides."""

    def loaded(*overrides: str, text: str = SPEC) -> Job:
        file = tmp_path / "job.yaml"
        file.write_text(text)
        return load_job(str(file), overrides)

    return loaded


@pytest.fixture
def refused(load: Load) -> Refused:
    """The one line with which a spec is refused."""

    def line(*overrides: str, text: str = SPEC) -> str:
        with pytest.raises(InputError) as caught:
            load(*overrides, text=text)
        message = str(caught.value)
        assert "\n" not in message
        return message

    return line
