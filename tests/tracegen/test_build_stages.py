"""Layers per stage: even, by hand, and balanced against all splits there are."""

from __future__ import annotations

from itertools import product

import pytest

from tracegen.build import build
from tracegen.proto.graph import Kind
from tracegen.stages import balanced, even


def test_even_gives_extra_layers_to_the_first_stages():
    # K01.
    assert even(30, 4) == (8, 8, 7, 7)
    assert even(8, 8) == (1,) * 8


def test_a_list_is_taken_as_it_is(tiny):
    assert build(tiny(pp=3, layers=7, stages=[2, 4, 1])).layers_of_stage == (2, 4, 1)


def test_balanced_is_even_where_layers_are_all_there_is():
    assert balanced(30, 4, 10, 0, 0) == (8, 8, 7, 7)


def test_balanced_spares_the_stage_with_the_head():
    assert balanced(32, 4, 10, 0, 25) == (9, 9, 8, 6)
    assert balanced(32, 4, 10, 1, 25) == (8, 9, 9, 6)  # the embedding's time decides who gets the extra layer
    assert balanced(4, 4, 10, 0, 1000) == (1, 1, 1, 1)


@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 0), (0, 25), (4, 31), (15, 7)])
def test_balanced_has_the_least_largest_stage_of_all_splits(first, last):
    for stages in range(1, 5):
        for layers in range(stages, 13):
            every = [s for s in product(range(1, layers + 1), repeat=stages) if sum(s) == layers]

            def largest(split):
                beside = [0] * len(split)
                beside[0] += first
                beside[-1] += last
                return max(n * 10 + extra for n, extra in zip(split, beside, strict=True))

            split = balanced(layers, stages, 10, first, last)
            assert sum(split) == layers
            assert largest(split) == min(map(largest, every))


def test_balanced_stages_of_a_job_are_as_close_as_layers_allow(tiny):
    made = build(tiny(pp=4, layers=40, hidden=512, ffn=2048, microbatches=1))
    assert sum(made.layers_of_stage) == 40
    graphs = made.traces.graphs
    here = [(g.kind == Kind.COMP) & (g.microbatch >= 0) for g in graphs]
    times = [int(g.duration_ns[mask].sum()) for g, mask in zip(graphs, here, strict=True)]
    layer = int(graphs[0].duration_ns[here[0] & (graphs[0].layer == 0)].sum())
    assert max(times) - min(times) <= layer
