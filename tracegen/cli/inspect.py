"""`tracegen inspect`: what is in a trace, or one of its nodes in full."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import options

if TYPE_CHECKING:
    from tracegen.replay.inspect import View


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option("--node", metavar="ID", help="Show one node in full.")
@options.as_json
def inspect(traces: tuple[str, ...], node: str | None, as_json: bool) -> None:
    """Count what is in each TRACE, a file NAME.<rank>.et or a folder of them, or show one node."""
    from tracegen.cli import show
    from tracegen.replay.inspect import node_in_full, parse_id, summary

    number = parse_id(node) if node is not None else None
    shown = [(where, view) for where in traces for view in _views(where)]
    if number is not None:
        found = [{"trace": where, **node_in_full(view, number)} for where, view in shown]
        if as_json:
            show.document("inspect", {"nodes": found})
        else:
            click.echo("\n\n".join(_full(entry) for entry in found))
        return
    found = [{"trace": where, **summary(view)} for where, view in shown]
    if as_json:
        show.document("inspect", {"traces": found})
        return
    for position, entry in enumerate(found):
        if position:
            click.echo()
        _print_summary(entry)


def _views(where: str) -> list[View]:
    """A file is one rank; a folder, one view per class of ranks whose graphs are equal."""
    from tracegen.proto.files import read_groups, read_rank, read_traces
    from tracegen.replay.inspect import View, views

    path = Path(where)
    if not path.is_dir():
        named = re.search(r"\.(\d+)\.et(?:\.gz)?$", path.name)
        return [View.of_file(read_rank(path), int(named[1]) if named else 0, _labels(path.parent))]
    groups = path / "comm_group.json"
    read = read_traces(path, groups=read_groups(groups) if groups.is_file() else None, labels=_labels(path))
    return list(views(read))


def _labels(folder: Path) -> dict[int, str]:
    """Printed names of groups, where a manifest that emit wrote lies beside the traces."""
    try:
        groups = json.loads((folder / "manifest.json").read_text())["groups"]
        return {int(number): str(label) for number, label in groups.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _print_summary(entry: dict[str, Any]) -> None:
    from tracegen.cli import show

    ranks = entry["ranks"]
    several = f" ({len(ranks)} ranks: {_few(ranks)})" if len(ranks) > 1 else f" (rank {ranks[0]})"
    ids = f"ids {entry['first_id']} to {entry['last_id']}" if entry["nodes"] else "no ids"
    click.echo(f"{show.plain(entry['trace'])}{several}: {entry['nodes']:,} nodes, {ids}")
    click.echo(
        f"{show.quantity(entry['flops'], 'FLOP')}, {show.quantity(entry['memory_bytes'], 'B')} of memory traffic, "
        f"{entry['data_edges']:,} data and {entry['ctrl_edges']:,} control edges"
    )
    click.echo()
    show.table(
        ("nodes", "count", "duration"),
        [
            (kind, f"{row['nodes']:,}", show.duration(row["duration_ns"] / 1e9) if row["duration_ns"] else "-")
            for kind, row in entry["kinds"].items()
        ],
    )
    if entry["collectives"]:
        click.echo()
        show.table(
            ("collective", "group", "label", "count", "bytes"),
            [
                (row["type"], str(row["group"]), row["label"], f"{row['nodes']:,}", show.quantity(row["bytes"], "B"))
                for row in entry["collectives"]
            ],
            left=3,
        )
    if entry["messages"]:
        click.echo()
        show.table(
            ("messages", "peer", "count", "bytes"),
            [
                (row["direction"], str(row["peer"]), f"{row['nodes']:,}", show.quantity(row["bytes"], "B"))
                for row in entry["messages"]
            ],
            left=2,
        )
    for parent in entry["missing_parents"][:5]:
        click.echo(f"warning: node {parent[0]} waits for node {parent[1]}, which does not exist")
    for cycle in entry["cycles"]:
        click.echo("warning: cycle " + " -> ".join(f"{n['id']} ({show.plain(n['name'])}, {n['edge']})" for n in cycle))
    if entry["unknown_attributes"]:
        known = ", ".join(f"{show.plain(name)} ({count:,})" for name, count in entry["unknown_attributes"].items())
        click.echo(f"attributes tracegen does not read: {known}")


def _full(entry: dict[str, Any]) -> str:
    """A node as lines `key: value`."""
    from tracegen.cli import show

    lines = []
    for key, value in entry.items():
        if key in ("parents", "children"):
            lines.append(f"{key}: {len(value)}")
            lines += [f"  {row['id']} {_name(row['name'])} ({row['edge']})" for row in value]
        elif isinstance(value, list) and value:
            lines.append(f"{key}: {_few(value)}")
        elif value not in (None, [], {}):
            lines.append(f"{key}: {show.plain(str(value))}")
    return "\n".join(lines)


def _name(name: str | None) -> str:
    """A node's name as it is shown; None where a parent does not exist."""
    from tracegen.cli import show

    return "(does not exist)" if name is None else show.plain(name)


def _few(values: list[Any]) -> str:
    """The first values of a list, and how many more."""
    more = f", … {len(values) - 8} more" if len(values) > 8 else ""
    return ", ".join(map(str, values[:8])) + more
