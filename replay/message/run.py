"""A message-level simulation as a `Run`, so that parts, tables and explanations read it like any other. Owns no rule.

The simulation says when nodes were ready, issued and done; who fed whom follows from the order of issue: the k-th send
of a key feeds its k-th receive, the k-th collective that a rank issues on a group is the group's k-th.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import TraceSet
from tracegen.replay.astra_mode import Mode
from tracegen.replay.cells.assembly import Assembly, assemble
from tracegen.replay.cells.late import late_ranks
from tracegen.replay.cells.plan import ASTRA, JOIN, RECV, SEND, TAG_SPACE, ClassPlan, plan_class
from tracegen.replay.cells.slots import Slots, name_slots
from tracegen.replay.cells.spans import Jitter
from tracegen.replay.fabric import Fabric
from tracegen.replay.message.engine import MessageRun, simulate
from tracegen.replay.run import Run

Progress = Callable[[int, int], None]
_LATER = np.iinfo(np.int64).max  # sorts what was never issued behind what was


def run_messages(
    traces: TraceSet,
    split: TraceSet,
    mask: NDArray[np.int64],
    fabric: Fabric,
    mode: Mode,
    *,
    fold: bool = True,
    jitter: Jitter | None = None,
    progress: Progress | None = None,
    notes: tuple[str, ...] = (),
) -> Run:
    """Simulate every message of every rank (or, with ``fold``, of one where all do the same: `one_for_all`).

    Parameters
    ----------
    traces : as read.
    split, mask : the same with collectives over some dimensions on groups of their own (`slots.split_by_dimensions`);
        nodes stand at the same positions.
    """
    plans = tuple(plan_class(graph, split.slots.shape[1], ASTRA) for graph in split.graphs)
    slots = name_slots(split, plans, fabric, mask, lowest_only=True)
    ranks = np.arange(traces.ranks, dtype=np.int32)
    assembly = assemble(plans, split.class_of, slots, ranks, ranks, ASTRA)
    played = simulate(traces, fabric, mode, fold=fold, factors=_factors(split, plans, jitter), progress=progress)
    place = assembly.places()
    issue, end = played.issue_ns[place], played.end_ns[place]
    assembly = _pair(assembly, slots, issue)
    transfer = _transfer(assembly, issue, end)
    late = late_ranks(assembly, slots, ranks, ranks, issue)
    duration = np.where(end >= 0, end - transfer, -1)
    act = _per_node(assembly, assembly.act)
    duration = np.where((act == SEND) | (act == JOIN), duration, played.duration_ns[place])

    def back(column: NDArray[np.int64]) -> NDArray[np.int64]:
        out = np.empty_like(column)
        out[place] = column
        return out

    return Run(
        traces=split,
        fabric=fabric,
        execution=ASTRA,
        cell_of=ranks,
        representative=ranks,
        node_ptr=assembly.node_ptr,
        ready_ns=played.ready_ns,
        issue_ns=played.issue_ns,
        transfer_ns=back(transfer),
        end_ns=played.end_ns,
        ahead=played.ahead,
        late_rank=back(late.astype(np.int64)).astype(np.int32),
        duration_ns=back(duration),
        notes=notes,
        assembly=assembly,
        slots=slots,
        mode=mode,
        links=played.links,
        messages=played.messages,
    )


def _factors(traces: TraceSet, plans: tuple[ClassPlan, ...], jitter: Jitter | None) -> NDArray[np.float64] | None:
    """Factors on compute times in graph order, ranks one after the other."""
    if jitter is None:
        return None
    rows = []
    for rank, number in enumerate(traces.class_of.tolist()):
        plan = plans[number]
        row = np.empty(len(plan))
        row[plan.order] = jitter.factors(np.array([rank], np.int32), len(plan))[0]
        rows.append(row)
    return np.concatenate(rows) if rows else np.zeros(0)


def _per_node(assembly: Assembly, column: NDArray[np.generic]) -> NDArray[np.int64]:
    """A class column spread over all nodes."""
    at = np.arange(assembly.nodes) - assembly.node_ptr[assembly.cell_of_node]
    return column[assembly.class_start[assembly.cell_of_node] + at].astype(np.int64)


def _turns(key: NDArray[np.int64], order: NDArray[np.intp]) -> NDArray[np.int64]:
    """How many of the same key come before each in ``order`` (which sorts by key first)."""
    turn = np.zeros(len(key), np.int64)
    if len(key):
        grouped = key[order]
        first = np.flatnonzero(np.concatenate([[True], grouped[1:] != grouped[:-1]]))
        lengths = np.diff(np.append(first, len(key)))
        turn[order] = np.arange(len(key)) - np.repeat(first, lengths)
    return turn


def _pair(assembly: Assembly, slots: Slots, issue: NDArray[np.int64]) -> Assembly:
    """The assembly with messages and collectives met in the order in which they were issued."""
    act, slot = _per_node(assembly, assembly.act), _per_node(assembly, assembly.slot)
    rank = assembly.cell_of_node.astype(np.int64)
    when = np.where(issue < 0, _LATER, issue)
    mate = np.full(assembly.nodes, -1, np.int64)
    nodes = np.flatnonzero((act == SEND) | (act == RECV))
    if len(nodes):
        nbytes = np.concatenate([plan.nbytes for plan in assembly.plans])
        tag = np.concatenate([plan.tag for plan in assembly.plans]) % TAG_SPACE
        peer = slots.names[rank[nodes], slot[nodes]].astype(np.int64)
        sends = act[nodes] == SEND
        columns = (
            np.where(sends, rank[nodes], peer),
            np.where(sends, peer, rank[nodes]),
            _per_node(assembly, tag)[nodes],
            _per_node(assembly, nbytes)[nodes],
        )
        key = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
        sided = 2 * key + sends
        turn = _turns(sided, np.lexsort((nodes, when[nodes], sided)))
        code = key * (int(turn.max()) + 1) + turn
        _, mine, theirs = np.intersect1d(code[sends], code[~sends], assume_unique=True, return_indices=True)
        out, into = nodes[sends][mine], nodes[~sends][theirs]
        mate[out], mate[into] = into, out
    instance = np.full_like(assembly.instance, -1)
    members = np.full_like(assembly.members, -1)
    joins = np.flatnonzero((act == JOIN) & (issue >= 0))
    if len(joins):
        key = rank[joins] * slots.names.shape[1] + slot[joins]
        turn = _turns(key, np.lexsort((joins, when[joins], key)))
        which = assembly.first_instance[rank[joins], slot[joins]] + turn
        instance[joins] = which
        members[assembly.member_ptr[which] + assembly.pools.seat[rank[joins], slot[joins]]] = joins
    return replace(assembly, mate=mate, instance=instance, members=members)


def _transfer(assembly: Assembly, issue: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """When each node began to move: receives with their send, collectives with the last member, others at issue."""
    act = _per_node(assembly, assembly.act)
    out = issue.copy()
    fed = np.flatnonzero((act == RECV) & (issue >= 0))
    sent = assembly.mate[fed]
    out[fed] = np.where(sent >= 0, issue[sent], -1)
    joins = np.flatnonzero(assembly.instance >= 0)
    if len(joins):
        entered = np.where(assembly.members >= 0, issue[assembly.members], _LATER)
        begins = assembly.member_ptr[:-1]
        last = np.maximum.reduceat(entered, begins)
        out[joins] = np.where(last[assembly.instance[joins]] == _LATER, -1, last[assembly.instance[joins]])
    # A node that ended began to move, also where members called unlike collectives that happened to fit.
    ended = end >= 0
    out[ended] = np.where(out[ended] < 0, issue[ended], np.minimum(out[ended], end[ended]))
    return out


__all__ = ["MessageRun", "Progress", "run_messages"]
