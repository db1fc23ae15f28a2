"""Simulates a run message by message, exactly as ASTRA-sim's analytical backends do, without folding or closed forms.

The slowest and most general way to replay: for the congestion-aware network, and where nothing else is exact. Owns the
run and its result; the arrays are laid out in `message_layout`, the simulation is in the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import TraceSet
from tracegen.replay.astra_mode import Mode
from tracegen.replay.cells.plan import ASTRA, ClassPlan, plan_class
from tracegen.replay.fabric import FULLY_CONNECTED, RING, Fabric, refuse_other_size
from tracegen.replay.message import chunk_kernels as c
from tracegen.replay.message import pool_kernels as p
from tracegen.replay.message import workload_kernels as k
from tracegen.replay.message.layout import NEVER, lay_out, node_starts
from tracegen.replay.message.state import State, more_cells, more_events
from tracegen.replay.paths import refuse_network

_MESSAGES_A_CALL = 2_000_000


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
    fold: bool = True,
    factors: NDArray[np.float64] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MessageRun:
    """Play every message.

    Parameters
    ----------
    fold : where all ranks do the same at the same time, play one of them for all; see `one_for_all`.
    factors : f64[nodes] on compute times, in the order of `MessageRun`'s columns; rounded half to even, at least 1 ns.
    progress : called now and then with (messages sent, ns reached).

    Raises
    ------
    InputError
        What ASTRA-sim aborts on. A run that does not finish is none: its ends are -1.
    """
    mode = mode or Mode()
    refuse_other_size(fabric, traces.ranks)
    refuse_network(fabric, mode)
    plans = [plan_class(graph, traces.slots.shape[1], ASTRA) for graph in traces.graphs]
    node_ptr = node_starts(traces, plans)
    if fold and factors is None and (state := one_for_all(traces, plans, fabric, mode)) is not None:
        return _result(traces, plans, node_ptr, _copied(_run(state, progress), fabric, mode))
    state = _run(lay_out(traces, plans, node_ptr, fabric, mode, factors), progress)
    return _result(traces, plans, node_ptr, state)


def _run(state: State, progress: Callable[[int, int], None] | None) -> State:
    """Advance to the end, pools growing as needed."""
    while True:
        outcome = k.advance(state, _MESSAGES_A_CALL)
        if outcome == k.FINISHED:
            return state
        if outcome == k.ABORT:
            raise InputError(
                "an event falls on time 0, where ASTRA-sim aborts: a message, link or endpoint-delay takes 0 ns at "
                "the start; give the network a latency, or begin with a compute node"
            )
        if outcome == k.MORE_EVENTS:
            state = more_events(state)
        elif outcome == k.MORE_CELLS:
            state = more_cells(state)
        elif progress:
            progress(int(state.clock[p.MESSAGES]), int(state.clock[p.NOW]))


def one_for_all(traces: TraceSet, plans: list[ClassPlan], fabric: Fabric, mode: Mode) -> State | None:
    """The arrays of rank 0 alone where it can stand for all ranks, None where it cannot.

    It can on one dimension, where all ranks have one graph and meet only in collectives of all of them whose messages
    share no link with those of other ranks: what a rank receives from k ranks behind is then what it has sent k ahead.
    """
    alone = mode.memory is None or mode.memory.ranks_per_pool == 0
    alone &= not mode.congestion or (fabric.queues == 1 and not mode.rendezvous)
    if len(plans) == 0 or np.ptp(traces.class_of) or fabric.dimensions != 1 or traces.scale is not None or not alone:
        return None
    plan = plans[int(traces.class_of[0])]
    joins = plan.act == k.JOIN
    slots = traces.slots[:, np.unique(plan.slot[joins])]
    whole = np.diff(traces.groups.ptr)[slots] == fabric.ranks if slots.size else np.ones(1, np.bool_)
    if np.isin(plan.act, (k.SEND, k.RECV)).any() or not whole.all() or (slots != slots[0]).any():
        return None
    first = TraceSet((plan.graph,), np.zeros(1, np.int32), traces.groups, traces.slots[:1])
    state = lay_out(first, [plan], node_starts(first, [plan]), fabric, mode, None)
    apart = (c.RING,) if mode.congestion else (c.RING, c.DIRECT)
    return state if np.isin(state.phases[:, c.ALGORITHM], apart).all() else None


def _copied(state: State, fabric: Fabric, mode: Mode) -> State:
    """The outcome of the one rank played, for all ranks; what it put on a link is on the like link of every rank."""
    n = fabric.ranks
    links = state.links.copy()
    if mode.congestion and fabric.topology[0] == FULLY_CONNECTED:
        src, dst = np.divmod(np.arange(n * n), n)
        links = state.links[(dst - src) % n]
    elif mode.congestion and fabric.topology[0] == RING:
        links = np.tile(state.links[:2], (n, 1))
    elif mode.congestion:
        links[:n] = state.links[0]
        links[n:] = state.links[n:].max(axis=0)
    else:
        links[:] = state.links[0]
    clock = state.clock.copy()
    clock[p.MESSAGES] *= n
    times, marks = np.tile(state.times, (n, 1)), np.tile(state.marks, (n, 1))
    return state._replace(clock=clock, times=times, marks=marks, rank=np.tile(state.rank, (n, 1)), links=links)


def _result(traces: TraceSet, plans: list[ClassPlan], node_ptr: NDArray[np.int64], state: State) -> MessageRun:
    """Columns back in the order of the graphs."""
    place = np.arange(len(state.times))
    ahead = state.marks[:, k.AHEAD]
    for number, plan in enumerate(plans):
        if plan.reordered:
            rows = node_ptr[:-1][traces.class_of == number][:, None]
            place[rows + np.arange(len(plan))] = rows + plan.order
            behind = ahead[rows + np.arange(len(plan))]
            ahead[rows + np.arange(len(plan))] = np.where(behind >= 0, plan.order[np.maximum(behind, 0)], -1)
    times, queued = np.empty_like(state.times), np.empty_like(ahead)
    times[place], queued[place] = state.times, ahead
    return MessageRun(
        node_ptr=node_ptr,
        ready_ns=times[:, k.READY],
        issue_ns=times[:, k.START],
        end_ns=times[:, k.END],
        ahead=queued,
        duration_ns=times[:, k.SPAN],
        finish_ns=np.where(state.rank[:, k.RANK_LEFT] == 0, state.rank[:, k.RANK_FINISH], NEVER),
        messages=int(state.clock[p.MESSAGES]),
        links=state.links[:, p.LINK_MESSAGES :].copy(),
    )
