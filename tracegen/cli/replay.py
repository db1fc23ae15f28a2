"""`tracegen replay`: how long a step takes, and where the time went."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracegen.cli import bridge, options

if TYPE_CHECKING:
    from tracegen.replay import Timeline


@click.command()
@options.spec
@options.overrides
@options.traces
@options.astra_files
@options.execution
@options.astra_flags
@bridge.options
@click.option("--nodes", type=click.Path(path_type=Path), metavar="CSV", help="Write start and end of every node.")
@click.option("--links", type=click.Path(path_type=Path), metavar="CSV", help="Write bytes and times of every link.")
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
    network_model: str | None,
    queues: int | None,
    rendezvous: bool | None,
    injection_scale: float | None,
    backend: str,
    astra_sim: str | None,
    time_limit: float | None,
    nodes: Path | None,
    links: Path | None,
    timeline: Path | None,
    timeline_ranks: str | None,
    no_fold: bool,
    ignore_missing_parents: bool,
    unchecked: bool,
    as_json: bool,
) -> None:
    """Replay a job: from a SPEC, or from traces on disk."""
    from tracegen.cli import load, show
    from tracegen.cli.answer import print_answer
    from tracegen.cli.emit import rank_list
    from tracegen.proto.errors import InputError, RunError
    from tracegen.replay import replay as run
    from tracegen.replay.engine import explain
    from tracegen.replay.output import refuse_same, refuse_unwritable
    from tracegen.replay.paths import MESSAGES

    files = load.AstraFiles(network, system, memory, comm_group)
    load.refuse_mixed(spec, traces, overrides, files, timeline=timeline is not None, ranks=timeline_ranks is not None)
    written = {"--nodes": nodes, "--links": links, "--timeline": timeline}
    given = (traces, spec if spec and Path(spec).exists() else None, *vars(files).values(), astra_sim)
    refuse_same(written, [Path(path) for path in given if path])
    refuse_unwritable(written)
    load.refuse_idle(spec, unchecked=unchecked, ignore_missing_parents=ignore_missing_parents)
    wanted = bridge.request(backend, astra_sim, time_limit, execution, network_model)
    asked = execution
    if wanted is not None:
        execution, network_model = "astra", wanted.network_model
    flags = load.flags_of(network_model, queues, rendezvous, injection_scale)
    if spec is not None:
        loaded = load.from_spec(spec, overrides, execution, flags)
        assert loaded.traces is not None
        job, suspicion, warnings = loaded.traces, "", loaded.warnings
    else:
        loaded = load.from_traces(str(traces), files, execution, flags)
        job, suspicion, warnings = load.runnable(
            loaded, ignore_missing_parents=ignore_missing_parents, unchecked=unchecked
        )
    if wanted is not None and asked is None:
        loaded = replace(loaded, why="ASTRA-sim plays no other")
    chosen = None if timeline_ranks is None else rank_list(timeline_ranks, job.ranks, "--timeline-ranks")
    # Links are known where messages are simulated; the analytical network has none but its dimensions.
    path = MESSAGES if links is not None and loaded.mode.congestion else None

    def ours() -> Timeline:
        with show.counter("messages") as progress:
            return run(
                job,
                loaded.fabric,
                execution=loaded.execution,
                facts=loaded.facts,
                fold=not no_fold,
                mode=loaded.mode,
                path=path,
                progress=progress,
            )

    if wanted is not None:
        failure = bridge.answer(
            wanted,
            loaded,
            job,
            ours=ours,
            write=lambda found: _write(found, nodes, links, timeline, chosen),
            spec=spec,
            overrides=overrides,
            traces=traces,
            files=files,
            flags=flags,
            unchecked=unchecked,
            as_json=as_json,
        )
        if failure:
            raise RunError(failure)
        return
    answer = ours()
    if not answer.finished and not unchecked:
        if suspicion:
            raise InputError(suspicion)
        raise RunError(explain(answer.run))
    _write(answer, nodes, links, timeline, chosen)  # first: whoever reads what we print may leave
    if as_json:
        document = answer.document("replay")
        told = {"notes": list(loaded.notes)} if traces is not None and loaded.notes else {}
        click.echo(show.json_text({**document, "warnings": [*document["warnings"], *warnings], **told}))
    else:
        print_answer(loaded, answer, warnings)
    if not answer.finished:
        raise RunError(explain(answer.run))


def _write(
    answer: Timeline | None, nodes: Path | None, links: Path | None, timeline: Path | None, ranks: list[int] | None
) -> None:
    if answer is None:
        if nodes or links or timeline:
            from tracegen.proto.errors import RunError

            raise RunError("ASTRA-sim logged no nodes, so --nodes, --links and --timeline were not written")
        return
    if nodes is not None or links is not None:
        from tracegen.replay.tables import write_links, write_nodes

        if nodes is not None:
            write_nodes(answer, nodes)
        if links is not None:
            write_links(answer, links)
    if timeline is not None:
        from tracegen.replay.perfetto import write_perfetto

        write_perfetto(answer, timeline, ranks)
