"""Compiled loops of the encoder: columns of a graph to the bytes of its nodes."""

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

# Rows of the table of attribute prefixes; `encode.ATTRIBUTES` lists names and kinds in this order.
IS_CPU_OP, NUM_OPS, TENSOR_SIZE, DURATION_NS, COMM_TYPE, COMM_SRC, COMM_DST, COMM_SIZE, COMM_TAG = range(9)
WIDE_TAG, COMM_PRIORITY, PG_NAME, INVOLVED_DIM, OPERATOR, LAYER, PHASE, MICROBATCH, CHUNK = range(9, 18)

COMP, SEND, RECV, COLL = 4, 5, 6, 7
# Bytes of name templates that stand for provenance.
LAYER_MARK, MICROBATCH_MARK, PHASE_MARK, OPERATOR_MARK, CHUNK_MARK = 1, 2, 3, 4, 5
PHASES = np.frombuffer(b"FBWR", np.uint8)
# Bytes of a node beyond its name, dependencies, operator and extra fields: 17 attributes of at most 48 and the fields.
FIXED = 1024


@kernel
def varint_size(value: Int) -> Int:
    """Bytes of an unsigned varint."""
    size = 1
    while value >= np.uint64(128):
        value >>= np.uint64(7)
        size += 1
    return size


@kernel
def put_varint(out: Bytes, at: Int, value: Int) -> Int:
    """Write an unsigned varint; returns where it ends."""
    while value >= np.uint64(128):
        out[at] = np.uint8(value & np.uint64(127)) | np.uint8(128)
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@kernel
def put_bytes(out: Bytes, at: Int, source: Bytes, begin: Int, end: Int) -> Int:
    """Copy a slice; returns where it ends."""
    for i in range(begin, end):
        out[at] = source[i]
        at += 1
    return at


@kernel
def move(out: Bytes, begin: Int, end: Int, to: Int) -> None:
    """Move a slice within a buffer, in whichever direction."""
    if to < begin:
        for i in range(begin, end):
            out[to + i - begin] = out[i]
    else:
        for i in range(end - 1, begin - 1, -1):
            out[to + i - begin] = out[i]


@kernel
def decimal_size(value: Int) -> Int:
    """Characters of an integer in decimal."""
    size = 1
    if value < 0:
        size = 2
        value = -value
    while value >= 10:
        value //= 10
        size += 1
    return size


@kernel
def put_decimal(out: Bytes, at: Int, value: Int) -> Int:
    """Write an integer in decimal; returns where it ends."""
    end = at + decimal_size(value)
    if value < 0:
        out[at] = 45
        value = -value
    last = end - 1
    while value >= 10:
        out[last] = np.uint8(48 + value % 10)
        value //= 10
        last -= 1
    out[last] = np.uint8(48 + value)
    return end


@inlined
def put_integer(out: Bytes, at: Int, prefixes: Bytes, prefix_ptr: Longs, row: Int, value: Int) -> Int:
    """Write an attribute with an integer value (record under 128 bytes); returns where it ends."""
    begin, end = prefix_ptr[row], prefix_ptr[row + 1]
    start = at
    at = put_varint(out, put_bytes(out, at, prefixes, begin, end), np.uint64(value))
    out[start + 1] = np.uint8(at - start - 2)
    return at


@inlined
def put_text(
    out: Bytes, at: Int, prefixes: Bytes, prefix_ptr: Longs, row: Int, source: Bytes, begin: Int, end: Int,
) -> Int:  # fmt: skip
    """Write an attribute with a text of any length; returns where it ends."""
    first, last = prefix_ptr[row], prefix_ptr[row + 1]
    size = np.uint64(end - begin)
    out[at] = prefixes[first]
    at = put_varint(out, at + 1, np.uint64(last - first - 2 + varint_size(size) + end - begin))
    at = put_bytes(out, at, prefixes, first + 2, last)
    return put_bytes(out, put_varint(out, at, size), source, begin, end)


@kernel
def put_group(out: Bytes, at: Int, prefixes: Bytes, prefix_ptr: Longs, number: Int) -> Int:
    """Write the attribute `pg_name`, the group's number in decimal; returns where it ends."""
    start = at
    at = put_bytes(out, at, prefixes, prefix_ptr[PG_NAME], prefix_ptr[PG_NAME + 1])
    out[at] = np.uint8(decimal_size(number))
    at = put_decimal(out, at + 1, number)
    out[start + 1] = np.uint8(at - start - 2)
    return at


@kernel
def put_dimensions(out: Bytes, at: Int, prefixes: Bytes, prefix_ptr: Longs, mask: Int) -> Int:
    """Write the attribute `involved_dim`, a list of bools up to the highest set bit; returns where it ends."""
    start = at
    at = put_bytes(out, at, prefixes, prefix_ptr[INVOLVED_DIM], prefix_ptr[INVOLVED_DIM + 1])
    count = 0
    while mask >> count:
        out[at + 3 + count] = (mask >> count) & 1
        count += 1
    out[at] = np.uint8(count + 2)
    out[at + 1] = 10
    out[at + 2] = np.uint8(count)
    at += 3 + count
    out[start + 1] = np.uint8(at - start - 2)
    return at


@kernel
def name_size(
    template: Bytes, begin: Int, end: Int, layer: Int, microbatch: Int, phase: Int, operator_size: Int, chunk: Int,
) -> Int:  # fmt: skip
    """Bytes of a name once its template is filled."""
    size = 0
    for i in range(begin, end):
        mark = template[i]
        if mark == LAYER_MARK:
            size += decimal_size(layer)
        elif mark == MICROBATCH_MARK:
            size += decimal_size(microbatch)
        elif mark == PHASE_MARK:
            size += 1 if phase >= 0 else 0
        elif mark == OPERATOR_MARK:
            size += operator_size
        elif mark == CHUNK_MARK:
            size += decimal_size(chunk)
        else:
            size += 1
    return size


@kernel
def put_name(
    out: Bytes, at: Int, template: Bytes, begin: Int, end: Int, layer: Int, microbatch: Int, phase: Int, operators:
    Bytes, operator_at: Int, operator_end: Int, chunk: Int,
) -> Int:  # fmt: skip
    """Write a name with its template filled; returns where it ends."""
    for i in range(begin, end):
        mark = template[i]
        if mark == LAYER_MARK:
            at = put_decimal(out, at, layer)
        elif mark == MICROBATCH_MARK:
            at = put_decimal(out, at, microbatch)
        elif mark == PHASE_MARK:
            if phase >= 0:
                out[at] = PHASES[phase]
                at += 1
        elif mark == OPERATOR_MARK:
            at = put_bytes(out, at, operators, operator_at, operator_end)
        elif mark == CHUNK_MARK:
            at = put_decimal(out, at, chunk)
        else:
            out[at] = mark
            at += 1
    return at


@kernel
def put_dependencies(out: Bytes, at: Int, tag: Int, ids: Ids, deps: Ints, begin: Int, end: Int) -> Int:
    """Write a packed list of the ids of the nodes waited for, nothing where there are none; returns where it ends."""
    if begin == end:
        return at
    size = 0
    for i in range(begin, end):
        size += varint_size(ids[deps[i]])
    out[at] = tag
    at = put_varint(out, at + 1, np.uint64(size))
    for i in range(begin, end):
        at = put_varint(out, at, ids[deps[i]])
    return at


@kernel
def put_attributes(
    out: Bytes, at: Int, prefixes: Bytes, prefix_ptr: Longs, kind: Int, cpu: Int, duration_ns: Int, flops: Int,
    mem_bytes: Int, comm_bytes: Int, collective: Int, tag: Int, priority: Int, dims: Int, number: Int, source: Int,
    target: Int,
) -> Int:  # fmt: skip
    """Write the attributes that readers know, in the order of `encode.ATTRIBUTES`; returns where they end."""
    at = put_integer(out, at, prefixes, prefix_ptr, IS_CPU_OP, cpu)
    least = 1 if kind == COMP else 0
    if max(flops, least) > 0:
        at = put_integer(out, at, prefixes, prefix_ptr, NUM_OPS, max(flops, least))
    if max(mem_bytes, least) > 0:
        at = put_integer(out, at, prefixes, prefix_ptr, TENSOR_SIZE, max(mem_bytes, least))
    if duration_ns >= 0:
        at = put_integer(out, at, prefixes, prefix_ptr, DURATION_NS, duration_ns)
    if collective >= 0:
        at = put_integer(out, at, prefixes, prefix_ptr, COMM_TYPE, collective)
    if source >= 0:
        at = put_integer(out, at, prefixes, prefix_ptr, COMM_SRC, source)
    if target >= 0:
        at = put_integer(out, at, prefixes, prefix_ptr, COMM_DST, target)
    if comm_bytes >= 0:
        at = put_integer(out, at, prefixes, prefix_ptr, COMM_SIZE, comm_bytes)
    if tag >= 0:
        at = put_integer(out, at, prefixes, prefix_ptr, COMM_TAG if tag < 2**31 else WIDE_TAG, tag)
    if priority != 0:
        at = put_integer(out, at, prefixes, prefix_ptr, COMM_PRIORITY, priority)
    if number > 0:
        at = put_group(out, at, prefixes, prefix_ptr, number)
    if dims != 0:
        at = put_dimensions(out, at, prefixes, prefix_ptr, dims)
    return at


@kernel
def put_provenance(
    out: Bytes, at: Int, prefixes: Bytes, prefix_ptr: Longs, operators: Bytes, op_at: Int, op_end: Int, layer: Int,
    phase: Int, microbatch: Int, chunk: Int,
) -> Int:  # fmt: skip
    """Write where a node comes from, as far as it is known; returns where that ends."""
    if op_end >= 0:
        at = put_text(out, at, prefixes, prefix_ptr, OPERATOR, operators, op_at, op_end)
    if layer >= 0:
        at = put_integer(out, at, prefixes, prefix_ptr, LAYER, layer)
    if phase >= 0:
        at = put_text(out, at, prefixes, prefix_ptr, PHASE, PHASES, phase, phase + 1)
    if microbatch >= 0:
        at = put_integer(out, at, prefixes, prefix_ptr, MICROBATCH, microbatch)
    if chunk >= 0:
        at = put_integer(out, at, prefixes, prefix_ptr, CHUNK, chunk)
    return at


@kernel
def encode_nodes(
    out: Bytes, first: Int, rank: Int, columns: tuple[Any, ...], ids: Ids, duration_us: Longs, name: Ints, slot: Ints,
    data_ptr: Longs, data_deps: Ints, ctrl_ptr: Longs, ctrl_deps: Ints, operator: Ints, extra_ptr: Longs, extra:
    Bytes, names: Bytes, name_ptr: Longs, literal: bool, operators: Bytes, operator_ptr: Longs, prefixes: Bytes,
    prefix_ptr: Longs, slot_group: Longs, slot_peer: Longs,
) -> tuple[Int, Int, Int]:  # fmt: skip
    """Write nodes from position `first` on, each behind its length, until the next might not fit.

    Returns the position of the next node, the bytes written and, where not even one node fits, the bytes it may need.
    """
    kind, cpu, duration_ns, flops, mem_bytes, comm_bytes, collective, tag, priority, dims = columns[:10]
    layer, phase, microbatch, chunk = columns[10:14]
    at = 0
    for i in range(first, len(ids)):
        begin, end = name_ptr[name[i]], name_ptr[name[i] + 1]
        op_at, op_end = np.int64(0), np.int64(-1)
        if operator[i] >= 0:
            op_at, op_end = operator_ptr[operator[i]], operator_ptr[operator[i] + 1]
        lay, mb, ph, ch = np.int64(layer[i]), np.int64(microbatch[i]), np.int64(phase[i]), np.int64(chunk[i])
        if literal:
            named = end - begin
        else:
            named = name_size(names, begin, end, lay, mb, ph, max(op_end - op_at, 0), ch)
        bound = FIXED + named + max(op_end - op_at, 0) + extra_ptr[i + 1] - extra_ptr[i]
        bound += 10 * (data_ptr[i + 1] - data_ptr[i] + ctrl_ptr[i + 1] - ctrl_ptr[i])
        if at + bound > len(out):
            return i, at, bound
        # The length before the body takes as many bytes as it needs, so the body is put behind a guess of two.
        body = at + 2
        put = body
        if ids[i] != 0:
            out[put] = 8
            put = put_varint(out, put + 1, ids[i])
        if named:
            out[put] = 18
            put = put_varint(out, put + 1, np.uint64(named))
            if literal:
                put = put_bytes(out, put, names, begin, end)
            else:
                put = put_name(out, put, names, begin, end, lay, mb, ph, operators, op_at, op_end, ch)
        if kind[i] != 0:
            out[put] = 24
            out[put + 1] = kind[i]
            put += 2
        put = put_dependencies(out, put, 34, ids, ctrl_deps, ctrl_ptr[i], ctrl_ptr[i + 1])
        put = put_dependencies(out, put, 42, ids, data_deps, data_ptr[i], data_ptr[i + 1])
        if duration_us[i] != 0:
            out[put] = 56
            put = put_varint(out, put + 1, np.uint64(duration_us[i]))
        number, source, target = np.int64(-1), np.int64(-1), np.int64(-1)
        if slot[i] >= 0:
            if kind[i] == COLL:
                number = slot_group[slot[i]]
            elif kind[i] == SEND:
                source, target = rank, slot_peer[slot[i]]
            elif kind[i] == RECV:
                source, target = slot_peer[slot[i]], rank
        put = put_attributes(
            out, put, prefixes, prefix_ptr, kind[i], np.int64(cpu[i]), duration_ns[i], flops[i], mem_bytes[i],
            comm_bytes[i], np.int64(collective[i]), tag[i], np.int64(priority[i]), np.int64(dims[i]), number, source,
            target,
        )  # fmt: skip
        put = put_provenance(out, put, prefixes, prefix_ptr, operators, op_at, op_end, lay, ph, mb, ch)
        put = put_bytes(out, put, extra, extra_ptr[i], extra_ptr[i + 1])
        room = varint_size(np.uint64(put - body))
        if room != 2:
            move(out, body, put, at + room)
        put_varint(out, at, np.uint64(put - body))
        at += room + put - body
    return np.int64(len(ids)), at, np.int64(0)
