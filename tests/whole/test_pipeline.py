"""Pipelines as the literature has them, read from the replayed timeline of emitted graphs."""

import numpy as np
import pytest
from jobs import EXECUTIONS, built, fabric_of

from tracegen.proto.graph import Kind, Phase
from tracegen.replay import replay
from tracegen.replay.run import Run

# One layer per stage, a network too fast to matter, tp = dp = 1: a stage's forward and backward are constant.
FREE = (
    "device=h100-sxm5-80gb",
    "model={name: tiny, layers: 4, hidden: 256, ffn: 1024, heads: 4, vocab: 1024, gated: true, norm: rms,"
    " positions: rotary}",
    "network={dimensions: [{name: free, topology: switch, size: 4, bandwidth: 1e6 GB/s, latency: 0 ns}]}",
    "gpus=4", "parallelism.tp=1", "parallelism.pp=4", "parallelism.dp=1", "parallelism.sp=false",
    "parallelism.stages=even",
    "workload.sequence_length=256", "workload.micro_batch=1", "workload.zero=0",
)  # fmt: skip


def in_flight(run: Run, rank: int) -> int:
    """Most microbatches at once whose forward has begun and whose backward has not ended on a rank."""
    graph = run.traces.graph(rank)
    here = run.nodes_of(rank)
    start, end = run.start_ns()[here], run.end_ns[here]
    compute = graph.kind == Kind.COMP
    events = []
    for microbatch in np.unique(graph.microbatch[graph.microbatch >= 0]):
        mine = compute & (graph.microbatch == microbatch)
        events.append((int(start[mine & (graph.phase == Phase.F)].min()), 1))
        events.append((int(end[mine & (graph.phase != Phase.F)].max()), -1))
    events.sort()  # at one instant an end comes before a begin
    return int(np.cumsum([step for _, step in events]).max())


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(("schedule", "microbatches"), [("1f1b", 8), ("1f1b", 2), ("1f1b", 1), ("gpipe", 6)])
def test_microbatches_in_flight(schedule: str, microbatches: int, execution: str) -> None:
    # Narayanan et al. 2021 (PipeDream-Flush): stage s of p keeps min(m, p - s) in flight; GPipe keeps all m. Case K67.
    job = built("llama3-8b", *FREE, f"workload.schedule={schedule}", f"workload.global_batch={microbatches}")
    run = replay(job.traces, fabric_of(job, execution), execution=execution).run
    expected = [min(microbatches, 4 - stage) if schedule == "1f1b" else microbatches for stage in range(4)]
    assert [in_flight(run, rank) for rank in range(4)] == expected
