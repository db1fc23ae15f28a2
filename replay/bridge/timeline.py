"""ASTRA-sim's answer as a `Timeline`: parts, dimensions and JSON where it logged its nodes, ends of ranks where not.

Owns how logged starts and ends become a `Run`: what the log does not say (when a node was ready, what it queued
behind, which message or member it waited for) follows from ASTRA-sim's rules (astra_sim_semantics 4, 5) and the log's
ticks. Runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import RankGraph, TraceSet
from tracegen.replay.astra_mode import Mode
from tracegen.replay.bridge.log import NodeLog
from tracegen.replay.bridge.simulator import UNTOLD, BridgeResult
from tracegen.replay.cells.assembly import assemble
from tracegen.replay.cells.astra import in_rank_order
from tracegen.replay.cells.plan import ASTRA, INSTANT, JOIN, NO_LANE, RECV, SEND, TAG_SPACE, plan_class
from tracegen.replay.cells.slots import name_slots, split_by_dimensions
from tracegen.replay.fabric import Fabric, refuse_other_size
from tracegen.replay.facts import Facts
from tracegen.replay.prices.astra_collectives import Unsettled
from tracegen.replay.run import Run
from tracegen.replay.timeline import NS_PER_S, Dimension, Throughput, Timeline

BACKEND = "astra-sim"
Array = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BridgeTimeline(Timeline):
    """ASTRA-sim's own run, node by node.

    Parameters
    ----------
    run, facts : as in `Timeline`; ``run`` holds the logged ticks.
    result : what the simulator said.
    """

    result: BridgeResult

    @cached_property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Traffic of each network dimension, counted from the nodes that ended; none where we cannot count it."""
        try:
            return Timeline(self.run, self.facts).dimensions
        except (InputError, Unsettled):
            return ()

    def document(self, command: str) -> dict[str, Any]:
        """The JSON document of `replay`, with ``backend`` and ``astra_exposed_ns`` of each rank."""
        return _with_backend(super().document(command), self.result)


@dataclass(frozen=True, eq=False)
class FinishTimes:
    """All that is known of a run whose nodes were not logged: when each rank finished.

    Parameters
    ----------
    result : what the simulator said.
    mode : its backend and flags.
    """

    result: BridgeResult
    mode: Mode

    @property
    def makespan_ns(self) -> int:
        """The largest finish."""
        return self.result.makespan_ns

    @property
    def step_time_s(self) -> float:
        """The makespan in seconds."""
        return self.makespan_ns / NS_PER_S

    @property
    def finish_ns(self) -> Array:
        """i64[ranks], -1 where a rank never finished."""
        return self.result.finish_ns

    @property
    def finished(self) -> bool:
        """Whether every rank finished, at a time above 0."""
        return not self.result.failure and self.makespan_ns > 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know of this answer."""
        return (*self.result.notes, "ASTRA-sim logged no whole set of nodes: only the end of each rank is known")

    def document(self, command: str) -> dict[str, Any]:
        """The JSON document of `replay`; what the simulator does not tell is null."""
        unknown = {"compute_ns": None, "exposed_ns": None, "bubble_ns": None, "idle_ns": None}
        document = {
            "tracegen": version("chakra-tracegen"),
            "command": command,
            "step_time_s": self.step_time_s,
            "makespan_ns": self.makespan_ns,
            "execution": ASTRA,
            "network_model": "congestion" if self.mode.congestion else "analytical",
            "ranks": [
                {"rank": rank, "finish_ns": finish if finish >= 0 else None, **unknown}
                for rank, finish in enumerate(self.finish_ns.tolist())
            ],
            "dimensions": None,
            "throughput": Throughput(None, None, None, None, None).document(),
            "warnings": list(self.warnings),
        }
        return _with_backend(document, self.result)


def bridge_timeline(
    result: BridgeResult, traces: TraceSet, fabric: Fabric, facts: Facts | None, mode: Mode | None = None
) -> BridgeTimeline | FinishTimes:
    """ASTRA-sim's answer in the terms of ours.

    Parameters
    ----------
    traces, fabric, facts, mode : what ran, as `replay` takes them.

    Returns
    -------
    BridgeTimeline
        Where the log tells the start and end of every node that ran; `FinishTimes` where it does not.
    """
    if result.log is None or not len(result.log):
        return FinishTimes(result, mode or Mode())
    times = node_times(traces, result.log)
    if not result.failure and bool((times.end < 0).any()):
        return FinishTimes(result, mode or Mode())
    notes = [*result.notes]
    if times.strange:
        notes.append(f"ASTRA-sim logged {times.strange} events of nodes that are in no trace: ignored")
    run = run_of_times(traces, fabric, mode or Mode(), times, tuple(notes))
    timeline = BridgeTimeline(run, facts or Facts(), result)
    apart = np.flatnonzero((result.finish_ns >= 0) & (result.finish_ns != timeline.finish_ns))
    if len(apart):
        rank = int(apart[0])
        notes.append(
            f"{len(apart)} ranks finish at another tick than their last logged node (rank {rank}: "
            f"{result.finish_ns[rank]} ns, its nodes {timeline.finish_ns[rank]} ns)"
        )
        timeline = replace(timeline, run=replace(run, notes=tuple(notes)))
    return timeline


@dataclass(frozen=True, eq=False)
class NodeTimes:
    """When every node started and ended.

    Parameters
    ----------
    node_ptr : i64[ranks + 1]. start, end : i64, ns, flat over ranks x nodes in the order of their graphs; -1 never.
    strange : events of nodes that no trace has.
    """

    node_ptr: Array
    start: Array
    end: Array
    strange: int = 0


def node_times(traces: TraceSet, log: NodeLog) -> NodeTimes:
    """The log's events at the nodes they are of; of several starts or ends of a node, the last in the log counts."""
    sizes = np.array([len(graph) for graph in traces.graphs], np.int64)[traces.class_of]
    node_ptr = np.concatenate([[0], np.cumsum(sizes)])
    start, end = np.full(node_ptr[-1], -1, np.int64), np.full(node_ptr[-1], -1, np.int64)
    order = np.argsort(log.rank, kind="stable")
    bounds = np.searchsorted(log.rank[order], np.arange(traces.ranks + 1))
    sorters = [np.argsort(graph.id, kind="stable") for graph in traces.graphs]
    strange = len(log) - int(bounds[-1] - bounds[0])
    for rank in range(traces.ranks):
        mine = order[bounds[rank] : bounds[rank + 1]]
        ids, sorter = traces.graph(rank).id, sorters[traces.class_of[rank]]
        if not len(ids):
            strange += len(mine)
            continue
        at = sorter[np.minimum(np.searchsorted(ids, log.node[mine], sorter=sorter), len(ids) - 1)]
        known = ids[at] == log.node[mine]
        strange += int((~known).sum())
        at, mine = node_ptr[rank] + at[known], mine[known]
        ends = log.ended[mine]
        start[at[~ends]] = log.tick[mine[~ends]]
        end[at[ends]] = log.tick[mine[ends]]
    return NodeTimes(node_ptr, start, end, strange)


def run_of_times(traces: TraceSet, fabric: Fabric, mode: Mode, times: NodeTimes, notes: tuple[str, ...]) -> Run:
    """A `Run` of execution `astra` from the start and end of every node, without folding.

    Raises
    ------
    InputError
        The traces do not fit the network.
    """
    refuse_other_size(fabric, traces.ranks)
    traces, mask = split_by_dimensions(traces, fabric, named=False)
    traces = in_rank_order(traces)
    plans = tuple(plan_class(graph, traces.slots.shape[1], ASTRA) for graph in traces.graphs)
    slots = name_slots(traces, plans, fabric, mask, lowest_only=True)
    every = np.arange(traces.ranks, dtype=np.int32)
    assembly = assemble(plans, traces.class_of, slots, every, every, ASTRA)
    act = [_in_graph_order(plan.act, plan.order) for plan in plans]
    lane = [_in_graph_order(plan.lane, plan.order) for plan in plans]
    ready, ahead = np.zeros_like(times.end), np.full(len(times.end), -1, np.int32)
    for rank, number in enumerate(traces.class_of.tolist()):
        nodes = slice(int(times.node_ptr[rank]), int(times.node_ptr[rank + 1]))
        ready[nodes] = _ready(traces.graphs[number], times.end[nodes])
        ahead[nodes] = _ahead(lane[number], ready[nodes], times.start[nodes], times.end[nodes])
    what = np.concatenate([act[number] for number in traces.class_of])
    names = np.concatenate([slots.names, np.full((traces.ranks, 1), -1, np.int32)], axis=1)  # slot -1: nothing
    named = [names[rank, traces.graph(rank).slot] for rank in range(traces.ranks)]
    transfer, late = _met(traces, times, what, np.concatenate(named).astype(np.int64))
    spans = np.where(times.end >= 0, times.end - np.where(what == RECV, times.end, transfer), -1)
    return Run(
        traces=traces,
        fabric=fabric,
        execution=ASTRA,
        cell_of=every,
        representative=every,
        node_ptr=times.node_ptr,
        ready_ns=ready,
        issue_ns=times.start,
        transfer_ns=transfer,
        end_ns=times.end,
        ahead=ahead,
        late_rank=late,
        duration_ns=np.where((what == INSTANT) & (times.end >= 0), 0, spans),
        notes=notes,
        assembly=assembly,
        slots=slots,
        mode=mode,
    )


def _in_graph_order(column: NDArray[np.uint8], order: NDArray[np.int32]) -> NDArray[np.uint8]:
    out = np.empty_like(column)
    out[order] = column
    return out


def _ready(graph: RankGraph, end: Array) -> Array:
    """When each node's dependencies had all ended; 0 without any, -1 where one never did."""
    ready = np.zeros(len(end), np.int64)
    for ptr, deps in ((graph.data_ptr, graph.data_deps), (graph.ctrl_ptr, graph.ctrl_deps)):
        node = np.repeat(np.arange(len(end)), np.diff(ptr))
        came = np.where(end[deps] < 0, np.iinfo(np.int64).max, end[deps])
        np.maximum.at(ready, node, came)
    ready[ready == np.iinfo(np.int64).max] = -1
    return ready


def _ahead(lane: NDArray[np.uint8], ready: Array, start: Array, end: Array) -> NDArray[np.int32]:
    """For each node that waited for its slot, the position of the node that held it last; -1 else.

    A slot holds one node at a time, so that is the node of it that started last before this one did.
    """
    ahead = np.full(len(start), -1, np.int32)
    waited = (ready >= 0) & (start > ready)
    for one in np.unique(lane[waited & (lane != NO_LANE)]).tolist():
        held = np.flatnonzero((lane == one) & (start >= 0) & (end != start))
        held = held[np.argsort(start[held], kind="stable")]
        waiting = np.flatnonzero(waited & (lane == one))
        before = np.searchsorted(start[held], start[waiting], side="left") - 1
        ahead[waiting] = np.where(before >= 0, held[np.maximum(before, 0)] if len(held) else -1, -1)
    return ahead


def _met(traces: TraceSet, times: NodeTimes, act: NDArray[np.uint8], named: Array) -> tuple[Array, NDArray[np.int32]]:
    """`Run.transfer_ns` and `Run.late_rank`: of receives from their sends, of collectives from their last member.

    ``named`` is the peer or group of each node. Messages of one key (tag modulo 5e8, source, target, size) and
    collectives of one group meet in the order in which each rank starts them.
    """
    rank = np.repeat(np.arange(traces.ranks), np.diff(times.node_ptr))
    graphs = [traces.graphs[number] for number in traces.class_of]
    ids = np.concatenate([graph.id for graph in graphs])
    transfer, late = times.start.copy(), np.full(len(rank), -1, np.int32)

    begun = times.start >= 0
    joins = np.flatnonzero((act == JOIN) & begun)
    turn = _turns((rank[joins], named[joins]), times.start[joins], ids[joins])
    order = np.lexsort((rank[joins], -times.start[joins], turn, named[joins]))
    last = joins[order]
    opens = _opens(named[last], turn[order])
    leader = last[opens][np.cumsum(opens) - 1]
    transfer[last] = np.where(times.end[last] >= 0, times.start[leader], -1)
    late[last] = rank[leader]

    messages = np.flatnonzero(((act == SEND) | (act == RECV)) & begun)
    sends = act[messages] == SEND
    source = np.where(sends, rank[messages], named[messages])
    target = np.where(sends, named[messages], rank[messages])
    tag = np.concatenate([graph.tag for graph in graphs])[messages] % TAG_SPACE
    size = np.concatenate([graph.comm_bytes for graph in graphs])[messages]
    turn = _turns((source, target, tag, size, sends), times.start[messages], ids[messages])
    order = np.lexsort((~sends, turn, size, tag, target, source))
    key = tuple(column[order] for column in (source, target, tag, size, turn))
    meets = np.flatnonzero(~_opens(*key))  # a receive behind the send of the same key and turn
    receive, send = messages[order[meets]], messages[order[meets - 1]]
    transfer[receive] = times.start[send]
    receives = messages[~sends]
    late[receives] = named[receives]
    return transfer, late


def _turns(key: tuple[NDArray[Any], ...], start: Array, ids: NDArray[np.uint64]) -> Array:
    """How many of the same key started before each, ties by id."""
    order = np.lexsort((ids, start, *key))
    opens = _opens(*(column[order] for column in key))
    first = np.flatnonzero(opens)
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - first[np.cumsum(opens) - 1]
    return turn


def _opens(*key: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a sorted key differs from the one before it."""
    opens = np.ones(len(key[0]), np.bool_)
    if len(opens):
        opens[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in key])
    return opens


def _with_backend(document: dict[str, Any], result: BridgeResult) -> dict[str, Any]:
    """The document with what only the bridge knows: the backend, and each rank's exposed communication as it told."""
    told = [None if ns == UNTOLD else ns for ns in result.astra_exposed_ns.tolist()]
    ranks = [{**row, "astra_exposed_ns": ns} for row, ns in zip(document["ranks"], told, strict=True)]
    return {**document, "backend": BACKEND, "ranks": ranks}
