"""Where each rank's time went: compute, exposed by label, bubble, idle (DEFINITIONS 9-10), exact integers.

Owns the cutting of a replayed run into parts, done once per cell and spread over its ranks. Knows no figures of the
job but each rank's stage, and prints nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import Groups, Kind, RankGraph, TraceSet
from tracegen.replay.parts_kernels import cut_gaps
from tracegen.replay.run import Run

_COMPUTE, _BUBBLE, _IDLE, _EXPOSED = 0, 1, 2, 3  # columns of a cell's totals; from _EXPOSED on, one per label


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of every rank's time; for each rank compute + exposed + bubble + idle = makespan.

    Parameters
    ----------
    labels : what exposed time is charged to, sorted.
    finish_ns : i64[ranks], end of the rank's last node; -1 where a node never ended.
    makespan_ns : end of the last node of all ranks.
    compute_ns, bubble_ns, idle_ns : i64[ranks].
    exposed_ns : i64[ranks, labels].
    """

    labels: tuple[str, ...]
    finish_ns: NDArray[np.int64]
    makespan_ns: int
    compute_ns: NDArray[np.int64]
    bubble_ns: NDArray[np.int64]
    idle_ns: NDArray[np.int64]
    exposed_ns: NDArray[np.int64]


def group_labels(groups: Groups) -> tuple[str, ...]:
    """The printed name of each group: its label, else ``world`` or ``group N``."""
    return tuple(
        label or ("world" if number == 0 else f"group {number}")
        for label, number in zip(groups.label, groups.number.tolist(), strict=True)
    )


def used_labels(traces: TraceSet) -> tuple[str, ...]:
    """Labels of everything the traces communicate over, sorted."""
    names = group_labels(traces.groups)
    found: set[str] = set()
    for index, graph in enumerate(traces.graphs):
        kinds = np.bincount(graph.kind, minlength=max(Kind) + 1)
        if kinds[Kind.SEND] + kinds[Kind.RECV]:
            found.add(traces.message_label)
        if kinds[Kind.COLL]:
            slots = np.unique(graph.slot[graph.kind == Kind.COLL])
            groups = np.unique(traces.slots[traces.class_of == index][:, slots[slots >= 0]])
            found.update(names[group] for group in groups.tolist() if group >= 0)
    return tuple(sorted(found))


def node_labels(traces: TraceSet, rank: int, labels: tuple[str, ...]) -> NDArray[np.int64]:
    """Which of ``labels`` each node of a rank's graph communicates over, as i64[n]; -1 for what does not."""
    graph = traces.graph(rank)
    index = {label: number for number, label in enumerate(labels)}
    of_group = np.array([index.get(name, -1) for name in group_labels(traces.groups)] + [-1], np.int64)
    code = np.full(len(graph), -1, np.int64)
    collectives = np.flatnonzero((graph.kind == Kind.COLL) & (graph.slot >= 0))
    code[collectives] = of_group[traces.slots[rank, graph.slot[collectives]]]
    code[is_message(graph)] = index.get(traces.message_label, -1)
    return code


def is_message(graph: RankGraph) -> NDArray[np.bool_]:
    """Which nodes are sends or receives."""
    return np.asarray((graph.kind == Kind.SEND) | (graph.kind == Kind.RECV))


def on_compute_stream(graph: RankGraph) -> NDArray[np.bool_]:
    """Which nodes run on the compute stream; work of the host does not."""
    return np.asarray((graph.kind == Kind.COMP) & ~graph.cpu)


def parts(run: Run, stage_of: NDArray[np.int32] | None = None) -> Parts:
    """Cut every rank's time.

    Parameters
    ----------
    run : what the engine did; nodes that never ended count as nothing.
    stage_of : i32[ranks], pipeline stages; without them only receives wait in bubbles.

    Notes
    -----
    A rank that cannot finish is cut up to its last ended node; what follows is idle.
    """
    labels = used_labels(run.traces)
    cells = len(run.representative)
    totals = np.zeros((cells, _EXPOSED + len(labels)), np.int64)
    stop = np.zeros(cells, np.int64)
    finished = np.ones(cells, np.bool_)
    for cell in range(cells):
        stop[cell], finished[cell] = _cut_cell(run, cell, labels, stage_of, totals[cell])
    makespan = int(stop.max(initial=0))
    cell_of = run.cell_of
    bubble, idle = totals[cell_of, _BUBBLE], totals[cell_of, _IDLE]
    rest = makespan - stop[cell_of]
    if stage_of is not None and len(cell_of):
        last = int(np.argmax(stop[cell_of]))
        after = finished[cell_of] & (stage_of != stage_of[last])
    else:
        after = np.zeros(len(cell_of), np.bool_)
    return Parts(
        labels=labels,
        finish_ns=np.where(finished, stop, -1)[cell_of],
        makespan_ns=makespan,
        compute_ns=totals[cell_of, _COMPUTE],
        bubble_ns=bubble + np.where(after, rest, 0),
        idle_ns=idle + np.where(after, 0, rest),
        exposed_ns=totals[cell_of, _EXPOSED:],
    )


def _cut_cell(
    run: Run, cell: int, labels: tuple[str, ...], stage_of: NDArray[np.int32] | None, totals: NDArray[np.int64]
) -> tuple[int, bool]:
    """Cut one cell up to its last ended node; that node's end and whether all nodes ended."""
    rank = int(run.representative[cell])
    graph = run.traces.graph(rank)
    nodes = slice(int(run.node_ptr[cell]), int(run.node_ptr[cell + 1]))
    end, issue, late = run.end_ns[nodes], run.issue_ns[nodes], run.late_rank[nodes]
    if not len(end):
        return 0, True
    label = node_labels(run.traces, rank, labels)
    if stage_of is None:
        bubbles = (graph.kind == Kind.RECV) & (late >= 0)
    else:
        bubbles = (label >= 0) & (late >= 0) & (stage_of[late] != stage_of[rank])
    compute = np.flatnonzero(on_compute_stream(graph) & (end >= 0))
    compute = compute[np.lexsort((end[compute], issue[compute]))]
    stop = int(end.max())
    ties = np.flatnonzero(end == stop)
    last = int(ties[np.argmin(graph.id[ties])]) if stop >= 0 else -1
    cut_gaps(
        compute, last, graph.id, graph.data_ptr, graph.data_deps, graph.ctrl_ptr, graph.ctrl_deps,
        run.ready_ns[nodes], issue, run.transfer_ns[nodes], end, run.ahead[nodes], label, bubbles, totals,
    )  # fmt: skip
    return max(stop, 0), bool((end >= 0).all())
