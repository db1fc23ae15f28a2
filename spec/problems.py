"""From what is wrong to one line: key, place, what was written, the nearest legal value. Owns the wording only."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tracegen.proto.errors import InputError
from tracegen.spec.source import KeyPath, Source, dotted
from tracegen.spec.units import WRITTEN, shown

_Section = TypeVar("_Section", bound=BaseModel)

OTHER_WORDS = {
    "tensor": "tp",
    "pipeline": "pp",
    "context": "cp",
    "expert": "ep",
    "data": "dp",
    "sequence_parallel": "sp",
    "seq_length": "sequence_length",
    "batch_size": "global_batch",
    "micro_batch_size": "micro_batch",
    "num_layers": "layers",
    "hidden_size": "hidden",
    "intermediate_size": "ffn",
    "num_heads": "heads",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "vocab_size": "vocab",
    "num_experts": "experts",
    "world_size": "gpus",
    "num_gpus": "gpus",
}
"""What other tools call our keys, for suggestions."""


_LATER = {"fault": "faults", "faults": "faults"}
"""Keys that the language will have."""


class SpecError(InputError):
    """A spec is refused. The message is the first problem's line; ``problems`` has the line of each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        more = len(problems) - 1
        super().__init__(problems[0] + (f" (and {more} more; `tracegen check --spec` lists all)" if more else ""))


def later(key: str) -> str | None:
    """What to say of a key that a later version will know; None of any other."""
    what = _LATER.get(key)
    return what and f"{what} come later: not built yet; leave it out"


def line(source: Source, path: Sequence[str | int], message: str) -> str:
    """``file:line key: message``; the key is left out where the place already names it."""
    place = source.place(*path)
    key = dotted(tuple(path))
    named = place.startswith(f"--set {key}=") or not key
    text = f"{place}: {message}" if named else f"{place} {key}: {message}"
    return " ".join(text.split())


def validated(
    section: type[_Section], data: Any, source: Source, path: KeyPath, problems: list[str]
) -> _Section | None:
    """The typed section of ``data``, whose keys lie below ``path``; None and a line per problem where it is refused."""
    if not isinstance(data, dict):
        problems.append(line(source, path, f"must be a mapping (key: value), not {shown(data)}"))
        return None
    try:
        return section.model_validate(_tuples(data), context=WRITTEN)
    except ValidationError as why:
        problems.extend(_lines(section, data, source, path, why))
        return None


def nearest(word: str, known: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """``nearest: x``, or all known ones where nothing is near.

    Parameters
    ----------
    known : what may be written.
    also : other spellings that mean one of them, and what to write for each.
    """
    meant = {option: option for option in known}
    options = dict(also or {}) | meant
    holding = [option for option in meant if len(word) > 2 and word.lower() in option.lower()]
    near = difflib.get_close_matches(word.lower(), options, n=1, cutoff=0.6) or holding[:3]
    if near:
        return f"nearest: {' or '.join(options[option] for option in near)}"
    return f"known: {', '.join(meant)}"


def _tuples(value: Any) -> Any:
    """Lists as tuples, which strict validation asks for."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value


def _lines(section: type[BaseModel], data: Any, source: Source, above: KeyPath, why: ValidationError) -> list[str]:
    found: dict[KeyPath, str] = {}
    for error in why.errors(include_url=False):
        location = tuple(error["loc"])
        path, written = _written(data, location)
        if error["type"] == "missing":
            path = location
        elif error["type"] == "wrong_key":
            path = (*location, *error["ctx"]["key"].split("."))
        elif path:
            error = error | {"input": written}
        path = (*above, *path)
        said = _message(section, location, error)
        if error["type"] == "missing":
            said += _absent_from(source, path)
        found.setdefault(path, line(source, path, said))
    return list(found.values())


def _absent_from(source: Source, path: KeyPath) -> str:
    """The file that lacks a key, where the place of the key above it is another: it only names that file."""
    above = path[:-1]
    files = [
        place.rsplit(":", 1)[0]
        for known, place in source.places.items()
        if len(known) == len(path) and known[:-1] == above and not place.startswith("--set ")
    ]
    if not above or not files or source.place(*path).rsplit(":", 1)[0] == files[0]:
        return ""
    return f" in {files[0]}"


def _written(data: Any, location: KeyPath) -> tuple[KeyPath, Any]:
    """The part of pydantic's location that is a key of ours, and its value; it appends branches and ``[key]``."""
    path: KeyPath = ()
    for part in location:
        key: Any = part
        if not (isinstance(data, dict) and key in data) and not (isinstance(data, list) and isinstance(key, int)):
            break
        data = data[key]
        path = (*path, part)
    return path, data


def _message(section: type[BaseModel], location: KeyPath, error: Any) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    text = shown(value)
    match kind:
        case "extra_forbidden":
            if said := later(str(location[-1])):
                return said
            keys = _keys(section, location[:-1])
            also = {word: key for word, key in OTHER_WORDS.items() if key in keys}
            return f"unknown key; {nearest(str(location[-1]), keys, also)}"
        case "missing":
            return "is missing"
        case "past_bound":
            return f"{text} is too {context['side']}; nearest legal value {context['nearest']}"
        case "int_type" | "int_from_float" | "int_parsing" | "int_parsing_size":
            return f"must be a whole number, not {text}{_near_whole(value)}"
        case "float_type" | "float_parsing":
            return f"must be a number, not {text}"
        case "bool_type" | "bool_parsing":
            return f"must be true or false, not {text}"
        case "string_type":
            return f"must be text, not {text}"
        case "tuple_type":
            return f"must be a list, not {text}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must be a mapping (key: value), not {text}"
        case "literal_error":
            legal = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            return f"{text} is not one of {', '.join(legal)}"
        case "greater_than_equal":
            return f"{text} is too small; nearest legal value {_bound(context['ge'])}"
        case "less_than_equal":
            return f"{text} is too large; nearest legal value {_bound(context['le'])}"
        case "finite_number":
            return f"must be a finite number, not {text}"
        case "string_too_short":
            return "is empty; write at least one letter"
        case "string_too_long":
            return f"is {len(value)} letters long; at most {context['max_length']}"
        case "too_long":
            return f"lists {len(value)}; at most {context['max_length']}"
        case "value_error":
            return str(context["error"])
        case "wrong_key":
            return str(context["message"])
        case _:
            return f"cannot be {text}"


def _bound(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _near_whole(value: object) -> str:
    if isinstance(value, float) and abs(value) < 1e15:
        return f"; nearest {int(value)} or {int(value) + 1}"
    if isinstance(value, str) and value.isascii() and value.strip().isdigit():
        return f"; write {int(value)} without quotes"
    return ""


def _keys(section: type[BaseModel], location: KeyPath) -> list[str]:
    """The keys that a mapping at this location may have."""
    kind: Any = section
    for part in location:
        if isinstance(part, int):
            kind = next((arg for arg in typing.get_args(kind) if arg is not Ellipsis), None)
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            names = {info.alias or name: info.annotation for name, info in kind.model_fields.items()}
            kind = names.get(part)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [info.alias or name for name, info in kind.model_fields.items()]
    return []
