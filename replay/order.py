"""The order within one rank's graph: what can run at all, a cycle where something cannot, the order of calls.

Works on one graph and its dependencies only; streams, groups and other ranks are the engine's.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import RankGraph
from tracegen.replay.cells.plan_kernels import reverse
from tracegen.replay.order_kernels import use_up

_LONGEST_CHAIN = 64


class Wait(NamedTuple):
    """One edge of a cycle: the node at ``position`` waits for the next one's; ``edge`` is ``data`` or ``ctrl``."""

    position: int
    edge: str


def _ascends(graph: RankGraph, key: NDArray[np.generic]) -> bool:
    """Whether every node's dependencies have smaller keys than its own."""
    for ptr, deps in ((graph.data_ptr, graph.data_deps), (graph.ctrl_ptr, graph.ctrl_deps)):
        if not (key[deps] < np.repeat(key, np.diff(ptr))).all():
            return False
    return True


def _successors(graph: RankGraph) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    n = len(graph)
    ptr, waits = np.zeros(n + 1, np.int64), np.zeros(n, np.int32)
    succ = np.zeros(len(graph.data_deps) + len(graph.ctrl_deps), np.int32)
    reverse(graph.data_ptr, graph.data_deps, graph.ctrl_ptr, graph.ctrl_deps, ptr, succ, waits)
    return ptr, succ, waits


def stuck_nodes(graph: RankGraph) -> NDArray[np.int64]:
    """Positions of nodes that can never run because of a cycle they are on or behind; empty where there is none."""
    if _ascends(graph, np.arange(len(graph))) or _ascends(graph, graph.id):
        return np.zeros(0, np.int64)
    ptr, succ, waits = _successors(graph)
    use_up(ptr, succ, waits)
    return np.flatnonzero(waits > 0)


def find_cycle(graph: RankGraph, stuck: NDArray[np.int64]) -> list[Wait]:
    """One cycle among stuck nodes, from its lowest id on: each waits for the next, the last for the first.

    Every stuck node waits for another stuck node, so walking on among them must come round.
    """
    held = np.zeros(len(graph), np.bool_)
    held[stuck] = True
    seen: dict[int, int] = {}
    path: list[Wait] = []
    node = int(stuck[np.argmin(graph.id[stuck])])
    while node not in seen:
        seen[node] = len(path)
        data = graph.data_deps[graph.data_ptr[node] : graph.data_ptr[node + 1]]
        ctrl = graph.ctrl_deps[graph.ctrl_ptr[node] : graph.ctrl_ptr[node + 1]]
        edge, following = next(
            (name, int(deps[held[deps]][0])) for name, deps in (("data", data), ("ctrl", ctrl)) if held[deps].any()
        )
        path.append(Wait(node, edge))
        node = following
    cycle = path[seen[node] :]
    first = min(range(len(cycle)), key=lambda k: int(graph.id[cycle[k].position]))
    return cycle[first:] + cycle[:first]


def after_any(graph: RankGraph, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which nodes wait, directly or through others, for one of the wanted; chains of up to 64 others are followed."""
    edges = [
        (np.repeat(np.arange(len(graph)), np.diff(ptr)), deps)
        for ptr, deps in ((graph.data_ptr, graph.data_deps), (graph.ctrl_ptr, graph.ctrl_deps))
    ]
    waits, on = (np.concatenate(part) for part in zip(*edges, strict=True))
    found = np.zeros(len(graph), np.bool_)
    for _ in range(_LONGEST_CHAIN):
        fresh = np.zeros(len(graph), np.bool_)
        fresh[waits[(wanted | found)[on]]] = True
        if not (fresh & ~found).any():
            return found
        found |= fresh
    return np.ones(len(graph), np.bool_)


def id_order(graph: RankGraph) -> NDArray[np.int64]:
    """Positions by ascending id: the order in which a stream runs its nodes."""
    if len(graph) < 2 or (graph.id[1:] > graph.id[:-1]).all():
        return np.arange(len(graph))
    return np.argsort(graph.id, kind="stable")


def call_order(graph: RankGraph) -> NDArray[np.int64]:
    """Positions in the order in which nodes are issued when nothing takes time: lowest ready id first.

    That is ascending id wherever ids are a topological order. Nodes that can never run come last, by id.
    """
    n = len(graph)
    by_id = id_order(graph)
    if _ascends(graph, graph.id):
        return by_id
    ptr, succ, waits = _successors(graph)
    place = np.empty(n, np.int64)
    place[by_id] = np.arange(n)
    heap = sorted(place[waits == 0].tolist())
    out: list[int] = []
    while heap:
        node = int(by_id[heapq.heappop(heap)])
        out.append(node)
        for other in succ[ptr[node] : ptr[node + 1]].tolist():
            waits[other] -= 1
            if waits[other] == 0:
                heapq.heappush(heap, int(place[other]))
    rest = by_id[waits[by_id] > 0]
    return np.concatenate([np.array(out, np.int64), rest])
