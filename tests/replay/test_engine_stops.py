"""Runs that cannot finish say who waits for whom, at once; runs that can, do (K39-K42, K44-K47)."""

from __future__ import annotations

import pytest
from handmade import Node, coll, comp, recv, send, traces
from heap_twin import merged, rings

from tracegen.replay.engine import explain, run
from tracegen.replay.fabric import Fabric

EXECUTIONS = ("streams", "astra")
MIB = 1 << 20


def fabric(ranks: int) -> Fabric:
    return rings((ranks,), ("switch",))


def reason(ranks: list[list[Node]], execution: str, groups: dict[int, list[int]] | None = None) -> str:
    return explain(run(merged(traces(ranks, groups)), fabric(len(ranks)), execution=execution))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_receive_that_nothing_answers(execution: str) -> None:
    """K39."""
    text = reason([[comp(0)], [recv(7, 0, MIB, tag=3), comp(8, deps=[7])]], execution)
    assert "rank 1 node 7 (node 7) waits for src 0 tag 3 1048576 B: no send exists" in text
    assert "2 of 3 nodes never ran to their end, on 1 of 2 ranks" in text


def test_sizes_are_part_of_the_key_under_astra_only() -> None:
    """K40: unequal sizes never match there; under `streams`, `check` names them, and the send's bytes move."""
    ranks = [[send(0, 1, MIB, 1)], [recv(0, 0, MIB - 1, 1)]]
    assert "waits for src 0 tag 1 1048575 B: no send exists" in reason(ranks, "astra")
    assert reason(ranks, "streams") == ""


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_equal_tags_match_first_in_first_out(execution: str) -> None:
    """K41: 1 MiB then 2 MiB under one tag, received in that order."""
    ranks = [
        [send(0, 1, MIB), send(1, 1, 2 * MIB, deps=[0])],
        [recv(0, 0, MIB), recv(1, 0, 2 * MIB)],
    ]
    done = run(traces(ranks), fabric(2), execution=execution)
    first = 1000 + MIB // 50
    assert done.end_ns[done.nodes_of(1)].tolist() == [first, first + 1000 + 2 * MIB // 50]


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_head_to_head_sends_are_eager(execution: str) -> None:
    """K42: both ranks send, then receive: no deadlock, as no send waits for its receive."""
    ranks = [[send(0, 1 - rank, MIB), recv(1, 1 - rank, MIB, deps=[0])] for rank in range(2)]
    assert reason(ranks, execution) == ""


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_wait_in_a_circle_is_printed_as_one(execution: str) -> None:
    ranks = [[recv(0, 1 - rank, MIB), send(1, 1 - rank, MIB, deps=[0])] for rank in range(2)]
    text = reason(ranks, execution)
    assert "rank 0 node 0 (node 0) waits for src 1 tag 0 1048576 B: rank 1 node 1 (node 1) was not sent" in text
    assert "cycle: 0 -> 1 -> 0" in text


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_groups_entered_in_opposite_order(execution: str) -> None:
    """K44 across groups: rank 0 joins A then B, rank 1 B then A."""
    ranks = [[coll(0, 1 + rank), coll(1, 2 - rank, deps=[0])] for rank in range(2)]
    if execution == "astra":  # groups of all ranks are the world there, and told apart by nothing but their order
        ranks = [*ranks, [comp(0)]]
    text = reason(ranks, execution, {1: [0, 1], 2: [0, 1]})
    assert "rank 0 node 0 (node 0) waits in ALL_REDUCE 0 of group 1 (1), 1048576 B: rank 1 node 1" in text
    assert "cycle: 0 -> 1 -> 0" in text


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_members_that_ask_for_unlike_things_never_meet(execution: str) -> None:
    """K44, K45: type or size differ in one position of a group."""
    swapped = [
        [coll(0, 0, "ALL_REDUCE", MIB), coll(1, 0, "ALL_GATHER", 2 * MIB, deps=[0])],
        [coll(0, 0, "ALL_GATHER", 2 * MIB), coll(1, 0, "ALL_REDUCE", MIB, deps=[0])],
    ]
    assert "its members ask for ALL_GATHER 2097152 B and ALL_REDUCE 1048576 B" in reason(swapped, execution)
    sizes = [[coll(0, 0, "ALL_REDUCE", (200 if rank == 0 else 100) * MIB)] for rank in range(4)]
    assert "ALL_REDUCE 104857600 B and ALL_REDUCE 209715200 B" in reason(sizes, execution)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_partial_group_is_never_complete(execution: str) -> None:
    """K46: rank 3 lacks the second all-reduce."""
    ranks = [[coll(0, 0), coll(1, 0, deps=[0])] for _ in range(3)] + [[coll(0, 0)]]
    text = reason(ranks, execution)
    assert "waits in ALL_REDUCE 1 of world (0), 1048576 B: rank 3 has no such collective" in text


def test_zero_bytes() -> None:
    """K47: latency only under `streams`; under `astra` an all-reduce moves splits x ranks bytes, a gather hangs."""
    nothing = [[coll(0, 0, "ALL_REDUCE", 0), send(1, 1 - rank, 0), recv(2, 1 - rank, 0)] for rank in range(2)]
    done = run(traces(nothing), fabric(2), execution="streams")
    assert done.end_ns.tolist() == [2 * 1010, 1000, 1000] * 2
    padded = [[coll(0, 0, "ALL_REDUCE", 0)] for _ in range(2)]
    assert run(traces(padded), fabric(2), execution="astra").end_ns.tolist() == [10 + 2 * 1010] * 2
    gather = [[coll(0, 0, "ALL_GATHER", 0)] for _ in range(2)]
    assert "ASTRA-sim never ends an all-gather" in reason(gather, "astra")
    assert reason(gather, "streams") == ""


def test_a_group_of_one_hangs_astra_and_costs_nothing_in_streams() -> None:
    ranks = [[coll(0, 1)], [comp(0)]]
    assert "ASTRA-sim never ends one in a group of one rank" in reason(ranks, "astra", {1: [0]})
    done = run(traces(ranks, {1: [0]}), fabric(2), execution="streams")
    assert done.end_ns[done.nodes_of(0)].tolist() == [0]


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_cycle_of_dependencies_never_runs(execution: str) -> None:
    """K28, engine side: 2 and 3 wait for each other, 1 runs."""
    text = reason([[comp(1), comp(2, deps=[1, 3]), comp(3, deps=[2])], [comp(0)]], execution)
    assert "rank 0 node 2 (node 2) waits for its dependency rank 0 node 3 (node 3)" in text
    assert "2 of 4 nodes" in text
    assert "cycle: 0 -> 0" in text


def test_a_finished_run_explains_nothing() -> None:
    assert reason([[comp(0)], [comp(0)]], "streams") == ""
