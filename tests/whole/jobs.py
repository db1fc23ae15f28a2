"""The example jobs, whole and cut down, and ways to run and compare them. Used by the tests of this folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tracegen.build import Build, build
from tracegen.proto.graph import Groups, TraceSet
from tracegen.replay import Fabric
from tracegen.replay.run import Run
from tracegen.spec import load_job
from tracegen.spec.network import astra_inputs

EXECUTIONS = ("streams", "astra")
GRANULARITIES = ("operator", "block")

# Small enough for `make test`: every example spec but the largest, the big ones with fewer microbatches.
SMALL = {
    "llama3-70b": ("workload.global_batch=8",),
    "llama3-8b": (),
    "gpt3-22b": (),
    "gpt3-175b": ("workload.global_batch=4",),
    "gpt-neox-20b": (),
    "llama2-7b-single-gpu": (),
}
# As the catalogue has them; llama3-405b with two microbatches per stage and blocks.
WHOLE = {
    "llama3-70b": (),
    "gpt3-175b": (),
    "llama3-405b": ("workload.global_batch=256", "workload.granularity=block"),
}


def built(name: str, *overrides: str) -> Build:
    """The build of an example spec."""
    return build(load_job(name, overrides))


def fabric_of(build: Build, execution: str) -> Fabric:
    """The network that `replay --spec` uses."""
    job = build.job
    if execution == "astra" and job.world > 1:
        inputs = astra_inputs(job.network, job.device.memory_bandwidth)
        return Fabric.from_astra(inputs.network, inputs.system)
    return Fabric.from_network(job.network)


def spans(run: Run, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and end of a rank's nodes by ascending id, so that file order does not matter."""
    here = run.nodes_of(rank)
    order = np.argsort(run.traces.graph(rank).id, kind="stable")
    return run.start_ns()[here][order], run.end_ns[here][order]


def differences(one: Run, other: Run) -> list[str]:
    """Ranks whose nodes differ in start or end; empty where all are equal."""
    assert one.traces.ranks == other.traces.ranks
    told = []
    seen: set[tuple[int, int]] = set()
    for rank in range(one.traces.ranks):
        pair = (int(one.cell_of[rank]), int(other.cell_of[rank]))
        if pair in seen:
            continue
        seen.add(pair)
        for what, mine, theirs in zip(("start", "end"), spans(one, rank), spans(other, rank), strict=True):
            if not np.array_equal(mine, theirs):
                told.append(f"rank {rank} {what}: {int((mine != theirs).sum())} of {len(mine)} nodes differ")
    return told


def renumbered(traces: TraceSet) -> TraceSet:
    """The same traces with sparse ids beyond 2^53 in the same order, groups renamed, nodes in another file order."""
    graphs = []
    for graph in traces.graphs:
        order = np.random.default_rng(len(graph)).permutation(len(graph))
        place = np.empty(len(graph), np.int32)
        place[order] = np.arange(len(graph), dtype=np.int32)
        columns = {
            name: getattr(graph, name)[order]
            for name in (
                "id", "kind", "cpu", "duration_ns", "duration_us", "flops", "mem_bytes", "comm_bytes", "collective",
                "slot", "tag", "priority", "dims", "operator", "layer", "phase", "microbatch", "chunk", "name",
            )
        }  # fmt: skip
        columns["id"] = columns["id"] * np.uint64(3) + np.uint64(2**53 + 1)
        for kind in ("data", "ctrl"):
            ptr, deps = getattr(graph, f"{kind}_ptr"), getattr(graph, f"{kind}_deps")
            parts = [place[deps[ptr[node] : ptr[node + 1]]] for node in order]
            columns[f"{kind}_ptr"] = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
            columns[f"{kind}_deps"] = np.concatenate([*parts, np.zeros(0, np.int32)]).astype(np.int32)
        extra = None if graph.extra_ptr is None else np.zeros(len(graph) + 1, np.int64)
        graphs.append(replace(graph, **columns, extra_ptr=extra))
    old = traces.groups
    number = np.where(old.number > 0, old.number.max(initial=0) + 1 - old.number, 0)
    return replace(traces, graphs=tuple(graphs), groups=Groups(old.ptr, old.members, old.label, number))


def folder(build: Build, path: Path, execution: str = "streams") -> Path:
    """The build as `emit` writes it."""
    from tracegen.emit import emit

    emit(build, path, execution=execution)
    return path
