"""Groups of a build: which are listed, their members, and numbers that ASTRA-sim cannot confuse."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tracegen.build import build
from tracegen.groups import group_numbers
from tracegen.placement import Placement
from tracegen.proto.graph import Kind
from tracegen.spec import load_job


def listed(traces):
    groups = traces.groups
    return {
        int(groups.number[i]): (groups.label[i], groups.ranks(i).tolist()) for i in range(len(groups))
    }  # fmt: skip


def test_groups_of_eight_ranks(tiny):
    # K21: tp 2, dp 2, pp 2 in the order tp, dp, pp.
    assert listed(build(tiny(tp=2, pp=2, dp=2)).traces) == {
        1: ("tp", [0, 1]), 2: ("tp", [2, 3]), 3: ("tp", [4, 5]), 4: ("tp", [6, 7]),
        5: ("dp", [0, 2]), 6: ("dp", [1, 3]), 7: ("dp", [4, 6]), 8: ("dp", [5, 7]),
    }  # fmt: skip


def test_neighbours_of_eight_ranks(tiny):
    traces = build(tiny(tp=2, pp=2, dp=2)).traces
    for rank in range(8):
        graph = traces.graph(rank)
        peers = {int(traces.slots[rank, slot]) for slot in graph.slot[graph.kind == Kind.SEND]}
        assert peers == {(rank + 4) % 8}


def test_only_used_groups_are_listed_and_none_of_one(tiny):
    assert listed(build(tiny()).traces) == {}
    assert {label for label, _ in listed(build(tiny(dp=3)).traces).values()} == {"dp"}
    assert {label for label, _ in listed(build(tiny(pp=2)).traces).values()} == set()


def test_a_group_of_all_ranks_keeps_its_label(tiny):
    assert listed(build(tiny(tp=4)).traces) == {1: ("tp", [0, 1, 2, 3])}


def test_copies_of_a_head_lie_on_neighbours_of_the_tp_group(tiny):
    copies = [ranks for label, ranks in listed(build(tiny(tp=8)).traces).values() if label == "tp/kv_copies"]
    assert copies == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_the_embeddings_group_is_first_and_last_stage(tiny):
    traces = build(tiny(tp=2, pp=4, tied_embeddings=True)).traces
    assert [ranks for label, ranks in listed(traces).values() if label == "embedding"] == [[0, 6], [1, 7]]


@pytest.mark.parametrize("world", [64, 8192])
def test_numbers_equal_modulo_500_never_share_two_ranks(world):
    job = load_job("llama3-405b", [])
    split = job.parallelism.model_copy(update={"tp": 16, "pp": 4, "dp": world // 64})
    placement = Placement.of(split, world, 8)
    kinds = ("tp", "dp", "tp/kv_copies", "embedding")
    numbers = group_numbers(placement, kinds)
    assert numbers.min() == 1
    assert len(set(numbers.tolist())) == len(numbers)
    members = [set(row.tolist()) for kind in kinds for row in placement.groups(kind) if len(row) > 1]
    sized = [number for kind, number in zip(np.repeat(kinds, [len(placement.groups(k)) for k in kinds]), numbers,
                                            strict=True) if placement.groups(kind).shape[1] > 1]  # fmt: skip
    same = {}
    for number, ranks in zip(sized, members, strict=True):
        same.setdefault(int(number) % 500, []).append(ranks)
    assert all(len(a & b) < 2 for rows in same.values() for a, b in combinations(rows, 2))
    assert numbers.max() <= len(numbers) + 500
