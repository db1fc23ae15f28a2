"""Bytes that ranks hand to collectives and messages, held against DEFINITIONS 13 written out again, split by split."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tracegen.build import build
from tracegen.proto.graph import Collective, Kind

AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
TOKENS, HIDDEN, LAYERS, VOCAB = 32, 64, 4, 1000
FULL = TOKENS * HIDDEN * 2  # bf16 activations of one microbatch


def counted(job):
    """(label, collective) or "send": how many, and how many bytes, over all ranks."""
    traces = build(job).traces
    number, size = Counter(), Counter()
    for rank in range(traces.ranks):
        graph = traces.graph(rank)
        for node in np.flatnonzero(graph.kind == Kind.COLL):
            label = traces.groups.label[traces.slots[rank, graph.slot[node]]]
            key = label, Collective(int(graph.collective[node]))
            number[key] += 1
            size[key] += int(graph.comm_bytes[node])
        sends = graph.kind == Kind.SEND
        number["send"] += int(sends.sum())
        size["send"] += int(graph.comm_bytes[sends].sum())
    return +number, +size


def test_tensor_parallel_without_sequence_parallel(tiny):
    number, size = counted(tiny(tp=4, microbatches=3))
    # Two forward and two backward a layer, one for the embedding forward, one for the head backward, three of the loss.
    assert number == {("tp", AR): 4 * 3 * (4 * LAYERS + 2 + 3)}
    assert size == {("tp", AR): 4 * 3 * ((4 * LAYERS + 2) * FULL + 3 * 4 * TOKENS)}


def test_tensor_parallel_with_sequence_parallel(tiny):
    number, size = counted(tiny(tp=4, microbatches=3, sp=True))
    # A layer: 2 gathers forward, 2 backward and 2 of saved inputs; embedding: 1 backward; head: 1 forward, 1 saved.
    gathers, scatters, norms = 6 * LAYERS + 3, 4 * LAYERS + 2, (2 * LAYERS + 1) * HIDDEN
    assert number == {("tp", AG): 4 * 3 * gathers, ("tp", RS): 4 * 3 * scatters, ("tp", AR): 4 * (3 * 3 + 1)}
    assert size == {
        ("tp", AG): 4 * 3 * gathers * FULL // 4,  # the bytes each rank contributes
        ("tp", RS): 4 * 3 * scatters * FULL,
        ("tp", AR): 4 * (3 * 3 * 4 * TOKENS + 4 * norms),  # the loss, and gradients of norms once a step, fp32
    }


@pytest.mark.parametrize(("sp", "per_layer"), [(False, {AR: 2}), (True, {AG: 3, RS: 2})])
def test_a_parallel_residual_has_one_of_each_pair(tiny, sp, per_layer):
    few, many = (counted(tiny(tp=2, sp=sp, layers=n, parallel_residual=True))[0] for n in (2, 5))
    each = {key[1]: (many[key] - few[key]) / (2 * 2 * 3) for key in many}  # ranks, microbatches, layers more
    assert {key: value for key, value in each.items() if value} == per_layer


@pytest.mark.parametrize(("sp", "per_layer"), [(False, {AR: 6}), (True, {AG: 8, RS: 6})])
def test_full_recompute_repeats_the_layers_collectives_and_nothing_else(tiny, sp, per_layer):
    few, many = (counted(tiny(tp=2, sp=sp, layers=n, recompute="full"))[0] for n in (2, 5))
    each = {key[1]: (many[key] - few[key]) / (2 * 2 * 3) for key in many}
    assert {key: value for key, value in each.items() if value} == per_layer
    plain = counted(tiny(tp=2, sp=sp, layers=2))[0]
    forward = 2 * 2 * 2 * 2  # collectives of a kind in a layer's forward, layers, microbatches, ranks
    assert {key: few[key] - plain[key] for key in few if few[key] > plain[key]} == {
        ("tp", kind): forward for kind in per_layer
    }


@pytest.mark.parametrize(("sp", "size"), [(False, FULL), (True, FULL // 2)])
def test_stage_messages(tiny, sp, size):
    number, total = counted(tiny(tp=2, pp=4, microbatches=3, sp=sp))
    assert number["send"] == 2 * 3 * 3 * 2  # ranks of a stage, boundaries, microbatches, directions
    assert total["send"] == number["send"] * size


def parameters(layers: int) -> int:
    """Of one rank at tp 1: q and o 64*64, k and v 64*32, three of 64*96, two norms; two tables and the final norm."""
    return layers * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64) + 2 * VOCAB * HIDDEN + HIDDEN


@pytest.mark.parametrize("dp", [2, 3])
def test_zero_0_reduces_all_gradients_once_a_step(tiny, dp):
    number, size = counted(tiny(dp=dp, zero=0, microbatches=4))
    whole, rest = divmod(parameters(LAYERS), 20_000)
    padded = whole * (20_000 + -20_000 % dp) + rest + -rest % dp  # every bucket to a multiple of dp
    assert number == {("dp", AR): dp * (whole + 1)}
    assert size == {("dp", AR): dp * 4 * padded}


@pytest.mark.parametrize("dp", [2, 3])
def test_zero_1_scatters_gradients_and_gathers_weights(tiny, dp):
    number, size = counted(tiny(dp=dp, zero=1, microbatches=4))
    whole, rest = divmod(parameters(LAYERS), 20_000)
    padded = whole * (20_000 + -20_000 % dp) + rest + -rest % dp
    assert number == {("dp", RS): dp * (whole + 1), ("dp", AG): dp * (whole + 1)}
    assert size == {("dp", RS): dp * 4 * padded, ("dp", AG): dp * 2 * padded // dp}  # fp32 gradients, bf16 weights


def test_copies_of_key_value_heads_are_summed_once_a_step(tiny):
    # K07: 4 kv heads on 8 ranks, two copies of each; k and v of one head are 2*64*8 elements a layer.
    number, size = counted(tiny(tp=8, microbatches=3))
    assert number["tp/kv_copies", AR] == 8
    assert size["tp/kv_copies", AR] == 8 * LAYERS * 2 * 64 * 8 * 4


def test_tied_embeddings_over_stages_are_summed_over_first_and_last(tiny):
    number, size = counted(tiny(tp=2, pp=4, tied_embeddings=True))
    assert number["embedding", AR] == 2 * 2
    assert size["embedding", AR] == 2 * 2 * VOCAB // 2 * HIDDEN * 4
    assert "embedding" not in {key[0] for key in counted(tiny(tp=2, tied_embeddings=True))[0]}


def test_padded_vocabulary_is_used_alike_everywhere(tiny):
    job = tiny(tp=2, pp=2, dp=2, zero=0, vocab=999, vocab_pad_to=8, tied_embeddings=True, bucket=10**9)
    _, size = counted(job)
    assert job.model.padded_vocab(2) == 1008
    assert size["embedding", AR] == 8 * 504 * HIDDEN * 4
    layer = (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96) // 2 + 2 * 64
    assert size["dp", AR] == 4 * 4 * (4 * layer + 2 * 504 * HIDDEN + HIDDEN)  # two stages' sums, four ranks of each


def test_a_single_rank_says_nothing(tiny):
    assert counted(tiny()) == ({}, {})


def test_learned_positions_and_reduced_biases_join_the_sequence_parallel_sum(tiny):
    keys = {"positions": "learned", "max_positions": 48, "bias": True, "norm": "layer", "gated": False}
    _, size = counted(tiny(tp=2, sp=True, microbatches=1, **keys))
    whole = LAYERS * (2 * 2 * HIDDEN + 2 * HIDDEN) + 2 * HIDDEN + 48 * HIDDEN
    assert size["tp", AR] == 2 * (3 * 4 * TOKENS + 4 * whole)
