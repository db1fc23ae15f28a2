"""ASTRA-sim's analytical backends as we replay them: collectives, training-like graphs, messages, files.

The baseline is the twin (``tests/replay/astra_twin.py``), the plain Python simulator that the tests hold the engine
to: a heap of events over objects. It is run on a case a part of the size, and rates are compared.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tracegen  # noqa: F401  (before tests/, which has a folder of that name, is on the path)

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "replay")]

# ruff: noqa: E402
from astra_inputs import read_inputs
from astra_twin import simulate as twin
from bench_engine import Row, best
from handmade import coll, comp, graph

from tracegen.proto.encode import write_rank
from tracegen.proto.files import read_traces
from tracegen.proto.graph import Groups, RankGraph, TraceSet
from tracegen.replay import Fabric, Mode
from tracegen.replay.engine import run
from tracegen.replay.message.engine import simulate

GROUP = 8
ROUNDS, COMPUTE, GROUPED = 100, 20, 5  # 2,000 compute nodes, 500 collectives in groups, 100 of all ranks: 2,600 nodes


def system(ranks_a_dimension: Sequence[int], splits: int = 1) -> dict[str, Any]:
    """A system.json: ring everywhere."""
    ring = ["ring"] * len(ranks_a_dimension)
    lists = {f"{name}-implementation": ring for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")}
    return {
        "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": splits, "collective-optimization": "localBWAware", "local-mem-bw": 1600, **lists,
    }  # fmt: skip


def network(sizes: Sequence[int], topology: str = "Ring") -> dict[str, Any]:
    """A network.yml: 100 GiB/s and 500 ns on every dimension."""
    many = len(sizes)
    figures = {"bandwidth": [100.0] * many, "latency": [500.0] * many}
    return {"topology": [topology] * many, "npus_count": list(sizes), **figures}


def one_collective(ranks: int, size: int, us: Callable[[int], int] = lambda rank: 0) -> TraceSet:
    """An all-reduce of all ranks, each after a compute node of its own length where ``us`` is not 0."""
    lengths = [us(rank) for rank in range(ranks)]
    graphs: list[RankGraph] = []
    for length in sorted(set(lengths)):
        nodes = [comp(0, 1000 * length)] if length else []
        graphs.append(graph([*nodes, coll(1, 0, size=size, deps=[0] if length else [])], {("group", 0): 0}))
    place = {length: number for number, length in enumerate(sorted(set(lengths)))}
    class_of = np.array([place[length] for length in lengths], np.int32)
    groups = Groups.of([list(range(ranks))], ["world"], [0])
    return TraceSet(tuple(graphs), class_of, groups, np.zeros((ranks, 1), np.int32))


def training_like(ranks: int) -> TraceSet:
    """Each rank: 2,000 compute nodes, 500 all-reduces of 64 MB in groups of 8, 100 of all ranks of 1 MB, one chain."""
    nodes: list[dict[str, Any]] = []

    def add(make: Callable[..., dict[str, Any]], *given: Any, **more: Any) -> None:
        number = len(nodes)
        nodes.append(make(number, *given, deps=[number - 1] if number else [], **more))

    for _ in range(ROUNDS):
        for step in range(COMPUTE):
            add(comp, 10_000)
            if step % (COMPUTE // GROUPED) == COMPUTE // GROUPED - 1:
                add(coll, 1, size=64_000_000)
        add(coll, 0, size=1_000_000)
    many = ranks // GROUP
    members = [list(range(g * GROUP, (g + 1) * GROUP)) for g in range(many)]
    table = Groups.of([list(range(ranks)), *members], ["world"] + ["group"] * many, list(range(many + 1)))
    slots = np.stack([np.arange(ranks) // GROUP + 1, np.zeros(ranks)], 1).astype(np.int32)
    pattern = graph(nodes, {("group", 1): 0, ("group", 0): 1})
    return TraceSet((pattern,), np.zeros(ranks, np.int32), table, slots)


def twin_rate(traces: TraceSet, sizes: Sequence[int], *, aware: bool, topology: str = "Ring") -> tuple[float, float]:
    """Messages, and seconds per message, of the plain twin on these traces, through files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write(traces, path)
        (path / "network.yml").write_text(json.dumps(network(sizes, topology)))
        (path / "system.json").write_text(json.dumps(system(sizes)))
        (path / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
        inputs = read_inputs(path, aware=aware)
        began = time.perf_counter()
        twin(inputs)
        took = time.perf_counter() - began
    fabric = Fabric.from_astra(network(sizes, topology), system(sizes))
    return simulate(traces, fabric, Mode(congestion=aware), fold=False).messages, took


def write(traces: TraceSet, path: Path) -> None:
    """The traces and groups as files."""
    for rank in range(traces.ranks):
        with (path / f"trace.{rank}.et").open("wb") as file:
            write_rank(file, traces, rank)
    groups = traces.groups
    named = {str(n): groups.ranks(g).tolist() for g, n in enumerate(groups.number.tolist()) if n}
    (path / "comm_group.json").write_text(json.dumps(named))


def one_ring(aware: bool) -> Row:
    """1 GB all-reduce over 1,024 ranks."""
    traces, fabric = one_collective(1024, 10**9), Fabric.from_astra(network([1024]), system([1024]))
    mode = Mode(congestion=aware)
    took = best(lambda: run(traces, fabric, execution="astra", mode=mode))
    small = one_collective(128, 10**9)
    messages, seconds = twin_rate(small, [128], aware=aware)
    whole = seconds / messages * 2 * 1023 * 1024  # the twin's time at its rate for the messages of 1,024 ranks
    name = f"1 GB ring all-reduce, 1,024 ranks, {'aware' if aware else 'unaware'}"
    return (name, took * 1e3, "ms", whole / took, "the plain twin at its rate on 128 ranks")


def training_rows() -> list[Row]:
    """8 and 1,024 ranks of 2,600 nodes, unaware."""
    found: list[Row] = []
    eight = training_like(8)
    _, seconds = twin_rate(eight, [8], aware=False)
    for ranks, sizes in ((8, [8]), (1024, [8, 128])):
        traces, fabric = training_like(ranks), Fabric.from_astra(network(sizes), system(sizes))
        took = best(lambda t=traces, f=fabric: run(t, f, execution="astra"))  # type: ignore[misc]
        by_nodes = seconds * ranks / 8
        found.append((f"{ranks:,} ranks x 2,600 nodes", took * 1e3, "ms", by_nodes / took, "the plain twin, by nodes"))
    return found


def message_rows() -> list[Row]:
    """Congestion-aware, every rank entering at its own time, every message simulated."""
    traces = one_collective(256, 64_000_000, lambda rank: 1 + rank * 7 % 256)
    found: list[Row] = []
    for topology in ("Ring", "Switch"):
        fabric = Fabric.from_astra(network([256], topology), system([256], 4))
        done = simulate(traces, fabric, Mode(congestion=True), fold=False)
        took = best(lambda f=fabric: simulate(traces, f, Mode(congestion=True), fold=False))  # type: ignore[misc]
        small = one_collective(32, 64_000_000, lambda rank: 1 + rank * 7 % 32)
        messages, seconds = twin_rate(small, [32], aware=True, topology=topology)
        rate = done.messages / took
        found.append((f"congestion, {topology.lower()}, skewed", rate / 1e6, "million messages/s",
                      rate / (messages / seconds), "the plain twin"))  # fmt: skip
    return found


def memory_row() -> Row:
    """Bytes held per node while every rank is simulated by itself."""
    traces, fabric = training_like(64), Fabric.from_astra(network([8, 8]), system([8, 8]))
    run(traces, fabric, execution="astra", fold=False)
    tracemalloc.start()
    done = run(traces, fabric, execution="astra", fold=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = peak + sum(each.nbytes for each in traces.graphs)
    return ("memory per node simulated, peak", held / len(done.end_ns), "B", held / len(done.end_ns) / 320,
            "320 B a node of STAGE's traces")  # fmt: skip


def files_row() -> Row:
    """1,024 files of 2,600 nodes read and replayed."""
    traces = training_like(1024)
    fabric = Fabric.from_astra(network([8, 128]), system([8, 128]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write(traces, path)
        groups = {int(n): r for n, r in json.loads((path / "comm_group.json").read_text()).items()}

        def read_and_replay() -> None:
            run(read_traces(path / "trace", groups=groups, ranks=1024), fabric, execution="astra")

        took = best(read_and_replay, 1)
        alone = best(lambda: read_traces(path / "trace", groups=groups, ranks=1024), 1)
    return ("1,024 files of 2,600 nodes, read and replayed", took, "s", took / alone, "reading alone")


def rows() -> list[Row]:
    """Every figure."""
    return [one_ring(False), one_ring(True), *training_rows(), *message_rows(), memory_row(), files_row()]


if __name__ == "__main__":
    for row in rows():
        print("{}: {:.3g} {}, {:.3g} x {}".format(*row))
