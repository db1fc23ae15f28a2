"""Who names whom: per rank and slot the peer or group, the slot by which it is named back, and the geometry between.

Built once per run from the `TraceSet`; the fold and the assembly read it. Also splits world collectives that involve
only some dimensions (``involved_dim``) into one group per line of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Groups, Kind, RankGraph, TraceSet
from tracegen.replay.cells.hashing import Hashes, combine, sequences, within
from tracegen.replay.cells.plan import ClassPlan
from tracegen.replay.fabric import RING, Fabric
from tracegen.replay.prices.routes import Routes, routes

UNUSED, PEER, GROUP = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of every rank.

    Parameters
    ----------
    use : u8[ranks, slots], UNUSED, PEER or GROUP.
    names : i32[ranks, slots], the peer or group; -1 unused.
    back : i32[ranks, slots]: the slot by which the peer names this rank; -1 where it does not.
    groups : every group, with members in CSR.
    member_slot : i32[members]: the slot by which each member names its group; -1 where it never does.
    place : i32[ranks, slots]: where in ``groups.members`` this rank stands in the group the slot names; -1 if absent.
    peer_routes : f64/u32[ranks, slots], from the rank to the peer.
    shape : i32[groups], equal where two groups have the same geometry; ``shape_of`` i32[shapes], a group of each.
    mask : i64[groups], dimensions a group runs over as all ranks on them; 0 for other groups.
    """

    use: NDArray[np.uint8]
    names: NDArray[np.int32]
    back: NDArray[np.int32]
    groups: Groups
    member_slot: NDArray[np.int32]
    place: NDArray[np.int32]
    peer_routes: Routes
    shape: NDArray[np.int32]
    shape_of: NDArray[np.int32]
    mask: NDArray[np.int64]


def name_slots(
    traces: TraceSet, plans: tuple[ClassPlan, ...], fabric: Fabric, mask: NDArray[np.int64], *, lowest_only: bool
) -> Slots:
    """Resolve the slots of every rank; ``mask`` as in `Slots`, ``lowest_only`` as in `routes`.

    Raises
    ------
    InputError
        A slot that names a rank or group that does not exist, or a group its rank is not in.
    """
    groups, ranks = traces.groups, traces.ranks
    use = np.stack([plan.uses for plan in plans])[traces.class_of] if plans else np.zeros((0, 0), np.uint8)
    names = np.where(use == UNUSED, -1, traces.slots).astype(np.int32)
    _refuse_strangers(use, names, ranks, groups)
    rank = np.broadcast_to(np.arange(ranks)[:, None], names.shape)
    column = np.broadcast_to(np.arange(names.shape[1], dtype=np.int32), names.shape)

    peers = use == PEER
    back = np.full(names.shape, -1, np.int32)
    there = rank[peers].astype(np.int64) * ranks + names[peers]
    here = names[peers].astype(np.int64) * ranks + rank[peers]
    back[peers] = _look_up(there, column[peers], here)

    joined = use == GROUP
    row = np.repeat(np.arange(len(groups)), np.diff(groups.ptr))
    member_key = row.astype(np.int64) * ranks + groups.members
    named_key = names[joined].astype(np.int64) * ranks + rank[joined]
    member_slot = _look_up(named_key, column[joined], member_key)
    place = np.full(names.shape, -1, np.int32)
    place[joined] = _look_up(member_key, np.arange(len(member_key), dtype=np.int32), named_key)
    if len(outside := np.argwhere(joined & (place < 0))):
        r, s = outside[0].tolist()
        raise InputError(f"rank {r} runs a collective on group {groups.number[names[r, s]]}, which does not list it")

    src = np.where(peers, rank, 0)
    dst = np.where(peers, names, 0)
    shape, shape_of = _shapes(groups, fabric, mask)
    return Slots(
        use=use,
        names=names,
        back=back,
        groups=groups,
        member_slot=member_slot,
        place=place,
        peer_routes=routes(fabric, src, dst, lowest_only=lowest_only),
        shape=shape,
        shape_of=shape_of,
        mask=mask,
    )


def _refuse_strangers(use: NDArray[np.uint8], names: NDArray[np.int32], ranks: int, groups: Groups) -> None:
    for what, limit in ((PEER, ranks), (GROUP, len(groups))):
        wrong = np.argwhere((use == what) & ((names < 0) | (names >= limit)))
        if len(wrong):
            r, s = wrong[0].tolist()
            noun = f"rank {names[r, s]}; there are {ranks}" if what == PEER else "a group that is not defined"
            raise InputError(f"rank {r} names {noun}")


def _look_up(keys: NDArray[np.int64], values: NDArray[np.int32], wanted: NDArray[np.int64]) -> NDArray[np.int32]:
    """values[keys == wanted], -1 where there is none."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int32)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    found = order[at]
    return np.where(keys[found] == wanted, values[found], -1).astype(np.int32)


def _following(groups: Groups) -> NDArray[np.int32]:
    """Per entry of ``groups.members``, the member after it, cyclically."""
    lengths = np.diff(groups.ptr)
    last = within(groups.ptr) + 1 == np.repeat(lengths, lengths)
    at = np.where(last, np.repeat(groups.ptr[:-1], lengths), np.arange(len(groups.members)) + 1)
    return groups.members[at]


def ring_edges(groups: Groups, fabric: Fabric) -> Hashes:
    """Per entry of ``groups.members``, what the way to the next member looks like: displacement on rings, else whether
    it crosses."""
    code = np.zeros(len(groups.members), np.int64)
    a, b = groups.members.astype(np.int64), _following(groups).astype(np.int64)
    for n, topology in zip(fabric.size, fabric.topology, strict=True):
        moved = (b - a) % n
        code = code * n + (moved if topology == RING else (moved > 0))
        a, b = a // n, b // n
    return combine(code)


def _shapes(groups: Groups, fabric: Fabric, mask: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Number groups by geometry: the displacements from member to member in list order, modulo each dimension.

    Groups that a translation of the network maps onto each other get one number; every rule of time is blind to it.
    """
    if not len(groups):
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    code = np.zeros(len(groups.members), np.int64)
    a, b = groups.members.astype(np.int64), _following(groups).astype(np.int64)
    for n in fabric.size:
        code = code * n + (b - a) % n
        a, b = a // n, b // n
    key = combine(np.diff(groups.ptr), mask, sequences(combine(code), groups.ptr))
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return number.reshape(-1).astype(np.int32), first.astype(np.int32)


def split_by_dimensions(traces: TraceSet, fabric: Fabric, *, named: bool = True) -> tuple[TraceSet, NDArray[np.int64]]:
    """World collectives over some dimensions only become collectives of one group per line of ranks.

    A graph's nodes whose ``dims`` leave out a dimension of the network move to a new slot per (slot, mask). Groups that
    do not hold all ranks ignore ``dims``, as ASTRA-sim does, and without ``named`` every group that has a number (2.6).
    Also returns `Slots.mask` of the groups.
    """
    everything = (1 << fabric.dimensions) - 1
    mask_of = np.where(np.diff(traces.groups.ptr) == traces.ranks, everything, 0).astype(np.int64)
    masks = sorted({int(m) & everything for graph in traces.graphs for m in np.unique(graph.dims)} - {0, everything})
    if not masks:
        return traces, mask_of
    whole = np.flatnonzero((np.diff(traces.groups.ptr) == traces.ranks) & (named | (traces.groups.number == 0)))
    slots, graphs, groups = traces.slots, list(traces.graphs), traces.groups
    for mask in masks:
        for slot in range(traces.slots.shape[1]):
            moved = [_moved(graph, slot, mask, everything, slots.shape[1]) for graph in graphs]
            touched = np.array([new is not old for new, old in zip(moved, graphs, strict=True)])[traces.class_of]
            touched &= np.isin(traces.slots[:, slot], whole)
            if not touched.any():
                continue
            if not touched.all() and len({int(c) for c in traces.class_of[touched]} & set(traces.class_of[~touched])):
                raise InputError("ranks of one class use involved_dim on groups of unlike size")
            label = groups.label[int(traces.slots[touched, slot][0])]
            lines, line_of = _lines(fabric, mask)
            column = np.where(touched, line_of + len(groups), -1).astype(np.int32)
            slots = np.concatenate([slots, column[:, None]], axis=1)
            groups = Groups(
                np.concatenate([groups.ptr, groups.ptr[-1] + lines.shape[1] * np.arange(1, len(lines) + 1)]),
                np.concatenate([groups.members, lines.reshape(-1)]).astype(np.int32),
                groups.label + (label,) * len(lines),
                np.concatenate([groups.number, np.zeros(len(lines), np.int64)]),
            )
            mask_of = np.concatenate([mask_of, np.full(len(lines), mask)])
            graphs = moved
    return replace(traces, graphs=tuple(graphs), slots=slots, groups=groups), mask_of


def _moved(graph: RankGraph, slot: int, mask: int, everything: int, new_slot: int) -> RankGraph:
    """The graph with its collectives of this slot and mask on a new slot; itself where it has none."""
    hit = (graph.kind == Kind.COLL) & (graph.slot == slot) & (graph.dims > 0) & ((graph.dims & everything) == mask)
    if not hit.any():
        return graph
    return replace(graph, slot=np.where(hit, new_slot, graph.slot).astype(np.int32))


def _lines(fabric: Fabric, mask: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranks that differ only in the dimensions of the mask: i64[lines, members], and the line of each rank."""
    at = fabric.coordinates()
    line_of = np.zeros(len(at), np.int64)
    for d, n in enumerate(fabric.size):
        if not mask >> d & 1:
            line_of = line_of * n + at[:, d]
    order = np.argsort(line_of, kind="stable")
    return order.reshape(int(line_of.max(initial=0)) + 1, -1), line_of
