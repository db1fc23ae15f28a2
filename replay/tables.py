"""The table of every node of every rank, as CSV (`--nodes`)."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import Collective, Kind, Phase
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
        The file cannot be written.
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
