"""How `tracegen replay` answers at the prompt: what ran, results, where the time went, the network, warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tracegen.cli import show

if TYPE_CHECKING:
    from tracegen.cli.load import Loaded
    from tracegen.replay import Timeline

_LABEL_COLUMNS = 3  # more labels than these would not fit beside the stages, and get a table of their own
_LABEL_ROWS = 12


def print_answer(loaded: Loaded, answer: Timeline, warnings: Sequence[str] = ()) -> None:
    """Print a timeline.

    Parameters
    ----------
    warnings : what else to warn of, after the timeline's own.
    """
    model = ", network model congestion" if loaded.mode.congestion else ""
    click.echo(f"{loaded.title}; execution {loaded.execution} ({loaded.why}){model}")
    click.echo(_results(answer))
    click.echo()
    _print_stages(answer)
    if answer.dimensions:
        click.echo()
        _print_dimensions(answer)
    told = [f"note: {note}" for note in loaded.notes]
    told += [f"warning: {line}" for line in (*answer.warnings, *warnings)]
    if told:
        click.echo()
    for line in told:
        click.echo(line)


def _results(answer: Timeline) -> str:
    rates = answer.throughput
    parts = [f"step {show.duration(answer.step_time_s)}"]
    if rates.tokens_per_s is not None and rates.tokens_per_s_per_gpu is not None:
        parts.append(f"{show.figure(rates.tokens_per_s)} tokens/s")
        parts.append(f"{show.figure(rates.tokens_per_s_per_gpu)} tokens/s/GPU")
    if rates.mfu is not None and rates.hfu is not None:
        parts.append(f"MFU {100 * rates.mfu:.1f} %")
        parts.append(f"HFU {100 * rates.hfu:.1f} %")
    if rates.tflops_per_gpu is not None:
        parts.append(f"{show.figure(rates.tflops_per_gpu)} TFLOP/s/GPU")
    return ", ".join(parts)


class _Cells:
    """Times of one answer in one unit, each with its share of the makespan."""

    def __init__(self, makespan_ns: int) -> None:
        self.unit, self._scale = ("s", 1e9) if makespan_ns >= 100e9 else ("ms", 1e6)
        self._whole = makespan_ns

    def __call__(self, ns: float) -> str:
        return f"{show.figure(ns / self._scale)} ({show.share(ns, self._whole)})" if ns else "-"


def _print_stages(answer: Timeline) -> None:
    """Mean over the ranks of each stage; where labels are many, their sum here and a row for each below."""
    cell = _Cells(answer.makespan_ns)
    exposed = {
        label: [row.exposed_ns[label] for row in answer.stages]
        for label in answer.parts.labels
        if any(row.exposed_ns[label] for row in answer.stages)
    }
    columns = exposed
    if len(exposed) > _LABEL_COLUMNS:
        columns = {"": [sum(values) for values in zip(*exposed.values(), strict=True)]}
    show.table(
        (
            "stage",
            "ranks",
            f"compute {cell.unit}",
            *(f"exposed {label}".strip() for label in columns),
            "bubble",
            "idle",
        ),
        [
            (
                "all" if row.stage is None else str(row.stage),
                f"{row.ranks:,}",
                cell(row.compute_ns),
                *(cell(values[place]) for values in columns.values()),
                cell(row.bubble_ns),
                cell(row.idle_ns),
            )
            for place, row in enumerate(answer.stages)
        ],
    )
    if columns is not exposed:
        click.echo()
        _print_labels(answer, exposed, cell)


def _print_labels(answer: Timeline, exposed: dict[str, list[float]], cell: _Cells) -> None:
    """The labels that cost most, mean over all ranks and of the stage that waits longest for it."""
    ranks = [row.ranks for row in answer.stages]
    mean = {
        label: sum(ns * many for ns, many in zip(values, ranks, strict=True)) / sum(ranks)
        for label, values in exposed.items()
    }
    most = sorted(mean, key=lambda label: -mean[label])
    show.table(
        ("exposed to", f"mean {cell.unit}", "worst stage"),
        [(label, cell(mean[label]), cell(max(exposed[label]))) for label in most[:_LABEL_ROWS]],
    )
    if len(most) > _LABEL_ROWS:
        click.echo(f"and {show.count(len(most) - _LABEL_ROWS, 'label')} more: --json has all")


def _print_dimensions(answer: Timeline) -> None:
    cell = _Cells(answer.makespan_ns)
    show.table(
        ("network", "bytes", f"busiest rank {cell.unit}", "utilisation"),
        [
            (part.name, show.quantity(part.bytes, "B"), cell(part.busy_ns), f"{100 * part.utilisation:.1f} %")
            for part in answer.dimensions
        ],
    )
