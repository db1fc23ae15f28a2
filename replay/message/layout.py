"""Traces, a fabric and a mode laid out as the arrays of a message-level run. No time passes here.

Owns durations of compute and memory nodes under ASTRA-sim's rules and the tables of collectives, messages and ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective, Kind, TraceSet
from tracegen.replay.astra_mode import Mode
from tracegen.replay.cells.plan import TAG_SPACE, ClassPlan
from tracegen.replay.fabric import FULLY_CONNECTED, RING, SWITCH, Fabric
from tracegen.replay.message import chunk_kernels as c
from tracegen.replay.message import pool_kernels as p
from tracegen.replay.message import workload_kernels as k
from tracegen.replay.message.jobs import Job, make_job
from tracegen.replay.message.state import State, empty_pools

NEVER = -1
_LINKS = {RING: 0, FULLY_CONNECTED: 1, SWITCH: 2}


def lay_out(
    traces: TraceSet,
    plans: list[ClassPlan],
    node_ptr: NDArray[np.int64],
    fabric: Fabric,
    mode: Mode,
    factors: NDArray[np.float64] | None,
) -> State:
    """The arrays of a run about to start; the traces may be those of one rank that stands for all of the fabric's."""
    _refuse_strangers(traces, plans, fabric, mode)
    starts = _ends(np.array([len(plan) for plan in plans], np.int64))[:-1]
    node, messages, kinds = _nodes(plans, fabric, mode)
    jobs, job, phases = _jobs(traces, plans, starts, node, kinds, fabric)
    count = int(job[:, k.JOB_COUNT].max(initial=1))
    clock = np.zeros(p.CLOCK_COLUMNS, np.int64)
    table = _table(clock, traces, fabric, messages, jobs, job)
    rank = _rank_rows(clock, traces, plans, node_ptr, starts, fabric, mode)
    rank[:, c.RANK_CHUNKS] = count * np.arange(traces.ranks)
    _fill_clock(clock, traces, plans, fabric, mode, phases, count)
    times = np.full((int(node_ptr[-1]), 4), NEVER, np.int64)
    times[:, k.SPAN] = _spans(traces, plans, fabric, mode, node_ptr, factors)
    marks = np.full((len(times), 4), NEVER, np.int32)
    for number, plan in enumerate(plans):
        marks[_rows(traces, node_ptr, number, len(plan)), k.LEFT] = plan.indegree
    network = [*zip(fabric.latency, fabric.bandwidth, strict=True), (fabric.memory_bandwidth, 0.0)]
    return State(
        clock=clock,
        table=table,
        **empty_pools(2 * int(clock[p.ROOM])),
        links=_links(fabric, mode),
        chunks=np.zeros((traces.ranks * count, c.CHUNK_COLUMNS), np.int64),
        rank=rank,
        times=times,
        marks=marks,
        node=node,
        succ=np.concatenate([plan.succ for plan in plans]).astype(np.int32),
        phases=phases,
        net=np.array(network, np.float64),
    )


def _refuse_strangers(traces: TraceSet, plans: list[ClassPlan], fabric: Fabric, mode: Mode) -> None:
    """Refuse peers that are no rank or the rank itself, and collectives on a group that the rank is not in.

    A message to itself goes up and down on the switch of the congestion-aware network; elsewhere ASTRA-sim aborts.
    """
    places = _places(traces, fabric)
    own = np.arange(traces.ranks)[:, None]
    to_itself = mode.congestion and fabric.topology[0] == SWITCH
    for number, plan in enumerate(plans):
        ranks = np.flatnonzero(traces.class_of == number)
        if mode.replay_only or not len(ranks):
            continue
        for acts, wrong, what in (
            ((k.SEND, k.RECV), (traces.slots < 0) | (traces.slots >= fabric.ranks), "names a peer that is no rank"),
            ((k.SEND, k.RECV), (traces.slots == own) & (not to_itself), "sends a message to itself"),
            ((k.JOIN,), places < 0, "runs a collective on a group that does not list it"),
        ):
            at = np.flatnonzero(np.isin(plan.act, acts))
            found = np.argwhere(wrong[ranks][:, plan.slot[at]])
            if len(found):
                node = plan.graph.id[plan.order[at[found[0, 1]]]]
                raise InputError(f"rank {ranks[found[0, 0]]} node {node} {what}, on which ASTRA-sim aborts")


def _ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    ends: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return ends


def node_starts(traces: TraceSet, plans: list[ClassPlan]) -> NDArray[np.int64]:
    """Where each rank's nodes begin among all nodes, i64[ranks + 1]."""
    return _ends(np.array([len(plan) for plan in plans], np.int64)[traces.class_of])


def _rows(traces: TraceSet, node_ptr: NDArray[np.int64], number: int, nodes: int) -> NDArray[np.int64]:
    """Rows of all nodes of a class's ranks, i64[ranks of the class, nodes]."""
    rows: NDArray[np.int64] = node_ptr[:-1][traces.class_of == number][:, None] + np.arange(nodes)
    return rows


def _table(
    clock: NDArray[np.int64],
    traces: TraceSet,
    fabric: Fabric,
    messages: NDArray[np.int64],
    jobs: NDArray[np.int64],
    job: NDArray[np.int64],
) -> NDArray[np.int64]:
    """One array for what is looked up; where its parts begin goes to the clock."""
    groups = traces.groups
    parts: list[NDArray[np.int64]] = [np.array([*fabric.size, *(_LINKS[name] for name in fabric.topology)], np.int64)]
    named = ((p.MESSAGES_AT, messages), (p.JOB_OF_AT, jobs), (p.JOBS_AT, job), (p.NUMBERS_AT, groups.number))
    for where, part in named:
        clock[where] = sum(len(earlier) for earlier in parts)
        parts.append(part.reshape(-1))
    clock[p.GROUPS_AT] = sum(len(earlier) for earlier in parts)
    parts.append(groups.ptr + clock[p.GROUPS_AT] + len(groups.ptr))
    parts.append(groups.members.astype(np.int64))
    clock[p.GROUPS] = jobs.shape[1]
    return np.concatenate(parts).astype(np.int64)


def _rank_rows(
    clock: NDArray[np.int64],
    traces: TraceSet,
    plans: list[ClassPlan],
    node_ptr: NDArray[np.int64],
    starts: NDArray[np.int64],
    fabric: Fabric,
    mode: Mode,
) -> NDArray[np.int64]:
    """A row of state for each rank; where its parts begin goes to the clock."""
    ranks, slots, class_of = traces.ranks, traces.slots.shape[1], traces.class_of
    clock[p.MADE_AT] = c.RANK_TURNS + 7 * fabric.dimensions
    clock[p.SLOTS_AT] = clock[p.MADE_AT] + slots
    clock[p.PLACE_AT] = clock[p.SLOTS_AT] + slots
    clock[p.QUEUES_AT] = clock[p.PLACE_AT] + slots
    queues = fabric.dimensions * fabric.queues
    rank = np.zeros((ranks, int(clock[p.QUEUES_AT]) + c.QUEUE_COLUMNS * queues), np.int64)
    rank[:, clock[p.SLOTS_AT] : clock[p.PLACE_AT]] = traces.slots
    rank[:, clock[p.PLACE_AT] : clock[p.QUEUES_AT]] = _places(traces, fabric)
    rank[:, clock[p.QUEUES_AT] :] = np.tile(np.array([0, -1, -1], np.int64), queues)
    rank[:, k.RANK_NODES], rank[:, k.RANK_TOTAL] = node_ptr[:-1], np.diff(node_ptr)
    rank[:, k.RANK_LEFT] = rank[:, k.RANK_TOTAL]
    rank[:, k.RANK_CLASS] = starts[class_of]
    lanes = np.stack([np.bincount(plan.lane, minlength=k.LANES) for plan in plans])
    rank[:, k.RANK_LANE : k.RANK_LANE + k.LANES] = node_ptr[:-1, None] + (np.cumsum(lanes, axis=1) - lanes)[class_of]
    rank[:, k.RANK_LAST : k.RANK_LAST + k.LANES] = -1
    together = mode.memory.ranks_per_pool if mode.memory else 0
    rank[:, k.RANK_POOL] = np.arange(ranks) // together if together else -1
    for column in (k.RANK_LATER, k.RANK_WAITING, k.POOL_HEAD, k.POOL_TAIL):
        rank[:, column] = -1
    return rank


def _fill_clock(
    clock: NDArray[np.int64],
    traces: TraceSet,
    plans: list[ClassPlan],
    fabric: Fabric,
    mode: Mode,
    phases: NDArray[np.int64],
    count: int,
) -> None:
    """Scalars; ROOM is the most rows of a pool that one action can take."""
    servers = -(-fabric.active // fabric.queues)
    window = int(phases[:, c.WINDOW].max(initial=2))
    started = min(count, servers * fabric.queues) + 2
    receives = max((int((plan.act == k.RECV).sum()) for plan in plans), default=0)
    clock[[p.CURRENT, p.RUNNING, p.FREE, p.PENDING]] = -1
    for column, value in (
        (p.RANKS, fabric.ranks), (p.PLAYED, traces.ranks), (p.DIMS, fabric.dimensions), (p.QUEUES, fabric.queues),
        (p.SERVERS, servers), (p.CONGESTION, mode.congestion), (p.RENDEZVOUS, mode.rendezvous),
        (p.ROOM, 4 * (window * started + receives + 16)),
    ):  # fmt: skip
        clock[column] = value


def _links(fabric: Fabric, mode: Mode) -> NDArray[np.int64]:
    n = fabric.ranks
    if not mode.congestion:
        count = n * fabric.dimensions
    else:
        count = n * n if fabric.topology[0] == FULLY_CONNECTED else 2 * n
    links = np.zeros((count, p.LINK_COLUMNS), np.int64)
    links[:, : p.LINK_MESSAGES] = -1
    return links


def _places(traces: TraceSet, fabric: Fabric) -> NDArray[np.int64]:
    """Each rank's place in the group of a slot, i64[ranks, slots]; -1 where the slot names no group of the rank."""
    groups, ranks = traces.groups, fabric.ranks
    place = np.full(traces.slots.shape, -1, np.int64)
    row = np.repeat(np.arange(len(groups)), np.diff(groups.ptr))
    where = np.arange(len(groups.members)) - groups.ptr[row]
    key = row * ranks + groups.members
    order = np.argsort(key, kind="stable")
    if not len(order):
        return place
    wanted = traces.slots.astype(np.int64) * ranks + np.arange(traces.ranks)[:, None]
    at = order[np.minimum(np.searchsorted(key, wanted, sorter=order), len(order) - 1)]
    return np.where(key[at] == wanted, where[at], place)


def _nodes(
    plans: list[ClassPlan], fabric: Fabric, mode: Mode
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the classes' nodes and one more; signatures of messages (bytes, tag) and of collectives
    (kind, bytes, dims)."""
    rows: list[NDArray[np.int64]] = []
    message_keys, collective_keys, successors = [], [], 0
    for plan in plans:
        graph = plan.graph
        act = plan.act.astype(np.int64)
        kind = graph.kind[plan.order]
        memory = (kind == Kind.MEM_LOAD) | (kind == Kind.MEM_STORE)
        act[memory] = k.REMOTE
        if memory.any() and mode.memory is None and not mode.replay_only:
            at = int(np.flatnonzero(memory)[0])
            raise InputError(
                f"node {graph.id[plan.order[at]]}: {Kind(int(kind[at])).name} needs a remote memory; "
                "give --memory with a memory-type other than NO_MEMORY_EXPANSION"
            )
        if mode.replay_only:
            act[:] = k.TIMED
        elif fabric.peak_flops:
            computes = (act == k.TIMED) & (kind == Kind.COMP) & ~graph.cpu[plan.order]
            act[computes & (graph.mem_bytes[plan.order] == 0)] = k.INSTANT  # skipped in zero time (4)
        edges = plan.succ_ptr[:-1] + successors
        successors += len(plan.succ)
        columns = (act, plan.lane, plan.slot, np.zeros(len(plan)), edges)
        rows.append(np.stack([column.astype(np.int64) for column in columns], 1))
        messages = (act == k.SEND) | (act == k.RECV)
        if (wrong := np.flatnonzero(messages & (plan.nbytes < 1))).size:
            raise InputError(f"node {graph.id[plan.order[wrong[0]]]}: a message of no bytes, on which ASTRA-sim aborts")
        message_keys.append(np.stack([plan.nbytes[messages], plan.tag[messages] % TAG_SPACE], 1))
        joins = act == k.JOIN
        collective_keys.append(
            np.stack([plan.collective[joins], plan.nbytes[joins], graph.dims[plan.order][joins]], 1).astype(np.int64)
        )
    rows.append(np.array([[k.INSTANT, k.NO_LANE, -1, 0, successors]], np.int64))
    node = np.concatenate(rows)
    tables = []
    for acts, keys in (((k.SEND, k.RECV), message_keys), ((k.JOIN,), collective_keys)):
        table, number = _distinct(np.concatenate(keys))
        node[np.isin(node[:, k.NODE_ACT], acts), k.NODE_SIGNATURE] = number
        tables.append(table)
    return node.astype(np.int32), tables[0], tables[1]


def _distinct(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct rows, and the number of each row among them (a sort a column: faster than numpy's of whole rows)."""
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:
        values, number = np.unique(column, return_inverse=True)
        code = np.unique(code * max(len(values), 1) + number.reshape(-1), return_inverse=True)[1].reshape(-1)
    _, first, number = np.unique(code, return_index=True, return_inverse=True)
    return np.ascontiguousarray(rows[first], np.int64), number.reshape(-1)


def _jobs(
    traces: TraceSet,
    plans: list[ClassPlan],
    starts: NDArray[np.int64],
    node: NDArray[np.int32],
    kinds: NDArray[np.int64],
    fabric: Fabric,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Which job each (signature, group) is, the jobs, and the phases of all jobs."""
    groups = traces.groups
    lengths = np.diff(groups.ptr)
    jobs = np.full((len(kinds), len(groups)), -1, np.int64)
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
        rows = _rows(traces, node_ptr, number, len(plan))
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
            limited = _roofline(graph.flops[order], graph.mem_bytes[order], fabric)
            span = np.where(compute & ~graph.cpu[order], limited, span)
        played = kind == Kind.COLL
        played &= graph.collective[order] == Collective.BROADCAST
        out[rows] = np.where(compute | memory | played, span, 0)
        if factors is not None or traces.scale is not None:
            scale = np.ones(rows.shape) if factors is None else factors[rows[:, order]]
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
    return np.where(np.isfinite(took), np.floor(np.nan_to_num(took)), NEVER).astype(np.int64)
