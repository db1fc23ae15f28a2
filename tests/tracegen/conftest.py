"""Small jobs for the generator's tests: four layers of a model that fits a page, any split, on one flat switch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracegen.spec import Job, load_job

sys.path.insert(0, str(Path(__file__).parent))  # for `graphs`, which several files here read traces with

MODEL = {"layers": 4, "hidden": 64, "ffn": 96, "heads": 8, "kv_heads": 4, "vocab": 1000}
WORKLOAD = {"sequence_length": 32, "micro_batch": 1, "bucket": 20_000}
LATER = ("schedule", "recompute", "zero", "attention_kernel", "granularity", "precision")
PARALLELISM = ("tp", "pp", "dp", "sp", "stages", "order")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """``tiny(tp=2, pp=2, microbatches=3, ...)``: keys of the split, the model and the workload, all optional."""
    folder = tmp_path_factory.mktemp("tiny")

    def make(microbatches: int = 2, **keys: Any) -> Job:
        split = {"tp": 1, "pp": 1, "dp": 1} | {key: keys.pop(key) for key in PARALLELISM if key in keys}
        workload = WORKLOAD | {key: keys.pop(key) for key in (*WORKLOAD, *LATER) if key in keys}
        workload["global_batch"] = microbatches * split["dp"] * workload["micro_batch"]
        world = split["tp"] * split["pp"] * split["dp"]
        link = {"name": "link", "topology": "switch", "size": world, "bandwidth": "100 GB/s", "latency": "1 us"}
        network = f"network: {_flow({'dimensions': [link]})}\n" if world > 1 else ""
        path = folder / "tiny.yaml"
        path.write_text(
            f"name: tiny\ndevice: h100-sxm5-80gb\nmodel: {_flow(MODEL | keys)}\n{network}"
            f"parallelism: {_flow(split)}\nworkload: {_flow(workload)}\n"
        )
        return load_job(str(path))

    return make


def _flow(value: Any) -> str:
    """A value as YAML in flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
