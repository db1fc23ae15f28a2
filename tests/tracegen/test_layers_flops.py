"""FLOPs of a step in closed form: K75's numbers for Llama-3-8B, and what execution adds to the model's own."""

from __future__ import annotations

from tracegen.flops import executed_flops, full_scores, layer_products, model_flops
from tracegen.spec import load_job

# K75, per token.
LAYERS, HEAD, SCORES = 13_958_643_712, 1_050_673_152, 134_217_728


def test_llama3_8b_forward_per_token():
    model = load_job("llama3-8b").model
    assert 32 * layer_products(model, model.kv_heads) == LAYERS
    assert 2 * model.hidden * model.vocab == HEAD
    assert full_scores(model, 8192) == SCORES


def test_llama3_8b_step():
    job = load_job("llama3-8b")
    tokens = 64 * 8192
    assert model_flops(job) == 3 * tokens * (LAYERS + HEAD + 32 * SCORES)
    # Flash: half the scores forward, two and a half times that backward.
    assert executed_flops(job) == tokens * (3 * (LAYERS + HEAD) + 32 * SCORES * 7 // 4)


def test_full_recompute_adds_one_forward_of_the_layers_only():
    plain, again = (load_job("llama3-8b", [f"workload.recompute={mode}"]) for mode in ("none", "full"))
    assert model_flops(again) == model_flops(plain)
    assert executed_flops(again) - executed_flops(plain) == 64 * 8192 * (LAYERS + 32 * SCORES // 2)


def test_unfused_attention_runs_backward_in_twice_the_forward():
    flash, unfused = (load_job("llama3-8b", [f"workload.attention_kernel={k}"]) for k in ("flash", "unfused"))
    assert executed_flops(flash) - executed_flops(unfused) == 64 * 8192 * 32 * SCORES // 4


def test_padding_and_kv_copies_are_executed_but_not_the_models(tiny):
    plain, split = tiny(vocab=1001), tiny(vocab=1001, tp=8)
    assert model_flops(split) == model_flops(plain)
    tokens = 2 * 32
    padding = 3 * 2 * 64 * (1008 - 1001)
    copies = 3 * 4 * 2 * 64 * 8 * 2 * (8 - 4)  # three products, four layers, k and v of 8 columns, 8 heads for 4
    assert executed_flops(split) - executed_flops(plain) == tokens * (padding + copies)
