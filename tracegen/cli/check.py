"""`tracegen check`: what would hang, abort or be silently wrong, found without running."""

from __future__ import annotations

import click

from tracegen.cli import options
from tracegen.proto.errors import InputError


@click.command()
@options.spec
@options.overrides
@options.traces
@options.astra_files
@options.execution
@options.astra_flags
@options.as_json
def check(
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
    as_json: bool,
) -> None:
    """Check a SPEC or traces on disk: every finding at once; exit 2 if one is an error."""
    from tracegen.cli import load, show
    from tracegen.replay import Finding

    flags = load.flags_of(network_model, queues, rendezvous, injection_scale)
    files = load.AstraFiles(network, system, memory, comm_group)
    load.refuse_mixed(spec, traces, overrides, files)
    loaded = None
    if spec is not None:
        try:
            loaded = load.from_spec(spec, overrides, execution, flags)
        except InputError as refused:
            found, ran = [Finding("error", "spec", spec, line) for line in lines(refused)], execution or "streams"
    else:
        loaded = load.from_traces(str(traces), files, execution, flags)
    if loaded is not None:
        job = [Finding("warning", "job", "whole job", line) for line in loaded.warnings]
        found, ran = [*loaded.findings(), *job], loaded.execution
    errors = sum(finding.severity == "error" for finding in found)
    if as_json:
        show.document("check", {"execution": ran, "findings": [finding.document() for finding in found]})
    else:
        for finding in found:
            # The line of a spec names its place itself.
            where = "" if finding.rule == "spec" else f"{finding.where}: "
            click.echo(f"{finding.severity}: {finding.rule}: {where}{finding.message}")
        click.echo(f"{show.count(errors, 'error')}, {show.count(len(found) - errors, 'warning')} for execution {ran}")
    if errors:
        raise SystemExit(2)


def lines(refused: InputError) -> list[str]:
    """Every problem of a spec, where it has several."""
    return [str(problem) for problem in getattr(refused, "problems", [refused])]
