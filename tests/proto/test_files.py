"""Folders of rank files and comm_group.json as one TraceSet, or everything that is wrong with them at once."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from twins import chain, encoded, jobs, node, trace

from tracegen.proto.files import Problem, TraceErrors, find_ranks, load_traces, read_groups, read_rank, read_traces
from tracegen.proto.graph import Groups, TraceSet
from tracegen.proto.schema import Node


def write(folder: Path, *files: bytes, name: str = "x.{}.et") -> Path:
    for rank, data in enumerate(files):
        (folder / name.format(rank)).write_bytes(data)
    return folder


def problems(call: Any, *args: Any, **kwargs: Any) -> list[Problem]:
    with pytest.raises(TraceErrors) as caught:
        call(*args, **kwargs)
    assert all("\n" not in str(problem) for problem in caught.value.problems)
    assert str(caught.value).startswith(str(caught.value.problems[0]))
    return caught.value.problems


def coll(id: int, group: str | None) -> Any:
    attr: dict[str, Any] = {"comm_type": ("int64_val", 0), "comm_size": ("int64_val", 8)}
    return node(id=id, type=7, attr=attr | ({"pg_name": ("string_val", group)} if group is not None else {}))


def send(id: int, source: int, target: int, kind: int = 5) -> Any:
    ends = {"comm_src": ("int32_val", source), "comm_dst": ("int32_val", target)}
    return node(id=id, type=kind, attr=ends | {"comm_size": ("int64_val", 8), "comm_tag": ("int32_val", 0)})


@settings(max_examples=15, deadline=None)
@given(jobs())
def test_files_we_wrote_read_back_to_the_same_bytes(tmp_path_factory: pytest.TempPathFactory, traces: TraceSet) -> None:
    folder = write(tmp_path_factory.mktemp("t"), *(encoded(traces, rank) for rank in range(2)))
    back = read_traces(folder, groups={3: [1, 0], 2147483647: [0, 1]}, labels={3: "a"})
    assert [encoded(back, rank) for rank in range(2)] == [encoded(traces, rank) for rank in range(2)]


def test_ranks_that_differ_in_groups_and_peers_only_share_a_graph(tmp_path: Path) -> None:
    files = []
    for rank in range(4):
        group, other = 1 + rank // 2, (rank + 2) % 4
        nodes = [coll(1, str(group)), send(2, rank, other), coll(3, None), send(4, other, rank, 6), coll(5, str(group))]
        files.append(trace(*nodes))
    traces = read_traces(write(tmp_path, *files), groups={1: [0, 1], 2: [2, 3], 9: [0, 3]}, labels={1: "tp", 2: "tp"})
    assert len(traces.graphs) == 1
    assert traces.class_of.tolist() == [0] * 4
    assert traces.graphs[0].slot.tolist() == [0, 1, 2, 1, 0]
    # World first, since groups stand in order of number; unused ones are left out.
    assert traces.groups.label == ("world", "tp", "tp")
    assert [traces.groups.ranks(g).tolist() for g in range(3)] == [[0, 1, 2, 3], [0, 1], [2, 3]]
    assert traces.slots.tolist() == [[1, 2, 0], [1, 3, 0], [2, 0, 0], [2, 1, 0]]
    assert traces.message_label == "p2p"


def test_any_other_difference_makes_another_class(tmp_path: Path) -> None:
    files = [trace(coll(1, "1")), trace(coll(1, "1")), trace(coll(2, "1")), trace(coll(1, "1"), coll(2, "2"))]
    traces = read_traces(write(tmp_path, *files), groups={1: [0, 1, 2, 3], 2: [2, 3]})
    assert traces.class_of.tolist() == [0, 0, 1, 2]
    assert traces.groups.label == ("group 1", "group 2")
    assert traces.slots.tolist() == [[0, -1], [0, -1], [0, -1], [0, 1]]


def test_equal_ranks_take_the_memory_of_one(tmp_path: Path) -> None:
    data = encoded(chain(20_000))
    peaks = []
    for count in (1, 8):
        folder = tmp_path / str(count)
        folder.mkdir()
        write(folder, *[data] * count)
        read_traces(folder, groups=None)
        tracemalloc.start()
        traces = read_traces(folder, groups=None)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(traces.graphs) == 1
    # One graph is kept while the next is read: at most twice, however many ranks there are.
    assert peaks[1] < 2.2 * peaks[0]


def test_a_prefix_or_a_folder_or_gzip_make_no_difference(tmp_path: Path) -> None:
    data = [encoded(chain(3)), encoded(chain(4))]
    write(tmp_path, *data, name="a.b.{}.et")
    packed = tmp_path / "packed"
    packed.mkdir()
    write(packed, gzip.compress(data[0]), gzip.compress(data[1][:9]) + gzip.compress(data[1][9:]), name="x.{}.et")
    (packed / "x.1.et").rename(packed / "x.1.et.gz")
    for location in (tmp_path, tmp_path / "a.b", str(tmp_path / "a.b"), packed, packed / "x"):
        traces = read_traces(location, groups=None)
        assert [len(traces.graph(rank)) for rank in range(2)] == [3, 4]


def test_two_jobs_in_a_folder_need_a_prefix(tmp_path: Path) -> None:
    write(tmp_path, trace(Node(id=1)), name="a.{}.et")
    write(tmp_path, trace(Node(id=1)), trace(Node(id=1)), name="b.{}.et")
    (found,) = problems(find_ranks, tmp_path)
    assert f"give one prefix: {tmp_path / 'a'}, {tmp_path / 'b'}" in found.message
    assert len(find_ranks(tmp_path / "b")) == 2


def test_k82_a_cut_or_broken_gzip_is_told(tmp_path: Path) -> None:
    packed = gzip.compress(encoded(chain(500)))
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 0xFF
    write(tmp_path, packed[:-9], bytes(broken), packed)
    found = problems(read_traces, tmp_path, groups=None)
    assert [p.rule for p in found] == ["gzip", "gzip"]
    assert [p.where for p in found] == ["rank 0 (x.0.et)", "rank 1 (x.1.et)"]
    assert "cut" in found[0].message


def test_k87_missing_ranks_are_all_named(tmp_path: Path) -> None:
    for rank in (0, 1, 3, 6):
        (tmp_path / f"x.{rank}.et").write_bytes(trace(Node(id=1)))
    (found,) = problems(read_traces, tmp_path, groups=None)
    assert found.rule == "missing-rank"
    assert "the files of rank 2, 4-5 are missing" in found.message
    assert "4 ranks (0-1, 3, 6) are here" in found.message


def test_k87_too_few_or_too_many_for_the_network(tmp_path: Path) -> None:
    write(tmp_path, *[trace(Node(id=1))] * 8)
    (few,) = problems(read_traces, tmp_path, groups=None, ranks=16)
    assert "the files of rank 8-15 are missing" in few.message
    assert "16 ranks are needed" in few.message
    (many,) = problems(read_traces, tmp_path, groups=None, ranks=4)
    assert "files of 8 ranks are here, but 4 are needed: rank 4-7" in many.message
    assert read_traces(tmp_path, groups=None, ranks=8).ranks == 8


def test_k87_other_names_are_explained(tmp_path: Path) -> None:
    (tmp_path / "rank_0.et").touch()
    (found,) = problems(find_ranks, tmp_path)
    assert found.message.startswith("rank_0.et: files are named PREFIX.RANK.et")
    (tmp_path / "rank_0.et").unlink()
    (tmp_path / "x.0.et").touch()
    (tmp_path / "x.01.et").touch()
    (found,) = problems(find_ranks, tmp_path)
    assert "x.01.et (write x.1.et)" in found.message
    (tmp_path / "x.01.et").rename(tmp_path / "x.0.et.gz")
    (found,) = problems(find_ranks, tmp_path)
    assert "rank 0 has two files, x.0.et and x.0.et.gz" in found.message


def test_other_peoples_files_are_left_alone_unless_a_rank_is_missing(tmp_path: Path) -> None:
    write(tmp_path, trace(Node(id=1)), trace(Node(id=1)))
    (tmp_path / "old.et").touch()
    assert len(find_ranks(tmp_path)) == 2
    found = problems(find_ranks, tmp_path, 3)
    assert [p.rule for p in found] == ["rank-name", "missing-rank"]
    assert "old.et" in found[0].message


def test_a_huge_rank_number_is_no_huge_list(tmp_path: Path) -> None:
    (tmp_path / f"x.{10**15}.et").touch()
    (found,) = problems(find_ranks, tmp_path)
    assert f"the files of rank 0-{10**15 - 1} are missing" in found.message


def test_k84_places_without_traces_are_explained(tmp_path: Path) -> None:
    assert "no trace files here" in problems(find_ranks, tmp_path)[0].message
    assert "no trace files here" in problems(find_ranks, tmp_path / "nothing")[0].message
    assert "no such folder" in problems(find_ranks, tmp_path / "no" / "thing")[0].message
    write(tmp_path, trace(Node(id=1)))
    assert f"the prefix {tmp_path / 'x'}" in problems(find_ranks, tmp_path / "x.0.et")[0].message
    assert "this is a folder" in problems(read_rank, tmp_path, 0)[0].message
    assert len(read_rank(tmp_path / "x.0.et").graph) == 1


def test_files_of_another_kind_are_all_named(tmp_path: Path) -> None:
    write(tmp_path, b"", b'{"traceEvents": []}', trace(Node(id=1)), b"\x89PNG\r\n\x1a\n")
    found = problems(read_traces, tmp_path, groups=None)
    assert [(p.rule, p.where) for p in found] == [("not-a-trace", f"rank {r} (x.{r}.et)") for r in (0, 1, 3)]


def test_groups_without_a_definition_or_a_rank_are_told_and_break_nothing(tmp_path: Path) -> None:
    write(tmp_path, trace(coll(1, "5"), coll(2, "1")), trace(coll(1, "5"), coll(2, None), coll(3, "2")))
    loaded = load_traces(tmp_path, groups={1: [0, 7], 2: [0]})
    assert [(p.rule, p.where) for p in loaded.problems] == [("unknown-group", "group 5"), ("group-ranks", "group 1")]
    assert loaded.problems[0].message == "rank 0-1 uses it, but comm_group.json does not define it"
    assert "rank 7 is a member, but there are 2 ranks (0-1)" in loaded.problems[1].message
    assert loaded.traces is not None
    assert loaded.traces.groups.number.tolist() == [0, 1, 2, 5]
    # Rank 1 uses group 2 and is no member of it: that is for the checker to say, from what is here.
    assert [loaded.traces.groups.ranks(g).tolist() for g in range(4)] == [[0, 1], [0], [0], []]
    assert "no groups are given" in load_traces(tmp_path, groups=None).problems[0].message
    with pytest.raises(TraceErrors):
        read_traces(tmp_path, groups=None)


def test_peers_that_are_no_rank_and_foreign_own_ends_are_told(tmp_path: Path) -> None:
    write(tmp_path, trace(send(1, 0, 2), send(2, 1, 1)), trace(send(3, 0, 0, 6)))
    loaded = load_traces(tmp_path, groups=None)
    lines = [str(p) for p in loaded.problems]
    assert lines == [
        "rank 0 (x.0.et): node 0 (id 1, a send): comm_dst is 2, but ranks are 0 to 1",
        "rank 0 (x.0.et): node 1 (id 2, a send): comm_src is 1, but its own end must be rank 0",
        "rank 1 (x.1.et): node 0 (id 3, a receive): comm_dst is 0, but its own end must be rank 1",
    ]
    assert loaded.traces is not None
    assert loaded.traces.slots.tolist() == [[-1, 1], [0, -1]]


def test_comm_group_json_reads_into_ranks_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "comm_group.json"
    file.write_text('{"1": [6, 2, 4, 0], "12": [1]}')
    assert read_groups(file) == {1: [6, 2, 4, 0], 12: [1]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"0": [0, 1]}, 'group "0" is not numbered: keys are decimal numbers from 1 to'),
        ({"dp0": [0, 1]}, 'group "dp0" is not numbered'),
        ({"1": ["0", 1]}, 'group "1" lists "0", which is no rank'),
        ({"1": [0, True]}, "lists true, which is no rank"),
        ({"1": [0, -1]}, "lists -1, which is no rank"),
        ({"1": [0, 1.5]}, "lists 1.5, which is no rank"),
        ({"1": [0, 3, 3]}, "lists rank 3 more than once"),
        ({"1": 4}, "is no list of ranks"),
        ({"1": []}, "is no list of ranks"),
        ([0, 1], "an object"),
    ],
)
def test_bad_comm_group_json_is_refused_by_key(tmp_path: Path, content: Any, words: str) -> None:
    file = tmp_path / "comm_group.json"
    file.write_text(json.dumps(content))
    (found,) = problems(read_groups, file)
    assert words in found.message
    assert found.where == str(file)


def test_all_problems_of_comm_group_json_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "comm_group.json"
    file.write_text('{"1": [0], "1": [1], "x": "y"}')
    assert problems(read_groups, file)[0].message == 'group "1" is defined twice'
    assert len(problems(read_groups, file)) == 3
    file.write_text('{"1": [0],\n "2": }')
    assert problems(read_groups, file)[0].where == f"{file}:2"
    assert "cannot be read" in problems(read_groups, tmp_path / "none.json")[0].message


def test_groups_of_no_ranks_keep_their_shape() -> None:
    assert len(Groups.of([[], [0]], ["a", "b"], [1, 2]).ranks(0)) == 0
    assert Groups.of([[], [0]], ["a", "b"], [1, 2]).members.dtype == np.int32
