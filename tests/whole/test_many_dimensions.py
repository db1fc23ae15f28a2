"""Case K63: on a network of five dimensions every collective of all ranks covers five, in files and in replay."""

from pathlib import Path

import pytest
from jobs import EXECUTIONS, built, differences, fabric_of, folder

from tracegen.cli import load
from tracegen.proto.decode import decode
from tracegen.proto.graph import Kind
from tracegen.replay import check, replay

DIMENSIONS = [f"{{name: d{d}, topology: ring, size: 2, bandwidth: 100 GB/s, latency: 1 us}}" for d in range(5)]


def network(many: int) -> str:
    """An override: so many dimensions of two ranks."""
    return f"network={{dimensions: [{', '.join(DIMENSIONS[:many])}]}}"


JOB = (
    "device=h100-sxm5-80gb", "model={base: llama3-8b, layers: 2}", network(5), "gpus=32", "parallelism.tp=1",
    "parallelism.dp=32", "workload.global_batch=32",
)  # fmt: skip


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_k63_five_dimensions_are_named_and_used(execution: str, tmp_path: Path) -> None:
    job = built("llama3-8b", *JOB)
    out = folder(job, tmp_path / "out", execution)
    graph = decode((out / "llama3-8b.0.et").read_bytes(), where="rank 0").graph
    assert set(graph.dims[graph.kind == Kind.COLL].tolist()) == {0b11111}
    fabric = fabric_of(job, execution)
    assert check(job.traces, fabric, execution) == []
    spec = replay(job.traces, fabric, execution=execution)
    assert [part.bytes > 0 for part in spec.dimensions] == [True] * 5
    files = load.from_traces(str(out), load.AstraFiles(), None)
    assert files.traces is not None
    read = replay(files.traces, files.fabric, execution=execution)
    assert differences(spec.run, read.run) == []
    assert spec.makespan_ns == read.makespan_ns


def test_four_dimensions_need_no_naming() -> None:
    job = built("llama3-8b", *JOB, network(4), "gpus=16", "parallelism.dp=16")
    assert len(job.job.network.dimensions) == 4
    assert not job.traces.graphs[0].dims.any()
