"""Granularity `block` against `operator`: the same sums, communications and finish time, and as few nodes as can be."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import deps, finish_of_streams, names

from tracegen.build import build
from tracegen.proto.graph import Kind

SPLITS = [
    {}, {"tp": 2}, {"tp": 2, "sp": True}, {"pp": 2, "dp": 2}, {"tp": 2, "pp": 2, "dp": 2, "sp": True},
    {"tp": 2, "pp": 2, "recompute": "full"}, {"dp": 2, "zero": 0, "bucket": 7000},
    {"tp": 2, "sp": True, "parallel_residual": True, "pp": 2}, {"pp": 3, "schedule": "gpipe", "recompute": "full"},
]  # fmt: skip


@pytest.fixture(params=SPLITS, ids=str)
def both(request, tiny):
    """Stage graphs at both granularities."""
    made = [build(tiny(granularity=kind, microbatches=3, **request.param)).traces for kind in ("operator", "block")]
    return list(zip(made[0].graphs, made[1].graphs, strict=True))


def test_sums_and_communications_are_the_same(both):
    for fine, coarse in both:
        for column in ("duration_us", "flops", "mem_bytes"):
            assert getattr(fine, column).sum() == getattr(coarse, column).sum()
        assert fine.duration_ns[fine.kind == Kind.COMP].sum() == coarse.duration_ns[coarse.kind == Kind.COMP].sum()
        there, here = fine.kind != Kind.COMP, coarse.kind != Kind.COMP
        for column in ("kind", "comm_bytes", "collective", "slot", "tag", "layer", "phase", "microbatch"):
            assert getattr(fine, column)[there].tolist() == getattr(coarse, column)[here].tolist()


def test_the_rank_finishes_at_the_same_nanosecond(both):
    # Whatever the communications take: 20 draws from nothing to far longer than a block.
    for fine, coarse in both:
        count = int((fine.kind != Kind.COMP).sum())
        for seed in range(20):
            lengths = dict(enumerate(np.random.default_rng(seed).integers(0, 60_000, count).tolist()))
            assert finish_of_streams(fine, lengths) == finish_of_streams(coarse, lengths)


def test_blocks_are_the_runs_between_communications(both):
    # The slow twin: walk the operators one by one.
    for fine, coarse in both:
        awaited = {s for i in range(len(fine)) if fine.kind[i] != Kind.COMP for s in set().union(*deps(fine, i))}
        lengths, before = [], None
        for i in np.flatnonzero(fine.kind == Kind.COMP).tolist():
            waits = any(fine.kind[s] != Kind.COMP for s in set().union(*deps(fine, i)))
            way = {0: "F", 3: "R"}.get(int(fine.phase[i]), "B"), int(fine.microbatch[i])
            if before is None or waits or before[0] in awaited or way != before[1]:
                lengths.append(0)
            lengths[-1] += int(fine.duration_ns[i])
            before = i, way
        assert coarse.duration_ns[coarse.kind == Kind.COMP].tolist() == lengths


def test_a_block_is_named_by_its_ends(tiny):
    graph = build(tiny(tp=2, granularity="block")).traces.graphs[0]
    text = names(graph)
    assert "L1 mlp_residual..attention_out F mb0" in text
    assert "L3 qkv W mb1" in text  # alone beside the reduction of its input gradient


def test_a_single_rank_has_a_block_per_pass(tiny):
    graph = build(tiny(granularity="block", microbatches=2)).traces.graphs[0]
    assert names(graph) == [
        "embedding..loss F mb0", "loss..embedding B mb0", "embedding..loss F mb1", "loss..embedding B mb1", "optimizer"
    ]  # fmt: skip
