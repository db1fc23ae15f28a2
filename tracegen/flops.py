"""FLOPs of a whole step in closed form: what the model asks for, and what the ranks execute.

Owns the two formulas, written from the model's shape and not from operators or graphs, so that the tests can hold one
against the other. Knows no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracegen.spec.job import Job
    from tracegen.spec.model import Model

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 1, 1, 1
TRAINED = FORWARD + INPUT_GRADIENT + WEIGHT_GRADIENT  # products per forward product: backward is twice the forward
FLASH_BACKWARD = 2.5  # of the forward: scores again, and two products for each of the two (Dao et al., 2022)
UNFUSED_BACKWARD = 2.0


def layer_products(model: Model, kv_heads: int) -> int:
    """Forward FLOPs per token of one layer's weight matrices, with this many key/value heads in all."""
    hidden, width = model.hidden, model.head_dim
    attention = hidden * width * (model.heads + 2 * kv_heads) + model.heads * width * hidden
    mlp = (3 if model.gated else 2) * hidden * model.ffn
    return 2 * (attention + mlp)


def full_scores(model: Model, sequence: int) -> int:
    """Forward FLOPs per token of one layer's two attention products over a whole sequence, nothing masked."""
    return 4 * sequence * model.heads * model.head_dim


def model_flops(job: Job) -> int:
    """FLOPs of a step by the published convention (DEFINITIONS 11).

    Notes
    -----
    ``3 tokens (layers (products + 4 s heads d) + 2 h V)``: unsplit, unpadded, no recompute, scores in full, as in
    Narayanan et al., SC 2021, equation 3, less its recomputed forward.
    """
    model, sequence = job.model, job.workload.sequence_length
    layer = layer_products(model, model.kv_heads) + full_scores(model, sequence)
    return TRAINED * job.tokens_per_step * (model.layers * layer + 2 * model.hidden * model.vocab)


def executed_flops(job: Job) -> int:
    """FLOPs that all ranks execute in a step, matrix products only.

    Notes
    -----
    ``tokens (layers ((3 + r) products + (1 + b + r) 2 s heads d) + 3 * 2 h V)`` with r = 1 under full recompute, b =
    2.5 for flash and 2 unfused, the causal half of the scores, V padded, and key/value heads counted as often as tp
    ranks hold them.
    """
    model, work, tp = job.model, job.workload, job.parallelism.tp
    again = 1 if work.recompute == "full" else 0
    backward = FLASH_BACKWARD if work.attention_kernel == "flash" else UNFUSED_BACKWARD
    products = (TRAINED + again) * layer_products(model, model.kv_heads * model.kv_copies(tp))
    doubled = int(2 * (FORWARD + backward + again))  # twice the passes, a whole number
    scores = doubled * full_scores(model, work.sequence_length) // 4  # causal half, and the doubling undone
    head = TRAINED * 2 * model.hidden * model.padded_vocab(tp)
    return job.tokens_per_step * (model.layers * (products + scores) + head)
