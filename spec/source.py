"""Text to plain data, with the place of every key: YAML 1.2 read strictly, and written back.

Owns how numbers, duplicate keys and merge keys are read, and the map from key paths to places. Knows no spec.

Plain scalars are resolved here, not by the library, so that 1e15, 1.0e15 and 1_000 are numbers, 010 is refused (eight
or ten?), and a number written with an exponent that is whole (40e6) is an integer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from tracegen.proto.errors import InputError

KeyPath = tuple[str | int, ...]
"""A key path: names and list positions from the top."""

_INT = re.compile(r"[-+]?(?:[0-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"null": None, "Null": None, "NULL": None, "~": None, "": None} | {
    word: value for value, words in ((True, "true True TRUE"), (False, "false False FALSE")) for word in words.split()
}
_TAGS = {
    "",
    *(
        f"tag:yaml.org,2002:{kind}"
        for kind in ["map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge"]
    ),
}
_DEEPEST = 40
_MOST_NODES = 100_000
_MOST_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Source:
    """Plain data and where each of its keys was written.

    Parameters
    ----------
    data : mappings, lists, text, numbers, booleans, None.
    places : key path -> "file:line", or the command line's own words for a key given there.
    """

    data: dict[str, Any]
    places: Mapping[KeyPath, str] = field(default_factory=dict)

    def place(self, *path: str | int) -> str:
        """Where this key, or the nearest key above it, was written."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return "spec"

    def below(self, key: str) -> Source:
        """The part below a key whose value is a mapping."""
        inside = {path[1:]: place for path, place in self.places.items() if path[:1] == (key,)}
        return Source(self.data[key], inside)

    def with_part(self, key: str, part: Source) -> Source:
        """The same with another part below ``key``, whose own place stays where it was written."""
        places = {path: place for path, place in self.places.items() if path[:1] != (key,)}
        places |= {(key, *path): place for path, place in part.places.items()}
        if (key,) in self.places:
            places[(key,)] = self.places[(key,)]
        return Source(self.data | {key: part.data}, places)


def merge(base: Source, over: Source) -> Source:
    """``over`` on top of ``base``: mappings key by key at every depth, everything else replaced."""
    data = dict(base.data)
    places = dict(base.places)
    for key, value in over.data.items():
        old = data.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            part = merge(Source(data, places).below(key), over.below(key))
        else:
            part = Source(value, over.below(key).places)
        kept = Source(data, places).with_part(key, part)
        data, places = kept.data, dict(kept.places)
        if (key,) in over.places:
            places[(key,)] = over.places[(key,)]
    return Source(data, places)


def read_file(path: Path, shown: str) -> Source:
    """A YAML file whose top is a mapping.

    Raises
    ------
    InputError
        Missing, a folder, binary, empty, bad syntax, duplicate keys, not a mapping: one line each.
    """
    text = read_text(path, shown)
    return parse(text, shown)


def read_text(path: Path, shown: str) -> str:
    """A text file of a size that a person writes; refused in one line where it is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        full = os.path.abspath(path)
        raise InputError(f"{shown}: no such file" + (f" ({full})" if full != shown else "")) from None
    except IsADirectoryError:
        raise InputError(f"{shown}: is a folder; name a YAML file") from None
    except OSError as why:
        raise InputError(f"{shown}: cannot be read ({why.strerror or why})") from None
    if len(raw) > _MOST_BYTES:
        raise InputError(f"{shown}: is too large to be a spec; at most {_MOST_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{shown}: is no text file (not UTF-8)") from None
    if "\0" in text:
        raise InputError(f"{shown}: is no text file (holds a zero byte)")
    return text


def parse(text: str, shown: str) -> Source:
    """YAML text whose top is a mapping; ``shown`` names it in places."""
    reader = _Reader(shown)
    root = reader.compose(text)
    if root is None:
        raise InputError(f"{shown}: is empty; a spec is a YAML mapping")
    data = reader.value(root, ())
    if not isinstance(data, dict):
        raise InputError(f"{shown}:1: is {_kind(data)}; it must be a YAML mapping (key: value)")
    return Source(data, reader.places)


def parse_override(text: str) -> tuple[KeyPath, Source]:
    """A ``--set key.path=value``: its key path, and its value under the key "" with places for everything in it."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or not all(key.split(".")):
        raise InputError(f"--set {_one_line(text)}: write key=value, like --set parallelism.tp=4")
    shown = f"--set {_one_line(text)}"
    reader = _Reader(shown, numbered=False)
    root = reader.compose(value)
    data = None if root is None else reader.value(root, ("",))
    if isinstance(data, str) and "\n" in value.strip() and root.style is None:  # YAML would fold it to a space
        raise InputError(f"{shown}: text without quotes is one line; this has {value.strip().count(chr(10)) + 1}")
    return key_path(key), Source({"": data}, {("",): shown} | reader.places)


def assign(source: Source, path: KeyPath, value: Source) -> Source:
    """``source`` with the value of `parse_override` at ``path``; mappings on the way are made where absent."""
    shown = value.place("")
    data = _assigned(source.data, path, value.data[""], shown, path)
    places = {known: place for known, place in source.places.items() if known[: len(path)] != path}
    places |= {path[:end]: shown for end in range(1, len(path)) if not _holds(source.data, path[:end])}
    places |= {(*path, *inner[1:]): place for inner, place in value.places.items()}
    return Source(data, places)


def _holds(data: Any, path: KeyPath) -> bool:
    """Whether there is a value at ``path``."""
    for key in path:
        if isinstance(data, dict) and str(key) in data:
            data = data[str(key)]
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            return False
    return True


def _assigned(old: Any, path: KeyPath, value: Any, shown: str, whole: KeyPath) -> Any:
    if not path:
        return value
    key, rest = path[0], path[1:]
    above = dotted(whole[: len(whole) - len(path)])
    if isinstance(old, list):
        if not isinstance(key, int) or key >= len(old):
            raise InputError(f"{shown}: {above} is a list of {len(old)}, its positions are 0 to {len(old) - 1}")
        return [*old[:key], _assigned(old[key], rest, value, shown, whole), *old[key + 1 :]]
    if old is None:
        old = {}
    if not isinstance(old, dict):
        raise InputError(f"{shown}: {above} is {_kind(old)} and has no keys")
    return old | {str(key): _assigned(old.get(str(key)), rest, value, shown, whole)}


def key_path(key: str) -> KeyPath:
    """The path of a dotted key; what is all ASCII digits is a list position."""
    return tuple(int(part) if part.isascii() and part.isdigit() else part for part in key.split("."))


def dotted(path: KeyPath) -> str:
    """``parallelism.tp``, ``network.dimensions.0.size``."""
    return ".".join(str(part) for part in path)


def dump(document: Mapping[str, Any]) -> str:
    """Plain data as YAML text that `parse` reads back equal, keys in their order, every digit of a float."""
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedSeq

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if not isinstance(value, list):
            return value
        items = CommentedSeq(plain(item) for item in value)
        if not any(isinstance(item, dict) for item in items):
            items.fa.set_flow_style()
        return items

    writer = YAML()
    writer.default_flow_style = False
    writer.width = 10_000
    out = StringIO()
    writer.dump(plain(dict(document)), out)
    return out.getvalue()


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, list):
        return "a list"
    return {bool: "a truth value", str: "text", dict: "a mapping"}.get(type(value), "a number")


class _Reader:
    """Builds plain data from composed YAML nodes, noting each key's line."""

    def __init__(self, shown: str, *, numbered: bool = True) -> None:
        self.shown = shown
        self.numbered = numbered
        self.places: dict[KeyPath, str] = {}
        self.seen = 0
        self.depth = 0

    def compose(self, text: str) -> Any:
        """The root node, None where the text holds none."""
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        try:
            return YAML(typ="safe", pure=True).compose(text)
        except MarkedYAMLError as why:
            mark = why.problem_mark or why.context_mark
            line = self.at(mark.line + 1) if mark is not None else self.shown
            said = " ".join(part for part in (why.context, why.problem) if part)
            raise InputError(f"{line}: is no YAML: {_one_line(said)}") from None
        except (YAMLError, ValueError, RecursionError) as why:
            raise InputError(f"{self.shown}: is no YAML: {_one_line(str(why))}") from None

    def at(self, line: int) -> str:
        return f"{self.shown}:{line}" if self.numbered else self.shown

    def value(self, node: Any, path: KeyPath) -> Any:
        """Plain data of a node."""
        line = node.start_mark.line + 1
        if str(node.tag or "") not in _TAGS:
            raise InputError(f"{self.at(line)}: tag {_one_line(str(node.tag))} is not read here; remove it")
        self.places.setdefault(path, self.at(line))
        self.seen += 1
        self.depth += 1
        if self.seen > _MOST_NODES or self.depth > _DEEPEST:
            raise InputError(f"{self.at(line)}: the YAML is too large, or refers to itself")
        found = self.built(node, path, line)
        self.depth -= 1
        return found

    def built(self, node: Any, path: KeyPath, line: int) -> Any:
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        if isinstance(node, MappingNode):
            return self.mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, line)

    def mapping(self, node: Any, path: KeyPath) -> dict[str, Any]:
        """A mapping; merged keys first, so that its own win; its own twice are refused."""
        lines: dict[str, int] = {}
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node.value, str):
                raise InputError(f"{self.at(line)}: a key must be text")
            if key_node.value == "<<" and key_node.style is None:
                for source in self.merged(value_node, line):
                    inherited = self.value(source, path)
                    merged = inherited | merged
                continue
            key = key_node.value
            if key in lines:
                again = f"written on line {lines[key]} and again on line {line}"
                raise InputError(f"{self.at(line)} {dotted((*path, key))}: {again}; keep one")
            lines[key] = line
        for key_node, value_node in node.value:
            if key_node.value in lines:
                key = key_node.value
                for inherited_path in [known for known in self.places if known[: len(path) + 1] == (*path, key)]:
                    del self.places[inherited_path]
                self.places[(*path, key)] = self.at(lines[key])
                own[key] = self.value(value_node, (*path, key))
        return merged | own

    def merged(self, node: Any, line: int) -> list[Any]:
        """The mappings that a merge key names."""
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        sources = node.value if isinstance(node, SequenceNode) else [node]
        if not all(isinstance(source, MappingNode) for source in sources):
            raise InputError(f"{self.at(line)}: << takes a mapping or a list of mappings")
        return list(sources)

    def scalar(self, node: Any, line: int) -> Any:
        """Text, number, truth value or None."""
        text: str = node.value
        if node.style is not None:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _LEADING_ZERO.fullmatch(text):
            plain = re.sub(r"^([-+]?)0[0_]*(?=[0-9])", r"\1", text)
            raise InputError(f"{self.at(line)}: {text} has leading zeros; write {plain}, or 0o{plain} for octal")
        if _INT.fullmatch(text) and len(text) < 40:
            return int(text.replace("_", ""), 0)
        if _FLOAT.fullmatch(text) and len(text) < 60:
            number = float(text.replace("_", ""))
            whole = "." not in text and abs(number) < 1e18 and number.is_integer()
            return int(number) if whole else number
        return text


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
