"""Which ranks may be simulated as one: as few as are alike, never two that differ."""

from __future__ import annotations

import time

import numpy as np
import pytest
from handmade import coll, comp, recv, send, traces
from heap_twin import merged, rings

from tracegen.proto.graph import Groups, TraceSet
from tracegen.replay.cells.hashing import mix, rotations, sequences
from tracegen.replay.engine import run

COLUMNS = ("ready_ns", "issue_ns", "transfer_ns", "end_ns", "ahead", "duration_ns")


def cells(made: TraceSet, fabric: object, execution: str) -> list[int]:
    """Cell of each rank, after checking that folding changed no node's times."""
    few, all_ = (run(made, fabric, execution=execution, fold=fold) for fold in (True, False))  # type: ignore[arg-type]
    for rank in range(made.ranks):
        a, b = few.nodes_of(rank), all_.nodes_of(rank)
        for name in COLUMNS:
            assert (getattr(few, name)[a] == getattr(all_, name)[b]).all(), (rank, name)
    assert few.representative.tolist() == sorted({few.cell_of.tolist().index(c) for c in few.cell_of})
    return few.cell_of.tolist()


@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_groups_of_6_on_nodes_of_8_have_their_own_times(execution: str) -> None:
    """24 ranks on 8 x 3, tensor groups of 6: {0-5} and {18-23} lie in one node, {6-11} and {12-17} across two."""
    groups = {g: list(range(6 * g - 6, 6 * g)) for g in range(1, 5)}
    programs = [[comp(0), coll(1, 1 + rank // 6, "ALL_REDUCE", 600_000, deps=[0])] for rank in range(24)]
    made = merged(traces(programs, groups))
    fabric = rings((8, 3), ("switch", "switch"))
    found = cells(made, fabric, execution)
    done = run(made, fabric, execution=execution)
    ends = [int(done.end_ns[done.nodes_of(rank)][1]) for rank in range(24)]
    assert ends[0] == ends[23]
    if execution == "streams":
        assert len(set(ends)) == 2
        assert ends[0] < ends[6]
    else:  # ASTRA-sim counts only the lowest dimension in which 7 and 8 differ
        assert len(set(ends)) == 1
    assert found[0] != found[6]
    assert len(set(found)) < 24


@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_alike_ranks_fold_into_one(execution: str) -> None:
    made = merged(traces([[comp(0), coll(1, 0, deps=[0])] for _ in range(8)]))
    assert cells(made, rings((8,), ("ring",)), execution) == [0] * 8


@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_a_pipeline_folds_by_stage_and_a_slow_rank_splits_those_it_touches(execution: str) -> None:
    """Two replicas of a pipeline of 4: 4 cells. One rank slower: its whole pipeline is on its own."""

    def program(stage: int, replica: int, slow: bool) -> list[dict[str, object]]:
        rank = 4 * replica + stage
        took = 5000 if (stage, replica) == (2, 1) and slow else 1000
        nodes = [comp(1, took, deps=[0] if stage else [])]
        if stage:
            nodes.insert(0, recv(0, rank - 1, tag=1))
        if stage < 3:
            nodes.append(send(2, rank + 1, tag=1, deps=[1]))
        return nodes

    for slow, want in ((False, [0, 1, 2, 3, 0, 1, 2, 3]), (True, [0, 1, 2, 3, 4, 5, 6, 7])):
        made = merged(traces([program(stage, replica, slow) for replica in range(2) for stage in range(4)]))
        assert cells(made, rings((8,), ("switch",)), execution) == want


def test_position_in_a_mixed_ring_counts_under_astra_only() -> None:
    """Ranks 0 1 | 2 3 of a ring run two programs: under `astra` those before and after a slow member end apart."""
    made = merged(traces([[comp(0, 1000, us=1 + 8 * (rank == 1)), coll(1, 0, deps=[0])] for rank in range(4)]))
    fabric = rings((4,), ("ring",))
    assert cells(made, fabric, "streams") == [0, 1, 0, 0]
    assert cells(made, fabric, "astra") == [0, 1, 2, 3]


def test_colours_given_from_outside_keep_ranks_apart() -> None:
    made = merged(traces([[comp(0)] for _ in range(4)]))
    done = run(made, rings((4,), ("ring",)), execution="streams", colours=np.array([0, 0, 7, 7]))
    assert done.cell_of.tolist() == [0, 0, 1, 1]


def test_rotation_hashes_tell_where_a_row_is_read_from() -> None:
    """The hash of a row read from entry i equals the hash of the row written out from there."""
    rows = [[3, 1, 4, 1, 5], [9, 2], [6], [3, 1, 3, 1]]
    ptr = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
    found = rotations(mix(np.array([x for r in rows for x in r])), ptr)
    at = 0
    for row in rows:
        for i in range(len(row)):
            turned = mix(np.array(row[i:] + row[:i]))
            assert found[at + i] == sequences(turned, np.array([0, len(row)]))[0]
        at += len(row)
    assert found[8] == found[10] != found[9]  # 3 1 3 1 read from 0 and from 2


def test_sixteen_thousand_ranks_fold_fast() -> None:
    """16,384 ranks as 8 x 2048 with groups of 8 and of 2048: two cells, in well under a second for the whole run."""
    ranks, inner = 16_384, 8
    outer = ranks // inner
    pair = traces([[comp(0), coll(1, 1, deps=[0]), coll(2, 2, deps=[1])]] * 2, {1: [0, 1], 2: [0, 1]})
    base = pair.graphs[0]
    lines = [list(range(i * inner, i * inner + inner)) for i in range(outer)]
    across = [list(range(j, ranks, inner)) for j in range(inner)]
    groups = Groups.of(lines + across, ["tp"] * outer + ["dp"] * inner, list(range(1, outer + inner + 1)))
    rank = np.arange(ranks)
    slots = np.stack([rank // inner, outer + rank % inner], 1).astype(np.int32)
    made = TraceSet((base,), np.zeros(ranks, np.int32), groups, slots)
    fabric = rings((inner, outer), ("switch", "switch"))
    run(made, fabric, execution="streams")
    begin = time.perf_counter()
    done = run(made, fabric, execution="streams")
    assert time.perf_counter() - begin < 1.0  # measured 0.05 s; room for a busy machine
    assert done.cells == 1
