"""What `replay` and `check` run on: traces, a fabric, the job's facts, and the reason for the execution chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracegen.proto.errors import InputError

if TYPE_CHECKING:
    from tracegen.proto.graph import TraceSet
    from tracegen.proto.problems import Problem
    from tracegen.replay import Finding
    from tracegen.replay.fabric import Fabric
    from tracegen.replay.facts import Facts


@dataclass(frozen=True)
class Loaded:
    """Everything a replay needs.

    ``title`` is the line of what runs, ``notes`` what to echo after it, ``problems`` what was found while reading;
    ``traces`` is None where the files could not be read.
    """

    traces: TraceSet | None
    fabric: Fabric
    facts: Facts | None
    execution: str
    why: str
    title: str
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def findings(self, *, ignore_missing_parents: bool = False) -> list[Finding]:
        """Everything `check` has to say, errors first."""
        from tracegen.replay import check

        return check(
            self.traces,
            self.fabric,
            self.execution,
            problems=self.problems,
            ignore_missing_parents=ignore_missing_parents,
        )


def from_spec(spec: str, overrides: Sequence[str], execution: str | None) -> Loaded:
    """Build the job that a spec describes; under `astra` the fabric is read from what `emit` would write."""
    from tracegen.build import build
    from tracegen.replay.fabric import Fabric
    from tracegen.replay.facts import Facts
    from tracegen.spec import load_job
    from tracegen.spec.network import astra_inputs

    job = load_job(spec, overrides)
    built = build(job)
    chosen, why = (execution, "as asked") if execution else ("streams", "the default for a spec")
    if chosen == "astra" and job.world > 1:
        inputs = astra_inputs(job.network, job.device.memory_bandwidth)
        fabric = Fabric.from_astra(inputs.network, inputs.system)
    else:
        fabric = Fabric.from_network(job.network)
    facts = Facts.from_manifest(built.manifest)
    return Loaded(built.traces, fabric, facts, chosen, why, title(built.manifest), built.notes)


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
    path = Path(location) / "manifest.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as why:
        raise InputError(f"{path}: not a manifest that emit wrote ({why})") from None
    if not isinstance(content, dict) or "tracegen" not in content:
        raise InputError(f"{path}: not a manifest that emit wrote (no key `tracegen`)")
    if content.get("partial"):
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


def fabric_of(location: str, manifest: Mapping[str, Any] | None, files: AstraFiles, execution: str) -> Fabric:
    """The network of the traces: flags first, then what lies in the folder that `emit` wrote.

    Raises
    ------
    InputError
        If neither names a network.
    """
    from tracegen.replay.fabric import Fabric, read_network, read_system

    folder = Path(location)
    if manifest and not files.network and not files.system and (execution == "streams" or int(manifest["ranks"]) == 1):
        from tracegen.spec import load_job

        return Fabric.from_network(load_job(str(folder / "job.yaml")).network)
    network = files.network or (str(folder / "network.yml") if manifest else None)
    system = files.system or (str(folder / "system.json") if manifest else None)
    if network is None or system is None:
        missing = " and ".join(flag for flag, path in (("--network", network), ("--system", system)) if path is None)
        raise InputError(f"{location}: no manifest.json says which network these traces run on: give {missing}")
    return Fabric.from_astra(read_network(network), read_system(system))


def from_traces(location: str, files: AstraFiles, asked: str | None) -> Loaded:
    """Read a job's traces and what lies beside them; what is wrong with the files is in ``problems``."""
    from tracegen.proto.files import load_traces, read_groups
    from tracegen.replay.facts import Facts

    manifest = manifest_of(location)
    execution, why = choose_execution(asked, manifest, files.system)
    fabric = fabric_of(location, manifest, files, execution)
    group_file = files.comm_group
    if group_file is None and manifest and (Path(location) / "comm_group.json").is_file():
        group_file = str(Path(location) / "comm_group.json")
    read = load_traces(
        location,
        groups=read_groups(group_file) if group_file else None,
        ranks=fabric.ranks,
        labels={int(number): label for number, label in manifest["groups"].items()} if manifest else None,
        message_label=str(manifest["message_label"]) if manifest else "p2p",
    )
    heading = title(manifest) if manifest else f"{location}: {fabric.ranks} ranks"
    facts = Facts.from_manifest(manifest) if manifest else None
    return Loaded(read.traces, fabric, facts, execution, why, heading, problems=read.problems)


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


def runnable(loaded: Loaded, *, ignore_missing_parents: bool, unchecked: bool) -> TraceSet:
    """The traces, unless `check` finds an error; then the first one is raised, and how many more there are.

    Raises
    ------
    InputError
        The first error; with ``unchecked`` only where there is nothing to run.
    """
    errors = [
        finding
        for finding in loaded.findings(ignore_missing_parents=ignore_missing_parents)
        if finding.severity == "error"
    ]
    if errors and (loaded.traces is None or not unchecked):
        first = errors[0]
        more = f" (and {len(errors) - 1} more: `tracegen check` lists them)" if len(errors) > 1 else ""
        raise InputError(f"{first.rule}: {first.where}: {first.message}{more}")
    assert loaded.traces is not None
    return loaded.traces
