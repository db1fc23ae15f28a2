"""The catalogue's shelves: which names there are, and the YAML behind each. Owns finding and reading only."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tracegen.proto.errors import InputError
from tracegen.spec.problems import nearest
from tracegen.spec.source import Source, read_file

SECTIONS = ("models", "devices", "clusters", "specs")
FOLDER = Path(__file__).parent / "catalogue"


@cache
def names(section: str) -> tuple[str, ...]:
    """Every name of a section, sorted."""
    if section not in SECTIONS:
        raise InputError(f"catalogue has no section {section!r}; {nearest(section, SECTIONS)}")
    return tuple(sorted(file.stem for file in (FOLDER / section).glob("*.yaml")))


def path(section: str, name: str) -> Path:
    """The file of a name.

    Raises
    ------
    InputError
        There is no such name; the line has the nearest that is.
    """
    if name not in names(section):
        raise InputError(f"{name!r} is not in the catalogue's {section}; {nearest(name, names(section))}")
    return FOLDER / section / f"{name}.yaml"


@cache
def load(section: str, name: str) -> Source:
    """The data behind a name, as its file has it. Do not change it: it is read once."""
    return read_file(path(section, name), f"catalogue/{section}/{name}.yaml")
