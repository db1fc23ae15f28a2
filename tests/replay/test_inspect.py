"""What `inspect` tells of a trace (K28 K36 K95), from arrays and from bytes that plain protobuf wrote."""

import io
import json

import numpy as np
import pytest
from google.protobuf.internal.encoder import _VarintBytes
from handmade import coll, comp, recv, send, traces

from tracegen.proto.decode import decode
from tracegen.proto.errors import InputError
from tracegen.proto.schema import GlobalMetadata, Node
from tracegen.replay.inspect import View, cycles, node_in_full, parse_id, summary, views

MIB = 1 << 20


def test_k28_a_cycle_is_told_with_ids_names_and_kinds_of_edges():
    trace = traces(
        [[comp(1, name="A"), comp(2, deps=[1, 3], name="B"), comp(3, ctrl=[2], name="C"), comp(4, deps=[3])]]
    )
    assert cycles(trace.graphs[0]) == [
        [{"id": "2", "name": "B", "edge": "data_deps"}, {"id": "3", "name": "C", "edge": "ctrl_deps"}]
    ]


def test_every_knot_of_dependencies_shows_one_cycle():
    nodes = [comp(1, deps=[2]), comp(2, deps=[1]), comp(5, deps=[5]), comp(6)]
    assert [[node["id"] for node in cycle] for cycle in cycles(traces([nodes]).graphs[0])] == [["1", "2"], ["5"]]


def test_k36_ids_beyond_53_bits_stay_distinct_in_json():
    ids = [2**53 + 1, 2**53 + 2, 2**64 - 1]
    (view,) = views(traces([[comp(ids[0]), comp(ids[1], deps=[ids[0]]), comp(ids[2], deps=[ids[1]])]]))
    told = json.loads(json.dumps(node_in_full(view, ids[1])), parse_int=float)
    assert told["id"] == str(ids[1])
    assert [parent["id"] for parent in told["parents"]] == [str(ids[0])]
    assert [child["id"] for child in told["children"]] == [str(ids[2])]
    assert summary(view)["last_id"] == str(2**64 - 1)


@pytest.mark.parametrize("text", ["9.007199254740993e15", "1.0", "-1", "0x10", "", "٣", str(2**64)])
def test_ids_are_whole_numbers_in_digits(text):
    with pytest.raises(InputError, match="ids are whole numbers from 0 to 18446744073709551615"):
        parse_id(text)


def test_the_largest_id_is_accepted():
    assert parse_id(str(2**64 - 1)) == 2**64 - 1


def test_an_id_that_no_node_has_names_its_neighbours():
    (view,) = views(traces([[comp(3), comp(10), comp(20)]]))
    with pytest.raises(InputError, match="the nearest are 10 and 20"):
        node_in_full(view, 12)


JOB = traces(
    [
        [comp(1, 500, flops=7, mem_bytes=9), coll(2, 4, "ALL_GATHER", MIB, [1]), send(3, 1, 10, tag=8, deps=[1])],
        [comp(1, 300), coll(2, 4, "ALL_GATHER", MIB, [1]), recv(3, peer=0, size=10, tag=8)],
    ],
    groups={4: [1, 0]}, labels={4: "tp"}, message_label="pp",
)  # fmt: skip


def test_counts_work_and_bytes_by_group_and_peer():
    first, second = (summary(view) for view in views(JOB))
    assert first["ranks"] == [0]
    assert first["nodes"] == 3
    assert first["kinds"]["COMP"] == {"nodes": 1, "duration_ns": 500}
    assert first["flops"] == 7
    assert first["memory_bytes"] == 9
    assert first["collectives"] == [
        {"group": 4, "label": "tp", "members": [1, 0], "type": "ALL_GATHER", "nodes": 1, "bytes": MIB}
    ]
    assert first["messages"] == [{"direction": "send", "peer": 1, "nodes": 1, "bytes": 10}]
    assert second["messages"] == [{"direction": "receive", "peer": 0, "nodes": 1, "bytes": 10}]


def test_ranks_of_one_class_are_told_once():
    from dataclasses import replace

    one = traces([[comp(1)]])
    many = replace(one, class_of=np.zeros(5, np.int32), slots=np.full((5, 0), -1, np.int32))
    (view,) = views(many)
    assert summary(view)["ranks"] == [0, 1, 2, 3, 4]


def test_one_collective_in_full():
    told = node_in_full(views(JOB)[0], 2)
    assert told["type"] == "COLL"
    assert told["comm_type"] == "ALL_GATHER"
    assert told["comm_size"] == MIB
    assert told["group"] == 4
    assert told["label"] == "tp"
    assert told["members"] == [1, 0]
    assert told["parents"] == [{"id": "1", "name": "node 1", "edge": "data_deps"}]


def test_missing_parents_are_told_as_such():
    (view,) = views(traces([[comp(1), comp(2, ctrl=[99])]]))
    assert summary(view)["missing_parents"] == [["2", "99"]]
    assert node_in_full(view, 2)["parents"] == [{"id": "99", "name": None, "edge": "ctrl_deps"}]


def file_of(*nodes):
    out = io.BytesIO()
    for message in (GlobalMetadata(version="0.0.4"), *nodes):
        data = message.SerializeToString()
        out.write(_VarintBytes(len(data)) + data)
    return out.getvalue()


def test_attributes_we_do_not_know_are_kept_and_decoded():
    node = Node(id=2**60, name='k"\n\x01', type=4, duration_micros=3, start_time_micros=2**60)
    node.inputs.values = "[1]"
    for name, kind, value in (
        ("is_cpu_op", "bool_val", False), ("num_ops", "int64_val", 5), ("tensor_size", "uint64_val", 6),
        ("stream", "int32_val", 7), ("big", "uint64_val", 2**63), ("ratio", "double_val", float("nan")),
        ("blob", "bytes_val", b"\x00\xff"), ("who", "string_val", "me"),
    ):  # fmt: skip
        attribute = node.attr.add(name=name)
        setattr(attribute, kind, value)
    node.attr.add(name="shape").int64_list.values.extend([3, 2**62])
    view = View.of_file(decode(file_of(node, Node(id=1, type=4)), where="x.0.et"), 0)
    assert summary(view)["unknown_attributes"] == {"big": 1, "blob": 1, "ratio": 1, "shape": 1, "stream": 1, "who": 1}
    told = json.loads(json.dumps(node_in_full(view, 2**60), allow_nan=False))
    assert told["name"] == 'k"\n\x01'
    assert told["num_ops"] == 5
    assert told["tensor_size"] == 6
    assert told["start_time_micros"] == str(2**60)
    assert told["inputs"]["values"] == "[1]"
    assert {attribute["name"]: attribute["value"] for attribute in told["unknown_attributes"]} == {
        "stream": 7, "big": str(2**63), "ratio": "nan", "blob": "00ff", "who": "me", "shape": [3, str(2**62)]
    }  # fmt: skip
    assert told["unknown_attributes"][0]["kind"] == "int32_val"


def test_k34_a_long_chain_that_closes_is_found_without_recursion():
    n = 20_000
    (graph,) = traces([[comp(0), *[comp(i + 1, deps=[i or n]) for i in range(n)]]]).graphs
    assert len(cycles(graph)[0]) == n
