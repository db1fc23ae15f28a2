"""Sentences for what the decoder's compiled loops refuse. Decides nothing."""

from __future__ import annotations

from tracegen.proto import decode_kernels as k
from tracegen.proto.schema import AttributeProto

FIELDS = {1: "id", 2: "name", 3: "type", 4: "ctrl_deps", 5: "data_deps", 6: "start_time_micros", 7: "duration_micros"}
FIELDS |= {8: "inputs", 9: "outputs", 10: "attr"}
_KINDS = {0: "no value"} | {field.number: field.name for field in AttributeProto.DESCRIPTOR.fields}
_WHOLE = "a whole number (int64_val or any other integer kind)"
RULES = {
    k.MALFORMED: "malformed",
    k.FIELD_KIND: "malformed",
    k.NODE_KIND: "node-type",
    k.TOO_LARGE: "too-large",
    k.NODE_TOO_LARGE: "too-large",
    k.NOT_INTEGER: "attribute-kind",
    k.NOT_TEXT: "attribute-kind",
    k.NOT_BOOLS: "attribute-kind",
    k.GROUP_NAME: "group-name",
    k.NO_DIMENSION: "involved-dim",
    k.COLLECTIVE: "collective-type",
    k.DURATION: "duration",
}


def sentence(code: int, which: int, place: int, known: tuple[str, ...]) -> str:
    """What is wrong with a node, given the kernel's code, the column or field concerned, and the place or kind."""
    name = known[which] if 0 <= which < len(known) else ""
    kind = _KINDS.get(place, "unknown")
    field = FIELDS.get(which, f"number {which}")
    if code == k.MALFORMED:
        return f"its bytes are no protobuf message: field {field} at byte {place} is broken"
    if code == k.FIELD_KIND:
        return f"field {field} at byte {place} has another type than in a Chakra node"
    if code == k.NODE_KIND:
        number = f"{which}{' or more' if which == 255 else ''}"
        return f"its type is {number}; types 0 to 7 are read (not the storage and checkpoint nodes of later schemas)"
    if code == k.TOO_LARGE:
        return f"field {field} at byte {place} is larger than {k.LARGEST_FIELD} bytes, the most that is read"
    if code == k.NODE_TOO_LARGE:
        return f"it takes {place} bytes; {k.LARGEST_NODE} are the most that is read"
    if code == k.NOT_INTEGER:
        return f"attribute {name} has {kind}, but {_WHOLE} belongs there"
    if code == k.NOT_TEXT:
        return f"attribute {name} has {kind}, but a text (string_val) belongs there"
    if code == k.NOT_BOOLS:
        return f"attribute {name} has {kind}, but a bool_list belongs there"
    if code == k.GROUP_NAME:
        return f"attribute {name} is no decimal number below 2^31; groups are numbered, as in comm_group.json"
    if code == k.NO_DIMENSION:
        return f"attribute {name} names no dimension (or more than 32); leave it out for all of them"
    if code == k.COLLECTIVE:
        return f"attribute {name} is none of Chakra's collectives, 0 to 9"
    return f"duration_micros is larger than {k.LARGEST_DURATION_US} us, the most that 64 bits of ns can hold"
