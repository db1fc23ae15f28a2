"""Names, paths and ``base`` to plain mappings, before anything is validated. Owns where the pieces of a spec come from.

A piece (``model``, ``device``, ``network``) is a catalogue name, a path, a Hugging Face ``config.json`` (model), or a
mapping, in which ``base`` is a name or path whose keys the others override. A path is text with a slash or one of the
suffixes .yaml, .yml, .json; it is taken from the folder of the file that names it, in ``--set`` from the current
folder. A missing path whose name is in the
catalogue means the catalogue's, and a note says so.
"""

from __future__ import annotations

from pathlib import Path

from tracegen.proto.errors import InputError
from tracegen.spec import catalog, huggingface
from tracegen.spec.problems import line
from tracegen.spec.source import KeyPath, Source, merge, read_file
from tracegen.spec.units import MOST_LETTERS, as_label

SECTION = {"model": "models", "device": "devices", "network": "clusters"}
"""Which shelf of the catalogue a piece comes from."""

_SUFFIXES = (".yaml", ".yml", ".json")
_DEEPEST = 20


def open_spec(where: str, notes: list[str]) -> tuple[Source, Path, str]:
    """A job's file by path or catalogue name: its data, its folder, and the name it goes by."""
    if not where.strip():
        raise InputError("no spec is named; give a path or one of `tracegen catalog specs`")
    if not _is_path(where) and not Path(where).exists():
        return catalog.load("specs", where), catalog.FOLDER / "specs", where
    if catalogued := _catalogued("specs", Path(where), where, notes):
        return catalogued, catalog.FOLDER / "specs", Path(where).stem
    return read_file(Path(where), where), Path(where).parent, Path(where).stem


def resolve(spec: Source, folder: Path, notes: list[str]) -> Source:
    """The spec with every piece as one mapping; a cluster's device put in where the spec names none."""
    for key in SECTION:
        if key in spec.data:
            spec = _piece(spec, key, folder, notes)
    network = spec.data.get("network")
    if not isinstance(network, dict) or "device" not in network:
        return spec
    part = spec.below("network")
    wanted = Source({"device": network["device"]}, part.places)
    bare = {key: value for key, value in network.items() if key != "device"}
    spec = spec.with_part("network", Source(bare, part.places))
    device = _piece(wanted, "device", folder, notes)
    if "device" not in spec.data:
        return spec.with_part("device", device.below("device"))
    given, own = (data["device"] for data in (spec.data, device.data))
    if isinstance(given, dict) and isinstance(own, dict) and given.get("name") != own.get("name"):
        notes.append(
            f"device {given.get('name', 'inline')} in network {network.get('name', 'inline')}, "
            f"which has {own.get('name')}: a what-if"
        )
    return spec


def _piece(spec: Source, key: str, folder: Path, notes: list[str], depth: int = 0) -> Source:
    """The spec with the piece at ``key`` as one mapping with a name."""
    value = spec.data[key]
    if depth > _DEEPEST:
        raise InputError(line(spec, (key,), f"base refers to itself (over {_DEEPEST} deep)"))
    if isinstance(value, str):
        return spec.with_part(key, _fetched(spec, (key,), value, folder, notes, depth))
    if isinstance(value, dict) and "base" in value:
        if not isinstance(value["base"], str):
            raise InputError(line(spec, (key, "base"), "must be a catalogue name or a path"))
        base = _fetched(spec, (key, "base"), value["base"], folder, notes, depth)
        part = spec.below(key)
        rest = Source({name: inner for name, inner in part.data.items() if name != "base"}, part.places)
        merged = merge(base, rest)
        if rest.data and "name" not in rest.data:
            merged = Source(merged.data | {"name": changed(str(base.data.get("name", "inline")))}, merged.places)
        return spec.with_part(key, merged)
    return spec


def changed(name: str) -> str:
    """What a catalogued piece is called once some of its keys are overridden."""
    return name if name.endswith("-changed") else f"{name[: MOST_LETTERS - len('-changed')]}-changed"


def _fetched(spec: Source, path: KeyPath, name: str, folder: Path, notes: list[str], depth: int) -> Source:
    """The mapping that a name or path stands for, its own ``base`` resolved."""
    key = str(path[0])
    section = SECTION[key]
    try:
        if not _is_path(name):
            return catalog.load(section, name)
        file = (Path() if spec.place(*path).startswith("--set ") else folder) / name
        if catalogued := _catalogued(section, file, name, notes):
            return catalogued
        if file.suffix == ".json" and key == "model":
            found = huggingface.read(file, name)
        else:
            found = read_file(file, name)
        _refuse_a_spec(found, key, name)
    except InputError as why:
        raise InputError(line(spec, path, str(why))) from None
    whole = Source({key: found.data}, {(key, *inner): place for inner, place in found.places.items()})
    inner = _piece(whole, key, file.parent, notes, depth + 1).below(key)
    return Source({"name": as_label(file.stem)} | inner.data, inner.places)


def _refuse_a_spec(found: Source, key: str, shown: str) -> None:
    """A whole spec given where one of its pieces is wanted."""
    others = [name for name in ("workload", "parallelism", "model") if name in found.data]
    if others:
        why = f"is a whole spec (it has {', '.join(others)}), no {key}"
        raise InputError(f"{shown} {why}; name a file of the {key} alone")


def _catalogued(section: str, file: Path, shown: str, notes: list[str]) -> Source | None:
    """The catalogue's data where the file is missing and its name is in the catalogue."""
    if file.exists() or file.stem not in catalog.names(section) or file.suffix == ".json":
        return None
    notes.append(f"{shown} is no file here: the catalogue's {section[:-1]} {file.stem} is used")
    return catalog.load(section, file.stem)


def _is_path(text: str) -> bool:
    return "/" in text or text.endswith(_SUFFIXES)
