"""What a run put on each network dimension (DEFINITIONS 12), and when a rank had two operations on one (DEFINITIONS 6).

Counts what ended. A message is injected on every dimension that counts for its time: all that its ends differ in under
`streams`, the lowest under `astra`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracegen.replay.astra_collectives import astra_cost
from tracegen.replay.collectives import Cost
from tracegen.replay.plan import ASTRA, SEND, ClassPlan, kinds_of_joins
from tracegen.replay.routes import routes
from tracegen.replay.run import Run
from tracegen.replay.spans import StreamCosts

Counted = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Traffic:
    """Figures per dimension.

    Parameters
    ----------
    nbytes : i64[dims], injected by all ranks.
    busy_ns : i64[dims], the largest over ranks of their sum of floor(message bytes / bandwidth).
    links : i64[dims], most links of one rank that an operation uses at once; 1 where nothing is sent.
    """

    nbytes: NDArray[np.int64]
    busy_ns: NDArray[np.int64]
    links: NDArray[np.int64]

    def utilisation(self, run: Run, makespan_ns: int) -> NDArray[np.float64]:
        """nbytes / (ranks links B makespan), f64[dims]; 0 where the makespan is."""
        room = run.traces.ranks * self.links * np.array(run.fabric.bandwidth) * makespan_ns
        share: NDArray[np.float64] = np.divide(self.nbytes, room, out=np.zeros(len(room)), where=room > 0)
        return share


def traffic(run: Run) -> Traffic:
    """Sum up what every operation that ended put on each dimension."""
    dims = run.fabric.dimensions
    nbytes = np.zeros((run.cells, dims))
    busy = np.zeros((run.cells, dims), np.int64)
    links = np.ones(dims, np.int64)
    cost = _cost_of(run)
    ended = run.end_ns[run.assembly.places()] >= 0
    for number, plan in enumerate(run.assembly.plans):
        cells = run.assembly.cells_of_class(number)
        if len(cells):
            _count_sends(run, plan, cells, ended, nbytes, busy)
            _count_joins(run, plan, cells, ended, cost, (nbytes, busy, links))
    ranks_of = np.bincount(run.cell_of, minlength=run.cells)
    total = np.rint((nbytes * ranks_of[:, None]).sum(axis=0)).astype(np.int64)
    return Traffic(total, busy.max(axis=0, initial=0), links)


def shared_time_ns(run: Run) -> NDArray[np.int64]:
    """Per dimension, time in which a rank has two sends or collectives in transfer on it, over all ranks. i64[dims]."""
    dims = run.fabric.dimensions
    total = np.zeros(dims, np.int64)
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
            total[d] += ranks_of[cell] * _doubled(begin[rows][on], end[rows][on])
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
    nbytes: NDArray[np.float64],
    busy: NDArray[np.int64],
) -> None:
    rank = run.representative[cells]
    for slot in np.unique(plan.slot[plan.act == SEND]).tolist():
        sends = np.flatnonzero((plan.act == SEND) & (plan.slot == slot))
        done = ended[run.assembly.node_ptr[cells][:, None] + sends]
        mask = run.slots.peer_routes.dims[rank, slot]
        for d, bandwidth in enumerate(run.fabric.bandwidth):
            crosses = (mask >> d & 1).astype(np.int64)
            nbytes[cells, d] += crosses * (done @ plan.nbytes[sends])
            busy[cells, d] += crosses * (done @ np.floor(plan.nbytes[sends] / bandwidth).astype(np.int64))


def _count_joins(
    run: Run,
    plan: ClassPlan,
    cells: NDArray[np.int64],
    ended: NDArray[np.bool_],
    cost: Callable[[int, int, int], Cost],
    out: Counted,
) -> None:
    nbytes, busy, links = out
    rank = run.representative[cells]
    joins, kinds, which = kinds_of_joins(plan)
    for k, (slot, kind, size) in enumerate(kinds):
        done = ended[run.assembly.node_ptr[cells][:, None] + joins[which == k]].sum(axis=1)
        shape = run.slots.shape[run.slots.names[rank, slot]]
        for one in np.unique(shape).tolist():
            priced, on = cost(one, kind, size), shape == one
            for d, use in priced.uses:
                nbytes[cells[on], d] += done[on] * use.nbytes
                busy[cells[on], d] += done[on] * use.busy_ns
                links[d] = max(links[d], use.links)
            if priced.edge_messages:
                mask = _next_dims(run, rank[on], slot)
                for d, bandwidth in enumerate(run.fabric.bandwidth):
                    sent = done[on] * (mask >> d & 1) * priced.edge_messages
                    nbytes[cells[on], d] += sent * priced.edge_bytes
                    busy[cells[on], d] += (sent * np.floor(priced.edge_bytes / bandwidth)).astype(np.int64)


def _next_dims(run: Run, rank: NDArray[np.int32], slot: int) -> NDArray[np.int64]:
    """Dimensions between each rank and the member after it in the group that its slot names, as a mask."""
    groups = run.slots.groups
    group, place = run.slots.names[rank, slot], run.slots.place[rank, slot]
    following = np.where(place + 1 < groups.ptr[group + 1], place + 1, groups.ptr[group])
    way = routes(run.fabric, rank, groups.members[following], lowest_only=run.execution == ASTRA)
    return way.dims.astype(np.int64)


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
                mask = np.full(int(on.sum()), sum(1 << d for d, _ in priced.uses))
                if priced.edge_messages:
                    mask |= _next_dims(run, rank[on], slot)
                masks[rows[on] + joins[which == k]] = mask[:, None]
    return masks
