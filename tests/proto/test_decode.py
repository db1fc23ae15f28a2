"""The decoder makes of any bytes the columns that protobuf's messages say, or refuses them with the reason."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import (
    ABSENT,
    INTEGER_KINDS,
    MAX64,
    RefusedError,
    chain,
    delimited,
    encoded,
    jobs,
    messages,
    node,
    odd_nodes,
    protobuf_decoded,
    signed,
    trace,
    varint,
)  # fmt: skip

from tracegen.proto.decode import Decoded, decode
from tracegen.proto.errors import InputError
from tracegen.proto.graph import Kind, RankGraph, TraceSet
from tracegen.proto.problems import TraceErrors
from tracegen.proto.schema import AttributeProto, GlobalMetadata, Node

COLUMNS = {
    "is_cpu_op": "cpu", "num_ops": "flops", "tensor_size": "mem_bytes", "duration_ns": "duration_ns", "layer": "layer",
    "comm_type": "collective", "comm_size": "comm_bytes", "comm_tag": "tag", "comm_priority": "priority",
    "involved_dim": "dims", "microbatch": "microbatch", "chunk": "chunk", "phase": "phase",
}  # fmt: skip


def extra_of(graph: RankGraph, i: int) -> Any:
    assert graph.extra_ptr is not None
    return Node.FromString(graph.extra[graph.extra_ptr[i] : graph.extra_ptr[i + 1]].tobytes())


def refusal(data: bytes) -> str:
    with pytest.raises(TraceErrors) as caught:
        decode(data, where="rank 3 (x.3.et)")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_what_we_wrote_reads_back_to_the_same_columns(traces: TraceSet) -> None:
    graph = traces.graph(0)
    back = decode(encoded(traces), where="x")
    # In a file COMP nodes have at least one FLOP and byte (DEFINITIONS 8); names are filled and become literal.
    least = (graph.kind == Kind.COMP).astype(np.int64)
    expected = dataclasses.replace(
        graph, flops=np.maximum(graph.flops, least), mem_bytes=np.maximum(graph.mem_bytes, least)
    )
    for column in dataclasses.fields(RankGraph):
        if column.name not in ("slot", "operator", "operators", "name", "names", "schema"):
            np.testing.assert_array_equal(getattr(back.graph, column.name), getattr(expected, column.name), column.name)
            assert getattr(back.graph, column.name).dtype == getattr(expected, column.name).dtype, column.name
    for i in range(len(graph)):
        assert back.graph.name_of(i) == graph.name_of(i)
        operators = [g.operators[g.operator[i]] if g.operator[i] >= 0 else None for g in (graph, back.graph)]
        assert operators[0] == operators[1]
        named = traces.slots[0, graph.slot[i]] if graph.slot[i] >= 0 else -1
        message = graph.kind[i] in (Kind.SEND, Kind.RECV)
        assert back.peer[i] == (named if message else -1)
        assert back.own[i] == (0 if message and named >= 0 else -1)
        number = traces.groups.number[named] if named >= 0 else 0
        assert back.group_number[i] == (number if graph.kind[i] == Kind.COLL else -1)


@settings(max_examples=150, deadline=None)
@given(st.lists(odd_nodes(), max_size=2), st.booleans())
def test_odd_nodes_are_what_protobuf_says(nodes: list[Any], head: bool) -> None:
    data = trace(*nodes, version="1.0.0" if head or not nodes else None)
    if not head and nodes and not nodes[0].id and not nodes[0].type:
        return  # without a head, such a first node may look like one
    try:
        rows = [protobuf_decoded(one) for one in nodes]
    except RefusedError:
        refusal(data)
        return
    back = decode(data, where="x")
    graph = back.graph
    for i, (row, one) in enumerate(zip(rows, nodes, strict=True)):
        assert (graph.id[i], graph.kind[i], graph.duration_us[i]) == (one.id, one.type, one.duration_micros)
        assert graph.name_of(i) == one.name
        for name, column in COLUMNS.items():
            column_of = getattr(graph, column)
            value = bool(row[name]) if column == "cpu" else int(np.int64(row[name]).astype(column_of.dtype))
            assert column_of[i] == value, name
        assert (graph.operators[graph.operator[i]] if graph.operator[i] >= 0 else None) == row["operator"]
        assert back.group_number[i] == (row["pg_name"] if one.type == Kind.COLL else -1)
        ends = {Kind.SEND: ("comm_dst", "comm_src"), Kind.RECV: ("comm_src", "comm_dst")}.get(one.type)
        assert (back.peer[i], back.own[i]) == ((row[ends[0]], row[ends[1]]) if ends else (-1, -1))
        kept = extra_of(graph, i)
        assert [a.SerializeToString() for a in kept.attr] == [a.SerializeToString() for a in row["kept"]]
        assert kept.start_time_micros == one.start_time_micros
        here = [int(graph.id[p]) for p in graph.data_deps[graph.data_ptr[i] : graph.data_ptr[i + 1]]]
        lost = graph.dangling_id[(graph.dangling[:, 0] == i) & (graph.dangling[:, 1] == 0)].tolist()
        ids = {n.id for n in nodes}
        assert here == [d for d in one.data_deps if d in ids]
        assert lost == [d for d in one.data_deps if d not in ids]


@pytest.mark.parametrize("kind", INTEGER_KINDS)
def test_k86_every_integer_kind_holds_a_size(kind: str) -> None:
    for value in (0, 1, *INTEGER_KINDS[kind]):
        graph = decode(trace(node(id=1, type=7, attr={"comm_size": (kind, value)})), where="x").graph
        assert graph.comm_bytes[0] == signed(int(value))


@pytest.mark.parametrize(
    ("attr", "words"),
    [
        ({"comm_size": ("float_val", 1024.0)}, "comm_size has float_val"),
        ({"num_ops": ("double_val", 1.5e12)}, "num_ops has double_val"),
        ({"comm_size": ("string_val", "1024")}, "comm_size has string_val"),
        ({"comm_tag": ("int64_list", None)}, "comm_tag has int64_list"),
        ({"pg_name": ("int64_val", 1)}, "pg_name has int64_val"),
        ({"pg_name": ("string_val", "dp0")}, "decimal number"),
        ({"pg_name": ("string_val", "1abc")}, "decimal number"),
        ({"involved_dim": ("int64_val", 1)}, "a bool_list belongs there"),
        ({"involved_dim": ("bool_list", {"values": [False, False]})}, "names no dimension"),
        ({"comm_type": ("int64_val", 10)}, "collectives, 0 to 9"),
        ({"tensor_size": (None, None)}, "no value"),
        ({"duration_ns": ("float_val", 1.0)}, "duration_ns has float_val"),
    ],
)
def test_k80_k86_other_kinds_are_refused_by_name(attr: dict[str, Any], words: str) -> None:
    good, bad = node(id=7, type=7), Node(id=41, type=7)
    for name, (kind, value) in attr.items():
        if kind == "int64_list":
            bad.attr.add(name=name).int64_list.SetInParent()
        else:
            bad.attr.add(name=name, **({kind: value} if kind else {}))
    line = refusal(trace(good, bad))
    assert line.startswith("rank 3 (x.3.et): node 1 (id 41, at byte ")
    assert words in line


def test_every_refused_node_is_told_and_not_only_the_first() -> None:
    bad = [node(id=i, type=7, attr={"comm_size": ("float_val", 1.0)}) for i in (5, 6)]
    with pytest.raises(TraceErrors) as caught:
        decode(trace(bad[0], node(id=1), bad[1]), where="x")
    assert [p.message.split(" (")[0] for p in caught.value.problems] == ["node 0", "node 2"]
    assert {p.rule for p in caught.value.problems} == {"attribute-kind"}


def test_the_first_attribute_of_a_name_wins_and_the_others_are_kept() -> None:
    one = Node(id=1, type=7)
    for size in (5, 6):
        one.attr.add(name="comm_size", int64_val=size)
    graph = decode(trace(one), where="x").graph
    assert graph.comm_bytes.tolist() == [5]
    assert [a.int64_val for a in extra_of(graph, 0).attr] == [6]


def test_what_we_do_not_know_is_kept_as_it_stood() -> None:
    one = node(id=1, type=4, start_time_micros=9)
    one.inputs.values = "[1]"
    one.attr.add(name="layer", string_val="encoder")
    one.attr.add(name="x").float_list.values.extend([1.5, 2.5])
    future = varint(77 << 3 | 2) + varint(3) + b"new"  # a field that no schema has yet
    graph = decode(trace(one.SerializeToString() + future), where="x").graph
    kept = extra_of(graph, 0)
    assert (kept.start_time_micros, kept.inputs.values) == (9, "[1]")
    assert {a.name: a.WhichOneof("value") for a in kept.attr} == {"layer": "string_val", "x": "float_list"}
    assert graph.extra.tobytes().endswith(future)
    assert graph.layer.tolist() == [-1]


def test_k36_ids_beyond_doubles_stay_apart() -> None:
    ids = [2**53 + 1, 2**53 + 2, MAX64, 0]
    nodes = [Node(id=i, type=4, data_deps=ids[:k]) for k, i in enumerate(ids)]
    graph = decode(trace(*nodes), where="x").graph
    assert graph.id.tolist() == ids
    assert graph.data_deps.tolist() == [0, 0, 1, 0, 1, 2]
    assert not len(graph.dangling)


def test_k33_children_may_stand_before_parents() -> None:
    graph = decode(trace(Node(id=2, type=4, data_deps=[1], ctrl_deps=[1]), Node(id=1, type=4)), where="x").graph
    assert (graph.data_deps.tolist(), graph.data_ptr.tolist()) == ([1], [0, 1, 1])
    assert (graph.ctrl_deps.tolist(), graph.ctrl_ptr.tolist()) == ([1], [0, 1, 1])


def test_k30_dependencies_on_no_node_are_set_apart() -> None:
    graph = decode(trace(Node(id=1, type=4), Node(id=2, type=4, data_deps=[99, 1], ctrl_deps=[98])), where="x").graph
    assert graph.dangling.tolist() == [[1, 0], [1, 1]]
    assert graph.dangling_id.tolist() == [99, 98]
    assert graph.data_deps.tolist() == [0]


def test_k31_duplicate_ids_are_left_in_and_mean_the_first() -> None:
    nodes = [Node(id=9, type=4), Node(id=7, type=4), Node(id=7, type=7), Node(id=8, type=4, data_deps=[7])]
    graph = decode(trace(*nodes), where="x").graph
    assert graph.id.tolist() == [9, 7, 7, 8]
    assert graph.data_deps.tolist() == [1]


def test_unpacked_lists_and_late_types_are_read_too() -> None:
    """A type that comes after the attributes, and one field per dependency: proto2 writers, concatenated messages."""
    attribute = node(attr={"comm_dst": ("int32_val", 1), "pg_name": ("string_val", "no number")}).SerializeToString()
    body = varint(1 << 3) + varint(5) + varint(5 << 3) + varint(8) + attribute + varint(3 << 3) + varint(5)
    bools = varint(28 << 3 | 2) + varint(4) + b"\x08\x01\x08\x00"  # two unpacked values
    named = b"\x0a\x0cinvolved_dim" + bools
    coll = varint(1 << 3) + varint(8) + varint(3 << 3) + varint(7) + varint(10 << 3 | 2) + varint(len(named)) + named
    back = decode(trace(body, coll), where="x")
    assert back.graph.kind.tolist() == [5, 7]
    assert back.peer.tolist() == [1, -1]
    assert back.graph.data_deps.tolist() == [1]
    assert back.graph.dims.tolist() == [0, 1]
    assert [a.name for a in extra_of(back.graph, 0).attr] == ["pg_name"]
    assert "is broken" in refusal(trace(body + b"\x00"))


@pytest.mark.parametrize(
    ("first", "nodes"),
    [
        (GlobalMetadata(version="1.0.0"), 1),
        (GlobalMetadata(), 1),
        (GlobalMetadata(attr=[AttributeProto(name="schema", string_val="x")]), 1),
        (Node(id=0, name="embedding", type=4), 2),
        (Node(id=3), 2),
        (Node(name="a name alone"), 2),
    ],
)
def test_a_head_is_told_from_a_node(first: Any, nodes: int) -> None:
    graph = decode(delimited(first) + delimited(Node(id=8, type=4)), where="x").graph
    assert len(graph) == nodes
    assert graph.schema == getattr(first, "version", "")


def test_k38_a_head_alone_is_an_empty_trace() -> None:
    graph = decode(trace(), where="x").graph
    assert len(graph) == 0
    assert graph.data_ptr.tolist() == [0]


def test_k81_a_cut_names_rank_node_byte_and_what_is_missing() -> None:
    data = encoded(chain(10))
    last = len(data) - len(delimited(messages(data)[-1]))
    assert refusal(data[:-3]) == (
        f"rank 3 (x.3.et): node 9, which begins at byte {last}, {len(messages(data)[-1])} bytes long, is cut: "
        f"3 bytes are missing (the file has {len(data) - 3})"
    )
    assert "its length is cut: at least 1 byte is missing" in refusal(data[: last + 1])
    # At a field boundary of the last message a bare parse succeeds; the length before it does not fit.
    body = Node(id=9, name="x", type=4, data_deps=[8], duration_micros=5)
    whole = trace(Node(id=8), body)
    for dropped in (2, 2 + 3):
        Node.FromString(whole[len(whole) - len(body.SerializeToString()) : -dropped])
        assert f"{dropped} bytes are missing" in refusal(whole[:-dropped])
    assert "the first message" in refusal(whole[:3])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "a PNG image"),
        (b'{"schemaVersion": 1, "traceEvents": []}', "a Chrome trace of PyTorch's profiler"),
        (b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1}]}', "a PyTorch host execution trace"),
        (b'[1, 2, "\xc3\xa9"]', "a JSON file"),
        (b"id,name\n1,x\n", "a text file"),
    ],
)
def test_k84_another_kind_of_file_is_named(data: bytes, words: str) -> None:
    line = refusal(data)
    assert f"this is {words}" in line
    assert "a Chakra execution trace (.et: length-delimited protobuf messages, one file per rank) is needed" in line


def test_k95_names_with_anything_in_them_read_back() -> None:
    names = ['quote " backslash \\', "line\nbreak\ttab", "literal \x01\x02\x03\x04\x05", "😀 é", "x" * 10_000, ""]
    graph = decode(trace(*(Node(id=i, name=name) for i, name in enumerate(names, 1))), where="x").graph
    assert [graph.name_of(i) for i in range(len(names))] == names


def test_equal_names_are_held_once() -> None:
    graph = decode(trace(*(Node(id=i, name=f"op {i % 2}") for i in range(1, 9))), where="x").graph
    assert graph.name.tolist() == [0, 1] * 4
    assert graph.names.blob.tobytes() == b"op 1op 0"


def test_k91_a_field_over_64_mb_is_refused() -> None:
    line = refusal(trace(Node(id=4), Node(id=5, name="x" * 64_000_001)))
    assert "node 1 (id 5" in line
    assert "64000000 bytes, the most that is read" in line
    assert len(decode(trace(Node(id=5, name="x" * 5_000_000)), where="x").graph) == 1


@pytest.mark.parametrize("number", [8, 255, 2**31])
def test_types_that_chakra_lacks_are_refused(number: int) -> None:
    assert "types 0 to 7 are read" in refusal(trace(b"\x08\x01\x18" + varint(number)))


def small() -> bytes:
    one = node(
        id=5, name="all", type=7, duration_micros=3, data_deps=[4, 300], ctrl_deps=[4],
        attr={
            "comm_size": ("int64_val", 1 << 40), "pg_name": ("string_val", "12"), "operator": ("string_val", "x"),
            "involved_dim": ("bool_list", {"values": [True, False]}), "y": ("double_val", 1.0), "z": ("fixed32_val", 1),
        },
    )  # fmt: skip
    return trace(Node(id=4, type=4), one, Node(id=300, type=6), one)


def decoded_or_refused(data: bytes) -> Decoded | None:
    """What it decodes to; None where it is refused. Anything else, or more than the bytes can hold, fails the test."""
    guarded = np.full(len(data) + 64, 0xFF, np.uint8)
    guarded[: len(data)] = np.frombuffer(data, np.uint8)
    try:
        back = decode(guarded[: len(data)], where="x")
    except InputError:
        return None
    assert len(back.graph) + len(back.graph.extra) + len(back.graph.data_deps) <= 2 * len(data)
    return back


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_bytes_decode_or_are_refused(draw: st.DataObject) -> None:
    data = bytearray(small())
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(data) - 1))
        match draw.draw(st.integers(0, 3)):
            case 0:
                data[at] = draw.draw(st.integers(0, 255))
            case 1:
                del data[at : at + draw.draw(st.integers(1, 9))]
            case 2:
                data[at:at] = draw.draw(st.binary(min_size=1, max_size=11))
            case 3:
                data[at] ^= 1 << draw.draw(st.integers(0, 7))
        if not data:
            return
    decoded_or_refused(bytes(data))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_decode_or_are_refused(data: bytes) -> None:
    decoded_or_refused(trace() + data)
    decoded_or_refused(data)


def test_every_cut_of_a_file_is_refused_or_a_whole_number_of_nodes() -> None:
    data = small()
    ends = np.cumsum([len(delimited(message)) for message in messages(data)]).tolist()
    for size in range(len(data)):
        back = decoded_or_refused(data[:size])
        assert (back is not None) == (size in ends)


@pytest.mark.verify
def test_kernels_never_read_or_write_outside_their_arrays(tmp_path: Path) -> None:
    """The tests of odd bytes again, with every index checked by numba."""
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "TRACEGEN_CACHE": str(tmp_path)}
    names = "mutated or random_bytes or every_cut or odd_nodes or reads_back or protobufs or unpacked"
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parent), "-k", names, "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout


def test_absent_attributes_leave_what_graph_py_says() -> None:
    graph = decode(trace(Node(id=1, type=4)), where="x").graph
    for name, column in COLUMNS.items():
        assert getattr(graph, column)[0] == ABSENT[name]
    assert (graph.operator[0], graph.slot[0], graph.duration_us[0]) == (-1, -1, 0)
