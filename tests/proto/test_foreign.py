"""Traces of other tools: dumps as JSON, process groups in METADATA nodes, missing attributes, no head, old heads.

K25, K36, K38, K82 and K91 are trials of ``facts/cases.md``.
"""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToJson
from hypothesis import assume, given, settings
from twins import chain, delimited, encoded, jobs, messages, node, trace

from tracegen.proto.decode import decode
from tracegen.proto.files import TraceErrors, find_ranks, load_traces, read_rank
from tracegen.proto.graph import Kind, TraceSet
from tracegen.proto.schema import GlobalMetadata, Node


def dump(*found: Any) -> bytes:
    """As Chakra's jsonizer writes: every message as JSON, one after the other."""
    return "".join(MessageToJson(one) for one in found).encode()


def refused(data: bytes) -> str:
    with pytest.raises(TraceErrors) as why:
        decode(data, where="rank 0")
    assert "\n" not in str(why.value)
    return str(why.value)


HEAD = GlobalMetadata(version="0.0.4")
COMPUTE = node(id=1, name="a", type=4, duration_micros=5, attr={"num_ops": ("int64_val", 2**60)})
GATHER = node(
    id=2**64 - 1, name="b", type=7, data_deps=[1], ctrl_deps=[1],
    attr={"comm_type": ("int64_val", 2), "comm_size": ("uint64_val", 2**53 + 1), "is_cpu_op": ("bool_val", False)},
)  # fmt: skip


# --- JSON dumps ---------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(jobs())
def test_a_dump_decodes_to_what_the_trace_does(traces: TraceSet) -> None:
    data = encoded(traces)
    head, *bodies = messages(data)
    parsed = [Node.FromString(body) for body in bodies]
    assume(any(one.type for one in parsed))  # else nothing in the text says what it is
    direct, dumped = decode(data, where=""), decode(dump(GlobalMetadata.FromString(head), *parsed), where="")
    for name in ("id", "kind", "cpu", "duration_us", "flops", "comm_bytes", "collective", "tag", "dims", "data_deps"):
        assert np.array_equal(getattr(direct.graph, name), getattr(dumped.graph, name)), name
    assert np.array_equal(direct.group_number, dumped.group_number)
    assert np.array_equal(direct.peer, dumped.peer)


@pytest.mark.parametrize("form", ["stream", "lines", "list", "wrapped", "bare"])
def test_the_forms_a_dump_has(form: str) -> None:
    """Ids are texts there (protobuf's JSON), and whole numbers above 2^53 stay whole (K36)."""
    objects = [json.loads(MessageToJson(one)) for one in (HEAD, COMPUTE, GATHER)]
    assert objects[2]["id"] == str(2**64 - 1)
    text = {
        "stream": dump(HEAD, COMPUTE, GATHER).decode(),
        "lines": "\n".join(map(json.dumps, objects)),
        "list": json.dumps(objects),
        "wrapped": json.dumps({"global_metadata": objects[0], "nodes": objects[1:]}),
        "bare": json.dumps(objects[1:]),
    }[form]
    graph = decode(text.encode(), where="").graph
    assert graph.id.tolist() == [1, 2**64 - 1]
    assert graph.comm_bytes.tolist() == [-1, 2**53 + 1]
    assert graph.flops.tolist() == [2**60, 0]
    assert graph.schema == ("" if form == "bare" else "0.0.4")


@pytest.mark.parametrize("key", ["id", "dataDeps", "ctrlDeps"])
def test_k36_a_float_for_an_id_is_refused(key: str) -> None:
    """``9.007199254740993e15`` silently becomes ...992 in protobuf's JSON."""
    text = '{"id": "1", "type": "COMP_NODE"}{"id": 2, "type": "COMP_NODE", "KEY": VALUE}'
    value = "9.007199254740993e15" if key == "id" else "[9.007199254740993e15]"
    said = refused(text.replace("KEY", key).replace("VALUE", value).encode())
    assert f"{key} is written as a float" in said
    whole = text.replace("KEY", key).replace("VALUE", value.replace("9.007199254740993e15", "9007199254740993"))
    graph = decode(whole.encode(), where="").graph
    assert 2**53 + 1 in (*graph.id.tolist(), *graph.dangling_id.tolist())


def test_a_broken_dump_is_told_in_one_line() -> None:
    good = '{"id": "1", "type": "COMP_NODE"}'
    assert "line 1: this is no JSON" in refused(f"{good}{{".encode())
    assert 'object 1 (id 2): its type is "GPU_NODE"; types are' in refused(
        f'{good}{{"id": 2, "type": "GPU_NODE"}}'.encode()
    )
    assert "object 1 (id 2) is no Chakra message" in refused(f'{good}{{"id": "2", "name": 5}}'.encode())
    assert '"x" is no Chakra message' in refused(f'[{good}, "x"]'.encode())


def test_other_json_is_not_taken_for_a_dump() -> None:
    assert "Kineto" in refused(b'{"traceEvents": [{"name": "COMP"}]}')
    assert "PyTorch host execution trace" in refused(b'{"schema": "1.0.2", "nodes": [{"id": 1, "name": "x"}]}')


def test_dumps_are_found_by_name_where_there_are_no_traces(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"x.{rank}.json").write_bytes(dump(HEAD, COMPUTE))
    (tmp_path / "comm_group.json").write_text("{}")
    assert [path.name for path in find_ranks(tmp_path)] == ["x.0.json", "x.1.json"]
    (tmp_path / "x.1.json.gz").write_bytes(gzip.compress(dump(HEAD, COMPUTE)))
    (tmp_path / "x.1.json").unlink()
    loaded = load_traces(tmp_path / "x", groups=None)
    assert loaded.problems == ()
    assert loaded.traces is not None
    assert len(loaded.traces.graphs) == 1
    (tmp_path / "x.0.et").write_bytes(trace(COMPUTE))
    assert [path.name for path in find_ranks(tmp_path / "x")] == ["x.0.et"]


# --- heads and attributes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.0.1", "0.0.4", "1.0.0", "1.1.1-chakra.0.0.4", None])
def test_any_head_or_none(version: str | None) -> None:
    graph = decode(trace(COMPUTE, GATHER, version=version), where="").graph
    assert graph.id.tolist() == [1, 2**64 - 1]
    assert graph.schema == (version or "")


def test_k82_several_gzip_members_are_one_trace(tmp_path: Path) -> None:
    data = trace(COMPUTE, GATHER)
    (tmp_path / "x.0.et").write_bytes(gzip.compress(data[:20]) + gzip.compress(data[20:]))
    assert len(read_rank(tmp_path / "x.0.et").graph) == 2


def test_compute_nodes_that_do_not_say_whose_they_are_count_as_the_gpus_and_are_counted(tmp_path: Path) -> None:
    """K89: is_cpu_op missing -> GPU, counted."""
    said = [node(id=i, type=4, attr={"is_cpu_op": ("bool_val", bool(i))}) for i in range(2)]
    (tmp_path / "x.0.et").write_bytes(trace(*said, COMPUTE.__class__(id=7, type=4), node(id=8, type=7)))
    loaded = load_traces(tmp_path, groups=None)
    assert loaded.traces is not None
    assert loaded.traces.graphs[0].cpu.tolist() == [False, True, False, False]
    assert loaded.notes == ("1 compute nodes have no is_cpu_op and count as the GPU's",)


# --- process groups in METADATA nodes -----------------------------------------------------------------------------


def metadata(*groups: dict[str, Any]) -> Any:
    """A node as PyTorch's converter writes it: a Python list that holds one JSON text."""
    one = node(id=0, type=1)
    one.inputs.values = f"['{json.dumps(list(groups))}']"
    return one


def collective(id: int, group: str) -> Any:
    return node(id=id, type=7, attr={"comm_type": ("int64_val", 0), "comm_size": ("int64_val", 8),
                                     "pg_name": ("string_val", group)})  # fmt: skip


def loaded_with(tmp_path: Path, *groups: dict[str, Any], ranks: int = 4, given: Any = None) -> Any:
    for rank in range(ranks):
        (tmp_path / f"x.{rank}.et").write_bytes(trace(metadata(*groups), collective(1, "3")))
    return load_traces(tmp_path, groups=given)


def test_groups_are_read_from_metadata_nodes(tmp_path: Path) -> None:
    """2.5 of astra_sim_semantics; ranks keep their order, names that nodes cannot use are passed over."""
    found = loaded_with(tmp_path, {"pg_name": "3", "ranks": [2, 0, 1, 3]}, {"pg_name": "default_pg", "ranks": []})
    assert found.problems == ()
    assert found.traces.groups.number.tolist() == [3]
    assert found.traces.groups.ranks(0).tolist() == [2, 0, 1, 3]
    assert found.traces.graphs[0].kind.tolist() == [Kind.METADATA, Kind.COLL]


def test_k25_an_empty_list_of_ranks_means_all(tmp_path: Path) -> None:
    found = loaded_with(tmp_path, {"pg_name": "3", "ranks": [], "group_size": 8}, ranks=8)
    assert found.problems == ()
    assert found.traces.groups.ranks(0).tolist() == list(range(8))
    (tmp_path / "more").mkdir()
    mismatch = loaded_with(tmp_path / "more", {"pg_name": "3", "ranks": [], "group_size": 8}, ranks=16)
    assert 'group "3" has group_size 8, but lists none, which means all 16' in mismatch.problems[0].message


@pytest.mark.parametrize(
    ("group", "given", "line"),
    [
        ({"pg_name": "3", "ranks": [0, 1]}, {3: [0, 2]}, 'group "3" has other ranks than in comm_group.json'),
        ({"pg_name": "3", "ranks": [0, 0]}, None, 'group "3" lists a rank twice'),
        ({"pg_name": "3", "ranks": ["0"]}, None, 'group "3" lists what is no rank'),
        ({"pg_name": "0", "ranks": [0, 1]}, {3: [0, 1]}, 'group "0" lists some ranks, but 0 means all'),
        ({"pg_name": "3", "ranks": [0, 9]}, None, "rank 9 is a member, but there are 4 ranks"),
    ],
)
def test_groups_that_cannot_be(tmp_path: Path, group: dict[str, Any], given: Any, line: str) -> None:
    found = loaded_with(tmp_path, group, given=given)
    assert any(line in problem.message for problem in found.problems)


def test_ranks_that_disagree_and_texts_that_are_no_groups(tmp_path: Path) -> None:
    for rank in range(2):
        entry = {"pg_name": "3", "ranks": [0, 1] if rank else [1, 0]}
        (tmp_path / f"x.{rank}.et").write_bytes(trace(metadata(entry), collective(1, "3")))
    (problem,) = load_traces(tmp_path, groups=None).problems
    assert (problem.rule, problem.where) == ("group-file", "rank 1 node 0")
    assert "other ranks here than in the trace of rank 0" in problem.message
    broken = node(id=0, type=1)
    broken.inputs.values = "['[{\"pg_name\": ']"
    (tmp_path / "x.0.et").write_bytes(trace(broken, collective(1, "3")))
    assert "no list of objects" in load_traces(tmp_path, groups=None).problems[0].message


# --- size ---------------------------------------------------------------------------------------------------------


@pytest.mark.verify
def test_k91_a_large_trace_is_read_in_blocks(tmp_path: Path) -> None:
    """A 20 million node trace stands for 20 times this one: memory grows with nodes held, by under 200 bytes each."""
    nodes = 1_000_000
    with (tmp_path / "x.0.et").open("wb") as file:
        file.write(encoded(chain(nodes)))
    tracemalloc.start()
    graph = read_rank(tmp_path / "x.0.et").graph
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(graph) == nodes
    assert held < 200 * nodes
    assert peak < 400 * nodes


def test_a_node_of_many_bytes_is_refused() -> None:
    """K91: a single attribute above 64 MB."""
    huge = node(id=1, type=4, attr={"note": ("bytes_val", bytes(65_000_000))})
    assert "is larger than 64000000 bytes, the most that is read" in refused(delimited(HEAD) + delimited(huge))
