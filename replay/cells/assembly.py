"""One run laid out flat: the cells' nodes one after the other, who is whose mate, who joins whom, how long each takes.

Everything here is array arithmetic over (cells of a class) x (nodes of the class). Kernels read it; `Run` keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracegen.replay.cells.plan import JOIN, RECV, SEND, ClassPlan, match
from tracegen.replay.cells.slots import GROUP, Slots


@dataclass(frozen=True, eq=False)
class Assembly:
    """The nodes of all cells, flat: cell c holds ``node_ptr[c]:node_ptr[c + 1]``, in id order.

    Parameters
    ----------
    cell_of_node : i32[nodes]. class_start : i64[cells], where the cell's class begins in the class columns.
    act, lane : u8; slot : i32; asked : i64, type and bytes of a collective as one number;
        succ_ptr : i64; succ, indegree, before, after : i32, the class columns, classes one after the other
        (neighbours as positions inside the class).
    mate : i64[nodes], the send of a receive and the receive of a send; -1 none, or decided by the order of issue.
    channel : i32[nodes], messages of one key shared by several, which the order of issue pairs; -1 others.
    instance : i32[nodes], which collective a join belongs to, by its turn on its slot; -1 none. first_instance :
        i64[cells, slots], the first of the group a cell's slot names.
    member_ptr, members : i64, joins of each instance, one per distinct (cell, slot) of its group; -1 where missing.
    needed : i32[instances], joins to wait for.
    pool_of_instance : i32[instances]. pools : the groups as sets of (cell, slot).
    """

    plans: tuple[ClassPlan, ...]
    class_of_cell: NDArray[np.int32]
    node_ptr: NDArray[np.int64]
    cell_of_node: NDArray[np.int32]
    class_start: NDArray[np.int64]
    act: NDArray[np.uint8]
    lane: NDArray[np.uint8]
    slot: NDArray[np.int32]
    asked: NDArray[np.int64]
    succ_ptr: NDArray[np.int64]
    succ: NDArray[np.int32]
    indegree: NDArray[np.int32]
    before: NDArray[np.int32]
    after: NDArray[np.int32]
    mate: NDArray[np.int64]
    channel: NDArray[np.int32]
    instance: NDArray[np.int32]
    first_instance: NDArray[np.int64]
    member_ptr: NDArray[np.int64]
    members: NDArray[np.int64]
    needed: NDArray[np.int32]
    pool_of_instance: NDArray[np.int32]
    pools: Pools

    @property
    def nodes(self) -> int:
        """Nodes of all cells."""
        return len(self.cell_of_node)

    def places(self) -> NDArray[np.int64]:
        """Where each node stands in a flat column in graph order (`Run`), i64[nodes]."""
        out = np.arange(self.nodes)
        for number, plan in enumerate(self.plans):
            rows = self.node_ptr[self.cells_of_class(number)][:, None]
            if plan.reordered:
                out[rows + np.arange(len(plan))] = rows + plan.order
        return out

    def cells_of_class(self, number: int) -> NDArray[np.int64]:
        """Cells whose ranks run a class."""
        return np.flatnonzero(self.class_of_cell == number)


@dataclass(frozen=True, eq=False)
class Pools:
    """Groups after folding: each pool is the set of (cell, slot) pairs that a group's members fall in.

    Parameters
    ----------
    of : i32[cells, slots], pool a cell's slot belongs to; -1 for slots of no group.
    seat : i32[cells, slots], which of the pool's pairs it is.
    group : i32[pools], one actual group of each.
    ptr : i64[pools + 1]; cell, slot : i32 of each pair.
    missing : i32[pools], pairs whose members never name the group (they make it impossible to complete).
    position_ptr : i64[pools + 1]; position : i32, per member of the actual group, in order, its pair.
    """

    of: NDArray[np.int32]
    seat: NDArray[np.int32]
    group: NDArray[np.int32]
    ptr: NDArray[np.int64]
    cell: NDArray[np.int32]
    slot: NDArray[np.int32]
    missing: NDArray[np.int32]
    position_ptr: NDArray[np.int64]
    position: NDArray[np.int32]


def make_pools(slots: Slots, cell_of: NDArray[np.int32], representative: NDArray[np.int32]) -> Pools:
    """The groups that the representatives name, as pools of (cell, slot) pairs.

    By the fold every group in which a pair occurs holds the same pairs, so the pairs of one representative's group are
    the pool of all of them.
    """
    use, names = slots.use[representative], slots.names[representative]
    of = np.full(use.shape, -1, np.int32)
    seat = np.full(use.shape, -1, np.int32)
    groups = slots.groups
    chosen: list[int] = []
    pairs: list[NDArray[np.int64]] = []
    positions: list[NDArray[np.int32]] = []
    missing: list[int] = []
    width = use.shape[1] + 1
    for cell, slot in np.argwhere(use == GROUP).tolist():
        if of[cell, slot] >= 0:
            continue
        group = int(names[cell, slot])
        begin, stop = int(groups.ptr[group]), int(groups.ptr[group + 1])
        code = cell_of[groups.members[begin:stop]].astype(np.int64) * width + slots.member_slot[begin:stop] + 1
        distinct, position = np.unique(code, return_inverse=True)
        named = distinct % width > 0
        of[distinct[named] // width, distinct[named] % width - 1] = len(chosen)
        seat[distinct[named] // width, distinct[named] % width - 1] = np.flatnonzero(named)
        chosen.append(group)
        pairs.append(distinct)
        positions.append(position.reshape(-1).astype(np.int32))
        missing.append(int((~named).sum()))
    both = np.concatenate(pairs) if pairs else np.zeros(0, np.int64)
    return Pools(
        of=of,
        seat=seat,
        group=np.array(chosen, np.int32),
        ptr=_offsets([len(p) for p in pairs]),
        cell=(both // width).astype(np.int32),
        slot=(both % width - 1).astype(np.int32),
        missing=np.array(missing, np.int32),
        position_ptr=_offsets([len(p) for p in positions]),
        position=np.concatenate(positions) if positions else np.zeros(0, np.int32),
    )


def _offsets(lengths: list[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


def assemble(
    plans: tuple[ClassPlan, ...],
    class_of_cell: NDArray[np.int32],
    slots: Slots,
    cell_of: NDArray[np.int32],
    representative: NDArray[np.int32],
    execution: str,
) -> Assembly:
    """Lay the cells out flat and resolve messages and collectives between them."""
    lengths = np.array([len(plan) for plan in plans], np.int64)
    starts = _offsets(lengths)
    node_ptr = _offsets(lengths[class_of_cell])
    edges = _offsets([len(plan.succ) for plan in plans])
    pools = make_pools(slots, cell_of, representative)
    joins = np.stack([plan.joins for plan in plans])[class_of_cell]
    per_pool = np.zeros(len(pools.group), np.int64)
    inside = pools.of >= 0
    np.maximum.at(per_pool, pools.of[inside], joins[inside])
    starts_at = _offsets(per_pool)
    pairs = np.diff(pools.ptr)
    pool_of_instance = np.repeat(np.arange(len(per_pool), dtype=np.int32), per_pool)
    member_ptr = _offsets(pairs[pool_of_instance])
    out = Assembly(
        plans=plans,
        class_of_cell=class_of_cell,
        node_ptr=node_ptr,
        cell_of_node=np.repeat(np.arange(len(class_of_cell), dtype=np.int32), np.diff(node_ptr)),
        class_start=starts[:-1][class_of_cell],
        act=np.concatenate([plan.act for plan in plans]),
        lane=np.concatenate([plan.lane for plan in plans]),
        slot=np.concatenate([plan.slot for plan in plans]),
        asked=np.concatenate([plan.nbytes * 16 + plan.collective for plan in plans]),
        succ_ptr=np.concatenate(
            [plan.succ_ptr[:-1] + base for plan, base in zip(plans, edges, strict=False)] + [edges[-1:]]
        ),
        succ=np.concatenate([plan.succ for plan in plans]),
        indegree=np.concatenate([plan.indegree for plan in plans]),
        before=np.concatenate([plan.before for plan in plans]),
        after=np.concatenate([plan.after for plan in plans]),
        mate=np.full(int(node_ptr[-1]), -1, np.int64),
        channel=np.full(int(node_ptr[-1]), -1, np.int32),
        instance=np.full(int(node_ptr[-1]), -1, np.int32),
        first_instance=np.where(inside, starts_at[pools.of], -1),
        member_ptr=member_ptr,
        members=np.full(int(member_ptr[-1]), -1, np.int64),
        needed=pairs[pool_of_instance].astype(np.int32),
        pool_of_instance=pool_of_instance,
        pools=pools,
    )
    channels = 0
    for number, plan in enumerate(plans):
        cells = out.cells_of_class(number)
        if len(cells):
            _join(out, plan, cells)
            channels = _mate(out, plan, cells, slots, cell_of, representative[cells], execution, channels)
    return out


def _join(out: Assembly, plan: ClassPlan, cells: NDArray[np.int64]) -> None:
    """Number the collectives of a class's cells and enter them in their instances."""
    nodes = np.flatnonzero(plan.act == JOIN)
    if not len(nodes):
        return
    instance = out.first_instance[cells][:, plan.slot[nodes]] + plan.ordinal[nodes]
    flat = out.node_ptr[cells][:, None] + nodes
    out.instance[flat] = instance
    out.members[out.member_ptr[instance] + out.pools.seat[cells][:, plan.slot[nodes]]] = flat


def _mate(
    out: Assembly,
    plan: ClassPlan,
    cells: NDArray[np.int64],
    slots: Slots,
    cell_of: NDArray[np.int32],
    rank: NDArray[np.int32],
    execution: str,
    channels: int,
) -> int:
    """Tie each send of a class's cells to its receive and each receive to its send; returns channels in use by now."""
    sending = np.unique(plan.slot[plan.act == SEND]).tolist()
    receiving = np.unique(plan.slot[plan.act == RECV]).tolist()
    for slot in sorted({*sending, *receiving}):
        there = cell_of[slots.names[rank, slot]].astype(np.int64)
        kind = out.class_of_cell[there] * np.int64(slots.use.shape[1] + 1) + slots.back[rank, slot] + 1
        for one in np.unique(kind).tolist():
            other, back = divmod(one, slots.use.shape[1] + 1)
            if back == 0:
                continue
            on = kind == one
            here, far = out.node_ptr[cells[on]][:, None], out.node_ptr[there[on]][:, None]
            if slot in sending:
                found = match(plan, slot, out.plans[other], back - 1, execution)
                out.mate[here + found.pairs[:, 0]] = far + found.pairs[:, 1]
                first = channels + found.keys * np.arange(len(here))[:, None]
                out.channel[here + found.sends] = first + found.send_key
                out.channel[far + found.recvs] = first + found.recv_key
                channels += found.keys * len(here)
            if slot in receiving:
                found = match(out.plans[other], back - 1, plan, slot, execution)
                out.mate[here + found.pairs[:, 1]] = far + found.pairs[:, 0]
    return channels
