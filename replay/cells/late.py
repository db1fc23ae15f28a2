"""Whom each receive and collective waited for last: ``Run.late_rank``, in ranks of the representative's own groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracegen.replay.cells.assembly import Assembly
from tracegen.replay.cells.late_kernels import last_members
from tracegen.replay.cells.plan import RECV
from tracegen.replay.cells.slots import Slots


def late_ranks(
    assembly: Assembly,
    slots: Slots,
    cell_of: NDArray[np.int32],
    representative: NDArray[np.int32],
    issue: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Receive: the sender; collective: the member that issued last, ties the lowest; -1 else. i32[nodes], by id."""
    late = np.full(assembly.nodes, -1, np.int32)
    for number, plan in enumerate(assembly.plans):
        cells = assembly.cells_of_class(number)
        receives = np.flatnonzero(plan.act == RECV)
        if len(cells) and len(receives):
            rows = assembly.node_ptr[cells][:, None]
            late[rows + receives] = slots.names[representative[cells]][:, plan.slot[receives]]
    _collectives(assembly, slots, cell_of, representative, issue, late)
    return late


def _collectives(
    assembly: Assembly,
    slots: Slots,
    cell_of: NDArray[np.int32],
    representative: NDArray[np.int32],
    issue: NDArray[np.int64],
    late: NDArray[np.int32],
) -> None:
    pools, groups = assembly.pools, slots.groups
    pairs = len(pools.cell)
    if not len(assembly.pool_of_instance):
        return
    named = pools.slot >= 0
    own = np.full(pairs, -1, np.int32)
    own[named] = slots.names[representative[pools.cell[named]], pools.slot[named]]
    pool = np.repeat(np.arange(len(pools.group)), np.diff(pools.ptr))
    shared = np.ones(len(pools.group), np.bool_)
    shared[pool[named & (own != pools.group[pool])]] = False
    # A row per distinct group that some pair's representative stands in, with the lowest rank of every pair in it.
    rows, row_of = np.unique(own, return_inverse=True)
    row_ptr = np.zeros(len(rows), np.int64)
    lowest: list[NDArray[np.int32]] = []
    total = 0
    for row, group in enumerate(rows.tolist()):
        row_ptr[row] = total
        if group < 0:
            continue
        begin, stop = int(groups.ptr[group]), int(groups.ptr[group + 1])
        members, slot = groups.members[begin:stop], slots.member_slot[begin:stop]
        inside = slot >= 0
        cell = cell_of[members[inside]]
        home = int(pools.of[cell[0], slot[inside][0]])
        table = np.full(int(pools.ptr[home + 1] - pools.ptr[home]), np.iinfo(np.int32).max, np.int32)
        np.minimum.at(table, pools.seat[cell, slot[inside]], members[inside])
        lowest.append(table)
        total += len(table)
    last_members(
        assembly.pool_of_instance,
        assembly.member_ptr,
        assembly.members,
        shared,
        pools.ptr,
        row_of.reshape(-1).astype(np.int64),
        row_ptr,
        np.concatenate(lowest) if lowest else np.zeros(0, np.int32),
        issue,
        late,
    )
