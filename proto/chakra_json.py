"""Chakra traces dumped as JSON (protobuf's JSON mapping, as Chakra's jsonizer writes) back to the bytes of a trace.

Reads one object after the other, a list of them, or an object with a list of nodes. Decodes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError

from tracegen.proto.problems import Problem, TraceErrors
from tracegen.proto.schema import GlobalMetadata, Node

_NODE_TYPE = re.compile(rb'"(INVALID|METADATA|MEM_LOAD|MEM_STORE|COMP|COMM_SEND|COMM_RECV|COMM_COLL)_NODE"')
_TYPES = frozenset(Node.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_name)
_IDS = ("id", "dataDeps", "data_deps", "ctrlDeps", "ctrl_deps")
_HEAD = ("version", "attr")  # keys of a GlobalMetadata, which a node has beside others


class _Fraction(float):
    """A number written with a point or an exponent."""


def is_chakra_json(sample: bytes) -> bool:
    """Whether a text that begins like this is a dump of a Chakra trace: an object or list that names node types."""
    return sample.lstrip().startswith((b"{", b"[")) and _NODE_TYPE.search(sample) is not None


def trace_bytes(text: bytes, where: str) -> bytes:
    """The dump as a trace's bytes.

    Raises
    ------
    TraceErrors
        It is no JSON, or an object is no Chakra message, or an id is written as a fraction, whose last digits a float
        does not hold.
    """
    out = bytearray()
    for number, found in enumerate(_objects(text, where)):
        head = number == 0 and set(found) <= set(_HEAD)
        name = "the head" if head else f"object {number} (id {found.get('id', 0)})"
        for key in _IDS:
            value = found.get(key, 0)
            if any(isinstance(one, _Fraction) for one in (value if isinstance(value, list) else [value])):
                message = (
                    f"{name}: {key} is written as a float, which loses digits of 64-bit ids: write a text or integer"
                )
                raise TraceErrors([Problem("malformed", where, message)])
        if not head and (kind := found.get("type", 0)) not in _TYPES and type(kind) is not int:
            message = f"{name}: its type is {json.dumps(kind)}; types are {', '.join(sorted(_TYPES))}"
            raise TraceErrors([Problem("node-type", where, message)])
        try:
            body = ParseDict(
                found, GlobalMetadata() if head else Node(), ignore_unknown_fields=True
            ).SerializeToString()
        except (ParseError, TypeError, ValueError) as why:
            line = str(why).splitlines()[0]
            raise TraceErrors([Problem("malformed", where, f"{name} is no Chakra message: {line}")]) from None
        out += _varint(len(body)) + body
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _objects(text: bytes, where: str) -> Iterator[dict[str, Any]]:
    """Every object of the dump, the head first where there is one."""
    decoder = json.JSONDecoder(parse_float=_Fraction)
    content, at = text.decode("utf-8", "replace"), 0
    space = re.compile(r"[\s,]*")
    while (at := _end(space, content, at)) < len(content):
        try:
            found, at = decoder.raw_decode(content, at)
        except json.JSONDecodeError as why:
            raise TraceErrors([Problem("malformed", where, f"line {why.lineno}: this is no JSON: {why.msg}")]) from None
        for one in found if isinstance(found, list) else [found]:
            if not isinstance(one, dict):
                raise TraceErrors([Problem("malformed", where, f"{json.dumps(one)[:40]} is no Chakra message")])
            yield from _unwrapped(one)


def _unwrapped(found: dict[str, Any]) -> list[dict[str, Any]]:
    """An object that holds a list of nodes as its head and its nodes; any other as it is."""
    for key in ("nodes", "node"):
        if isinstance(listed := found.get(key), list):
            head = found.get("global_metadata", found.get("globalMetadata", {"version": found.get("version", "")}))
            return [head, *listed]
    return [found]


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    matched = pattern.match(text, at)
    return matched.end() if matched else at
