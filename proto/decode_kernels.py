"""Compiled loops of the decoder: the bytes of a trace to columns. Every read is checked against its message's end."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.compiled import inlined, kernel

Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Ids: TypeAlias = NDArray[np.uint64]
Int: TypeAlias = Any  # an int or a numpy integer: mypy cannot follow which

# Columns of the table of values; `decode.KNOWN` lists the attributes' names in this order.
IS_CPU_OP, NUM_OPS, TENSOR_SIZE, DURATION_NS, COMM_TYPE, COMM_SRC, COMM_DST, COMM_SIZE, COMM_TAG = range(9)
COMM_PRIORITY, PG_NAME, INVOLVED_DIM, LAYER, MICROBATCH, CHUNK, PHASE, OPERATOR = range(9, 17)
FIRST_PROVENANCE = LAYER  # attributes of ours: one of another kind is somebody else's and kept undecoded

SEND, RECV, COLL = 5, 6, 7
PHASES = np.frombuffer(b"FBWR", np.uint8)
# Why a node or a file is refused; texts in `decode_errors`.
FINE, MALFORMED, FIELD_KIND, NODE_KIND, TOO_LARGE, NOT_INTEGER, NOT_TEXT, NOT_BOOLS, GROUP_NAME = range(9)
NO_DIMENSION, COLLECTIVE, DURATION, CUT, NO_LENGTH, NO_ROOM, KIND_LATE, NODE_TOO_LARGE = range(9, 17)
LARGEST_FIELD, LARGEST_NODE = 64_000_000, 256_000_000  # bytes
LARGEST_DURATION_US = 2**63 // 1000

# Wire type of each field of AttributeProto, -1 where there is none, and the fields that hold one integer.
WIRE = np.array(
    [-1, 2, 2, 1, 2, 5, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 5, 2, 1, 2, 5, 2, 1, 2, 0, 2, 2, 2, 2, 2], np.int64
)
FIRST_INTEGER, BOOL, BOOL_LIST, STRING, BYTES = 7, 27, 28, 29, 31


@kernel
def read_varint(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """The value of a varint and where it ends; -1 where it is cut or longer than ten bytes."""
    if at < end and data[at] < 128:  # most are one byte
        return np.uint64(data[at]), at + 1
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return value, at
        shift += np.uint64(7)
    return value, np.int64(-1)


@kernel
def read_fixed(data: Bytes, at: Int, size: Int) -> Int:
    """A little-endian number of 4 or 8 bytes."""
    value = np.uint64(0)
    for i in range(size):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return value


@inlined
def read_field(data: Bytes, at: Int, end: Int) -> tuple[Int, Int, Int, Int, Int]:
    """A field's number, wire type, value (or size of its bytes), where that value begins and where the field ends.

    The end is -1 where the field is malformed or reaches beyond `end`. Groups (wire types 3 and 4) are malformed.
    """
    key, at = read_varint(data, at, end)
    number, wire = np.int64(key >> np.uint64(3)), np.int64(key & np.uint64(7))
    value, begin, close = np.uint64(0), at, np.int64(-1)
    if at < 0 or number == 0 or key >= np.uint64(2**32):
        return number, wire, value, begin, close
    if wire == 0:
        value, close = read_varint(data, at, end)
    elif wire == 2:
        value, begin = read_varint(data, at, end)
        if begin >= 0 and value <= np.uint64(end - begin):
            close = begin + np.int64(value)
    elif wire == 1 or wire == 5:
        size = 8 if wire == 1 else 4
        if end - at >= size:
            value, close = read_fixed(data, at, size), at + size
    return number, wire, value, begin, close


@kernel
def as_integer(field: Int, value: Int) -> Int:
    """The value of an integer attribute as its kind means it, wrapped into 64 bits."""
    low = value & np.uint64(0xFFFFFFFF)
    if field == 7 or field == 23:  # int32, sfixed32
        return np.int64(np.int32(np.uint32(low)))
    if field == 11 or field == 19:  # uint32, fixed32
        return np.int64(low)
    if field == 15:  # sint32
        return np.int64(low >> np.uint64(1)) ^ -np.int64(low & np.uint64(1))
    if field == 17:  # sint64
        return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
    if field == BOOL:
        return np.int64(value != 0)
    return np.int64(value)


@inlined
def read_attribute(data: Bytes, at: Int, end: Int) -> tuple[Int, Int, Int, Int, Int, Int, Int]:
    """Read an AttributeProto: begin and end of its name, field of its value, that value, begin and end of its bytes.

    Last comes where the attribute ends; -1 where it is malformed. The field is 0 where it has no value.
    """
    if end - at > 2 and data[at] == 10 and data[at + 1] < min(128, end - at - 2):
        # As everybody writes it: a short name and then one value to the end.
        name = at + 2
        name_end = name + np.int64(data[at + 1])
        field, wire, held, first, close = read_field(data, name_end, end)
        if close == end and 2 < field <= 32 and wire == WIRE[field]:
            return name, name_end, field, held, first, close, close
    name, name_end, field, held = np.int64(0), np.int64(0), np.int64(0), np.uint64(0)
    first, last = np.int64(0), np.int64(0)
    while at < end:
        number, wire, value, begin, at = read_field(data, at, end)
        if at < 0:
            break
        if number <= 32 and wire == WIRE[number]:
            if number == 1:
                name, name_end = begin, at
            elif number > 2:
                field, first, last, held = number, begin, at, value
    return name, name_end, field, held, first, last, at


@kernel
def hash_name(data: Bytes, begin: Int, end: Int) -> Int:
    """A small number that tells most attribute names apart: from length, first and last byte."""
    if begin == end:
        return 0
    return (5 * (end - begin) + 3 * np.int64(data[begin]) + np.int64(data[end - 1])) & 63


@kernel
def find_known(data: Bytes, begin: Int, end: Int, known: Bytes, known_ptr: Longs, known_slots: Longs) -> Int:
    """Which of the known attribute names this is; -1 for none. `known_slots` is a hash table of 64, -1 where free."""
    place = hash_name(data, begin, end)
    while known_slots[place] >= 0:
        entry = known_slots[place]
        first = known_ptr[entry]
        if known_ptr[entry + 1] - first == end - begin:
            i = begin
            while i < end and data[i] == known[first + i - begin]:
                i += 1
            if i == end:
                return entry
        place = (place + 1) & 63
    return -1


@kernel
def read_group(data: Bytes, begin: Int, end: Int) -> Int:
    """The number that a `pg_name` spells, 0 for none; -1 where it is not a decimal number below 2^31."""
    value = np.int64(0)
    for i in range(begin, end):
        digit = np.int64(data[i]) - 48
        if digit < 0 or digit > 9:
            return np.int64(-1)
        value = value * 10 + digit
        if value >= 2**31:
            return np.int64(-1)
    return value


@kernel
def read_dimensions(data: Bytes, at: Int, end: Int) -> Int:
    """The bit mask of a BoolList, packed or not; 0 where no bit is set, -1 where it is malformed or over 32 long."""
    mask, count = np.int64(0), 0
    while at < end:
        number, wire, _, begin, close = read_field(data, at, end)
        if close < 0:
            return np.int64(-1)
        at = close
        if number == 1 and (wire == 0 or wire == 2):
            inner = begin
            while inner < close:
                bit, inner = read_varint(data, inner, close)
                if inner < 0 or count >= 32:
                    return np.int64(-1)
                mask |= np.int64(bit != 0) << count
                count += 1
    return mask


@kernel
def find_kind(data: Bytes, at: Int, end: Int) -> Int:
    """The type of a node, as far as its fields can be read: `decode_node` says where they cannot."""
    kind = np.int64(0)
    while at < end:
        number, wire, value, _, at = read_field(data, at, end)
        if at < 0:
            break
        if number == 3 and wire == 0:
            kind = np.int64(min(value, np.uint64(255)))
    return kind


@kernel
def take_value(
    data: Bytes, known: Bytes, kind: Int, field: Int, held: Int, begin: Int, end: Int, values: Longs, row: Int,
) -> Int:  # fmt: skip
    """Put a known attribute's value in its column. Returns why it is refused; -1 where it is to be kept undecoded."""
    text = field in (STRING, BYTES)
    integer = FIRST_INTEGER <= field <= BOOL and field % 2 == 1
    if known in (COMM_SRC, COMM_DST) and kind not in (SEND, RECV):
        return -1
    if known == PG_NAME:
        if kind != COLL:
            return -1
        if not text:
            return NOT_TEXT
        values[row, known] = read_group(data, begin, end)
        return FINE if values[row, known] >= 0 else GROUP_NAME
    if known == INVOLVED_DIM:
        if field != BOOL_LIST:
            return NOT_BOOLS
        values[row, known] = read_dimensions(data, begin, end)
        return FINE if values[row, known] > 0 else NO_DIMENSION
    if known == OPERATOR:
        return FINE if text else -1
    if known == PHASE:
        if text and end - begin == 1:
            for phase in range(4):
                if data[begin] == PHASES[phase]:
                    values[row, known] = phase
                    return FINE
        return -1
    if not integer:
        return -1 if known >= FIRST_PROVENANCE else NOT_INTEGER
    value = as_integer(field, held)
    if known >= FIRST_PROVENANCE and (value < 0 or value >= 2**31):
        return -1
    values[row, known] = value
    return COLLECTIVE if known == COMM_TYPE and (value < 0 or value > 9) else FINE


@kernel
def read_ids(data: Bytes, number_wire: Int, value: Int, at: Int, end: Int, ids: Ids, count: Int) -> Int:
    """Append dependencies, packed or a single one; returns how many there are now, -1 where they are malformed."""
    if number_wire == 0:
        ids[count] = value
        return count + 1
    while at < end:
        one, at = read_varint(data, at, end)
        if at < 0:
            return np.int64(-1)
        ids[count] = one
        count += 1
    return count


@kernel
def keep_bytes(data: Bytes, begin: Int, end: Int, kept: Bytes, count: Int) -> Int:
    """Append a field as it stands to what is kept undecoded; returns how much there is now."""
    for i in range(begin, end):
        kept[count] = data[i]
        count += 1
    return count


@kernel
def decode_node(
    data: Bytes, at: Int, end: Int, kind: Int, known: Bytes, known_ptr: Longs, known_slots: Longs, row: Int, values:
    Longs, kinds: Bytes, ids: Ids, durations: Longs, spans: Longs, data_ids: Ids, ctrl_ids: Ids, kept: Bytes, totals:
    Longs,
) -> tuple[Int, Int, Int]:  # fmt: skip
    """Read one node: values of known attributes, id, kind and duration, spans of name and operator, dependencies, rest.

    `kind` is -1 where it is to be read on the way; where it then comes after an attribute, the code is KIND_LATE.
    Returns why the node is refused (0: it is not), the column of the attribute or number of the field, and where.
    """
    seen, attributes = np.int64(0), False
    kinds[row] = max(kind, 0)
    while at < end:
        start = at
        number, wire, value, begin, at = read_field(data, start, end)
        if at < 0:
            return MALFORMED, number, start
        if at - start > LARGEST_FIELD:
            return TOO_LARGE, number, start
        if number == 10 and wire == 2:
            attributes = True
            name, name_end, field, held, first, last, close = read_attribute(data, begin, at)
            if close < 0:
                return MALFORMED, number, start
            which = find_known(data, name, name_end, known, known_ptr, known_slots)
            code = -1
            if which >= 0 and not (seen >> which) & 1:
                seen |= 1 << which
                code = take_value(data, which, kinds[row], field, held, first, last, values, row)
                if code > 0:
                    return code, which, field
                if code == 0 and which == OPERATOR:
                    spans[row, 2], spans[row, 3] = first, last
            if code < 0:
                totals[2] = keep_bytes(data, start, at, kept, totals[2])
        elif (number == 4 or number == 5) and (wire == 0 or wire == 2):
            waits = data_ids if number == 5 else ctrl_ids
            count = read_ids(data, wire, value, begin, at, waits, totals[5 - number])
            if count < 0:
                return MALFORMED, number, start
            totals[5 - number] = count
        elif number == 2 and wire == 2:
            spans[row, 0], spans[row, 1] = begin, at
        elif number == 1 and wire == 0:
            ids[row] = value
        elif number == 3 and wire == 0:
            if kind < 0:
                if attributes:
                    return KIND_LATE, number, start
                kinds[row] = min(value, np.uint64(255))
        elif number == 7 and wire == 0:
            durations[row] = np.int64(value)
            if value > np.uint64(LARGEST_DURATION_US):
                return DURATION, number, start
        elif number <= 7 and number != 6:
            return FIELD_KIND, number, start
        else:
            totals[2] = keep_bytes(data, start, at, kept, totals[2])
    return (NODE_KIND if kinds[row] > 7 else FINE), np.int64(kinds[row]), at


@kernel
def decode_nodes(
    data: Bytes, at: Int, start: Int, row: Int, most: Int, known: Bytes, known_ptr: Longs, known_slots: Longs, absent:
    Longs, begins: Longs, values: Longs, kinds: Bytes, ids: Ids, durations: Longs, spans: Longs, data_ids: Ids,
    ctrl_ids: Ids, kept: Bytes, counts: Longs, totals: Longs,
) -> tuple[Int, Int, Int, Int, Int]:  # fmt: skip
    """Read nodes from byte `at` on into row `row` and the next, until the block that began at `start` is full.

    A block is full when all rows are, or `most` bytes; stops where a node is refused, cut or too large for the arrays.
    Returns that node's row, the byte after it (before it where it is cut), why, the column or field or the bytes
    needed, and where or what kind.
    """
    while row < len(begins) and at < len(data) and at - start <= most:
        size, begin = read_varint(data, at, min(at + 5, len(data)))
        if begin < 0:
            return row, at, (NO_LENGTH if len(data) - at >= 5 else CUT), np.int64(0), np.int64(0)
        if size > np.uint64(len(data) - begin):
            return row, at, CUT, np.int64(0), np.int64(0)
        end = begin + np.int64(size)
        if end - begin > LARGEST_NODE:
            begins[row], ids[row] = at, 0
            return row, end, NODE_TOO_LARGE, np.int64(0), end - begin
        if end - start > len(kept):
            if row > 0:
                break
            return row, at, NO_ROOM, end - start, np.int64(0)
        begins[row] = at
        ids[row], durations[row] = 0, 0
        spans[row, 0], spans[row, 1], spans[row, 2], spans[row, 3] = 0, 0, -1, -1
        for column in range(len(absent)):
            values[row, column] = absent[column]
        waits, controls, others = totals[0], totals[1], totals[2]
        code, which, where = decode_node(
            data, begin, end, np.int64(-1), known, known_ptr, known_slots, row, values, kinds, ids, durations, spans,
            data_ids, ctrl_ids, kept, totals,
        )  # fmt: skip
        if code == KIND_LATE:
            totals[0], totals[1], totals[2] = waits, controls, others
            for column in range(len(absent)):
                values[row, column] = absent[column]
            code, which, where = decode_node(
                data, begin, end, find_kind(data, begin, end), known, known_ptr, known_slots, row, values, kinds, ids,
                durations, spans, data_ids, ctrl_ids, kept, totals,
            )  # fmt: skip
        at = end
        if code != FINE:
            return row, at, code, np.int64(which), np.int64(where)
        counts[row, 0], counts[row, 1], counts[row, 2] = totals[0] - waits, totals[1] - controls, totals[2] - others
        row += 1
    return row, at, FINE, np.int64(0), np.int64(0)


@kernel
def intern_texts(data: Bytes, spans: Longs, column: Int, table: Ints, index: Ints, firsts: Longs) -> Int:
    """Number texts by first appearance; a text that begins below 0 is none and gets -1.

    `spans[i, column]` to `spans[i, column + 1]` is text i; `table` is a zeroed hash table of a power of two slots.
    `firsts[k]` becomes the first i whose text is number k. Returns how many texts differ.
    """
    count = 0
    mask = np.uint64(len(table) - 1)
    for i in range(len(spans)):
        begin, end = spans[i, column], spans[i, column + 1]
        if begin < 0:
            index[i] = -1
            continue
        mixed = np.uint64(14695981039346656037)
        for k in range(begin, end):
            mixed = (mixed ^ np.uint64(data[k])) * np.uint64(1099511628211)
        place = np.int64((mixed ^ (mixed >> np.uint64(29))) & mask)
        while True:
            held = table[place] - 1
            if held < 0:
                table[place] = count + 1
                firsts[count] = i
                index[i] = count
                count += 1
                break
            other = spans[firsts[held], column]
            same = spans[firsts[held], column + 1] - other == end - begin
            if same:
                for k in range(end - begin):
                    if data[other + k] != data[begin + k]:
                        same = False
                        break
            if same:
                index[i] = held
                break
            place = (place + 1) & np.int64(mask)
    return count


@kernel
def gather_texts(data: Bytes, spans: Longs, column: Int, firsts: Longs, ptr: Longs, blob: Bytes) -> None:
    """Copy the texts numbered by `intern_texts` one after the other; `ptr` says where each goes."""
    for k in range(len(ptr) - 1):
        begin = spans[firsts[k], column]
        for i in range(ptr[k + 1] - ptr[k]):
            blob[ptr[k] + i] = data[begin + i]
