"""What a run put on each network dimension (DEFINITIONS 12), and when a rank had two operations on one (DEFINITIONS 6).

Sums are float64, exact up to 2^53, and any integer above: a foreign trace may send 2^62 bytes many times.

Counts what ended. A message is injected on every dimension that counts for its time: all that its ends differ in under
`streams`, the lowest under `astra`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegen.replay.cells.plan import ASTRA, SEND, ClassPlan, kinds_of_joins
from tracegen.replay.cells.spans import StreamCosts
from tracegen.replay.fabric import SWITCH
from tracegen.replay.prices.astra_collectives import astra_cost
from tracegen.replay.prices.collectives import Cost
from tracegen.replay.prices.routes import routes
from tracegen.replay.run import Run


@dataclass(frozen=True, eq=False)
class _Counts:
    """Bytes and busy ns f64 of each cell, [cells, dims], and of each rank where members of a cell differ; links
    i64[dims] as in `Traffic`."""

    nbytes: NDArray[np.float64]
    busy: NDArray[np.float64]
    rank_nbytes: NDArray[np.float64]
    rank_busy: NDArray[np.float64]
    links: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Traffic:
    """Figures per dimension.

    Parameters
    ----------
    nbytes : int[dims] of any size, injected by all ranks.
    busy_ns : int[dims] of any size, the largest over ranks of their sum of floor(message bytes / bandwidth).
    links : i64[dims], most links of one rank that an operation uses at once; 1 where nothing is sent.
    """

    nbytes: NDArray[np.object_]
    busy_ns: NDArray[np.object_]
    links: NDArray[np.int64]

    def utilisation(self, run: Run, makespan_ns: int) -> NDArray[np.float64]:
        """nbytes / (ranks links B makespan), f64[dims]; 0 where the makespan is."""
        room = run.traces.ranks * self.links * np.array(run.fabric.bandwidth) * float(makespan_ns)
        share: NDArray[np.float64] = np.divide(
            self.nbytes.astype(np.float64), room, out=np.zeros(len(room)), where=room > 0
        )
        return share


def traffic(run: Run) -> Traffic:
    """Sum up what every operation that ended put on each dimension."""
    if run.links is not None:
        return _of_links(run, run.links)
    shapes = (run.cells, run.fabric.dimensions), (run.traces.ranks, run.fabric.dimensions)
    nbytes, rank_nbytes = (np.zeros(shape) for shape in shapes)
    busy, rank_busy = (np.zeros(shape) for shape in shapes)
    counts = _Counts(nbytes, busy, rank_nbytes, rank_busy, np.ones(run.fabric.dimensions, np.int64))
    cost = _cost_of(run)
    ended = run.end_ns[run.assembly.places()] >= 0
    for number, plan in enumerate(run.assembly.plans):
        cells = run.assembly.cells_of_class(number)
        if len(cells):
            _count_sends(run, plan, cells, ended, counts)
            _count_joins(run, plan, cells, ended, cost, counts)
    total = (nbytes[run.cell_of] + rank_nbytes).sum(axis=0)
    return Traffic(_integers(total), _integers((busy[run.cell_of] + rank_busy).max(axis=0, initial=0)), counts.links)


def _integers(values: NDArray[np.float64]) -> NDArray[np.object_]:
    """The nearest integers, of any size."""
    return np.array([round(value) for value in values.tolist()], object)


def _of_links(run: Run, links: NDArray[np.int64]) -> Traffic:
    """The same from the links of a message-level run: what ports injected, and on a ring what its links passed on."""
    nbytes, busy = links[:, 1].astype(np.float64), links[:, 2].astype(np.float64)
    if not run.mode.congestion:
        shape = (run.traces.ranks, run.fabric.dimensions)
        ports = np.ones(run.fabric.dimensions, np.int64)
        most = busy.reshape(shape).max(axis=0, initial=0)
        return Traffic(_integers(nbytes.reshape(shape).sum(axis=0)), _integers(most), ports)
    if run.fabric.topology[0] == SWITCH:  # up links come first; what goes up comes down
        up = slice(0, run.traces.ranks)
        most = busy[up].max(keepdims=True)
        return Traffic(_integers(nbytes[up].sum(keepdims=True)), _integers(most), np.ones(1, np.int64))
    own = busy.reshape(run.traces.ranks, -1)
    used = (nbytes.reshape(own.shape) > 0).sum(axis=1).max(keepdims=True)
    most = own.sum(axis=1).max(keepdims=True)
    return Traffic(_integers(nbytes.sum(keepdims=True)), _integers(most), np.maximum(used, 1))


def shared_time_ns(run: Run) -> NDArray[np.float64]:
    """Per dimension, time in which a rank has two sends or collectives in transfer on it, over all ranks. f64[dims]."""
    dims = run.fabric.dimensions
    total = np.zeros(dims)
    if run.execution == ASTRA:  # one communication slot
        return total
    masks = _masks(run)
    place = run.assembly.places()
    begin, end = run.transfer_ns[place], run.end_ns[place]
    ranks_of = np.bincount(run.cell_of, minlength=run.cells)
    for cell in range(run.cells):
        rows = slice(int(run.node_ptr[cell]), int(run.node_ptr[cell + 1]))
        for d in range(dims):
            on = np.flatnonzero((masks[rows] >> d & 1 > 0) & (end[rows] > begin[rows]))
            total[d] += float(ranks_of[cell]) * _doubled(begin[rows][on], end[rows][on])
    return total


def _doubled(begin: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """Time covered by two or more of the intervals."""
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    depth = np.cumsum(np.where(order < len(begin), 1, -1))
    return int(np.diff(times[order])[depth[:-1] > 1].sum()) if len(times) else 0


def _cost_of(run: Run) -> Callable[[int, int, int], Cost]:
    """The cost of a collective by geometry, kind and bytes."""
    if run.execution != ASTRA:
        return StreamCosts(run.fabric, run.slots).cost

    def cost(shape: int, kind: int, nbytes: int) -> Cost:
        group = int(run.slots.shape_of[shape])
        return astra_cost(run.fabric, run.slots.groups.ranks(group).tolist(), int(run.slots.mask[group]), kind, nbytes)

    return cost


def _count_sends(
    run: Run,
    plan: ClassPlan,
    cells: NDArray[np.int64],
    ended: NDArray[np.bool_],
    counts: _Counts,
) -> None:
    rank = run.representative[cells]
    for slot in np.unique(plan.slot[plan.act == SEND]).tolist():
        sends = np.flatnonzero((plan.act == SEND) & (plan.slot == slot))
        done = ended[run.assembly.node_ptr[cells][:, None] + sends]
        mask = run.slots.peer_routes.dims[rank, slot]
        for d, bandwidth in enumerate(run.fabric.bandwidth):
            crosses = (mask >> d & 1).astype(np.int64)
            counts.nbytes[cells, d] += crosses * (done @ plan.nbytes[sends].astype(np.float64))
            counts.busy[cells, d] += crosses * (done @ np.floor(plan.nbytes[sends] / bandwidth))


def _count_joins(
    run: Run,
    plan: ClassPlan,
    cells: NDArray[np.int64],
    ended: NDArray[np.bool_],
    cost: Callable[[int, int, int], Cost],
    counts: _Counts,
) -> None:
    rank = run.representative[cells]
    joins, kinds, which = kinds_of_joins(plan)
    for k, (slot, kind, size) in enumerate(kinds):
        done = ended[run.assembly.node_ptr[cells][:, None] + joins[which == k]].sum(axis=1)
        shape = run.slots.shape[run.slots.names[rank, slot]]
        for one in np.unique(shape).tolist():
            priced, on = cost(one, kind, size), shape == one
            for d, use in priced.uses:
                counts.nbytes[cells[on], d] += done[on] * float(use.nbytes)
                counts.busy[cells[on], d] += done[on] * float(use.busy_ns)
                counts.links[d] = max(counts.links[d], use.links)
            if priced.edge_messages:
                times = np.zeros(run.cells, np.int64)
                times[cells[on]] = done[on]
                _count_edges(run, slot, times, priced, counts)


def _count_edges(run: Run, slot: int, times: NDArray[np.int64], priced: Cost, counts: _Counts) -> None:
    """Messages to the next member, rank by rank: members of one cell may stand at unlike places of their group."""
    rank = np.flatnonzero(times[run.cell_of])
    mask, last = _next_dims(run, rank, slot)
    if not priced.closed:
        mask = np.where(last, 0, mask)
    for d, bandwidth in enumerate(run.fabric.bandwidth):
        sent = times[run.cell_of[rank]] * (mask >> d & 1) * float(priced.edge_messages)
        counts.rank_nbytes[rank, d] += sent * float(priced.edge_bytes)
        counts.rank_busy[rank, d] += sent * np.floor(priced.edge_bytes / bandwidth)


def _next_dims(run: Run, rank: NDArray[Any], slot: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Dimensions between each rank and the member after it in the group that its slot names, as a mask; is it last."""
    groups = run.slots.groups
    group, place = run.slots.names[rank, slot], run.slots.place[rank, slot]
    last = place + 1 == groups.ptr[group + 1]
    following = np.where(last, groups.ptr[group], place + 1)
    way = routes(run.fabric, rank, groups.members[following], lowest_only=run.execution == ASTRA)
    return way.dims.astype(np.int64), last


def _masks(run: Run) -> NDArray[np.int64]:
    """Dimensions each send and collective is in transfer on, i64[nodes] in id order; 0 for other nodes."""
    masks = np.zeros(run.assembly.nodes, np.int64)
    cost = _cost_of(run)
    for number, plan in enumerate(run.assembly.plans):
        cells = run.assembly.cells_of_class(number)
        if not len(cells):
            continue
        rank, rows = run.representative[cells], run.assembly.node_ptr[cells][:, None]
        sends = np.flatnonzero(plan.act == SEND)
        masks[rows + sends] = run.slots.peer_routes.dims[rank][:, plan.slot[sends]]
        joins, kinds, which = kinds_of_joins(plan)
        for k, (slot, kind, size) in enumerate(kinds):
            shape = run.slots.shape[run.slots.names[rank, slot]]
            for one in np.unique(shape).tolist():
                priced, on = cost(one, kind, size), shape == one
                mask = sum(1 << d for d, _ in priced.uses)
                if priced.edge_messages:
                    mask |= _ring_dims(run, one)
                masks[rows[on] + joins[which == k]] = mask
    return masks


def _ring_dims(run: Run, shape: int) -> int:
    """Dimensions that the edges of a flat ring cross, as a mask: it is in transfer on them for all its members."""
    ranks = run.slots.groups.ranks(int(run.slots.shape_of[shape]))
    way = routes(run.fabric, ranks, np.roll(ranks, -1), lowest_only=run.execution == ASTRA)
    return int(np.bitwise_or.reduce(way.dims))
