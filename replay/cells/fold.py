"""Which ranks replay may simulate as one: colour refinement on ranks. Decides; simulates nothing.

Two ranks may share a cell when they run the same class at the same scale, when the peers they name by each slot are in
one cell and name them back by one slot over equal routes, and when their groups look alike from where they stand.
Whatever the engine computes from a rank's graph, its routes and what it receives from others is then equal for both,
so the cell's lowest rank answers for all (an equitable partition).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import TraceSet
from tracegen.replay.cells.hashing import Hashes, columns, combine, mix, rotations, sums
from tracegen.replay.cells.slots import GROUP, PEER, Slots


def fold_ranks(
    traces: TraceSet,
    slots: Slots,
    *,
    around: Hashes | None = None,
    turned: NDArray[np.bool_] | None = None,
    colours: NDArray[np.int64] | None = None,
) -> NDArray[np.int32]:
    """Cell of each rank, i32[ranks], numbered by their lowest rank.

    Parameters
    ----------
    around : u64 per entry of ``groups.members``, what the way to the next member looks like (`ring_edges`).
    turned : bool[groups], groups whose members end at different times by their position in a ring (`astra`): there the
        order of colours around the group counts, read from the rank itself on; elsewhere which colours it holds.
    colours : i64[ranks], anything else that must not be mixed in a cell.
    """
    ranks = traces.ranks
    scale = np.ones(ranks) if traces.scale is None else traces.scale.astype(np.float64)
    start = combine(traces.class_of, scale, np.zeros(ranks, np.int64) if colours is None else colours)
    fixed = _fixed(slots)
    colour = combine(start, *columns(fixed))
    cells = len(np.unique(colour))
    while True:
        colour = _refined(colour, slots, around, turned)
        now = len(np.unique(colour))
        if now == cells:
            break
        cells = now
    return number_cells(colour)


def number_cells(colour: Hashes) -> NDArray[np.int32]:
    """Colours as cell numbers in order of first appearance."""
    _, first, inverse = np.unique(colour, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int32)
    number[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return number[inverse.reshape(-1)]


def _fixed(slots: Slots) -> Hashes:
    """What never changes about each slot: the route to its peer, or the geometry of its group. u64[ranks, slots]."""
    way = slots.peer_routes
    peer = combine(way.latency, way.bandwidth, way.dims, slots.back)
    out = np.where(slots.use == PEER, peer, np.uint64(0))
    if len(slots.groups):
        shape = mix(slots.shape[np.maximum(slots.names, 0) % len(slots.groups)])
        out = np.where(slots.use == GROUP, shape, out)
    return out


def _refined(colour: Hashes, slots: Slots, around: Hashes | None, turned: NDArray[np.bool_] | None) -> Hashes:
    """One round: each rank's colour with those of its peers and groups, slot by slot."""
    groups = slots.groups
    seen = np.zeros(slots.use.shape, np.uint64)
    peers = slots.use == PEER
    seen[peers] = combine(colour[slots.names[peers]], slots.back[peers])
    joined = slots.use == GROUP
    if joined.any():
        member = combine(colour[groups.members], slots.member_slot)
        seen[joined] = mix(sums(member, groups.ptr))[slots.names[joined]]
        if around is not None and turned is not None and turned.any():
            turn = mix(rotations(combine(member, around), groups.ptr))
            seen[joined] = np.where(turned[slots.names[joined]], turn[slots.place[joined]], seen[joined])
    return combine(colour, *columns(seen))
