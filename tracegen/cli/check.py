"""`tracegen check`: what would hang, abort or be silently wrong, found without running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracegen.cli import options

if TYPE_CHECKING:
    from tracegen.replay import Finding


@click.command()
@options.spec
@options.overrides
@options.traces
@options.astra_files
@options.execution
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
    as_json: bool,
) -> None:
    """Check a SPEC or traces on disk: every finding at once; exit 2 if one is an error."""
    from tracegen.cli import load, show

    files = load.AstraFiles(network, system, memory, comm_group)
    load.refuse_mixed(spec, traces, overrides, files)
    found, ran = _spec(spec, overrides, execution) if spec is not None else _traces(str(traces), files, execution)
    if as_json:
        show.document(
            "check",
            {"execution": ran, "findings": [vars(finding) | {} for finding in found]},
        )
    else:
        for finding in found:
            click.echo(f"{finding.severity}: {finding.rule}: {finding.where}: {finding.message}")
        errors = sum(finding.severity == "error" for finding in found)
        click.echo(f"{errors} errors, {len(found) - errors} warnings for execution {ran}")
    if any(finding.severity == "error" for finding in found):
        raise SystemExit(2)


def _spec(spec: str, overrides: tuple[str, ...], execution: str | None) -> tuple[list[Finding], str]:
    """A spec is checked by reading it, then its traces by the rules for traces."""
    from tracegen.cli import load
    from tracegen.proto.errors import InputError
    from tracegen.replay import Finding, check

    try:
        loaded = load.from_spec(spec, overrides, execution)
    except InputError as refused:
        return [Finding("error", "spec", spec, str(refused))], execution or "streams"
    return check(loaded.traces, loaded.fabric, loaded.execution), loaded.execution


def _traces(location: str, files: object, execution: str | None) -> tuple[list[Finding], str]:
    """Traces are read first; what cannot be read is a finding too."""
    from tracegen.cli import load
    from tracegen.proto.files import TraceErrors
    from tracegen.replay import Finding, check

    assert isinstance(files, load.AstraFiles)
    try:
        loaded = load.from_traces(location, files, execution)
    except TraceErrors as refused:
        return [Finding("error", p.rule, p.where, p.message) for p in refused.problems], execution or "streams"
    return check(loaded.traces, loaded.fabric, loaded.execution), loaded.execution
