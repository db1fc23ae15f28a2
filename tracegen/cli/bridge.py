"""`replay --backend astra-sim|both`: the options, the run of the external simulator, and its answer in print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tracegen.cli.load import AstraFiles, Loaded
    from tracegen.proto.graph import TraceSet
    from tracegen.replay import Timeline
    from tracegen.replay.astra_files import Flags
    from tracegen.replay.bridge.compare import Comparison
    from tracegen.replay.bridge.timeline import BridgeTimeline, FinishTimes

BUILTIN, ASTRA_SIM, BOTH = "builtin", "astra-sim", "both"
_MOST_ROWS = 16  # ranks shown beside each other


def options(function: Any) -> Any:
    """--backend, --astra-sim and --time-limit."""
    for decorate in (
        click.option(
            "--time-limit", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
            help="Stop ASTRA-sim after this long (default: never).",
        ),
        click.option("--astra-sim", metavar="BIN", help="ASTRA-sim's analytical binary, for the other backends."),
        click.option(
            "--backend", type=click.Choice([BUILTIN, ASTRA_SIM, BOTH]), default=BUILTIN, show_default=True,
            help="Who replays: we, the external simulator, or both side by side.",
        ),
    ):  # fmt: skip
        function = decorate(function)
    return function


@dataclass(frozen=True)
class Request:
    """What was asked of the external simulator.

    Parameters
    ----------
    backend : astra-sim or both.
    binary : of the simulator.
    time_limit_s : None for no limit.
    network_model : analytical or congestion, which `both` must replay under too.
    assumed : the network model was neither asked for nor told by the binary's name.
    """

    backend: str
    binary: str
    time_limit_s: float | None
    network_model: str
    assumed: bool = False


def request(
    backend: str, binary: str | None, time_limit_s: float | None, execution: str | None, network_model: str | None
) -> Request | None:
    """The options, checked against each other; None where we replay alone.

    Parameters
    ----------
    execution, network_model : as asked, None where nobody did. ASTRA-sim plays execution `astra` only.

    Raises
    ------
    click.UsageError
        Options that would be ignored, or that contradict the backend.
    """
    from tracegen.replay.bridge.simulator import ANALYTICAL, network_model_of

    if backend == BUILTIN:
        for flag, value in (("--astra-sim", binary), ("--time-limit", time_limit_s)):
            if value is not None:
                raise click.UsageError(f"{flag} goes with --backend astra-sim or both")
        return None
    if binary is None:
        raise click.UsageError(f"--backend {backend} needs the simulator: --astra-sim BIN")
    if execution == "streams":
        raise click.UsageError(f"--backend {backend} plays execution astra: leave --execution streams out")
    built_for = network_model_of(binary)
    if built_for and network_model and built_for != network_model:
        raise click.UsageError(f"--network-model {network_model}, but {Path(binary).name} simulates {built_for}")
    known = network_model or built_for
    return Request(backend, binary, time_limit_s, known or ANALYTICAL, assumed=known is None)


def answer(
    wanted: Request,
    loaded: Loaded,
    job: TraceSet,
    *,
    ours: Callable[[], Timeline],
    write: Callable[[Timeline | None], None],
    spec: str | None,
    overrides: Sequence[str],
    traces: str | None,
    files: AstraFiles,
    flags: Flags,
    unchecked: bool,
    as_json: bool,
) -> str:
    """Run the simulator, and us beside it where both were asked for, write the files, and print the answer.

    Parameters
    ----------
    ours : replays the job here.
    write : writes the files asked for from a timeline (of `both` ours; None where the simulator logged no nodes).
    spec, overrides, traces, files, flags, unchecked : as in `play`.

    Returns
    -------
    Why the run is no whole one, for exit code 1; "" where it is.

    Raises
    ------
    RunError
        Not every rank finished and ``unchecked`` is not set; for `both` with our explanation, where we stop too.
    """
    from tracegen.cli import show
    from tracegen.proto.errors import RunError
    from tracegen.replay.bridge.timeline import FinishTimes
    from tracegen.replay.engine import explain

    theirs = play(
        wanted, loaded, job, spec=spec, overrides=overrides, traces=traces, files=files, flags=flags, unchecked=True
    )
    builtin = ours() if wanted.backend == BOTH else None
    failure = theirs.result.failure
    if builtin is not None and not builtin.finished:
        failure = "\n".join(line for line in (failure, explain(builtin.run)) if line)
    if failure and not unchecked:
        raise RunError(failure)
    write(builtin or (None if isinstance(theirs, FinishTimes) else theirs))  # first: who reads what we print may leave
    if as_json:
        told = {"notes": list(loaded.notes)} if traces is not None and loaded.notes else {}
        click.echo(show.json_text({**document(wanted, theirs, builtin), **told}))
    else:
        print_answer(wanted, loaded, theirs, builtin)
    return failure


def play(
    wanted: Request,
    loaded: Loaded,
    job: TraceSet,
    *,
    spec: str | None,
    overrides: Sequence[str],
    traces: str | None,
    files: AstraFiles,
    flags: Flags,
    unchecked: bool,
) -> BridgeTimeline | FinishTimes:
    """Run the simulator on the files, or on what `emit` writes of the spec.

    Parameters
    ----------
    loaded, job : what `load` made of the same source.
    flags : ASTRA-sim's own further flags.
    unchecked : hand back a run that did not finish (``result.failure`` says why).
    """
    if spec is None:
        assert traces is not None
        return _run(wanted, loaded, job, traces, _inputs_of(traces, files), flags, unchecked)
    import tempfile

    from tracegen.build import build
    from tracegen.emit import emit
    from tracegen.spec import load_job

    with tempfile.TemporaryDirectory(prefix="tracegen-emitted-", ignore_cleanup_errors=True) as place:
        folder = Path(place) / "job"
        emit(build(load_job(spec, overrides)), folder, execution="astra")
        return _run(wanted, loaded, job, str(folder), _inputs_of(str(folder), files), flags, unchecked)


def _inputs_of(location: str, files: AstraFiles) -> AstraFiles:
    """ASTRA-sim's input files: as given, else what lies in a folder that `emit` wrote."""
    from tracegen.cli.load import AstraFiles, manifest_of

    if manifest_of(location) is None:
        return files
    folder = Path(location)
    beside = {
        "network": folder / "network.yml",
        "system": folder / "system.json",
        "memory": folder / "memory.json",
        "comm_group": folder / "comm_group.json",
    }
    return AstraFiles(
        **{name: getattr(files, name) or (str(path) if path.is_file() else None) for name, path in beside.items()}
    )


def _run(
    wanted: Request,
    loaded: Loaded,
    job: TraceSet,
    location: str,
    files: AstraFiles,
    flags: Flags,
    unchecked: bool,
) -> BridgeTimeline | FinishTimes:
    import numpy as np

    from tracegen.cli import show
    from tracegen.proto.errors import InputError
    from tracegen.replay.bridge.simulator import run_astra_sim
    from tracegen.replay.bridge.timeline import bridge_timeline

    if job.ranks > 1 and not (files.network and files.system):
        raise InputError(f"{location}: --backend {wanted.backend} needs --network and --system, ASTRA-sim's own files")
    with show.progress("ASTRA-sim, ranks finished") as step:
        result = run_astra_sim(
            wanted.binary,
            location,
            files.network or "",
            files.system or "",
            files.memory,
            files.comm_group,
            ranks=job.ranks,
            flags=_arguments(flags),
            time_limit_s=wanted.time_limit_s,
            progress=step,
            nodes=np.array([len(graph) for graph in job.graphs], np.int64)[job.class_of],
            unchecked=unchecked,
        )
    if wanted.assumed:
        note = (
            f"the name {Path(wanted.binary).name} does not say which network it simulates: taken as "
            f"{wanted.network_model}; give --network-model"
        )
        result = replace(result, notes=(*result.notes, note))
    return bridge_timeline(result, job, loaded.fabric, loaded.facts, loaded.mode)


def _arguments(flags: Flags) -> dict[str, str | int | float | bool]:
    """Flags as the simulator spells them, those that are not at its defaults."""
    from tracegen.replay.astra_files import Flags

    unset = Flags()
    spelled = {
        "num-queues-per-dim": (flags.queues, unset.queues),
        "rendezvous-protocol": (flags.rendezvous, unset.rendezvous),
        "injection-scale": (flags.injection_scale, unset.injection_scale),
    }
    return {name: value for name, (value, default) in spelled.items() if value != default}


def document(wanted: Request, theirs: BridgeTimeline | FinishTimes, builtin: Timeline | None) -> dict[str, Any]:
    """The JSON document: the simulator's alone, or ours with the simulator's and the comparison beside it."""
    if wanted.backend == ASTRA_SIM or builtin is None:
        return theirs.document("replay")
    from tracegen.replay.bridge.compare import compare

    return {
        **builtin.document("replay"),
        "backend": BOTH,
        "astra_sim": theirs.document("replay"),
        "comparison": compare(builtin, theirs).document(),
    }


def print_answer(
    wanted: Request, loaded: Loaded, theirs: BridgeTimeline | FinishTimes, builtin: Timeline | None
) -> None:
    """The simulator's answer as ours is printed; for `both` ours, then the two side by side."""
    from tracegen.cli.answer import print_answer as print_timeline
    from tracegen.replay.bridge.compare import compare
    from tracegen.replay.bridge.timeline import BridgeTimeline

    if wanted.backend == BOTH and builtin is not None:
        print_timeline(loaded, builtin)
        click.echo()
        print_comparison(compare(builtin, theirs))
        for line in theirs.result.notes:
            click.echo(f"note: {line}")
        return
    loaded = replace(loaded, why=f"by {Path(wanted.binary).name}, {theirs.result.wall_s:.1f} s")
    if isinstance(theirs, BridgeTimeline):
        print_timeline(loaded, theirs)
    else:
        _print_ends(loaded, theirs)
    _print_exposed(theirs)


def print_comparison(found: Comparison) -> None:
    """Ours beside the simulator's: the makespan, then ranks that differ (all, where they are few)."""
    from tracegen.cli import show

    differing = [row for row in found.ranks if not row.equal]
    shown = list(found.ranks) if len(found.ranks) <= _MOST_ROWS else differing[:_MOST_ROWS]

    def cell(value: int | None) -> str:
        return "never" if value is None else f"{value:,}"

    show.table(
        ("finish", "builtin ns", "ASTRA-sim ns", "difference ns", "%"),
        [
            (
                "makespan" if row.rank is None else f"rank {row.rank}",
                cell(row.builtin_ns),
                cell(row.astra_sim_ns),
                "-" if row.difference_ns is None else f"{row.difference_ns:+,}" if row.difference_ns else "0",
                "-" if row.difference_percent is None else show.figure(row.difference_percent),
            )
            for row in (found.makespan, *shown)
        ],
    )
    if not found.nodes:
        click.echo("nodes were not compared: ASTRA-sim logged no whole set of them")
    of_nodes = f", {found.nodes:,} nodes" if found.nodes else ""
    if found.equal:
        click.echo(f"equal: {len(found.ranks):,} ranks{of_nodes}, difference 0")
        return
    click.echo(
        f"{len(differing):,} of {len(found.ranks):,} ranks differ"
        + (f", {found.differing_nodes:,} of {found.nodes:,} nodes" if found.nodes else "")
    )
    if found.first:
        ours, its = (
            f"{cell(start if start >= 0 else None)} to {cell(end if end >= 0 else None)}"
            for start, end in (found.first.builtin_ns, found.first.astra_sim_ns)
        )
        name = show.plain(found.first.name)
        click.echo(f"first at rank {found.first.rank} node {found.first.node} ({name}):")
        click.echo(f"  builtin {ours} ns, ASTRA-sim {its} ns")


def _print_ends(loaded: Loaded, theirs: FinishTimes) -> None:
    from tracegen.cli import show

    click.echo(f"{loaded.title}; execution {loaded.execution} ({loaded.why})")
    click.echo(f"step {show.duration(theirs.step_time_s)}")
    for line in loaded.notes:
        click.echo(f"note: {line}")
    show.warn(theirs.warnings)


def _print_exposed(theirs: BridgeTimeline | FinishTimes) -> None:
    """ASTRA-sim's own figure, which is another than ours (DEFINITIONS 10)."""
    from tracegen.cli import show
    from tracegen.replay.bridge.simulator import UNTOLD

    told = theirs.result.astra_exposed_ns[theirs.result.astra_exposed_ns != UNTOLD]
    if len(told):
        least, most = (show.duration(float(ns) / 1e9) for ns in (told.min(), told.max()))
        click.echo(
            f"note: astra_exposed_ns, ASTRA-sim's exposed communication (finish minus GPU compute): {least} to {most}"
        )
