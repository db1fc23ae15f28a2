"""How figures and tables look: three significant digits and a unit, tables within 100 columns. Computes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

import tracegen

WIDTH = 100
_DECIMAL = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def figure(value: float) -> str:
    """Three significant digits, no exponent between 0.001 and a million."""
    if value == 0:
        return "0"
    if 100 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def quantity(value: float, unit: str) -> str:
    """A value with a decimal prefix: 4.10e9, "B" is "4.10 GB"."""
    for scale, prefix in _DECIMAL:
        if abs(value) >= scale:
            return f"{figure(value / scale)} {prefix}{unit}"
    return f"{figure(value)} {unit}"


def count(number: int, thing: str) -> str:
    """A number of things, with an s unless there is one: "1 rank", "1,024 ranks"; "classes" of "class"."""
    ending = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number:,} {thing}{ending}"


def duration(seconds: float) -> str:
    """A time with the unit that suits it."""
    for scale, unit in _TIME:
        if abs(seconds) >= scale:
            return f"{figure(seconds / scale)} {unit}"
    return f"{figure(seconds / 1e-9)} ns"


def share(part: float, whole: float) -> str:
    """A part as percent of the whole, two digits."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"


def document(command: str, content: dict[str, Any]) -> None:
    """Print a result as JSON, with the version and the command first."""
    click.echo(json_text({"tracegen": tracegen.__version__, "command": command, **content}))


def json_text(content: dict[str, Any]) -> str:
    """JSON as every command prints it; NaN and infinities, which JSON has not, are refused."""
    return json.dumps(content, indent=1, allow_nan=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Print rows under columns; the first ``left`` columns flush left, figures flush right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for position, column in enumerate(columns):
        grid.add_column(column, justify="left" if position < left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*[plain(cell) for cell in row])
    Console(width=WIDTH, highlight=False, markup=False, emoji=False).print(grid)


def plain(text: str) -> str:
    """Control characters of foreign names shown, not obeyed by the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def warn(lines: Iterable[str]) -> None:
    """Warnings after the answer, one line each, on stdout with it."""
    for line in lines:
        click.echo(f"warning: {line}")


@contextmanager
def progress(title: str) -> Iterator[Any]:
    """A function (done, total) that draws a bar on stderr after two seconds, if stderr is a terminal."""
    import time

    began = time.monotonic()
    bar: Any = None
    task: Any = None

    def step(done: int, total: int) -> None:
        nonlocal bar, task
        if not sys.stderr.isatty() or (bar is None and time.monotonic() - began < 2):
            return
        if bar is None:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            bar.start()
            task = bar.add_task(title, total=total)
        bar.update(task, completed=done)

    try:
        yield step
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def counter(title: str) -> Iterator[Any]:
    """A function (count, ns) that shows how far a run is on stderr after two seconds, if stderr is a terminal."""
    import time

    began = time.monotonic()
    status: Any = None

    def step(count: int, ns: int) -> None:
        nonlocal status
        if not sys.stderr.isatty() or (status is None and time.monotonic() - began < 2):
            return
        told = f"{quantity(count, title)}, {duration(ns / 1e9)} reached"
        if status is None:
            from rich.console import Console

            status = Console(stderr=True).status(told)
            status.start()
        status.update(told)

    try:
        yield step
    finally:
        if status is not None:
            status.stop()
