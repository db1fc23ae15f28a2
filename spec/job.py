"""A job: a spec with every default resolved and every rule checked. Owns the way from a file to a `Job`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, PrivateAttr

from tracegen.spec import rules, world
from tracegen.spec.device import Device
from tracegen.spec.later import Feature, features
from tracegen.spec.model import Model
from tracegen.spec.network import Network
from tracegen.spec.parallelism import Parallelism
from tracegen.spec.problems import OTHER_WORDS, SpecError, later, line, nearest, validated
from tracegen.spec.resolve import SECTION, changed, open_spec, resolve
from tracegen.spec.source import KeyPath, Source, assign, key_path, parse_override
from tracegen.spec.units import Degree, FileName, Frozen
from tracegen.spec.workload import Workload

SECTIONS: dict[str, type[Frozen]] = {
    "model": Model,
    "device": Device,
    "network": Network,
    "parallelism": Parallelism,
    "workload": Workload,
}
KEYS = ("name", "model", "device", "gpus", "network", "parallelism", "workload")
"""The keys at the top of a spec."""


class _Head(Frozen):
    """The two plain keys at the top; gpus 0 where it is left out."""

    name: FileName
    gpus: Degree = 0


class Job(Frozen):
    """A resolved job. Two jobs are equal where what they describe is; notes and places do not count.

    Parameters
    ----------
    gpus : ranks, the world.
    notes : lines to show the user: what was inferred, assumed, or taken from elsewhere.
    """

    name: FileName
    model: Model
    device: Device
    gpus: Degree
    network: Network
    parallelism: Parallelism
    workload: Workload
    notes: tuple[str, ...] = Field((), exclude=True, repr=False)
    _source: Source = PrivateAttr(default_factory=lambda: Source({}))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.document() == other.document()

    def __hash__(self) -> int:
        return hash(repr(self.document()))

    @property
    def world(self) -> int:
        """Number of ranks, tp·cp·dp·pp."""
        return self.gpus

    @property
    def microbatches(self) -> int:
        """m = global_batch / (micro_batch·dp), per replica and step."""
        return self.workload.global_batch // (self.workload.micro_batch * self.parallelism.dp)

    @property
    def tokens_per_step(self) -> int:
        """global_batch·sequence_length."""
        return self.workload.global_batch * self.workload.sequence_length

    def document(self) -> dict[str, Any]:
        """Plain types, every default written out; `load_job` of it as YAML (`source.dump`) gives an equal job."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def place(self, key: str) -> str:
        """``file:line key`` of a dotted key, or of the nearest key above it that was written."""
        place = self._source.place(*key_path(key))
        return place if place.startswith(f"--set {key}=") else f"{place} {key}"


def load_job(where: str, overrides: Sequence[str] = ()) -> Job:
    """Read, resolve and check a spec.

    Parameters
    ----------
    where : path of a YAML file, or the name of an example job in the catalogue (with or without ``.yaml``).
    overrides : ``key.path=value`` texts, as of ``--set``; later ones win.

    Raises
    ------
    InputError
        One line: place, key, both numbers, the nearest legal value.
    """
    notes: list[str] = []
    source, folder, stem = open_spec(where, notes)
    given = [parse_override(text) for text in overrides]
    for path, value in given:
        if _names_a_piece(path):
            whole = path[1:] == ("base",) and isinstance(source.data.get(str(path[0])), str)
            source = assign(source, path[:1] if whole else path, value)
    source = resolve(source, folder, notes)
    for path, value in given:
        if not _names_a_piece(path):
            source = _renamed(assign(source, path, value), path)
    if "name" not in source.data:
        source = Source(source.data | {"name": _as_name(stem)}, source.places)
    return _checked(source, notes)


def _names_a_piece(path: KeyPath) -> bool:
    """Whether an override comes before names are resolved: it replaces a whole piece, or its base."""
    return len(path) == 1 or path[1:] == ("base",)


def _renamed(source: Source, path: KeyPath) -> Source:
    """A piece with a name and an overridden key is no longer the catalogue's."""
    piece = source.data.get(str(path[0]))
    if path[0] not in SECTION or not isinstance(piece, dict) or "name" not in piece or path[1:] == ("name",):
        return source
    name = changed(str(piece["name"]))
    return Source(source.data | {str(path[0]): piece | {"name": name}}, source.places)


def _as_name(stem: str) -> str:
    """A file's stem as a job's name: what may not stand in trace files' names becomes ``-``."""
    text = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._+-") else "-" for letter in stem)
    return text if text[:1].isalnum() else f"job{text}"


def _checked(source: Source, notes: list[str]) -> Job:
    problems = [line(source, (key,), _unknown(key)) for key in source.data if key not in KEYS]
    problems += [
        line(source, (), f"{key} is missing; {hint}")
        for key, hint in (
            ("model", "name one of `tracegen catalog models`, a path, or a mapping"),
            ("workload", "give at least sequence_length and global_batch"),
        )
        if key not in source.data
    ]
    if "device" not in source.data:
        problems.append(line(source, (), "device is missing; name one, or a cluster (which names its own)"))
    top = {key: source.data[key] for key in ("name", "gpus") if key in source.data}
    head = validated(_Head, top, source, (), problems)
    data = {"parallelism": {}, "network": {}} | source.data
    data["network"], is_open = _sized_for_now(data["network"])
    parts: dict[str, Any] = {
        key: validated(section, data[key], source, (key,), problems) for key, section in SECTIONS.items() if key in data
    }
    if problems or head is None:
        raise SpecError(problems)
    notes += _whole_notes(source, data, {key: part.model_dump(by_alias=True) for key, part in parts.items()})
    return _joined(source, head, parts, is_open, notes)


def _sized_for_now(network: Any) -> tuple[Any, bool]:
    """The network with a size of 1 where the outermost dimension has none, and whether that was so."""
    dimensions = network.get("dimensions") if isinstance(network, dict) else None
    if not isinstance(dimensions, list) or not dimensions or not isinstance(dimensions[-1], dict):
        return network, False
    if "size" in dimensions[-1]:
        return network, False
    return network | {"dimensions": [*dimensions[:-1], dimensions[-1] | {"size": 1}]}, True


def _whole_notes(source: Source, written: Any, typed: Any, above: KeyPath = ()) -> list[str]:
    """A note for each number that was written as a whole fraction (8.0) and read as an integer."""
    found = []
    if isinstance(written, dict) and isinstance(typed, dict):
        for key in written.keys() & typed.keys():
            found += _whole_notes(source, written[key], typed[key], (*above, key))
    elif isinstance(written, list) and isinstance(typed, tuple):
        for index, (item, value) in enumerate(zip(written, typed, strict=False)):
            found += _whole_notes(source, item, value, (*above, index))
    elif isinstance(written, float) and isinstance(typed, int):
        found.append(line(source, above, f"{written} read as {typed}"))
    return sorted(found)


def _unknown(key: str) -> str:
    """What to say of a key at the top that is none: where it belongs, or the nearest known one."""
    inside = {
        name: f"{section}.{name}"
        for section in ("parallelism", "workload")
        for name in SECTIONS[section].model_fields
        if name not in KEYS
    }
    if said := later(key):
        return said
    if key in inside:
        return f"unknown key; write {inside[key]}"
    also = {word: inside.get(ours, ours) for word, ours in OTHER_WORDS.items() if ours in inside or ours in KEYS}
    return f"unknown key; {nearest(key, KEYS, inside | also)}"


def _joined(source: Source, head: _Head, parts: dict[str, Any], is_open: bool, notes: list[str]) -> Job:
    """The job, after the rules that join several keys."""
    model, parallelism, workload = parts["model"], parts["parallelism"], parts["workload"]
    problems: list[tuple[str, str]] = [(f"model.{key}", message) for key, message in rules.model_problems(model)]
    dp_given = "dp" in source.data.get("parallelism", {})
    written = parts["network"] if "network" in source.data else None
    split = world.split(parallelism, dp_given, head.gpus, written, is_open)
    parallelism = split.value
    shaped = world.shape(written, is_open, parallelism.world)
    notes += (*split.notes, *shaped.notes)
    problems += rules.split_problems(model, parallelism, parallelism.world)
    if split.problems:
        problems += split.problems
    else:
        problems += (*shaped.problems, *rules.batch_problems(model, parallelism, workload))
        problems += rules.device_problems(parts["device"], workload)
    if problems:
        problems = _features_first(problems, tuple(features(model, parallelism, workload)))
        raise SpecError([line(source, _path(key), message) for key, message in problems])
    notes += rules.notes(model, parts["device"], parallelism, workload)
    job = Job(
        name=head.name,
        model=model,
        device=parts["device"],
        network=shaped.value,
        parallelism=parallelism,
        workload=workload,
        gpus=parallelism.world,
        notes=tuple(notes),
    )
    job._source = source
    return job


def _features_first(problems: Sequence[rules.Problem], unbuilt: Sequence[Feature]) -> list[rules.Problem]:
    """The problems, each after what is not built yet of the feature that its key belongs to.

    Whoever follows the advice of a rule should not meet a second refusal. A model that lacks a feature's keys is told
    once, at the key that asks for it; of other keys the line says both.
    """
    first: list[rules.Problem] = []
    rest: list[rules.Problem] = []
    for key, message in problems:
        feature = next((each for each in unbuilt if key == each.key or key in each.keys), None)
        if feature is None:
            rest.append((key, message))
        elif feature.within and key.startswith("model."):
            if (feature.within, feature.said) not in first:
                first.append((feature.within, feature.said))
            rest.append((key, message))
        else:
            rest.append((key, f"{feature.said}; besides: {message}"))
    return first + rest


def _path(key: str) -> KeyPath:
    return tuple(key.split("."))
