"""What the engine needs to know of each rank class: successors, queues, order on slots. No time, no ranks.

Nodes are in id order here whatever their order in the graph; ``order`` leads back to positions of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective, Kind, RankGraph
from tracegen.replay.cells.plan_kernels import chain, reverse

STREAMS, ASTRA = "streams", "astra"
EXECUTIONS = (STREAMS, ASTRA)

# What a node does in the engine.
INSTANT, TIMED, SEND, RECV, JOIN = 0, 1, 2, 3, 4
# Slots of execution `astra`; receives take none.
NO_LANE, COMPUTE_LANE, CPU_LANE, COMM_LANE = 0, 1, 2, 3
# A message's tag is taken modulo this by ASTRA-sim (astra_sim_semantics 4).
TAG_SPACE = 500_000_000


@dataclass(frozen=True, eq=False)
class ClassPlan:
    """One graph, ready to run: columns of length n in id order.

    Parameters
    ----------
    order : i32, position in the graph of each node.
    act : u8, INSTANT, TIMED, SEND, RECV or JOIN.
    lane : u8, slot under `astra`.
    slot : i32, of sends, receives and joins.
    before, after : i32, neighbours in the node's stream (`streams`) or -1.
    ordinal : i32, joins: how many joins on the slot came before.
    succ_ptr : i64[n + 1]; succ : i32; indegree : i32, dependencies (data and control, each once).
    collective : i8; nbytes, tag : i64; joins : i32[slots] joins per slot; uses : u8[slots] 0 none, 1 peer, 2 group.
    dims : u32, ``involved_dim``.
    """

    graph: RankGraph
    order: NDArray[np.int32]
    act: NDArray[np.uint8]
    lane: NDArray[np.uint8]
    slot: NDArray[np.int32]
    before: NDArray[np.int32]
    after: NDArray[np.int32]
    ordinal: NDArray[np.int32]
    succ_ptr: NDArray[np.int64]
    succ: NDArray[np.int32]
    indegree: NDArray[np.int32]
    collective: NDArray[np.int8]
    nbytes: NDArray[np.int64]
    tag: NDArray[np.int64]
    joins: NDArray[np.int32]
    uses: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.order)

    @property
    def reordered(self) -> bool:
        """Whether the graph's nodes do not stand in id order."""
        return bool((np.diff(self.order) < 0).any())


def plan_class(graph: RankGraph, slots: int, execution: str) -> ClassPlan:
    """The plan of one class under one execution."""
    order, columns = _in_id_order(graph)
    n = len(graph)
    kind, cpu, slot, collective = (columns[name] for name in ("kind", "cpu", "slot", "collective"))
    act = np.zeros(n, np.uint8)
    act[kind == Kind.COMP] = TIMED
    act[kind == Kind.SEND] = SEND
    act[kind == Kind.RECV] = RECV
    joins = kind == Kind.COLL
    lost = np.flatnonzero(((act >= SEND) | joins) & ((slot < 0) | (slot >= slots)))
    if len(lost):
        raise InputError(
            f"node {graph.id[order[lost[0]]]} ({graph.name_of(int(order[lost[0]]))}) names no group and no peer"
        )
    if execution == ASTRA:
        # A broadcast is not simulated there: it lasts its duration on the communication slot.
        act[joins & (collective == Collective.BROADCAST)] = TIMED
        joins &= collective != Collective.BROADCAST
    act[joins] = JOIN
    lane = np.full(n, COMM_LANE, np.uint8)
    lane[kind == Kind.COMP] = COMPUTE_LANE
    lane[(kind == Kind.COMP) & cpu] = CPU_LANE
    lane[kind == Kind.RECV] = NO_LANE

    before, after, ordinal = _chains(act, kind, cpu, slot, slots)
    if execution == ASTRA:
        before, after = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    succ_ptr, succ, indegree = _successors(columns, n)
    uses = np.zeros(slots, np.uint8)
    uses[slot[(act == SEND) | (act == RECV)]] = 1
    uses[slot[joins]] = 2
    return ClassPlan(
        graph=graph,
        order=order,
        act=act,
        lane=lane,
        slot=slot,
        before=before,
        after=after,
        ordinal=ordinal,
        succ_ptr=succ_ptr,
        succ=succ,
        indegree=indegree,
        collective=collective,
        nbytes=np.maximum(columns["comm_bytes"], 0),
        tag=columns["tag"],
        joins=np.bincount(slot[joins], minlength=slots).astype(np.int32)[:slots],
        uses=uses,
    )


@dataclass(frozen=True, eq=False)
class Matching:
    """Messages between two classes over one slot of each.

    Parameters
    ----------
    pairs : i32[pairs, 2] of a send and the receive it feeds.
    sends, recvs : i32, nodes whose key others share, so that the order of issue pairs them (`astra` only).
    send_key, recv_key : i32, which of the ``keys`` shared keys each has.
    """

    pairs: NDArray[np.int32]
    sends: NDArray[np.int32]
    send_key: NDArray[np.int32]
    recvs: NDArray[np.int32]
    recv_key: NDArray[np.int32]
    keys: int


def match(sends: ClassPlan, send_slot: int, recvs: ClassPlan, recv_slot: int, execution: str) -> Matching:
    """Pair the sends of one class with the receives of another.

    First in, first out inside a key. `streams`: the key is the tag, the order that of ids (sends to one peer leave in
    it). `astra`: the key is the tag modulo 5e8 and the size, the order that of issue, so that only keys that one
    message has are paired here.
    """
    ours = np.flatnonzero((sends.act == SEND) & (sends.slot == send_slot)).astype(np.int32)
    theirs = np.flatnonzero((recvs.act == RECV) & (recvs.slot == recv_slot)).astype(np.int32)
    none = np.zeros(0, np.int32)
    if not len(ours) or not len(theirs):
        return Matching(np.zeros((0, 2), np.int32), none, none, none, none, 0)
    key = np.concatenate([sends.tag[ours], recvs.tag[theirs]])
    if execution == ASTRA:
        size = np.concatenate([sends.nbytes[ours], recvs.nbytes[theirs]])
        key = _numbered(key % TAG_SPACE) * (len(key) + 1) + _numbered(size)
    key = _numbered(key)
    count = int(key.max()) + 1
    mine, other = key[: len(ours)].astype(np.int32), key[len(ours) :].astype(np.int32)
    shared = np.zeros(count, np.bool_)
    if execution == ASTRA:
        shared = (np.bincount(mine, minlength=count) > 1) | (np.bincount(other, minlength=count) > 1)
    code = np.concatenate([_turns(mine, count), _turns(other, count)]) * np.int64(count) + key
    plain = ~shared[key]
    left, right = np.flatnonzero(plain[: len(ours)]), np.flatnonzero(plain[len(ours) :])
    _, first, second = np.intersect1d(
        code[: len(ours)][left], code[len(ours) :][right], assume_unique=True, return_indices=True
    )
    number = (np.cumsum(shared) - 1).astype(np.int32)
    return Matching(
        pairs=np.stack([ours[left[first]], theirs[right[second]]], 1),
        sends=ours[shared[mine]],
        send_key=number[mine[shared[mine]]],
        recvs=theirs[shared[other]],
        recv_key=number[other[shared[other]]],
        keys=int(shared.sum()),
    )


def kinds_of_joins(
    plan: ClassPlan,
) -> tuple[NDArray[np.int64], list[tuple[int, int, int]], NDArray[np.int64]]:
    """A class's collectives by what they ask for.

    Returns
    -------
    joins : nodes, i64[joins].
    kinds : the distinct (slot, collective, bytes).
    which : i64[joins], the kind of each.
    """
    joins = np.flatnonzero(plan.act == JOIN)
    key = _numbered(plan.nbytes[joins]) * 16 + plan.collective[joins]
    key = _numbered(key * (len(plan.uses) + 1) + plan.slot[joins])
    _, first = np.unique(key, return_index=True)
    sample = joins[first]
    kinds = zip(plan.slot[sample].tolist(), plan.collective[sample].tolist(), plan.nbytes[sample].tolist(), strict=True)
    return joins, list(kinds), key


def _numbered(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Equal values as equal small numbers."""
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _turns(key: NDArray[np.int32], keys: int) -> NDArray[np.int32]:
    turn = np.zeros(len(key), np.int32)
    chain(key, keys, np.empty_like(turn), np.empty_like(turn), turn)
    return turn


def _chains(
    act: NDArray[np.uint8], kind: NDArray[np.uint8], cpu: NDArray[np.bool_], slot: NDArray[np.int32], slots: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Stream order of `streams`: one compute stream, one CPU stream, one per group, one per peer sent to."""
    key = np.full(len(act), -1, np.int32)
    compute = kind == Kind.COMP
    key[compute] = 0
    key[compute & cpu] = 1
    sends, joins = act == SEND, act == JOIN
    key[sends] = 2 + 2 * slot[sends]
    key[joins] = 3 + 2 * slot[joins]
    before, after = np.full(len(act), -1, np.int32), np.full(len(act), -1, np.int32)
    ordinal = np.zeros(len(act), np.int32)
    chain(key, 2 + 2 * slots, before, after, ordinal)
    return before, after, ordinal


def _successors(columns: dict[str, Any], n: int) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    deps = len(columns["data_deps"]) + len(columns["ctrl_deps"])
    succ_ptr, succ, indegree = np.zeros(n + 1, np.int64), np.zeros(deps, np.int32), np.zeros(n, np.int32)
    reverse(
        columns["data_ptr"], columns["data_deps"], columns["ctrl_ptr"], columns["ctrl_deps"], succ_ptr, succ, indegree
    )
    return succ_ptr, succ[: succ_ptr[-1]], indegree


_PER_NODE = ("kind", "cpu", "slot", "collective", "comm_bytes", "tag")
_EDGES = ("data_ptr", "data_deps", "ctrl_ptr", "ctrl_deps")


def _in_id_order(graph: RankGraph) -> tuple[NDArray[np.int32], dict[str, Any]]:
    """Positions by ascending id, and the columns the engine reads in that order."""
    # Writable and contiguous: numba compiles a kernel anew for each kind of array it meets.
    columns = {name: np.require(getattr(graph, name), requirements=["C", "W"]) for name in (*_PER_NODE, *_EDGES)}
    n = len(graph)
    if n < 2 or bool((graph.id[1:] > graph.id[:-1]).all()):
        return np.arange(n, dtype=np.int32), columns
    order = np.argsort(graph.id, kind="stable").astype(np.int32)
    place = np.empty(n, np.int32)
    place[order] = np.arange(n, dtype=np.int32)
    for name in _PER_NODE:
        columns[name] = columns[name][order]
    for edges in ("data", "ctrl"):
        ptr, deps = columns[f"{edges}_ptr"], columns[f"{edges}_deps"]
        lengths = np.diff(ptr)[order]
        moved = np.zeros(n + 1, np.int64)
        np.cumsum(lengths, out=moved[1:])
        entries = np.repeat(ptr[:-1][order] - moved[:-1], lengths) + np.arange(len(deps))
        columns[f"{edges}_ptr"], columns[f"{edges}_deps"] = moved, place[deps[entries]]
    return order, columns
