"""A replayed run as a Chrome-trace JSON file, which Perfetto (ui.perfetto.dev) opens.

A process per rank, a track per stream, further lanes where slices of one stream would overlap (receives do), so that
slices on a track are disjoint; arrows from sends to receives. Times are microseconds with three decimals, exactly the
nanoseconds of the run. Ids are text, since JSON readers keep 53 bits only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective, Kind, Phase, RankGraph
from tracegen.replay.messages import messages, pair
from tracegen.replay.output import replacing
from tracegen.replay.parts import node_labels
from tracegen.replay.run import Run
from tracegen.replay.timeline import Timeline

MOST_SLICES = 1_000_000


def write_perfetto(timeline: Timeline, path: str | Path, ranks: Sequence[int] | None = None) -> int:
    """Write the nodes that ended as slices; returns how many.

    Parameters
    ----------
    ranks : which to show; by default one of each cell, since the others of a cell do the same at the same time.

    Raises
    ------
    InputError
        A rank that does not exist, above `MOST_SLICES` slices, or a path that cannot be written.
    RunError
        Writing failed half-way.
    """
    run = timeline.run
    shown = run.representative.tolist() if ranks is None else list(dict.fromkeys(ranks))
    if strange := [rank for rank in shown if not 0 <= rank < run.traces.ranks]:
        raise InputError(f"rank {strange[0]} does not exist: ranks are 0 to {run.traces.ranks - 1}")
    ended = np.array([int((run.end_ns[run.nodes_of(rank)] >= 0).sum()) for rank in shown], np.int64)
    if ended.sum() > MOST_SLICES:
        fits = int((np.cumsum(ended) <= MOST_SLICES).sum())
        advice = f"the first {fits} of them fit" if fits else "use granularity block"
        raise InputError(
            f"{path}: {len(shown)} ranks make {ended.sum()} slices, at most {MOST_SLICES} are written: "
            f"name fewer with --timeline-ranks ({advice})"
        )
    lanes: dict[int, NDArray[np.int64]] = {}
    with replacing(path) as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        separator = ""
        for rank in shown:
            for line in _rank_events(timeline, rank, lanes):
                file.write(separator + line)
                separator = ",\n"
        for line in _arrows(run, shown, lanes):
            file.write(separator + line)
        file.write("\n]}\n")
    return int(ended.sum())


def _microseconds(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def slice_start_ns(run: Run, rank: int) -> NDArray[np.int64]:
    """Where each node's slice begins: communication when it begins to move, the rest at issue."""
    nodes = run.nodes_of(rank)
    kind = run.traces.graph(rank).kind
    moves = (kind == Kind.RECV) | ((kind == Kind.COLL) & (run.execution == "streams"))
    return np.where(moves, np.maximum(run.transfer_ns[nodes], run.issue_ns[nodes]), run.issue_ns[nodes])


def assign_lanes(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lowest lane on which each slice is disjoint from those before it, given in order of their starts."""
    free: list[int] = []
    lane = np.zeros(len(start), np.int64)
    if len(start) < 2 or (start[1:] >= end[:-1]).all():
        return lane
    for index, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        number = next((k for k, until in enumerate(free) if until <= begin), len(free))
        if number == len(free):
            free.append(stop)
        else:
            free[number] = stop
        lane[index] = number
    return lane


def _tracks(
    run: Run, rank: int, label: NDArray[np.int64], labels: tuple[str, ...]
) -> list[tuple[str, NDArray[np.intp]]]:
    """The streams of a rank: name and nodes, compute first."""
    graph, traces = run.traces.graph(rank), run.traces
    compute = graph.kind == Kind.COMP
    out = [("compute", np.flatnonzero(compute & ~graph.cpu)), ("cpu", np.flatnonzero(compute & graph.cpu))]
    for slot in np.unique(graph.slot[graph.slot >= 0]).tolist():
        target = int(traces.slots[rank, slot])
        on = graph.slot == slot
        joins = np.flatnonzero(on & (graph.kind == Kind.COLL))
        if len(joins):
            name, number = labels[label[joins[0]]], int(traces.groups.number[target])
            plain = name if name in ("world", f"group {number}") or number == 0 else f"{name} (group {number})"
            out.append((plain, joins))
        out.append((f"send to {target}", np.flatnonzero(on & (graph.kind == Kind.SEND))))
        out.append((f"receive from {target}", np.flatnonzero(on & (graph.kind == Kind.RECV))))
    named = np.concatenate([nodes for _, nodes in out])
    out.append(("other", np.setdiff1d(np.arange(len(graph)), named)))
    return [(name, nodes) for name, nodes in out if len(nodes)]


def _rank_events(timeline: Timeline, rank: int, lanes: dict[int, NDArray[np.int64]]) -> Iterator[str]:
    """Names of a rank's process and tracks, then its slices; notes the track of every node in ``lanes``."""
    run, stage_of = timeline.run, timeline.facts.stage_of
    graph, labels = run.traces.graph(rank), timeline.parts.labels
    label = node_labels(run.traces, rank, labels)
    start, end = slice_start_ns(run, rank), run.end_ns[run.nodes_of(rank)]
    process = f"rank {rank}" if stage_of is None else f"rank {rank} (stage {stage_of[rank]})"
    yield _named("process_name", rank, 0, process)
    yield json.dumps({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
    track = np.zeros(len(graph), np.int64)
    used = 0
    for name, nodes in _tracks(run, rank, label, labels):
        nodes = nodes[end[nodes] >= 0]
        nodes = nodes[np.lexsort((end[nodes], start[nodes]))]
        lane = assign_lanes(start[nodes], end[nodes])
        track[nodes] = used + 1 + lane
        for number in range(int(lane.max(initial=-1)) + 1):
            used += 1
            yield _named("thread_name", rank, used, name if number == 0 else f"{name} ({number + 1})")
            yield json.dumps(
                {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": used, "args": {"sort_index": used}}
            )
        yield from _slices(run, rank, nodes, start, end, track, [labels[k] if k >= 0 else "" for k in label[nodes]])
    lanes[rank] = track


def _named(what: str, rank: int, track: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": rank, "tid": track, "args": {"name": name}})


def _slices(
    run: Run,
    rank: int,
    nodes: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    track: NDArray[np.int64],
    labels: list[str],
) -> Iterator[str]:
    """One event per node; only names and labels need escaping, all else is digits."""
    graph, flat = run.traces.graph(rank), run.nodes_of(rank).start
    quoted = {label: f', "label": {json.dumps(label)}' if label else "" for label in set(labels)}
    rows = zip(
        nodes.tolist(),
        track[nodes].tolist(),
        start[nodes].tolist(),
        (end[nodes] - start[nodes]).tolist(),
        graph.id[nodes].tolist(),
        labels,
        run.ready_ns[flat + nodes].tolist(),
        run.issue_ns[flat + nodes].tolist(),
        _kinds(graph, nodes),
        _details(graph, nodes),
        strict=True,
    )
    for node, lane, begin, lasts, number, label, ready, issue, kind, details in rows:
        yield (
            f'{{"ph": "X", "pid": {rank}, "tid": {lane}, "ts": {_microseconds(begin)}, "dur": {_microseconds(lasts)}, '
            f'"name": {json.dumps(graph.name_of(node))}, "cat": "{kind}", "args": {{"id": "{number}"{quoted[label]}'
            f'{details}, "ready_ns": {ready}, "issue_ns": {issue}}}}}'
        )


def _kinds(graph: RankGraph, nodes: NDArray[np.int64]) -> list[str]:
    """The type of each node; of a collective, which."""
    kinds = {member.value: member.name for member in Kind}
    collectives = {member.value: member.name for member in Collective}
    return [
        collectives.get(collective, "COLL") if kind == Kind.COLL else kinds.get(kind, str(kind))
        for kind, collective in zip(graph.kind[nodes].tolist(), graph.collective[nodes].tolist(), strict=True)
    ]


def _details(graph: RankGraph, nodes: NDArray[np.int64]) -> list[str]:
    """What else is known of each node, as JSON fields."""
    out = [""] * len(nodes)
    for name, column in (("bytes", graph.comm_bytes), ("tag", graph.tag), ("layer", graph.layer),
                         ("microbatch", graph.microbatch), ("chunk", graph.chunk)):  # fmt: skip
        out = [
            f'{text}, "{name}": {value}' if value >= 0 else text
            for text, value in zip(out, column[nodes].tolist(), strict=True)
        ]
    phases = [f', "phase": "{phase.name}"' for phase in Phase]
    compute = graph.kind[nodes] == Kind.COMP
    work = zip(
        out,
        graph.phase[nodes].tolist(),
        compute.tolist(),
        graph.flops[nodes].tolist(),
        graph.mem_bytes[nodes].tolist(),
        strict=True,
    )
    return [
        text + (phases[phase] if phase >= 0 else "")
        + (f', "flops": {flops}, "memory_bytes": {nbytes}' if computes else "")
        for text, phase, computes, flops, nbytes in work
    ]  # fmt: skip


def _arrows(run: Run, shown: list[int], lanes: dict[int, NDArray[np.int64]]) -> Iterator[str]:
    """A flow from every send that is shown to its receive, where that is shown too."""
    both = messages(run.traces, np.array(shown, np.int64))
    pairs = pair(both, run.execution)
    starts = {rank: slice_start_ns(run, rank) for rank in shown}
    ends = {rank: run.end_ns[run.nodes_of(rank)] for rank in shown}
    for number, (send, recv) in enumerate(zip(pairs.send.tolist(), pairs.recv.tolist(), strict=True), 1):
        source, target = int(both.rank[send]), int(both.rank[recv])
        a, b = int(both.position[send]), int(both.position[recv])
        if ends[source][a] < 0 or ends[target][b] < 0:
            continue
        common = f'"name": "message", "cat": "message", "id": {number}'
        yield (
            f'{{"ph": "s", {common}, "pid": {source}, "tid": {lanes[source][a]}, '
            f'"ts": {_microseconds(int(starts[source][a]))}}}'
        )
        yield (
            f'{{"ph": "f", "bp": "e", {common}, "pid": {target}, "tid": {lanes[target][b]}, '
            f'"ts": {_microseconds(int(starts[target][b]))}}}'
        )
