"""Lines of ASTRA-sim are read alike however they are cut, and a log that is rotated under us is read once and whole."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import astra_stand_in
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import SHARED, needs_shared

from tracegen.proto.files import read_groups, read_traces
from tracegen.replay import Fabric, replay
from tracegen.replay.bridge.log import Follower, NodeLog, Output
from tracegen.replay.bridge.simulator import BridgeResult
from tracegen.replay.bridge.timeline import BridgeTimeline, bridge_timeline
from tracegen.replay.fabric import read_network, read_system

SAID = (
    b"[I] <workload>: sys[0] finished, 120 cycles, exposed communication 20 cycles.\n"
    b"\xff\x00 noise sys[1] fini\n"
    b"sys[7] finished, 1 cycles, exposed communication 1 cycles.\n"
    b"half a line without end [I] <workload>: sys[2] finished, 9223372036854775808 cycles, exposed communication "
    b"18446744073709551611 cycles."
)


@given(cuts=st.lists(st.integers(0, len(SAID)), max_size=12))
def test_output_cut_anywhere_says_the_same(cuts: list[int]) -> None:
    output, places = Output(4), [0, *sorted(cuts), len(SAID)]
    for begin, end in pairwise(places):
        output.feed(SAID[begin:end])
    output.close()
    # 2^63 is a NaN duration of the roofline; 2^64 - 5 an exposed time that wrapped below zero.
    assert output.finish == {0: (120, 20), 2: (2**63 - 1, -5)}
    assert output.strange == {7}


def test_the_first_finished_line_of_a_rank_counts() -> None:
    output = Output(2)
    output.feed(b"sys[0] finished, 5 cycles, exposed communication 0 cycles.\n" * 2)
    output.feed(b"sys[0] finished, 6 cycles, exposed communication 0 cycles.\n")
    assert output.finish == {0: (5, 0)}


def test_a_finished_line_in_the_log_counts_and_a_node_of_that_name_does_not(tmp_path: Path) -> None:
    log, output = astra_stand_in.Log(tmp_path), Output(3)
    text = "finished, 12 cycles, exposed communication 2 cycles."
    log.line(f"sys[1] {text}")
    log.line(f"issue,sys->id=0, tick=0, node->id=5, node->name=sys[0] {text}, node->type=4")
    log.file.close()
    follower = Follower(tmp_path, output)
    follower.look()
    assert len(follower.close()) == 1
    assert output.finish == {1: (12, 2)}


@settings(max_examples=30, deadline=None)
@given(looks=st.sets(st.integers(0, 399), max_size=20))
def test_a_log_read_while_it_is_rotated_is_whole(tmp_path_factory: pytest.TempPathFactory, looks: set[int]) -> None:
    """400 events over eight files or so; a name may hold anything, a line break and an event included."""
    folder = tmp_path_factory.mktemp("log")
    log, follower = astra_stand_in.Log(folder), Follower(folder, Output(3))
    log.limit = 8000
    for event in range(400):
        name = f"a, >: callback,sys->id=9, tick=1, node->id=2, é\nissue\n{event}"
        log.line(f"issue,sys->id={event % 3}, tick={event}, node->id={2**64 - 1 - event}, node->name={name}")
        if event in looks:
            log.file.flush()
            follower.look()
    log.file.close()
    follower.look()
    found = follower.close()
    assert not found.lost
    assert sorted(zip(found.tick.tolist(), found.rank.tolist(), found.node.tolist(), strict=True)) == [
        (event, event % 3, 2**64 - 1 - event) for event in range(400)
    ]


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 300), max_size=6))
def test_a_log_read_within_a_line_is_whole(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    """A number cut in two is read when its line ends; a line that never ends is not read."""
    folder = tmp_path_factory.mktemp("log")
    text = b"".join(b"[D] <workload>: callback,sys->id=1, tick=%d, node->id=%d, x\n" % (10**k, k) for k in range(6))
    follower, places = Follower(folder, Output(3)), [0, *sorted(cuts), len(text)]
    with (folder / "log.log").open("ab", buffering=0) as file:
        for begin, end in pairwise(places):
            file.write(text[begin:end])
            follower.look()
        file.write(b"[D] <workload>: callback,sys->id=1, tick=1, node->id=1")
        follower.look()
    found = follower.close()
    assert found.tick.tolist() == [10**k for k in range(6)]
    assert found.node.tolist() == list(range(6))


def test_a_log_rotated_away_unread_is_told(tmp_path: Path) -> None:
    """Eleven files are kept: what was in the first is gone when the twelfth begins."""
    for before in (0, 1):
        folder = tmp_path / str(before)
        folder.mkdir()
        log, follower = astra_stand_in.Log(folder), Follower(folder, Output(3))
        log.limit = 200
        for event in range(100):
            if event == before:
                log.file.flush()
                follower.look()
            log.line(f"issue,sys->id=0, tick={event}, node->id={event}, node->name=x, node->type=4")
        log.file.close()
        follower.look()
        found = follower.close()
        assert found.lost
        assert 0 < len(found) < 100


def recorded(folder: Path) -> BridgeResult:
    """What the real simulator said of a golden graph, as the bridge would have read it."""
    said = json.loads((folder / "expected.json").read_text())["backends"]["unaware"]
    events = [
        (ended, int(rank), tick, int(node))
        for rank, nodes in said["node_start_end_ns"].items()
        for node, both in nodes.items()
        for ended, tick in enumerate(both)
        if tick is not None
    ]
    ended, rank, tick, node = zip(*events, strict=True)
    ranks = 1 + max(map(int, said["node_start_end_ns"]))
    finish, exposed = np.full(ranks, -1, np.int64), np.full(ranks, 0, np.int64)
    for one, ns in said["finish_ns"].items():
        finish[int(one)] = ns
    log = NodeLog(
        np.array(ended, np.bool_), np.array(rank, np.int32), np.array(tick, np.int64), np.array(node, np.uint64), False
    )
    failure = "unfinished" if (finish < 0).any() else ""
    return BridgeResult(finish, exposed, log, 0, failure, (), 0.0)


@needs_shared
@pytest.mark.parametrize(
    "name",
    ["g02", "g03", "g04", "g05", "g08", "g09", "g10", "g17", "g21", "g22", "g23", "g25", "g26", "g28", "f02", "o2"],
)
def test_recorded_runs_of_the_real_simulator_are_cut_as_ours(name: str) -> None:
    """The parts of every rank's time, from the recorded starts and ends, equal those of our replay."""
    (folder,) = SHARED.glob(f"golden/graphs/{name}_*")
    groups = folder / "comm_group.json"
    traces = read_traces(folder / "trace", groups=read_groups(groups) if groups.exists() else None)
    fabric = Fabric.from_astra(read_network(folder / "network.yml"), read_system(folder / "system.json"))
    theirs = bridge_timeline(recorded(folder), traces, fabric, None)
    ours = replay(traces, fabric, execution="astra", fold=False)
    assert isinstance(theirs, BridgeTimeline)
    assert theirs.run.notes == ()
    for column in ("ready_ns", "issue_ns", "end_ns", "ahead"):
        assert getattr(theirs.run, column).tolist() == getattr(ours.run, column).tolist(), column
    for row, mine in zip(theirs.document("replay")["ranks"], ours.document("replay")["ranks"], strict=True):
        del row["astra_exposed_ns"]
        assert row == mine
