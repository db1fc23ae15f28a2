"""The bytes of one trace to a rank's graph. Whole files and what several of them say together: `files`.

Bytes are read a block at a time by compiled loops; attributes that we do not know are kept as they stand.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

from tracegen.proto import decode_kernels as k
from tracegen.proto.chakra_json import is_chakra_json, trace_bytes
from tracegen.proto.decode_errors import RULES, sentence
from tracegen.proto.foreign import what_instead
from tracegen.proto.graph import Kind, NameTable, RankGraph
from tracegen.proto.problems import Problem, TraceErrors
from tracegen.proto.schema import GlobalMetadata

_UNSAID = -(2**63)  # of `is_cpu_op`: neither true nor false, which counts as false
# Attributes that become columns, in the order of the constants of `decode_kernels`, and what a column holds without.
KNOWN = (
    "is_cpu_op", "num_ops", "tensor_size", "duration_ns", "comm_type", "comm_src", "comm_dst", "comm_size", "comm_tag",
    "comm_priority", "pg_name", "involved_dim", "layer", "microbatch", "chunk", "phase", "operator",
)  # fmt: skip
_ABSENT = np.array([_UNSAID, 0, 0, -1, -1, -1, -1, -1, -1, 0, 0, 0, -1, -1, -1, -1, -1], np.int64)
_NAMES = NameTable.of(list(KNOWN))


def _hash_table(names: NameTable) -> NDArray[np.int64]:
    """Where `find_known` looks a name up: open addressing in 64 places."""
    table = np.full(64, -1, np.int64)
    for entry in range(len(names.ptr) - 1):
        place = k.hash_name(names.blob, names.ptr[entry], names.ptr[entry + 1])
        while table[place] >= 0:
            place = (place + 1) % 64
        table[place] = entry
    return table


_NAME_SLOTS = _hash_table(_NAMES)
_BLOCK_NODES, _BLOCK_BYTES = 1 << 14, 1 << 20
_MOST_PROBLEMS = 20  # per file
# Columns of a graph that are one attribute each, and their types.
_COLUMNS = (
    ("duration_ns", k.DURATION_NS, np.int64), ("flops", k.NUM_OPS, np.int64),
    ("mem_bytes", k.TENSOR_SIZE, np.int64), ("comm_bytes", k.COMM_SIZE, np.int64),
    ("collective", k.COMM_TYPE, np.int8), ("tag", k.COMM_TAG, np.int64), ("priority", k.COMM_PRIORITY, np.int32),
    ("dims", k.INVOLVED_DIM, np.uint32), ("layer", k.LAYER, np.int32), ("microbatch", k.MICROBATCH, np.int32),
    ("chunk", k.CHUNK, np.int32), ("phase", k.PHASE, np.int8), ("group", k.PG_NAME, np.int64),
    ("source", k.COMM_SRC, np.int64), ("target", k.COMM_DST, np.int64),
)  # fmt: skip

_Parts = defaultdict[str, list[NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class Decoded:
    """One file's trace, before anything is known of the other ranks.

    Parameters
    ----------
    graph : its nodes; ``slot`` is -1 everywhere.
    group_number : i64[n], number of a collective's group, 0 for the world; -1 for other nodes.
    peer : i64[n], target of a send, source of a receive; -1 where absent and for other nodes.
    own : i64[n], source of a send, target of a receive, which must be the rank itself; -1 likewise.
    unsaid : how many compute nodes do not say whether they are the CPU's, and count as the GPU's.
    """

    graph: RankGraph
    group_number: NDArray[np.int64]
    peer: NDArray[np.int64]
    own: NDArray[np.int64]
    unsaid: int = 0


def _read_head(body: bytes) -> str | None:
    """The version where the first message is a GlobalMetadata; None where it is a node already.

    Both may consist of fields 1 and 2 only: in a head these are a text and attributes, in a node a number and a text.
    """
    try:
        head = GlobalMetadata.FromString(body)
    except DecodeError:
        return None
    if head.version:
        return str(head.version)
    attributes = all(attribute.WhichOneof("value") for attribute in head.attr)
    return "" if attributes and not len(UnknownFieldSet(head)) else None


def _head(data: NDArray[np.uint8], where: str) -> tuple[str, int]:
    """The version in the file's head and the byte after it; "" and 0 where there is no head."""
    size, begin = k.read_varint(data, 0, min(5, len(data)))
    if begin < 0 or size > len(data) - begin:
        raise TraceErrors([_cut(data, 0, where, "the first message")])
    end = int(begin) + int(size)
    version = _read_head(data[begin : min(end, begin + k.LARGEST_FIELD)].tobytes())
    return ("", 0) if version is None else (version, end)


def _cut(data: NDArray[np.uint8], at: int, where: str, what: str) -> Problem:
    """The problem of a message that begins at byte `at` and does not end, or has no length."""
    size, begin = k.read_varint(data, at, min(at + 5, len(data)))
    if begin < 0 and len(data) - at >= 5:
        return Problem("malformed", where, f"{what} should begin at byte {at}, but no message length stands there")
    if begin < 0:
        missing = "its length is cut: at least 1 byte is missing"
    else:
        missing = f"{int(size)} bytes long, is cut: {int(size) - (len(data) - int(begin))} bytes are missing"
    return Problem("truncated", where, f"{what}, which begins at byte {at}, {missing} (the file has {len(data)})")


class _Block:
    """Arrays that hold one block of nodes, used again for the next."""

    def __init__(self) -> None:
        self.begins = np.empty(_BLOCK_NODES, np.int64)
        self.values = np.empty((_BLOCK_NODES, len(KNOWN)), np.int64)
        self.kinds = np.empty(_BLOCK_NODES, np.uint8)
        self.ids = np.empty(_BLOCK_NODES, np.uint64)
        self.durations = np.empty(_BLOCK_NODES, np.int64)
        self.spans = np.empty((_BLOCK_NODES, 4), np.int64)
        self.counts = np.empty((_BLOCK_NODES, 3), np.int64)
        self.totals = np.zeros(3, np.int64)
        self.make_room(2 * _BLOCK_BYTES)

    def make_room(self, size: int) -> None:
        """Room for what `size` bytes of messages can hold: at most one dependency or one byte kept for each."""
        self.data_ids = np.empty(size, np.uint64)
        self.ctrl_ids = np.empty(size, np.uint64)
        self.kept = np.empty(size, np.uint8)

    def decode(self, data: NDArray[np.uint8], at: int, start: int, row: int) -> tuple[int, int, int, int, int]:
        """Read nodes into the rows from `row` on; see `decode_kernels.decode_nodes`."""
        return k.decode_nodes(
            data, at, start, row, _BLOCK_BYTES, _NAMES.blob, _NAMES.ptr, _NAME_SLOTS, _ABSENT, self.begins, self.values,
            self.kinds, self.ids, self.durations, self.spans, self.data_ids, self.ctrl_ids, self.kept, self.counts,
            self.totals,
        )  # fmt: skip

    def hand_over(self, rows: int, parts: _Parts) -> None:
        """Append the columns of the first `rows` nodes to `parts` and begin a new block."""
        for name, column, dtype in _COLUMNS:
            parts[name].append(self.values[:rows, column].astype(dtype))
        cpu = self.values[:rows, k.IS_CPU_OP]
        parts["cpu"].append((cpu != 0) & (cpu != _UNSAID))
        parts["unsaid"].append(((cpu == _UNSAID) & (self.kinds[:rows] == Kind.COMP)).sum(keepdims=True))
        columns = (("kind", self.kinds), ("id", self.ids), ("duration_us", self.durations), ("spans", self.spans))
        for name, array in (*columns, ("counts", self.counts)):
            parts[name].append(array[:rows].copy())
        waits, controls, kept = self.totals
        for name, array, size in (
            ("data", self.data_ids, waits), ("ctrl", self.ctrl_ids, controls), ("extra", self.kept, kept)
        ):  # fmt: skip
            parts[name].append(array[:size].copy())
        self.totals[:] = 0


def _decode_blocks(data: NDArray[np.uint8], at: int, where: str) -> tuple[_Parts, list[Problem]]:
    """All nodes from byte `at` on, as columns of blocks, and why nodes are refused."""
    parts: _Parts = defaultdict(list)
    problems: list[Problem] = []
    block, node, row, start = _Block(), 0, 0, at
    while len(problems) < _MOST_PROBLEMS:
        row, after, code, which, place = block.decode(data, at, start, row)
        if code == k.FINE:
            block.hand_over(row, parts)
            if after == len(data):
                break
            node, row, start = node + row, 0, after
        elif code == k.NO_ROOM:
            block.make_room(which)
        elif code in (k.CUT, k.NO_LENGTH):
            problems.append(_cut(data, after, where, f"node {node + row}"))
            break
        else:
            what = f"node {node + row} (id {block.ids[row]}, at byte {block.begins[row]})"
            problems.append(Problem(RULES[code], where, f"{what}: {sentence(code, which, place, KNOWN)}"))
            row += 1
            if row == _BLOCK_NODES:
                node, row, start = node + row, 0, after
                block.totals[:] = 0
        at = after
    return parts, problems


def _texts(
    data: NDArray[np.uint8], spans: NDArray[np.int64], column: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int64]]:
    """Distinct texts among `spans`: the number of each node's, and all of them as buffer and begins."""
    index = np.empty(len(spans), np.int32)
    firsts = np.empty(len(spans), np.int64)
    table = np.zeros(1 << max(4, (2 * len(spans)).bit_length()), np.int32)
    count = k.intern_texts(data, spans, column, table, index, firsts)
    first = spans[firsts[:count]]
    ptr = np.zeros(count + 1, np.int64)
    np.cumsum(first[:, column + 1] - first[:, column], out=ptr[1:])
    blob = np.empty(int(ptr[-1]), np.uint8)
    k.gather_texts(data, spans, column, firsts, ptr, blob)
    return index, blob, ptr


def _resolve(
    ids: NDArray[np.uint64], wanted: NDArray[np.uint64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64]]:
    """Ids waited for as positions in CSR, and what names no node: the nodes that wait, and the ids.

    Of nodes with one id the first in the file is meant (the checker refuses them).
    """
    waiter = np.repeat(np.arange(len(ids), dtype=np.int64), counts)
    if not len(ids):
        return np.zeros(1, np.int64), np.zeros(0, np.int32), waiter, wanted
    if np.all(ids[1:] > ids[:-1]):
        order = None
        place = np.searchsorted(ids, wanted)
    else:
        order = np.argsort(ids, kind="stable")
        place = np.searchsorted(ids, wanted, sorter=order)
    place = np.minimum(place, len(ids) - 1)
    position = place if order is None else order[place]
    found = ids[position] == wanted
    ptr = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(np.bincount(waiter[found], minlength=len(ids)), out=ptr[1:])
    return ptr, position[found].astype(np.int32), waiter[~found], wanted[~found]


def decode(data: bytes | memoryview | NDArray[np.uint8], *, where: str) -> Decoded:
    """Decode one trace.

    Parameters
    ----------
    data : the file's bytes, unpacked; a dump of a trace as protobuf's JSON is read too.
    where : what errors call it: rank and file.

    Raises
    ------
    TraceErrors
        The file is no trace, is cut, or nodes in it cannot be read: the first 20 problems.
    """
    view = np.asarray(data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)).view()
    view.flags.writeable = False  # always, so that the kernels are compiled for one type
    sample = view[: 1 << 16].tobytes()
    if is_chakra_json(sample):
        view = np.frombuffer(trace_bytes(view.tobytes(), where), np.uint8).view()
        view.flags.writeable = False
    elif other := what_instead(sample):
        raise TraceErrors([Problem("not-a-trace", where, f"this is {other}")])
    schema, at = _head(view, where)
    parts, problems = _decode_blocks(view, at, where)
    if problems:
        raise TraceErrors(problems)
    return _assemble(view, parts, schema)


def _assemble(data: NDArray[np.uint8], parts: _Parts, schema: str) -> Decoded:
    """Columns of the whole file from those of its blocks."""
    columns = {name: np.concatenate(parts.pop(name)) for name in list(parts)}
    spans, counts, unsaid = columns.pop("spans"), columns.pop("counts"), int(columns.pop("unsaid").sum())
    name, blob, ptr = _texts(data, spans, 0)
    operator, operator_blob, operator_ptr = _texts(data, spans, 2)
    operators = NameTable(operator_blob, operator_ptr)
    data_ptr, data_deps, data_waits, data_lost = _resolve(columns["id"], columns.pop("data"), counts[:, 0])
    ctrl_ptr, ctrl_deps, ctrl_waits, ctrl_lost = _resolve(columns["id"], columns.pop("ctrl"), counts[:, 1])
    dangling = np.zeros((len(data_waits) + len(ctrl_waits), 2), np.int64)
    dangling[:, 0] = np.concatenate([data_waits, ctrl_waits])
    dangling[len(data_waits) :, 1] = 1
    kind, group = columns["kind"], columns.pop("group")
    source, target = columns.pop("source"), columns.pop("target")
    graph = RankGraph(
        **columns,
        slot=np.full(len(kind), -1, np.int32),
        operator=operator,
        name=name,
        names=NameTable(blob, ptr),
        operators=tuple(operators.entry(i) for i in range(len(operator_ptr) - 1)),
        data_ptr=data_ptr,
        data_deps=data_deps,
        ctrl_ptr=ctrl_ptr,
        ctrl_deps=ctrl_deps,
        dangling=dangling,
        dangling_id=np.concatenate([data_lost, ctrl_lost]),
        extra_ptr=np.append(0, np.cumsum(counts[:, 2])),
        schema=schema,
    )
    send, receive = kind == k.SEND, kind == k.RECV
    return Decoded(
        graph,
        group_number=np.where(kind == k.COLL, group, -1),
        peer=np.where(send, target, np.where(receive, source, -1)),
        own=np.where(send, source, np.where(receive, target, -1)),
        unsaid=unsaid,
    )
