"""`tracegen replay`: how long a step takes, and where the time went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracegen.cli import options

if TYPE_CHECKING:
    from tracegen.cli.load import Loaded
    from tracegen.replay import Timeline


@click.command()
@options.spec
@options.overrides
@options.traces
@options.astra_files
@options.execution
@click.option("--nodes", type=click.Path(path_type=Path), metavar="CSV", help="Write start and end of every node.")
@click.option("--timeline", type=click.Path(path_type=Path), metavar="JSON", help="Write a timeline for Perfetto.")
@click.option("--timeline-ranks", metavar="RANKS", help="Ranks in the timeline: 0-7,16 (default: one of each kind).")
@click.option("--no-fold", is_flag=True, help="Simulate every rank, also those that must behave alike.")
@click.option("--ignore-missing-parents", is_flag=True, help="Drop dependencies on nodes that do not exist.")
@click.option("--unchecked", is_flag=True, help="Run in spite of errors, to the stop; exit 1 if a rank never finishes.")
@options.as_json
def replay(
    spec: str | None,
    overrides: tuple[str, ...],
    traces: str | None,
    network: str | None,
    system: str | None,
    memory: str | None,
    comm_group: str | None,
    execution: str | None,
    nodes: Path | None,
    timeline: Path | None,
    timeline_ranks: str | None,
    no_fold: bool,
    ignore_missing_parents: bool,
    unchecked: bool,
    as_json: bool,
) -> None:
    """Replay a job: from a SPEC, or from traces on disk."""
    from tracegen.cli import load, show
    from tracegen.cli.emit import rank_list
    from tracegen.proto.errors import RunError
    from tracegen.replay import replay as run
    from tracegen.replay.engine import explain

    files = load.AstraFiles(network, system, memory, comm_group)
    load.refuse_mixed(spec, traces, overrides, files, timeline=timeline is not None, ranks=timeline_ranks is not None)
    if spec is not None:
        loaded = load.from_spec(spec, overrides, execution)
        job = loaded.traces
    else:
        loaded = load.from_traces(str(traces), files, execution)
        job = load.runnable(loaded, ignore_missing_parents=ignore_missing_parents, unchecked=unchecked)
    assert job is not None
    chosen = rank_list(timeline_ranks, job.ranks) if timeline_ranks else None
    answer = run(job, loaded.fabric, execution=loaded.execution, facts=loaded.facts, fold=not no_fold)
    if not answer.finished and not unchecked:
        raise RunError(explain(answer.run))
    if as_json:
        click.echo(show.json_text(answer.document("replay")))
    else:
        print_answer(loaded, answer)
    _write(answer, nodes, timeline, chosen)
    if not answer.finished:
        raise RunError(explain(answer.run))


def _write(answer: Timeline, nodes: Path | None, timeline: Path | None, ranks: list[int] | None) -> None:
    if nodes is not None:
        from tracegen.replay.tables import write_nodes

        write_nodes(answer, nodes)
    if timeline is not None:
        from tracegen.replay.perfetto import write_perfetto

        write_perfetto(answer, timeline, ranks)


def print_answer(loaded: Loaded, answer: Timeline) -> None:
    """One line of what ran, one of results, where the time went by stage, the network, warnings."""
    from tracegen.cli import show

    click.echo(f"{loaded.title}; execution {loaded.execution} ({loaded.why})")
    click.echo(_results(answer))
    click.echo()
    labels = list(answer.parts.labels)
    makespan = answer.makespan_ns

    def cell(ns: float) -> str:
        return f"{show.figure(ns / 1e6)} ({show.share(ns, makespan)})" if ns else "-"

    shown = [label for label in labels if any(row.exposed_ns[label] for row in answer.stages)]
    show.table(
        ("stage", "ranks", "compute ms", *(f"exposed {label}" for label in shown), "bubble", "idle"),
        [
            (
                "all" if row.stage is None else str(row.stage), str(row.ranks), cell(row.compute_ns),
                *(cell(row.exposed_ns[label]) for label in shown), cell(row.bubble_ns), cell(row.idle_ns),
            )
            for row in answer.stages
        ],
    )  # fmt: skip
    click.echo()
    show.table(
        ("network", "bytes", "busiest rank ms", "utilisation"),
        [
            (part.name, show.quantity(part.bytes, "B"), cell(part.busy_ns), f"{100 * part.utilisation:.1f} %")
            for part in answer.dimensions
        ],
    )
    notes = [f"note: {note}" for note in loaded.notes]
    warnings = [f"warning: {line}" for line in answer.warnings]
    if notes or warnings:
        click.echo()
    for line in (*notes, *warnings):
        click.echo(line)


def _results(answer: Timeline) -> str:
    from tracegen.cli import show

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
