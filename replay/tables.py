"""Tables as CSV: every node of every rank (`--nodes`), every link or dimension (`--links`)."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import Collective, Kind, Phase
from tracegen.replay.fabric import RING, SWITCH
from tracegen.replay.output import replacing
from tracegen.replay.parts import node_labels
from tracegen.replay.run import Run
from tracegen.replay.timeline import Timeline

COLUMNS = (
    "rank", "node", "name", "start_ns", "end_ns", "kind", "collective", "label", "ready_ns", "issue_ns", "transfer_ns",
    "duration_ns", "bytes", "flops", "memory_bytes", "layer", "phase", "microbatch", "chunk", "tag",
)  # fmt: skip


def write_nodes(timeline: Timeline, path: str | Path) -> int:
    """Write one row per node of every rank, in order of rank and trace; returns how many rows.

    A time that a node never reached, and what a trace does not say, is an empty field. Ranks of one cell have equal
    rows but for the rank, so each cell is put into text once.

    Raises
    ------
    InputError
        The file cannot be written there.
    RunError
        Writing failed half-way.
    """
    run = timeline.run
    start = run.start_ns()
    sharing = np.bincount(run.cell_of, minlength=len(run.representative))
    kept: dict[tuple[int, bytes], list[str]] = {}
    count = 0
    with replacing(path) as file:
        file.write(",".join(COLUMNS) + "\n")
        for rank in range(run.traces.ranks):
            label = node_labels(run.traces, rank, timeline.parts.labels)
            key = (int(run.cell_of[rank]), label.tobytes())
            rows = kept.get(key) or _rows(run, start, rank, label, timeline.parts.labels)
            if sharing[key[0]] > 1:
                kept[key] = rows
            file.write("".join([f"{rank},{row}" for row in rows]))
            count += len(rows)
    return count


LINK_COLUMNS = ("link", "source", "target", "bytes", "busy_ns", "queueing_ns", "messages")


def write_links(timeline: Timeline, path: str | Path) -> int:
    """Write one row per directed link where links were simulated, else per dimension; returns how many rows.

    ``busy_ns`` of a dimension is its busiest rank's. Messages never queue on the analytical network; how many there
    were is empty where none was simulated. A switch is ``switch``, as source or target.

    Raises
    ------
    InputError
        The file cannot be written there.
    RunError
        Writing failed half-way.
    """
    run = timeline.run
    if run.links is not None and run.mode.congestion:
        ends = _link_ends(run)
        rows: list[tuple[object, ...]] = [
            (f"{source}>{target}", source, target, sent, busy, queued, messages)
            for (source, target), (messages, sent, busy, queued) in zip(ends, run.links.tolist(), strict=True)
            if source != target
        ]
    else:
        counts: list[object] = ["" for _ in run.fabric.names]
        if run.links is not None:
            counts = list(run.links[:, 0].reshape(run.traces.ranks, -1).sum(axis=0).tolist())
        rows = [
            (part.name, "", "", part.bytes, part.busy_ns, 0, count)
            for part, count in zip(timeline.dimensions, counts, strict=True)
        ]
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(LINK_COLUMNS)
        writer.writerows(rows)
    return len(rows)


def _link_ends(run: Run) -> list[tuple[int | str, int | str]]:
    """Source and target of each directed link of a congestion-aware run, in `MessageRun`'s order."""
    n, topology = run.traces.ranks, run.fabric.topology[0]
    if topology == RING:
        return [(rank, (rank + step) % n) for rank in range(n) for step in (1, -1)]
    if topology == SWITCH:
        return [(rank, "switch") for rank in range(n)] + [("switch", rank) for rank in range(n)]
    return [(source, target) for source in range(n) for target in range(n)]


def _rows(
    run: Run, start: NDArray[np.int64], rank: int, label: NDArray[np.int64], labels: tuple[str, ...]
) -> list[str]:
    """The rows of a rank as text, without the rank."""
    graph, nodes = run.traces.graph(rank), run.nodes_of(rank)
    names = [*labels, ""]
    kinds, collectives = ({member.value: member.name for member in kind} for kind in (Kind, Collective))
    phases = {member.value: member.name for member in Phase}
    columns = (
        graph.id.tolist(),
        [graph.name_of(node) for node in range(len(graph))],
        _told(start[nodes]),
        _told(run.end_ns[nodes]),
        [kinds.get(kind, kind) for kind in graph.kind.tolist()],
        [collectives.get(kind, "") for kind in graph.collective.tolist()],
        [names[number] for number in label.tolist()],
        _told(run.ready_ns[nodes]),
        _told(run.issue_ns[nodes]),
        _told(run.transfer_ns[nodes]),
        _told(run.duration_ns[nodes]),
        _told(graph.comm_bytes),
        graph.flops.tolist(),
        graph.mem_bytes.tolist(),
        _told(graph.layer),
        [phases.get(phase, "") for phase in graph.phase.tolist()],
        _told(graph.microbatch),
        _told(graph.chunk),
        _told(graph.tag),
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = []
    for row in zip(*columns, strict=True):
        writer.writerow(row)
        rows.append(text.getvalue())
        text.seek(0)
        text.truncate()
    return rows


def _told(column: NDArray[np.integer]) -> list[int | str]:
    """Numbers, with nothing in place of -1."""
    return [value if value >= 0 else "" for value in column.tolist()]
