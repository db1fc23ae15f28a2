"""Slow and obvious twins of the encoder and decoder, written with protobuf, and random graphs for both."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tracegen.proto.encode import write_rank
from tracegen.proto.graph import Groups, Kind, NameTable, Phase, RankGraph, TraceSet
from tracegen.proto.schema import GlobalMetadata, Node

MAX64 = 2**64 - 1
# Kinds of an attribute that hold one integer, and the least and largest that each takes.
INTEGER_KINDS = {
    "int32_val": (-(2**31), 2**31 - 1), "int64_val": (-(2**63), 2**63 - 1), "uint32_val": (0, 2**32 - 1),
    "uint64_val": (0, MAX64), "sint32_val": (-(2**31), 2**31 - 1), "sint64_val": (-(2**63), 2**63 - 1),
    "fixed32_val": (0, 2**32 - 1), "fixed64_val": (0, MAX64), "sfixed32_val": (-(2**31), 2**31 - 1),
    "sfixed64_val": (-(2**63), 2**63 - 1), "bool_val": (0, 1),
}  # fmt: skip


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def delimited(message: Any) -> bytes:
    body = message if isinstance(message, bytes) else message.SerializeToString()
    return varint(len(body)) + body


def trace(*nodes: Any, version: str | None = "0.0.4") -> bytes:
    """A file of these nodes (messages or their bytes), with a head unless `version` is None."""
    head = b"" if version is None else delimited(GlobalMetadata(version=version))
    return head + b"".join(delimited(node) for node in nodes)


def node(**given: Any) -> Any:
    """A node with attributes given as a dictionary of name to (kind, value)."""
    made = Node(**{key: value for key, value in given.items() if key != "attr"})
    for name, (kind, value) in given.get("attr", {}).items():
        made.attr.add(name=name, **{kind: value})
    return made


def encoded(traces: TraceSet, rank: int = 0) -> bytes:
    file = io.BytesIO()
    assert write_rank(file, traces, rank) == len(file.getvalue())
    return file.getvalue()


def protobuf_encoded(traces: TraceSet, rank: int) -> bytes:
    """What `write_rank` must write, built node by node with protobuf."""
    graph = traces.graph(rank)
    out = [delimited(GlobalMetadata(version=graph.schema or "0.0.4"))]
    for i in range(len(graph)):
        one = Node(id=int(graph.id[i]), name=graph.name_of(i), type=int(graph.kind[i]))
        one.duration_micros = int(graph.duration_us[i])
        for deps, ptr, columns in (
            (one.ctrl_deps, graph.ctrl_ptr, graph.ctrl_deps), (one.data_deps, graph.data_ptr, graph.data_deps)
        ):  # fmt: skip
            deps.extend(int(graph.id[p]) for p in columns[ptr[i] : ptr[i + 1]])
        for name, kind, value in attributes(traces, rank, i):
            attribute = one.attr.add(name=name)
            if kind == "bool_list":
                attribute.bool_list.values.extend(value)
            else:
                setattr(attribute, kind, value)
        extra = b"" if graph.extra_ptr is None else graph.extra[graph.extra_ptr[i] : graph.extra_ptr[i + 1]].tobytes()
        out.append(delimited(one.SerializeToString() + extra))
    return b"".join(out)


def attributes(traces: TraceSet, rank: int, i: int) -> list[tuple[str, str, Any]]:
    """Attributes of one node as docs/trace-format.md lists them."""
    graph = traces.graph(rank)
    kind, slot = Kind(graph.kind[i]), int(graph.slot[i])
    named = int(traces.slots[rank, slot]) if slot >= 0 else -1
    least = 1 if kind == Kind.COMP else 0
    rows: list[tuple[str, str, Any]] = [("is_cpu_op", "bool_val", bool(graph.cpu[i]))]
    rows += [("num_ops", "int64_val", value)] if (value := max(int(graph.flops[i]), least)) > 0 else []
    rows += [("tensor_size", "uint64_val", value)] if (value := max(int(graph.mem_bytes[i]), least)) > 0 else []
    rows += [("duration_ns", "int64_val", value)] if (value := int(graph.duration_ns[i])) >= 0 else []
    rows += [("comm_type", "int64_val", value)] if (value := int(graph.collective[i])) >= 0 else []
    if kind in (Kind.SEND, Kind.RECV) and named >= 0:
        source, target = (rank, named) if kind == Kind.SEND else (named, rank)
        rows += [("comm_src", "int32_val", source), ("comm_dst", "int32_val", target)]
    rows += [("comm_size", "int64_val", value)] if (value := int(graph.comm_bytes[i])) >= 0 else []
    if (tag := int(graph.tag[i])) >= 0:
        rows.append(("comm_tag", "int32_val" if tag < 2**31 else "int64_val", tag))
    rows += [("comm_priority", "int32_val", value)] if (value := int(graph.priority[i])) else []
    if kind == Kind.COLL and named >= 0 and traces.groups.number[named] != 0:
        rows.append(("pg_name", "string_val", str(traces.groups.number[named])))
    if dims := int(graph.dims[i]):
        rows.append(("involved_dim", "bool_list", [bool(dims >> d & 1) for d in range(dims.bit_length())]))
    rows += [("operator", "string_val", graph.operators[value])] if (value := int(graph.operator[i])) >= 0 else []
    rows += [("layer", "int32_val", value)] if (value := int(graph.layer[i])) >= 0 else []
    rows += [("phase", "string_val", Phase(value).name)] if (value := int(graph.phase[i])) >= 0 else []
    rows += [("microbatch", "int32_val", value)] if (value := int(graph.microbatch[i])) >= 0 else []
    rows += [("chunk", "int32_val", value)] if (value := int(graph.chunk[i])) >= 0 else []
    return rows


def chain(n: int) -> TraceSet:
    """One rank, n compute nodes, each after the one before."""

    def full(value: int, dtype: Any) -> Any:
        return np.full(n, value, dtype)

    ptr = np.maximum(np.arange(n + 1) - 1, 0)
    graph = RankGraph(
        id=np.arange(n, dtype=np.uint64), kind=full(4, np.uint8), cpu=full(0, np.bool_),
        duration_ns=full(1000, np.int64), duration_us=full(1, np.int64), flops=full(5, np.int64),
        mem_bytes=full(6, np.int64), comm_bytes=full(-1, np.int64), collective=full(-1, np.int8),
        slot=full(-1, np.int32), tag=full(-1, np.int64), priority=full(0, np.int32), dims=full(0, np.uint32),
        operator=full(0, np.int32), layer=full(1, np.int32), phase=full(0, np.int8), microbatch=full(2, np.int32),
        chunk=full(-1, np.int32), name=full(0, np.int32), data_ptr=ptr, data_deps=np.arange(n - 1, dtype=np.int32),
        ctrl_ptr=np.zeros(n + 1, np.int64), ctrl_deps=np.zeros(0, np.int32),
        names=NameTable.of(["L\x01 \x04 \x03\x02"], literal=False), operators=("mlp",),
    )  # fmt: skip
    return TraceSet((graph,), np.zeros(1, np.int32), Groups.of([], [], []), np.zeros((1, 0), np.int32))


def messages(data: bytes) -> list[bytes]:
    """The messages of a file, by their lengths."""
    found, at = [], 0
    while at < len(data):
        size, shift = 0, 0
        while True:
            size |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                break
        found.append(data[at : at + size])
        at += size
    return found


def signed(value: int) -> int:
    """What a 64-bit static_cast makes of it."""
    return (value + 2**63) % 2**64 - 2**63


ABSENT = {
    "is_cpu_op": 0, "num_ops": 0, "tensor_size": 0, "duration_ns": -1, "comm_type": -1, "comm_size": -1, "comm_tag": -1,
    "comm_priority": 0, "comm_src": -1, "comm_dst": -1, "pg_name": 0, "involved_dim": 0, "layer": -1, "microbatch": -1,
    "chunk": -1, "phase": -1, "operator": None,
}  # fmt: skip


class RefusedError(Exception):
    """The twin refuses the node."""


def protobuf_value(name: str, attribute: Any, kind: int) -> Any:
    """The value of a known attribute; None where it is kept undecoded instead. Rules of docs/trace-format.md."""
    held = attribute.WhichOneof("value")
    value = None if held is None else getattr(attribute, held)
    if (name == "pg_name" and kind != Kind.COLL) or (name in ("comm_src", "comm_dst") and kind not in (5, 6)):
        return None
    if name == "pg_name":
        text = value if held == "string_val" else value.decode("latin-1") if held == "bytes_val" else None
        if text is None or not (text == "" or (text.isascii() and text.isdigit() and int(text) < 2**31)):
            raise RefusedError
        return int(text or 0)
    if name == "involved_dim":
        if held != "bool_list" or not any(value.values) or len(value.values) > 32:
            raise RefusedError
        return sum(bool(bit) << d for d, bit in enumerate(value.values))
    if name == "operator":
        return value if held == "string_val" else value.decode() if held == "bytes_val" else None
    if name == "phase":
        return "FBWR".index(value) if held == "string_val" and value in ("F", "B", "W", "R") else None
    ours = name in ("layer", "microbatch", "chunk")
    if held not in INTEGER_KINDS:
        if ours:
            return None
        raise RefusedError
    value = signed(int(value))
    if ours and not 0 <= value < 2**31:
        return None
    if name == "comm_type" and not 0 <= value <= 9:
        raise RefusedError
    return value


def protobuf_decoded(message: Any) -> dict[str, Any]:
    """Columns of one node by attribute name, its kept attributes, and its fields. Raises `RefusedError`."""
    if not 0 <= message.type <= 7 or message.duration_micros > 2**63 // 1000:
        raise RefusedError
    row: dict[str, Any] = dict(ABSENT)
    seen: set[str] = set()
    kept = []
    for attribute in message.attr:
        value = None
        if attribute.name in ABSENT and attribute.name not in seen:
            seen.add(attribute.name)
            value = protobuf_value(attribute.name, attribute, message.type)
        if value is None:
            kept.append(attribute)
        else:
            row[attribute.name] = value
    return row | {"kept": kept}


# Values at which a varint, a kind or a sign changes.
EDGES = [0, 1, 127, 128, 16383, 16384, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1]


@st.composite
def jobs(draw: st.DrawFn) -> TraceSet:
    """A job of two ranks that share one graph of up to eight nodes with anything in its columns.

    Texts and sizes are hypothesis's; the columns are picked from values at edges by a seed of its, which is quicker.
    """
    n = draw(st.integers(0, 8))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    text = st.text(st.characters(codec="utf-8"), max_size=12)
    literal = draw(st.booleans())
    entries = draw(st.lists(text, min_size=1, max_size=3))
    operators = tuple(draw(st.lists(text, min_size=1, max_size=3)))

    def column(dtype: Any, largest: int, *others: int) -> Any:
        values = [*(edge for edge in EDGES if edge < largest), largest, *others]
        return np.array([values[i] for i in random.integers(len(values), size=n)], dtype)

    def dependencies() -> tuple[Any, Any]:
        lists = [random.integers(n, size=random.integers(4)) for _ in range(n)]
        return np.cumsum([0, *map(len, lists)]), np.concatenate([np.zeros(0), *lists]).astype(np.int32)

    kind = column(np.uint8, 7, 4, 5, 6)
    # slots 0 and 1 name groups, 2 and 3 peers; other nodes have none
    pick = column(np.int32, 1, -1)
    slot = np.where((pick < 0) | (kind < 5), -1, np.where(kind == 7, pick, pick + 2)).astype(np.int32)
    unknown = node(attr={"x": ("double_val", 2.5)}).SerializeToString()
    extras = [unknown * int(times) for times in random.integers(3, size=n)]
    data_ptr, data_deps = dependencies()
    ctrl_ptr, ctrl_deps = dependencies()
    graph = RankGraph(
        id=random.permutation(np.array([*EDGES, MAX64], np.uint64))[:n], kind=kind, cpu=column(np.bool_, 1),
        duration_ns=column(np.int64, 2**63 - 1, -1), duration_us=column(np.int64, 2**63 // 1000),
        flops=column(np.int64, 2**63 - 1), mem_bytes=column(np.int64, 2**63 - 1),
        comm_bytes=column(np.int64, 2**63 - 1, -1), collective=column(np.int8, 9, -1), slot=slot,
        tag=column(np.int64, 2**40, -1), priority=column(np.int32, 2**31 - 1, -1, -(2**31)),
        dims=column(np.uint32, 2**32 - 1, 5, 6), operator=column(np.int32, len(operators) - 1, -1),
        layer=column(np.int32, 2**31 - 1, -1), phase=column(np.int8, 3, -1), microbatch=column(np.int32, 128, -1),
        chunk=column(np.int32, 1, -1), name=column(np.int32, len(entries) - 1), data_ptr=data_ptr, data_deps=data_deps,
        ctrl_ptr=ctrl_ptr, ctrl_deps=ctrl_deps, names=NameTable.of(entries, literal=literal), operators=operators,
        extra_ptr=np.cumsum([0, *map(len, extras)]), extra=np.frombuffer(b"".join(extras), np.uint8),
    )  # fmt: skip
    groups = Groups.of([[0, 1], [1, 0], [0, 1]], ["world", "a", "b"], [0, 3, 2147483647])
    return TraceSet((graph,), np.zeros(2, np.int32), groups, np.array([[0, 1, 0, 1], [1, 2, 1, 0]], np.int32))


@st.composite
def odd_nodes(draw: st.DrawFn) -> Any:
    """A node with attributes of known and unknown names, any kind and number of times."""
    values = st.one_of(
        [st.tuples(st.just(kind), st.integers(*limits)) for kind, limits in INTEGER_KINDS.items()]
        + [st.tuples(st.just(kind), st.integers(0, 9)) for kind in ("int64_val", "uint32_val", "sint64_val")]
        + [
            st.tuples(st.just("string_val"), st.sampled_from(["", "1", "7", "F", "B", "dp0", "0012", "2147483648"])),
            st.tuples(st.just("bytes_val"), st.sampled_from([b"", b"3", b"x"])),
            st.tuples(st.just("double_val"), st.just(1.5)),
            st.tuples(st.just("bool_list"), st.lists(st.booleans(), max_size=4)),
            st.tuples(st.just("int64_list"), st.lists(st.integers(0, 3), max_size=2)),
            st.just((None, None)),
        ]
    )
    names = st.sampled_from([*ABSENT, "unknown", ""])
    made = Node(
        id=draw(st.integers(0, MAX64)), name=draw(st.text(max_size=5)), type=draw(st.integers(0, 9)),
        start_time_micros=draw(st.integers(0, 5)), duration_micros=draw(st.integers(0, 2**54)),
        data_deps=draw(st.lists(st.integers(0, MAX64), max_size=3)),
    )  # fmt: skip
    for name, (kind, value) in draw(st.lists(st.tuples(names, values), max_size=5)):
        attribute = made.attr.add(name=name)
        if kind in ("bool_list", "int64_list"):
            getattr(attribute, kind).SetInParent()
            getattr(attribute, kind).values.extend(value)
        elif kind is not None:
            setattr(attribute, kind, value)
    return made
