"""Files for viewers: slices of a track must not overlap, every name and id must survive (K36 K93 K95)."""

import csv
import itertools
import json
from decimal import Decimal

import numpy as np
import pytest
from handmade import coll, comp, recv, replayed, send, traces
from hypothesis import given
from hypothesis import strategies as st

from tracegen.proto.errors import InputError
from tracegen.replay import perfetto
from tracegen.replay.facts import Facts
from tracegen.replay.perfetto import assign_lanes, write_perfetto
from tracegen.replay.tables import COLUMNS, write_nodes
from tracegen.replay.timeline import Timeline

NASTY = ['say "hi"', "back\\slash", "two\nlines", "tab\there", "bell\x01\x1f", "\N{ROCKET} rocket", "x" * 10_000, ""]


def timeline(trace, **facts):
    return Timeline(replayed(trace), Facts(**facts))


def events(where, trace, ranks=None, **facts):
    path = where / "timeline.json"
    count = write_perfetto(timeline(trace, **facts), path, ranks)
    found = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)["traceEvents"]
    assert sum(event["ph"] == "X" for event in found) == count
    return found


def slices(found):
    return [event for event in found if event["ph"] == "X"]


TWO = traces(
    [
        [comp(1, 1000), send(2, peer=1, size=500, deps=[1], tag=5)],
        [comp(1, 10), recv(2, peer=0, size=500, tag=5), comp(3, 7, [2])],
    ],
    message_label="pp",
)


def test_k93_communication_and_compute_that_overlap_are_on_their_own_tracks(tmp_path):
    # An all-reduce over [3, 6.776] us and a kernel over [5, 7] us, as in the case.
    nodes = [comp(1, 3000), coll(2, 1, size=3776, deps=[1]), comp(3, 2000, [1]), comp(4, 2000, [3])]
    found = slices(events(tmp_path, traces([nodes, nodes], {1: [0, 1]}), ranks=[0]))
    tracks = {}
    for event in found:
        tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert (Decimal("3.000"), Decimal("6.776")) in tracks[(0, 2)]
    assert (Decimal("5.000"), Decimal("7.000")) in tracks[(0, 1)]
    assert_disjoint(tracks)


def assert_disjoint(tracks):
    for spans in tracks.values():
        ordered = sorted(spans)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ordered))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20))
def test_slices_on_a_lane_are_disjoint_and_lanes_are_few(spans):
    spans = sorted((start, start + length) for start, length in spans)
    starts, ends = (np.array([span[i] for span in spans], np.int64) for i in (0, 1))
    lanes = assign_lanes(starts, ends)
    tracks = {}
    for lane, span in zip(lanes.tolist(), spans, strict=True):
        tracks.setdefault(lane, []).append(span)
    assert_disjoint(tracks)
    most = max((sum(a <= t < b for a, b in spans) for t in range(70)), default=0)
    assert lanes.max(initial=0) < max(most, 1) + 1


def test_times_have_nanosecond_digits(tmp_path):
    path = tmp_path / "t.json"
    write_perfetto(timeline(traces([[comp(1, 1_234_567_891), comp(2, 1, [1])]])), path)
    text = path.read_text()
    assert '"ts": 0.000, "dur": 1234567.891,' in text
    assert '"ts": 1234567.891, "dur": 0.001,' in text


def test_messages_have_an_arrow_from_send_to_receive(tmp_path):
    found = events(tmp_path, TWO)
    (start,), (stop,) = ([event for event in found if event["ph"] == ph] for ph in "sf")
    assert (start["pid"], stop["pid"]) == (0, 1)
    assert start["id"] == stop["id"]
    assert stop["bp"] == "e"
    for arrow, name in ((start, "send to 1"), (stop, "receive from 0")):
        inside = [e for e in slices(found) if (e["pid"], e["tid"]) == (arrow["pid"], arrow["tid"])
                  and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"]]  # fmt: skip
        assert len(inside) == 1
        (track,) = [e["args"]["name"] for e in found if e["name"] == "thread_name" and e["pid"] == arrow["pid"]
                    and e["tid"] == arrow["tid"]]  # fmt: skip
        assert track == name


def test_an_arrow_needs_both_of_its_ends(tmp_path):
    assert not [event for event in events(tmp_path, TWO, ranks=[1]) if event["ph"] in "sf"]


def test_slices_say_what_they_are(tmp_path):
    found = events(tmp_path, TWO, stage_of=np.array([0, 3], np.int32))
    (message,) = [event for event in slices(found) if event["cat"] == "SEND"]
    assert message["args"]["id"] == "2"
    assert message["args"]["bytes"] == 500
    assert message["args"]["label"] == "pp"
    assert message["args"]["tag"] == 5
    processes = [event["args"]["name"] for event in found if event["name"] == "process_name"]
    assert processes == ["rank 0 (stage 0)", "rank 1 (stage 3)"]


def test_k36_ids_are_text_in_the_timeline_and_digits_in_the_table(tmp_path):
    ids = [2**53 + 1, 2**53 + 2, 2**64 - 1]
    trace = traces([[comp(i) for i in ids]])
    assert [event["args"]["id"] for event in slices(events(tmp_path, trace))] == [str(i) for i in ids]
    write_nodes(timeline(trace), tmp_path / "n.csv")
    rows = list(csv.DictReader((tmp_path / "n.csv").open(newline="")))
    assert [int(row["node"]) for row in rows] == ids


def test_k95_every_name_survives(tmp_path):
    trace = traces([[comp(i, name=name) for i, name in enumerate(NASTY)]])
    assert [event["name"] for event in slices(events(tmp_path, trace))] == NASTY
    write_nodes(timeline(trace), tmp_path / "n.csv")
    with (tmp_path / "n.csv").open(newline="", encoding="utf-8") as file:
        assert [row["name"] for row in csv.DictReader(file)] == NASTY


def test_a_million_slices_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(perfetto, "MOST_SLICES", 5)
    with pytest.raises(InputError, match=r"2 ranks make 6 slices, at most 5 .*--timeline-ranks .*first 1 of them"):
        write_perfetto(timeline(traces([[comp(1), comp(2), comp(3)]] * 2)), tmp_path / "t.json")
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_a_rank_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match="rank 9 does not exist: ranks are 0 to 1"):
        write_perfetto(timeline(TWO), tmp_path / "t.json", [9])


def test_the_table_starts_with_the_promised_columns_and_has_all_ranks(tmp_path):
    assert COLUMNS[:5] == ("rank", "node", "name", "start_ns", "end_ns")
    assert write_nodes(timeline(TWO), tmp_path / "n.csv") == 5
    rows = list(csv.reader((tmp_path / "n.csv").open(newline="")))
    assert tuple(rows[0]) == COLUMNS
    assert [row[:5] for row in rows[1:]] == [
        ["0", "1", "node 1", "0", "1000"],
        ["0", "2", "node 2", "1000", "1500"],
        ["1", "1", "node 1", "0", "10"],
        ["1", "2", "node 2", "0", "1500"],
        ["1", "3", "node 3", "1500", "1507"],
    ]


def test_what_never_ended_is_empty_in_the_table_and_absent_from_the_timeline(tmp_path):
    stuck = traces([[comp(1, 10), recv(2, peer=0, deps=[1]), comp(3, 5, [2])]])
    write_nodes(timeline(stuck), tmp_path / "n.csv")
    rows = list(csv.DictReader((tmp_path / "n.csv").open(newline="")))
    assert [row["end_ns"] for row in rows] == ["10", "", ""]
    assert len(slices(events(tmp_path, stuck))) == 1


@pytest.mark.parametrize("write", [write_perfetto, write_nodes])
def test_a_place_that_cannot_be_written(tmp_path, write):
    with pytest.raises(InputError, match="cannot be written"):
        write(timeline(TWO), tmp_path / "no" / "such" / "folder.out")
