"""`tracegen emit`: from a spec to one trace per rank, with everything ASTRA-sim needs beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import options

if TYPE_CHECKING:
    from tracegen.proto.graph import TraceSet


@click.command()
@options.spec
@options.overrides
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", required=True, help="The folder to write.")
@click.option(
    "--execution", type=click.Choice(["streams", "astra"]), default="streams", show_default=True,
    help="What replay of this folder assumes by default.",
)  # fmt: skip
@click.option("--ranks", metavar="RANKS", help="Only these ranks: 0-7,16 (the folder is marked partial).")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Ranks written at once.")
@options.as_json
def emit(
    spec: str | None,
    overrides: tuple[str, ...],
    out: Path,
    execution: str,
    ranks: str | None,
    jobs: int,
    as_json: bool,
) -> None:
    """Write one Chakra execution trace per rank of the job that SPEC describes."""
    from tracegen.build import build
    from tracegen.cli import load, show
    from tracegen.emit import emit as write
    from tracegen.memory import memory_warning
    from tracegen.spec import load_job

    if spec is None:
        raise click.UsageError("give --spec: a file, or a name that `tracegen catalog specs` lists")
    job = load_job(spec, overrides)
    chosen = None if ranks is None else rank_list(ranks, job.world)
    built = build(job)
    with show.progress("writing traces") as step:
        remarks = write(built, out, execution=execution, ranks=chosen, jobs=jobs, progress=step)
    files = sorted(out.glob("*.et"))
    size = sum(file.stat().st_size for file in files)
    classes = built.traces.class_of if chosen is None else built.traces.class_of[chosen]
    summary: dict[str, Any] = {
        "out": str(out),
        "ranks": len(files),
        "classes": len(set(classes.tolist())),
        "nodes": _nodes(built.traces, chosen),
        "bytes": size,
        "execution": execution,
        "notes": [*built.notes, *remarks],
        "warnings": [warning] if (warning := memory_warning(built.manifest)) else [],
    }
    if as_json:
        show.document("emit", summary)
        return
    click.echo(load.title(built.manifest))
    click.echo(
        f"{out}: {show.count(len(files), 'rank')} in {show.count(summary['classes'], 'class')}, "
        f"{show.count(summary['nodes'], 'node')}, {show.quantity(size, 'B')}"
    )
    for note in summary["notes"]:
        click.echo(f"note: {note}")
    for warning in summary["warnings"]:
        click.echo(f"warning: {warning}")
    whole = len(files) == built.traces.ranks
    click.echo(f"next: tracegen {f'replay --traces {out}' if whole else f'inspect {files[0]}'}")


def _nodes(traces: TraceSet, ranks: list[int] | None) -> int:
    return traces.nodes if ranks is None else sum(len(traces.graph(rank)) for rank in ranks)


def rank_list(text: str, world: int, flag: str = "--ranks") -> list[int]:
    """Ranks of text such as ``0-7,16``, ascending; refused with the first rank that does not exist."""
    from tracegen.proto.errors import InputError

    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not all(end.isascii() and end.isdecimal() for end in ((first, last) if dash else (first,))):
            raise InputError(f"{flag}: {part!r} is neither a rank nor a range such as 0-7")
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise InputError(f"{flag}: {part!r} runs backwards; write {high}-{low}")
        if high >= world:
            raise InputError(f"{flag}: rank {high} does not exist; the last of {world} is {world - 1}")
        chosen.update(range(low, high + 1))
    return sorted(chosen)
