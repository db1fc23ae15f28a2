"""`tracegen inspect`: what is in a trace, or one of its nodes in full."""

from __future__ import annotations

import click

from tracegen.cli import options


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option("--node", metavar="ID", help="Show one node in full.")
@options.as_json
def inspect(traces: tuple[str, ...], node: str | None, as_json: bool) -> None:
    """Count what is in each TRACE (a file NAME.<rank>.et), or show one node."""
    raise NotImplementedError
