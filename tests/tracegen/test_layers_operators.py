"""FLOPs and bytes of single operators, by hand for the tiny model: n 32, h 64, 8 heads and 4 kv heads of 8."""

from __future__ import annotations

import pytest

from tracegen import operators as op
from tracegen.operators import Sizes
from tracegen.proto.graph import Phase

F, B, W = Phase.F, Phase.B, Phase.W


@pytest.fixture
def sizes(tiny):
    return Sizes.of(tiny())


def test_a_product_forward_and_back(sizes):
    # [32, 64] x [64, 96]: gate and up in one product of 192 columns.
    flops = 2 * 32 * 64 * 192
    for phase, shape, element in ((F, (32, 192, 64), 2), (B, (32, 64, 192), 2), (W, (64, 192, 32), 4)):
        product = op.mlp_up(sizes, phase)
        assert (product.shape, product.flops) == (shape, flops)
        assert product.mem_bytes == 2 * 32 * (64 + 192) + element * 64 * 192  # bf16 but for fp32 gradients


def test_qkv_has_the_columns_of_all_heads(sizes):
    assert op.qkv(sizes, F).shape == (32, (8 + 2 * 4) * 8, 64)


def test_qkv_of_one_copied_kv_head(tiny):
    assert op.qkv(Sizes.of(tiny(tp=8)), F).shape == (32, (1 + 2 * 1) * 8, 64)


def test_a_bias_is_read_once_and_its_gradient_written_once(tiny, sizes):
    biased = Sizes.of(tiny(bias=True))
    assert op.qkv(biased, F).mem_bytes - op.qkv(sizes, F).mem_bytes == 2 * 128
    assert op.qkv(biased, B).mem_bytes == op.qkv(sizes, B).mem_bytes
    assert op.qkv(biased, W).mem_bytes - op.qkv(sizes, W).mem_bytes == 4 * 128


def test_flash_attention(sizes):
    [forward], [backward] = op.attention(sizes, F), op.attention(sizes, B)
    full = 2 * 2 * 32 * 32 * 8 * 8  # two products of s*s*d multiply-adds for each of 8 heads
    assert forward.flops == full // 2
    assert backward.flops * 2 == forward.flops * 5
    query, key, sums = 2 * 32 * 64, 2 * 32 * 32, 4 * 32 * 8
    assert forward.mem_bytes == 2 * query + 2 * key + sums  # q, out, k, v, log-sums
    assert backward.mem_bytes == 4 * query + 4 * key + sums  # q, out, dout, dq, k, v, dk, dv


def test_unfused_attention_moves_the_scores(tiny):
    sizes = Sizes.of(tiny(attention_kernel="unfused"))
    scores, softmax, context = op.attention(sizes, F)
    one, table = 32 * 32 * 8 * 8, 2 * 8 * 32 * 32
    assert (scores.flops, softmax.flops, context.flops) == (one, 0, one)
    assert (scores.mem_bytes, softmax.mem_bytes) == (2 * 32 * 64 + 2 * 32 * 32 + table, 2 * table)
    assert [each.flops for each in op.attention(sizes, B)] == [2 * one, 0, 2 * one]


def test_rope_touches_the_rotated_fraction_of_queries_and_keys(tiny):
    assert op.rope(Sizes.of(tiny())).mem_bytes == 2 * 2 * 32 * (8 + 4) * 8
    assert op.rope(Sizes.of(tiny(rotary_fraction=0.25))).mem_bytes == 2 * 2 * 32 * (8 + 4) * 2


@pytest.mark.parametrize(("gated", "forward", "backward"), [(True, 3, 5), (False, 2, 3)])
def test_activation_reads_its_inputs_and_writes_its_outputs(tiny, gated, forward, backward):
    sizes = Sizes.of(tiny(gated=gated))
    assert op.activation(sizes, F).mem_bytes == forward * 2 * 32 * 96
    assert op.activation(sizes, B).mem_bytes == backward * 2 * 32 * 96


def test_sequence_parallel_ranks_norm_their_own_tokens(tiny):
    whole, part = (Sizes.of(tiny(tp=4, sp=sp)) for sp in (False, True))
    assert op.norm(whole, "norm", F).mem_bytes == 2 * 2 * 32 * 64 + 2 * 64
    assert op.norm(part, "norm", F).mem_bytes == 2 * 2 * 8 * 64 + 2 * 64
    assert op.mlp_up(whole, F) == op.mlp_up(part, F)


def test_pointwise_work_has_no_flops(sizes):
    pointwise = [
        op.norm(sizes, "norm", B), op.rope(sizes), op.activation(sizes, F), op.residual(sizes, "residual", F),
        op.embedding(sizes, F), op.positions(sizes, W), *op.cross_entropy(sizes), op.cross_entropy_backward(sizes),
    ]  # fmt: skip
    assert all(each.flops == 0 and each.mem_bytes > 0 and each.kind == "memory" for each in pointwise)


def test_adam_moves_26_bytes_a_parameter_in_mixed_precision(tiny):
    precision = tiny().workload.precision
    assert op.optimizer(1000, precision).mem_bytes == 1000 * (4 + 2 * 8 + 8 + 2)  # gradient, moments, master, weight
    pure = precision.model_copy(update={"weights": "fp32", "compute": "fp32"})
    assert op.optimizer(1000, pure).mem_bytes == 1000 * (4 + 2 * 8 + 8)  # no second copy of the weights


@pytest.mark.parametrize(
    ("compute", "weights", "size"), [("bf16", "bf16", 2), ("fp8", "bf16", 2), ("bf16", "fp32", 2), ("tf32", "fp32", 4)]
)
def test_activations_are_of_the_compute_type_but_never_8_bits_under_wider_weights(tiny, compute, weights, size):
    precision = tiny().workload.precision.model_copy(update={"compute": compute, "weights": weights})
    assert op.activation_bytes(precision) == size
