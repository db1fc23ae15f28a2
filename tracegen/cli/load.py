"""What `replay` and `check` run on: traces, a fabric, the job's facts, and the reason for the execution chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracegen.proto.errors import InputError

if TYPE_CHECKING:
    from tracegen.proto.graph import TraceSet
    from tracegen.proto.problems import Problem
    from tracegen.replay import Finding
    from tracegen.replay.astra_files import AstraSystem, Flags
    from tracegen.replay.astra_mode import Mode
    from tracegen.replay.fabric import Fabric
    from tracegen.replay.facts import Facts


@dataclass(frozen=True)
class Loaded:
    """Everything a replay needs.

    ``title`` is the line of what runs, ``notes`` what to echo after it, ``problems`` what was found while reading;
    ``traces`` is None where the files could not be read. ``mode`` has ASTRA-sim's backend and flags, ``warnings`` what
    is suspicious about the job itself.
    """

    traces: TraceSet | None
    fabric: Fabric
    facts: Facts | None
    execution: str
    why: str
    title: str
    mode: Mode
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()

    def findings(self, *, ignore_missing_parents: bool = False, play: bool = True) -> list[Finding]:
        """Everything `check` has to say, errors first; without ``play`` as far as it can be told without running."""
        from tracegen.replay import check

        return check(
            self.traces,
            self.fabric,
            self.execution,
            mode=self.mode,
            problems=self.problems,
            ignore_missing_parents=ignore_missing_parents,
            play=play,
        )


def from_spec(spec: str, overrides: Sequence[str], execution: str | None, flags: Flags | None = None) -> Loaded:
    """Build the job that a spec describes; under `astra` the fabric is read from what `emit` would write."""
    from tracegen.build import build
    from tracegen.replay.astra_files import astra_system
    from tracegen.replay.astra_mode import Mode
    from tracegen.replay.fabric import Fabric
    from tracegen.replay.facts import Facts
    from tracegen.spec import load_job
    from tracegen.spec.network import astra_inputs

    job = load_job(spec, overrides)
    built = build(job)
    chosen, why = (execution, "as asked") if execution else ("streams", "the default for a spec")
    if chosen == "astra" and job.world > 1:
        inputs = astra_inputs(job.network, job.device.memory_bandwidth)
        described = astra_system(inputs.network, inputs.system, inputs.memory, flags)
        fabric, mode = described.fabric, described.mode
    else:
        refuse_flags(flags, chosen)
        fabric, mode = Fabric.from_network(job.network), Mode()
    facts = Facts.from_manifest(built.manifest)
    heading, warnings = title(built.manifest), job_warnings(built.manifest)
    return Loaded(built.traces, fabric, facts, chosen, why, heading, mode, built.notes, warnings=warnings)


def job_warnings(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """What is suspicious about a job, from its manifest: states that do not fit the device."""
    from tracegen.memory import memory_warning

    warning = memory_warning(manifest)
    return (warning,) if warning else ()


def flags_of(
    network_model: str | None, queues: int | None, rendezvous: bool | None, injection_scale: float | None
) -> Flags:
    """ASTRA-sim's flags as given on the command line; None where one was not."""
    from tracegen.replay.astra_files import Flags

    scale = 1.0 if injection_scale is None else injection_scale
    return Flags(network_model == "congestion", queues or 1, bool(rendezvous), scale)


def refuse_flags(flags: Flags | None, execution: str) -> None:
    """Refuse ASTRA-sim's flags where none of its rules is run, instead of passing over them."""
    from tracegen.replay.astra_files import Flags

    if flags is None or flags == Flags():
        return
    reason = f"execution {execution} has none of them" if execution != "astra" else "one rank sends nothing"
    raise InputError(
        "--network-model congestion, --num-queues-per-dim, --rendezvous-protocol and --injection-scale are "
        f"ASTRA-sim's: {reason}; use --execution astra"
    )


def title(manifest: Mapping[str, Any]) -> str:
    """What a job is, in half a line: model, devices, split, schedule."""
    return (
        f"{manifest['model']} on {manifest['ranks']} x {manifest['device']}: {manifest['parallelism']}, "
        f"{manifest['schedule']}"
    )


@dataclass(frozen=True)
class AstraFiles:
    """Paths of ASTRA-sim's input files as given on the command line; None where not given."""

    network: str | None = None
    system: str | None = None
    memory: str | None = None
    comm_group: str | None = None


def manifest_of(location: str) -> dict[str, Any] | None:
    """The manifest of a folder that `emit` wrote; None for anything else."""
    from tracegen.emit import MANIFEST, read_manifest

    path = Path(location) / MANIFEST
    if not path.is_file():
        return None
    content = read_manifest(path.parent)
    if content is None:
        raise InputError(f"{path}: not a manifest that emit wrote; emit again, or give the prefix of the traces")
    if content["partial"]:
        raise InputError(f"{path}: emit --ranks wrote some ranks only, and a whole job is needed: emit without --ranks")
    return content


def choose_execution(asked: str | None, manifest: Mapping[str, Any] | None, system: str | None) -> tuple[str, str]:
    """Which execution, and why: as asked, else the manifest's, else `astra` with a system file, else `streams`."""
    if asked:
        return asked, "as asked"
    if manifest:
        return str(manifest["execution"]), "the manifest says so"
    if system:
        return "astra", "--system is ASTRA-sim's"
    return "streams", "the default"


def system_of(
    location: str, manifest: Mapping[str, Any] | None, files: AstraFiles, execution: str, flags: Flags | None
) -> AstraSystem:
    """The network of the traces: flags first, then what lies in the folder that `emit` wrote.

    Raises
    ------
    InputError
        If neither names a network.
    """
    from tracegen.replay.astra_files import UNITS, AstraSystem, astra_system
    from tracegen.replay.astra_mode import Mode
    from tracegen.replay.fabric import Fabric, read_network, read_system

    folder = Path(location)
    if manifest and not files.network and not files.system and (execution == "streams" or int(manifest["ranks"]) == 1):
        from tracegen.spec import load_job

        refuse_flags(flags, execution)
        return AstraSystem(Fabric.from_network(load_job(str(folder / "job.yaml")).network), Mode(), ())
    network = files.network or (str(folder / "network.yml") if manifest else None)
    system = files.system or (str(folder / "system.json") if manifest else None)
    memory = files.memory or beside(folder, manifest, "memory.json")
    if manifest is None:
        refuse_no_traces(location)
    if network is None or system is None:
        missing = " and ".join(flag for flag, path in (("--network", network), ("--system", system)) if path is None)
        raise InputError(f"{location}: no manifest.json says which network these traces run on: give {missing}")
    with naming({"network.yml": network, "system.json": system, "memory.json": memory}):
        described = astra_system(
            read_network(network), read_system(system), read_system(memory) if memory else None, flags
        )
    if execution == "streams":
        refuse_flags(flags, execution)
    given = [Path(path).resolve().parent for path in vars(files).values() if path]
    foreign = manifest is None or any(place != folder.resolve() for place in given)
    return replace(described, notes=(UNITS, *described.notes) if foreign else ())


@contextmanager
def naming(files: Mapping[str, str | None]) -> Iterator[None]:
    """Refusals that begin with the usual name of a file begin with its path instead."""
    try:
        yield
    except InputError as refused:
        usual, colon, rest = str(refused).partition(": ")
        path = files.get(usual)
        raise InputError(f"{path}{colon}{rest}" if path else str(refused)) from None


def unreadable_by_astra_sim(location: str, ranks: int) -> tuple[str, ...]:
    """A warning where traces are packed or JSON, which replay reads and ASTRA-sim does not."""
    from tracegen.proto.files import find_ranks

    def plain(path: Path) -> bool:
        with path.open("rb") as file:
            return path.suffix == ".et" and file.read(2) != b"\x1f\x8b"

    odd = [path.name for path in find_ranks(location, ranks) if not plain(path)]
    if not odd:
        return ()
    return (f"ASTRA-sim itself does not read gzip or JSON: {len(odd)} of {ranks} traces are such, {odd[0]} the first",)


def refuse_no_traces(location: str) -> None:
    """Say so where there are no traces at all, before a network for them is asked for."""
    from tracegen.proto.files import find_ranks

    find_ranks(location)


def beside(folder: Path, manifest: Mapping[str, Any] | None, name: str) -> str | None:
    """A file that `emit` wrote beside the traces, where it did."""
    return str(folder / name) if manifest and (folder / name).is_file() else None


def from_traces(location: str, files: AstraFiles, asked: str | None, flags: Flags | None = None) -> Loaded:
    """Read a job's traces and what lies beside them; what is wrong with the files is in ``problems``."""
    from tracegen.proto.files import load_traces, read_groups
    from tracegen.replay.astra_files import groups_path
    from tracegen.replay.facts import Facts

    manifest = manifest_of(location)
    execution, why = choose_execution(asked, manifest, files.system)
    described = system_of(location, manifest, files, execution, flags)
    group_file, told = groups_path(files.comm_group, execution)
    if files.comm_group is None:
        group_file = beside(Path(location), manifest, "comm_group.json")
    ranks = described.fabric.ranks
    read = load_traces(
        location,
        groups=read_groups(group_file) if group_file else None,
        ranks=ranks,
        labels={int(number): label for number, label in manifest["groups"].items()} if manifest else None,
        message_label=str(manifest["message_label"]) if manifest else "p2p",
    )
    heading = title(manifest) if manifest else f"{location}: {ranks} ranks"
    facts = Facts.from_manifest(manifest) if manifest else None
    notes = (*described.notes, *told, *read.notes)
    return Loaded(
        read.traces,
        described.fabric,
        facts,
        execution,
        why,
        heading,
        described.mode,
        notes,
        problems=read.problems,
        warnings=(
            *(job_warnings(manifest) if manifest else ()),
            *(unreadable_by_astra_sim(location, ranks) if execution == "astra" and read.traces is not None else ()),
        ),
    )


def refuse_idle(spec: str | None, *, unchecked: bool, ignore_missing_parents: bool) -> None:
    """Refuse flags that do nothing with a spec, whose traces are never refused and miss no parent."""
    import click

    for flag, given in (("--unchecked", unchecked), ("--ignore-missing-parents", ignore_missing_parents)):
        if spec is not None and given:
            raise click.UsageError(f"{flag} goes with --traces: what a spec describes is whole")


def refuse_mixed(
    spec: str | None,
    traces: str | None,
    overrides: Sequence[str],
    files: AstraFiles,
    *,
    timeline: bool = True,
    ranks: bool = False,
) -> None:
    """Refuse flags that would be ignored: exactly one of --spec and --traces, and what goes with each."""
    import click

    if (spec is None) == (traces is None):
        raise click.UsageError("give one of --spec and --traces")
    if traces is not None and overrides:
        raise click.UsageError("--set changes a spec, and --traces has none (the job.yaml beside them is one)")
    if spec is not None and any(vars(files).values()):
        given = ", ".join(f"--{name.replace('_', '-')}" for name, path in vars(files).items() if path)
        raise click.UsageError(f"{given}: a spec names its own network; these go with --traces")
    if ranks and not timeline:
        raise click.UsageError("--timeline-ranks goes with --timeline")


class Checked(NamedTuple):
    """Traces that may be run.

    ``suspicion`` says why the run may not finish, where only the run itself can tell; "" where nothing says so.
    ``warnings``: one line a rule.
    """

    traces: TraceSet
    suspicion: str
    warnings: tuple[str, ...]


def runnable(loaded: Loaded, *, ignore_missing_parents: bool, unchecked: bool) -> Checked:
    """The traces, unless `check` finds an error without running them; then the first is raised, and how many there are.

    Raises
    ------
    InputError
        The first error; with ``unchecked`` only where there is nothing to run.
    """
    found = loaded.findings(ignore_missing_parents=ignore_missing_parents, play=False)
    errors = [finding for finding in found if finding.severity == "error"]
    certain = [finding for finding in errors if finding.certain]
    more = f" (and {len(errors) - 1} more: `tracegen check` lists them)" if len(errors) > 1 else ""
    if certain and (loaded.traces is None or not unchecked):
        raise InputError(f"{certain[0]}{more}")
    assert loaded.traces is not None
    first: dict[str, Finding] = {}
    for finding in found:
        # What nodes without a duration mean for the result, the timeline says itself.
        if finding.severity == "warning" and finding.rule != "zero-duration":
            first.setdefault(finding.rule, finding)
    several = {rule for rule in first if sum(finding.rule == rule for finding in found) > 1}
    warnings = [
        f"{finding}{' (and more: `tracegen check`)' if rule in several else ''}" for rule, finding in first.items()
    ]
    suspicion = f"{errors[0]}{more}" if errors else ""
    return Checked(loaded.traces, suspicion, (*loaded.warnings, *warnings))
