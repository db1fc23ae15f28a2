"""Simulates a run message by message, exactly as ASTRA-sim's analytical backends do, without folding or closed forms.

The slowest and most general way to replay: for the congestion-aware network, and where nothing else is exact. Owns the
layout of traces as the arrays of `message_state.State`; the simulation is in the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective, Kind, TraceSet
from tracegen.replay import message_chunk_kernels as c
from tracegen.replay import message_kernels as k
from tracegen.replay import message_pool_kernels as p
from tracegen.replay.fabric import FULLY_CONNECTED, RING, SWITCH, Fabric, refuse_other_size
from tracegen.replay.message_jobs import Job, make_job
from tracegen.replay.message_state import POOLS, State, empty_pools, grown
from tracegen.replay.plan import ASTRA, TAG_SPACE, ClassPlan, plan_class

_LINKS = {RING: 0, FULLY_CONNECTED: 1, SWITCH: 2}
_MESSAGES_A_CALL = 2_000_000
_NEVER = -1


@dataclass(frozen=True)
class RemoteMemory:
    """ASTRA-sim's remote memory: a request takes latency + floor(size / bandwidth), both whole numbers (2.4).

    Parameters
    ----------
    ranks_per_pool : how many ranks share one that serves one request at a time; 0: every rank has its own, no queue.
    latency_ns, bandwidth : ns; bytes per ns.
    """

    ranks_per_pool: int
    latency_ns: int
    bandwidth: int

    @classmethod
    def from_astra(cls, memory: Mapping[str, Any], ranks: int) -> RemoteMemory | None:
        """From the content of ``memory.json``; None without remote memory.

        Raises
        ------
        InputError
            An unknown type or a bandwidth below 1.
        """
        kind = memory.get("memory-type", "NO_MEMORY_EXPANSION")
        shared = {"PER_NPU_MEMORY_EXPANSION": 0, "PER_NODE_MEMORY_EXPANSION": 1, "MEMORY_POOL": ranks}
        if kind == "NO_MEMORY_EXPANSION":
            return None
        if kind not in shared:
            raise InputError(f"memory.json: memory-type {kind!r} is unknown; use NO_MEMORY_EXPANSION, {', '.join(shared)}")
        together = shared[kind]
        if kind == "PER_NODE_MEMORY_EXPANSION":
            together = _whole(memory, "num-npus-per-node", least=1)
        return cls(together, _whole(memory, "remote-mem-latency", least=0), _whole(memory, "remote-mem-bw", least=1))


def _whole(memory: Mapping[str, Any], key: str, *, least: int) -> int:
    value = memory.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) < least:
        raise InputError(f"memory.json: {key}: {value!r} must be a number of {least} or more (fractions are cut off)")
    return int(value)


@dataclass(frozen=True)
class Mode:
    """What ASTRA-sim's flags and the choice of backend add to a fabric.

    Parameters
    ----------
    congestion : the congestion-aware backend (one dimension; FIFO links, whole messages stored and forwarded).
    rendezvous : ``--rendezvous-protocol``.
    replay_only : ``replay-only``: every node lasts its written duration, communication included.
    memory : remote memory, for memory nodes.
    """

    congestion: bool = False
    rendezvous: bool = False
    replay_only: bool = False
    memory: RemoteMemory | None = None


@dataclass(frozen=True, eq=False)
class MessageRun:
    """When everything happened: flat columns over ranks x nodes, each rank's nodes in the order of its graph.

    Parameters
    ----------
    node_ptr : i64[ranks + 1].
    ready_ns, issue_ns, end_ns : i64, -1 never; ahead : i32, position of the node it queued behind, -1 none.
    duration_ns : i64 of compute and memory nodes, else 0.
    finish_ns : i64[ranks], end of the last node; -1 where a node never ends.
    messages : how many were sent.
    links : i64[links, 4] messages, bytes, busy ns (sum of floor(m / B)), queueing ns. With congestion a link is a
        directed one: ring 2 rank + (0 towards higher ranks, 1 lower), switch rank (up) and ranks + rank (down), fully
        connected source x ranks + target. Else rank x dimensions + dimension, the sender's ports, never queued for.
    """

    node_ptr: NDArray[np.int64]
    ready_ns: NDArray[np.int64]
    issue_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    ahead: NDArray[np.int32]
    duration_ns: NDArray[np.int64]
    finish_ns: NDArray[np.int64]
    messages: int
    links: NDArray[np.int64]


def simulate(
    traces: TraceSet,
    fabric: Fabric,
    mode: Mode | None = None,
    *,
    factors: NDArray[np.float64] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MessageRun:
    """Play every message.

    Parameters
    ----------
    factors : f64[nodes] on compute times, in the order of `MessageRun`'s columns; rounded half to even, at least 1 ns.
    progress : called now and then with (messages sent, ns reached).

    Raises
    ------
    InputError
        What ASTRA-sim aborts on. A run that does not finish is none: its ends are -1.
    """
    mode = mode or Mode()
    refuse_other_size(fabric, traces.ranks)
    _refuse_network(fabric, mode)
    plans = [plan_class(graph, traces.slots.shape[1], ASTRA) for graph in traces.graphs]
    state = _lay_out(traces, plans, fabric, mode, factors)
    while True:
        outcome = k.advance(state, _MESSAGES_A_CALL)
        if outcome == k.FINISHED:
            break
        if outcome == k.ABORT:
            raise InputError(
                "an event falls on time 0, where ASTRA-sim aborts: a message or an endpoint-delay of 0 ns at the start; "
                "give the network a latency, or begin with a compute node"
            )
        if outcome >= 0:
            state = grown(state, outcome)
        elif progress:
            progress(int(state.clock[p.MESSAGES]), int(state.clock[p.NOW]))
    return _result(traces, plans, state)


def _refuse_network(fabric: Fabric, mode: Mode) -> None:
    if not mode.congestion:
        return
    if fabric.dimensions != 1:
        raise InputError(
            f"the congestion-aware network has one dimension only, not {fabric.dimensions}; use --network-model analytical"
        )
    if fabric.topology[0] == RING and fabric.size[0] == 2:
        raise InputError("the congestion-aware network has no ring of 2 (ASTRA-sim aborts); use fully connected")


def _result(traces: TraceSet, plans: list[ClassPlan], state: State) -> MessageRun:
    """Columns back in the order of the graphs."""
    place = np.arange(len(state.end))
    ahead = state.ahead
    for number, plan in enumerate(plans):
        if plan.reordered:
            rows = state.node_ptr[:-1][traces.class_of == number][:, None]
            place[rows + np.arange(len(plan))] = rows + plan.order
            behind = ahead[rows + np.arange(len(plan))]
            ahead[rows + np.arange(len(plan))] = np.where(behind >= 0, plan.order[np.maximum(behind, 0)], -1)
    columns = []
    for column in (state.ready, state.start, state.end, ahead, state.span):
        out = np.empty_like(column)
        out[place] = column
        columns.append(out)
    finish = np.where(state.rank[:, k.RANK_LEFT] == 0, state.rank[:, k.RANK_FINISH], _NEVER)
    links = state.links[:, p.LINK_MESSAGES :].copy()
    return MessageRun(state.node_ptr, *columns, finish, int(state.clock[p.MESSAGES]), links)  # type: ignore[arg-type]


def _lay_out(
    traces: TraceSet, plans: list[ClassPlan], fabric: Fabric, mode: Mode, factors: NDArray[np.float64] | None
) -> State:
    ranks, class_of = traces.ranks, traces.class_of
    sizes = np.array([len(plan) for plan in plans], np.int64)
    node_ptr = _ends(sizes[class_of])
    starts = _ends(sizes)[:-1]
    node, messages, kinds = _nodes(traces, plans, fabric, mode)
    jobs, job, phases = _jobs(traces, plans, starts, node, kinds, fabric)
    count = max((int(row[k.JOB_COUNT]) for row in job), default=1)
    lanes = np.stack([np.bincount(node[a : a + n, k.NODE_LANE], minlength=k.LANES) for a, n in zip(starts, sizes, strict=True)])
    degree = [plan.indegree for plan in plans]
    nodes = int(node_ptr[-1])
    rank = np.zeros((ranks, k.RANK_COLUMNS), np.int64)
    rank[:, c.RANK_CHUNKS] = count * np.arange(ranks)
    rank[:, k.RANK_LEFT] = sizes[class_of]
    rank[:, k.RANK_LATER] = -1
    rank[:, k.RANK_LAST : k.RANK_LAST + k.LANES] = -1
    edges = _ends(np.array([len(plan.succ) for plan in plans], np.int64))
    clock = _clock(traces, plans, fabric, mode, phases, count)
    none = np.full(nodes, _NEVER, np.int64)
    return State(
        clock=clock,
        **empty_pools(4 * int(clock[p.ROOM])),
        links=_links(fabric, mode),
        chunks=np.zeros((ranks * count, c.CHUNK_COLUMNS), np.int64),
        queues=np.tile(np.array([0, -1, -1], np.int64), (ranks * fabric.dimensions * fabric.queues, 1)),
        rank=rank,
        turns=np.zeros((ranks, 7 * fabric.dimensions), np.int32),
        made=np.zeros(traces.slots.shape, np.int64),
        left=np.concatenate([degree[number] for number in class_of.tolist()] or [np.zeros(0, np.int32)]),
        store=np.empty(nodes, np.int32),
        later=np.empty(nodes, np.int32),
        ahead=np.full(nodes, _NEVER, np.int32),
        ready=none,
        start=none.copy(),
        end=none.copy(),
        span=_spans(traces, plans, fabric, mode, node_ptr, factors),
        node_ptr=node_ptr,
        class_start=starts[class_of],
        lane_ptr=node_ptr[:-1, None] + (np.cumsum(lanes, axis=1) - lanes)[class_of],
        node=node,
        succ_ptr=np.concatenate([*(plan.succ_ptr[:-1] + e for plan, e in zip(plans, edges, strict=False)), edges[-1:]]),
        succ=np.concatenate([plan.succ for plan in plans]),
        messages=messages,
        jobs=jobs,
        job=job,
        phases=phases,
        **_group_tables(traces, fabric),
        sizes=np.array(fabric.size, np.int64),
        topology=np.array([_LINKS[name] for name in fabric.topology], np.int64),
        latency=np.array(fabric.latency, np.float64),
        bandwidth=np.array(fabric.bandwidth, np.float64),
        memory_rate=np.array([fabric.memory_bandwidth], np.float64),
        **_memories(ranks, mode),
    )


def _ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _clock(
    traces: TraceSet, plans: list[ClassPlan], fabric: Fabric, mode: Mode, phases: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Scalars; ROOM is the most rows of one pool that one callback can take."""
    clock = np.zeros(p.CLOCK_COLUMNS, np.int64)
    clock[p.CURRENT] = clock[p.RUNNING] = -1
    clock[p.FREE : p.USED] = -1
    servers = -(-fabric.active // fabric.queues)
    for column, value in (
        (p.RANKS, traces.ranks), (p.DIMS, fabric.dimensions), (p.QUEUES, fabric.queues), (p.SERVERS, servers),
        (p.CONGESTION, mode.congestion), (p.RENDEZVOUS, mode.rendezvous),
    ):  # fmt: skip
        clock[column] = value
    window = int(phases[:, c.WINDOW].max(initial=2))
    started = min(count, servers * fabric.queues) + 2
    receives = max(int((plan.act == k.RECV).sum()) for plan in plans)
    clock[p.ROOM] = 2 * (window * started + receives + 16)
    return clock


def _links(fabric: Fabric, mode: Mode) -> NDArray[np.int64]:
    n = fabric.ranks
    if not mode.congestion:
        count = n * fabric.dimensions
    else:
        count = n * n if fabric.topology[0] == FULLY_CONNECTED else 2 * n
    links = np.zeros((count, p.LINK_COLUMNS), np.int64)
    links[:, : p.LINK_MESSAGES] = -1
    return links


def _memories(ranks: int, mode: Mode) -> dict[str, NDArray[np.int64]]:
    together = mode.memory.ranks_per_pool if mode.memory else 0
    pool_of = np.arange(ranks) // together if together else np.full(ranks, -1)
    pools = np.tile(np.array([0, -1, -1], np.int64), (int(pool_of.max(initial=0)) + 1, 1))
    return {"pools": pools, "waiting": np.full(ranks, -1, np.int64), "pool_of": pool_of.astype(np.int64)}


def _group_tables(traces: TraceSet, fabric: Fabric) -> dict[str, NDArray[Any]]:
    """Members of groups in their order and each rank's place in the group of a slot; -1 where the slot names none."""
    groups, ranks = traces.groups, traces.ranks
    place = np.full(traces.slots.shape, -1, np.int32)
    row = np.repeat(np.arange(len(groups)), np.diff(groups.ptr))
    where = np.arange(len(groups.members)) - groups.ptr[row]
    key = row * ranks + groups.members
    order = np.argsort(key, kind="stable")
    for slot in range(traces.slots.shape[1]):
        wanted = traces.slots[:, slot].astype(np.int64) * ranks + np.arange(ranks)
        if len(order):
            at = order[np.minimum(np.searchsorted(key, wanted, sorter=order), len(order) - 1)]
            place[:, slot] = np.where(key[at] == wanted, where[at], -1)
    return {
        "slots": np.ascontiguousarray(traces.slots, np.int32), "place": place,
        "group_ptr": groups.ptr.astype(np.int64), "group_number": groups.number.astype(np.int64),
        "members": groups.members.astype(np.int32),
    }  # fmt: skip


def _nodes(
    traces: TraceSet, plans: list[ClassPlan], fabric: Fabric, mode: Mode
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Act, lane, slot and signature of the classes' nodes; signatures of messages (bytes, tag) and of collectives
    (kind, bytes, dims)."""
    rows = []
    message_keys, collective_keys = [], []
    for plan in plans:
        graph = plan.graph
        act = plan.act.astype(np.int64)
        kind = graph.kind[plan.order]
        memory = (kind == Kind.MEM_LOAD) | (kind == Kind.MEM_STORE)
        act[memory] = k.REMOTE
        if memory.any() and mode.memory is None and not mode.replay_only:
            at = int(np.flatnonzero(memory)[0])
            raise InputError(
                f"node {graph.id[plan.order[at]]}: {Kind(int(kind[at])).name} needs a remote memory; give --memory with a "
                "memory-type other than NO_MEMORY_EXPANSION"
            )
        if mode.replay_only:
            act[:] = k.TIMED
        elif fabric.peak_flops:
            act[(act == k.TIMED) & (kind == Kind.COMP) & ~graph.cpu[plan.order] & (graph.mem_bytes[plan.order] == 0)] = k.INSTANT
        rows.append(np.stack([act, plan.lane.astype(np.int64), plan.slot.astype(np.int64), np.zeros(len(plan), np.int64)], 1))
        messages = (act == k.SEND) | (act == k.RECV)
        if (wrong := np.flatnonzero(messages & (plan.nbytes < 1))).size:
            raise InputError(f"node {graph.id[plan.order[wrong[0]]]}: a message of no bytes, on which ASTRA-sim aborts")
        message_keys.append(np.stack([plan.nbytes[messages], plan.tag[messages] % TAG_SPACE], 1))
        joins = act == k.JOIN
        collective_keys.append(
            np.stack([plan.collective[joins], plan.nbytes[joins], graph.dims[plan.order][joins]], 1).astype(np.int64)
        )
    node = np.concatenate(rows) if rows else np.zeros((0, 4), np.int64)
    tables = []
    for acts, keys in (((k.SEND, k.RECV), message_keys), ((k.JOIN,), collective_keys)):
        table, number = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
        node[np.isin(node[:, k.NODE_ACT], acts), k.NODE_SIGNATURE] = number.reshape(-1)
        tables.append(np.ascontiguousarray(table, np.int64))
    return node.astype(np.int32), tables[0], tables[1]


def _jobs(
    traces: TraceSet,
    plans: list[ClassPlan],
    starts: NDArray[np.int64],
    node: NDArray[np.int32],
    kinds: NDArray[np.int64],
    fabric: Fabric,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Which job each (signature, group) is, the jobs, and the phases of all jobs."""
    groups = traces.groups
    lengths = np.diff(groups.ptr)
    jobs = np.full((max(len(kinds), 1), max(len(groups), 1)), -1, np.int32)
    known: dict[tuple[int, int, bool], int] = {}
    made: list[Job] = []
    for number, (plan, start) in enumerate(zip(plans, starts, strict=True)):
        mine = node[start : start + len(plan)]
        joins = mine[mine[:, k.NODE_ACT] == k.JOIN]
        for signature, slot in np.unique(joins[:, [k.NODE_SIGNATURE, k.NODE_SLOT]], axis=0).tolist():
            named = np.unique(traces.slots[traces.class_of == number, slot])
            if len(named) and (named[0] < 0 or named[-1] >= len(groups)):
                raise InputError(f"a collective of rank class {number} names a group that is not defined")
            for group in named.tolist():
                key = (signature, int(lengths[group]), bool(groups.number[group]))
                if key not in known:
                    kind, nbytes, dims = kinds[signature].tolist()
                    known[key] = len(made)
                    made.append(make_job(fabric, kind, nbytes, dims, key[1], named=key[2]))
                jobs[signature, group] = known[key]
    ends = _ends(np.array([len(job.phases) for job in made], np.int64))
    rows = [(job.chunks, int(a), int(b)) for job, a, b in zip(made, ends[:-1], ends[1:], strict=True)]
    phases = [row.columns() for job in made for row in job.phases]
    return (
        jobs,
        np.array(rows, np.int64).reshape(-1, k.JOB_COLUMNS),
        np.array(phases, np.int64).reshape(-1, c.PHASE_COLUMNS),
    )


def _spans(
    traces: TraceSet,
    plans: list[ClassPlan],
    fabric: Fabric,
    mode: Mode,
    node_ptr: NDArray[np.int64],
    factors: NDArray[np.float64] | None,
) -> NDArray[np.int64]:
    """Duration of timed and memory nodes, i64[nodes] (4); -1 where it never ends."""
    out = np.zeros(int(node_ptr[-1]), np.int64)
    for number, plan in enumerate(plans):
        graph, order = plan.graph, plan.order
        rows = node_ptr[:-1][traces.class_of == number][:, None] + np.arange(len(plan))
        span = np.maximum(graph.duration_us[order] * 1000, 0)
        span[span == 0] = 1
        kind = graph.kind[order]
        if mode.replay_only:
            out[rows] = span
            continue
        memory = (kind == Kind.MEM_LOAD) | (kind == Kind.MEM_STORE)
        if mode.memory:
            span = np.where(memory, mode.memory.latency_ns + graph.mem_bytes[order] // mode.memory.bandwidth, span)
        compute = kind == Kind.COMP
        if fabric.peak_flops:
            span = np.where(compute & ~graph.cpu[order], _roofline(graph.flops[order], graph.mem_bytes[order], fabric), span)
        played = kind == Kind.COLL
        played &= graph.collective[order] == Collective.BROADCAST
        out[rows] = np.where(compute | memory | played, span, 0)
        if factors is not None or traces.scale is not None:
            scale = np.ones(rows.shape) if factors is None else factors[node_ptr[:-1][traces.class_of == number][:, None] + order]
            if traces.scale is not None:
                scale = scale * traces.scale[traces.class_of == number][:, None]
            slower = np.maximum(np.rint(out[rows] * scale), 1)
            out[rows] = np.where(compute & (out[rows] > 0), slower, out[rows])
    return out


def _roofline(ops: NDArray[np.int64], nbytes: NDArray[np.int64], fabric: Fabric) -> NDArray[np.int64]:
    """floor(1e9 ops / min(M ops / bytes, peak)), -1 where ASTRA-sim never ends."""
    work, moved = ops.astype(np.float64), nbytes.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.minimum(fabric.memory_bandwidth * 1e9 * (work / moved), fabric.peak_flops)
        took = 1e9 * (work / rate)
    return np.where(np.isfinite(took), np.floor(np.nan_to_num(took)), _NEVER).astype(np.int64)


__all__ = ["POOLS", "MessageRun", "Mode", "RemoteMemory", "simulate"]
