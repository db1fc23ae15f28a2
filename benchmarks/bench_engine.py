"""The replay engine on Llama-3-70B: nodes per second, folded and not, beside a plain Python heap on the same nodes.

Run alone (`python benchmarks/bench_engine.py`) or by `make bench`. The heap is the obvious event loop over the same
arrays: compute, messages and collectives of one length each, one queue per stream; it does less than the engine does.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tracegen.build import build
from tracegen.proto.graph import TraceSet
from tracegen.replay.engine import run
from tracegen.replay.fabric import Fabric
from tracegen.replay.run import Run
from tracegen.spec import load_job
from tracegen.spec.network import astra_inputs

Row = tuple[str, float, str, float, str]  # name, figure, unit, ratio, what the ratio is to


def best(call: Callable[[], Any], times: int = 5) -> float:
    """Seconds of the fastest of a few runs after one warm-up: the others were disturbed."""
    call()
    found = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        call()
        found = min(found, time.perf_counter() - began)
    return found


def plain_heap(done: Run) -> int:
    """The makespan of a `streams` run's nodes by one heap of events over Python lists."""
    layout = done.assembly
    base = np.asarray(layout.class_start) - layout.node_ptr[:-1]
    succ_ptr, succ = layout.succ_ptr.tolist(), layout.succ.tolist()
    act, after = layout.act.tolist(), layout.after.tolist()
    cell_of, first, shift = layout.cell_of_node.tolist(), layout.node_ptr.tolist(), base.tolist()
    mate, instance, needed = layout.mate.tolist(), layout.instance.tolist(), layout.needed.tolist()
    member_ptr, members = layout.member_ptr.tolist(), layout.members.tolist()
    span = done.duration_ns[layout.places()].tolist()
    left = []
    for v, cell in enumerate(cell_of):
        g = v + shift[cell]
        left.append(int(layout.indegree[g]) + (layout.before[g] >= 0) + (act[g] == 3))
    events = [(0, v) for v, waits in enumerate(left) if waits == 0]
    now = 0
    ends: list[tuple[int, int]] = []
    while events or ends:
        if events:
            now, v = heapq.heappop(events)
            if act[v + shift[cell_of[v]]] == 4:
                i = instance[v]
                needed[i] -= 1
                if needed[i] == 0:
                    for w in members[member_ptr[i] : member_ptr[i + 1]]:
                        heapq.heappush(ends, (now + span[v], w))
            else:
                heapq.heappush(ends, (now + span[v], v))
            if events and (not ends or events[0][0] <= ends[0][0]):
                continue
        if not ends:
            continue
        now, v = heapq.heappop(ends)
        cell = cell_of[v]
        g = v + shift[cell]
        freed = [first[cell] + s for s in succ[succ_ptr[g] : succ_ptr[g + 1]]]
        if after[g] >= 0:
            freed.append(first[cell] + after[g])
        if act[g] == 2 and mate[v] >= 0:
            freed.append(mate[v])
        for w in freed:
            left[w] -= 1
            if left[w] == 0:
                heapq.heappush(events, (now, w))
    return now


def rows() -> list[Row]:
    """Nodes per second and seconds of a replay of Llama-3-70B on 64 ranks at operator granularity."""
    job = load_job("llama3-70b.yaml")
    traces = build(job).traces
    inputs = astra_inputs(job.network, job.device.memory_bandwidth)
    fabrics = {
        "streams": Fabric.from_network(job.network),
        "astra": Fabric.from_astra(inputs.network, inputs.system),
    }
    whole = run(traces, fabrics["streams"], execution="streams", fold=False)
    began = time.perf_counter()
    makespan = plain_heap(whole)
    heap_s = time.perf_counter() - began
    if makespan != int(whole.end_ns.max()):
        raise SystemExit(f"the plain heap says {makespan} ns, the engine {int(whole.end_ns.max())}")
    heap_rate = traces.nodes / heap_s
    found: list[Row] = []
    for execution, fabric in fabrics.items():
        for fold in (False, True):
            took, nodes = _timed(traces, fabric, execution, fold)
            name = f"engine, {execution}, {'one rank per cell' if fold else 'every rank'}"
            found.append(
                (f"{name} ({nodes:,} nodes)", nodes / took, "nodes/s", nodes / took / heap_rate, "a plain heap")
            )
            if fold:
                found.append(
                    (f"replay of 70B, {execution}, folded", took, "s", heap_s / took, "a plain heap, every rank")
                )
    return found


def _timed(traces: TraceSet, fabric: Fabric, execution: str, fold: bool) -> tuple[float, int]:
    """Seconds of a whole run (plan, fold, layout, engine), and nodes simulated."""
    nodes = len(run(traces, fabric, execution=execution, fold=fold).end_ns)
    return best(lambda: run(traces, fabric, execution=execution, fold=fold), 7 if fold else 3), nodes


if __name__ == "__main__":
    for row in rows():
        print("{}: {:.3g} {}, {:.3g} x {}".format(*row))
