"""A rank's graph to the bytes of its trace file, streamed in blocks. Names, kinds and order of the attributes we write.

Byte for byte what protobuf would serialise (the tests hold it to that): fields in ascending order, defaults left out.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.encode_kernels import encode_nodes, put_varint
from tracegen.proto.graph import RankGraph, TraceSet
from tracegen.proto.schema import AttributeProto, GlobalMetadata, Node

SCHEMA = "0.0.4"  # version in the head of the traces that ASTRA-sim ships
BLOCK = 1 << 20  # bytes written at once

# Name and kind of every attribute we write, in this order; the rows are the constants of `encode_kernels`.
# Kinds are those that the strictest known reader takes (docs/trace-format.md).
ATTRIBUTES = (
    ("is_cpu_op", "bool_val"),
    ("num_ops", "int64_val"),
    ("tensor_size", "uint64_val"),
    ("duration_ns", "int64_val"),
    ("comm_type", "int64_val"),
    ("comm_src", "int32_val"),
    ("comm_dst", "int32_val"),
    ("comm_size", "int64_val"),
    ("comm_tag", "int32_val"),
    ("comm_tag", "int64_val"),  # tags of 2^31 and more, in foreign traces only
    ("comm_priority", "int32_val"),
    ("pg_name", "string_val"),
    ("involved_dim", "bool_list"),
    ("operator", "string_val"),
    ("layer", "int32_val"),
    ("phase", "string_val"),
    ("microbatch", "int32_val"),
    ("chunk", "int32_val"),
)
_EMPTY: dict[str, Any] = {"string_val": "", "bool_val": False, "bool_list": {}}


def _table(entries: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Texts in one buffer and where each begins."""
    ptr = np.zeros(len(entries) + 1, np.int64)
    np.cumsum([len(entry) for entry in entries], out=ptr[1:])
    return np.frombuffer(b"".join(entries) or b"\0", np.uint8), ptr


def _prefix(name: str, kind: str) -> bytes:
    """A node's attribute field up to its value: with an empty value the last byte is the value or its length."""
    attribute = AttributeProto(name=name, **{kind: _EMPTY.get(kind, 0)})
    whole: bytes = Node(attr=[attribute]).SerializeToString()
    return whole[:-1]


_PREFIXES, _PREFIX_PTR = _table([_prefix(name, kind) for name, kind in ATTRIBUTES])


def head(version: str = SCHEMA) -> bytes:
    """The first message of a file, behind its length."""
    body: bytes = GlobalMetadata(version=version).SerializeToString()
    size = np.empty(10, np.uint8)
    return size[: put_varint(size, 0, np.uint64(len(body)))].tobytes() + body


def _fixed(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """The array as the kernel knows it: contiguous, of one type and read-only, so that it is compiled once."""
    fixed = np.ascontiguousarray(array, dtype).view()
    fixed.flags.writeable = False
    return fixed


def _columns(graph: RankGraph) -> tuple[NDArray[Any], ...]:
    """Columns from which attributes come, in the order that the kernel unpacks them."""
    typed = (
        (graph.kind, np.uint8), (graph.cpu, np.bool_), (graph.duration_ns, np.int64), (graph.flops, np.int64),
        (graph.mem_bytes, np.int64), (graph.comm_bytes, np.int64), (graph.collective, np.int8), (graph.tag, np.int64),
        (graph.priority, np.int32), (graph.dims, np.uint32), (graph.layer, np.int32), (graph.phase, np.int8),
        (graph.microbatch, np.int32), (graph.chunk, np.int32),
    )  # fmt: skip
    return tuple(_fixed(column, dtype) for column, dtype in typed)


def _slots(traces: TraceSet, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What the rank's slots mean in a file: the number of a group, 0 where it is not one, and a peer."""
    slots = np.append(traces.slots[rank].astype(np.int64), -1)
    number = np.append(traces.groups.number.astype(np.int64), 0)
    group = np.where((slots >= 0) & (slots < len(traces.groups)), slots, len(traces.groups))
    return number[group], slots


def write_rank(file: BinaryIO, traces: TraceSet, rank: int) -> int:
    """Write one rank's trace, a block at a time.

    Parameters
    ----------
    file : open for writing bytes.
    traces : the job's traces.
    rank : whose trace.

    Returns
    -------
    int
        Bytes written.
    """
    graph = traces.graph(rank)
    group, peer = _slots(traces, rank)
    operators, operator_ptr = _table([operator.encode() for operator in graph.operators])
    extra_ptr = np.zeros(len(graph) + 1, np.int64) if graph.extra_ptr is None else graph.extra_ptr
    typed = (
        (graph.id, np.uint64), (graph.duration_us, np.int64), (graph.name, np.int32), (graph.slot, np.int32),
        (graph.data_ptr, np.int64), (graph.data_deps, np.int32), (graph.ctrl_ptr, np.int64),
        (graph.ctrl_deps, np.int32), (graph.operator, np.int32), (extra_ptr, np.int64), (graph.extra, np.uint8),
        (graph.names.blob, np.uint8), (graph.names.ptr, np.int64),
    )  # fmt: skip
    columns = [_columns(graph), *(_fixed(column, dtype) for column, dtype in typed)]
    texts = [graph.names.literal, operators, operator_ptr, _PREFIXES, _PREFIX_PTR, group, peer]
    fixed: list[Any] = columns + texts
    written = file.write(head(graph.schema or SCHEMA))
    block = np.empty(BLOCK, np.uint8)
    node = 0
    while node < len(graph):
        node, size, needed = encode_nodes(block, node, int(rank), *fixed)
        if size == 0:
            block = np.empty(needed, np.uint8)
        else:
            written += file.write(block[:size].data)
    return written
