"""Parameters per rank and stage: published totals (K64), and copies of key/value heads (K07)."""

from __future__ import annotations

import pytest

from tracegen.parameters import Shard, distinct_parameters, layer_tensors, stage_parameters
from tracegen.stages import even

GPT2 = {
    "layers": 12, "hidden": 768, "ffn": 3072, "heads": 12, "kv_heads": 12, "vocab": 50257, "max_positions": 1024,
    "gated": False, "norm": "layer", "positions": "learned", "bias": True, "tied_embeddings": True,
}  # fmt: skip
LLAMA32_1B = {
    "layers": 16, "hidden": 2048, "ffn": 8192, "heads": 32, "kv_heads": 8, "head_dim": 64, "vocab": 128256,
    "tied_embeddings": True,
}  # fmt: skip
LLAMA2_7B = {"layers": 32, "hidden": 4096, "ffn": 11008, "heads": 32, "kv_heads": 32, "vocab": 32000}
LLAMA3_8B = {"layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "vocab": 128256}

# K64: counts of the published checkpoints.
PUBLISHED = [
    (LLAMA2_7B, 6_738_415_616),
    (LLAMA3_8B, 8_030_261_248),
    (LLAMA3_8B | {"kv_heads": 32}, 8_835_567_616),
    (LLAMA32_1B, 1_235_814_400),
    (LLAMA32_1B | {"tied_embeddings": False}, 1_498_482_688),
    (GPT2, 124_439_808),
]


@pytest.mark.parametrize(("model", "total"), PUBLISHED)
def test_published_totals_whatever_the_split(tiny, model, total):
    for tp, pp in ((1, 1), (1, 4), (4, 1), (4, 4), (2, 3)):
        job = tiny(tp=tp, pp=pp, **model)
        padding = (job.model.padded_vocab(tp) - job.model.vocab) * job.model.hidden
        tables = 1 if job.model.tied_embeddings else 2
        assert distinct_parameters(job, even(job.model.layers, pp)) == total + tables * padding


def test_llama3_8b_on_8_by_2_ranks_by_hand(tiny):
    # Per rank and layer: q 4096*512, k and v 4096*256, o 512*4096, three MLP matrices 4096*1792, two norms of 4096.
    layer = 4096 * 512 + 4096 * 256 + 512 * 4096 + 3 * 4096 * 1792 + 2 * 4096
    table = 128256 // 8 * 4096
    job = tiny(tp=8, pp=2, **LLAMA3_8B)
    assert stage_parameters(job, (16, 16)) == [16 * layer + table, 16 * layer + table + 4096]


def test_a_tied_head_is_a_copy_on_another_stage_and_nothing_on_the_same(tiny):
    job, table = tiny(pp=2, tied_embeddings=True), 1000 * 64
    alone = tiny(tied_embeddings=True)
    whole = stage_parameters(alone, (4,))[0]
    assert sum(stage_parameters(job, (2, 2))) == whole + table
    assert distinct_parameters(job, (2, 2)) == distinct_parameters(alone, (4,)) == whole


def test_fewer_kv_heads_than_ranks_are_copied(tiny):
    # K07: heads 32, kv_heads 2, tp 8: every rank holds one kv head, four ranks the same one.
    job = tiny(tp=8, heads=32, kv_heads=2, hidden=2048, head_dim=64)
    shard = Shard.of(job.model, 8)
    assert (shard.heads, shard.kv_heads, shard.kv_copies) == (4, 1, 4)
    [keys_and_values] = [tensor for tensor in layer_tensors(job.model, 8) if tensor.copies == 4]
    assert keys_and_values.size == 2 * 2048 * 64


def test_biases_lie_whole_where_the_output_is_reduced(tiny):
    tensors = layer_tensors(tiny(tp=4, bias=True, norm="layer").model, 4)
    whole = {(t.operator, t.size) for t in tensors if t.copies == 4}
    assert whole == {("attention_norm", 128), ("mlp_norm", 128), ("attention_out", 64), ("mlp_down", 64)}
