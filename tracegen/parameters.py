"""The parameters one rank holds: every weight and bias of a dense model, how tp splits it, and what each stage sums to.

Owns which tensors exist, on how many tp ranks each lies whole, and which operator makes its gradient. Does not know
what the tensors cost in time or memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracegen.spec.job import Job
    from tracegen.spec.model import Model


@dataclass(frozen=True)
class Tensor:
    """One weight or bias as a tp rank holds it.

    Parameters
    ----------
    operator : the operator that reads it, and whose backward pass makes its gradient.
    size : elements on one rank.
    copies : tp ranks that hold the very same elements; 1 where tp splits it, tp where every rank has the whole.
    """

    operator: str
    size: int
    copies: int = 1


@dataclass(frozen=True)
class Shard:
    """A model as one of ``tp`` ranks sees it: heads, feed-forward width and vocabulary divided.

    Where there are fewer key/value heads than ranks, each rank holds one, and ``kv_copies`` ranks hold the same.
    """

    tp: int
    heads: int
    kv_heads: int
    kv_copies: int
    ffn: int
    vocab: int

    @classmethod
    def of(cls, model: Model, tp: int) -> Shard:
        """The shard of a rank; degrees that do not divide are the spec's to refuse."""
        return cls(
            tp=tp,
            heads=model.heads // tp,
            kv_heads=max(1, model.kv_heads // tp),
            kv_copies=model.kv_copies(tp),
            ffn=model.ffn // tp,
            vocab=model.padded_vocab(tp) // tp,
        )


def norm_size(model: Model) -> int:
    """Elements of one norm: a weight of the hidden size, and a bias where it is a layer norm."""
    return model.hidden * (2 if model.norm == "layer" else 1)


def layer_tensors(model: Model, tp: int) -> tuple[Tensor, ...]:
    """What one rank holds of one layer."""
    shard = Shard.of(model, tp)
    hidden, width = model.hidden, model.head_dim
    up = shard.ffn * (2 if model.gated else 1)
    qkv_rows = hidden + (1 if model.qkv_bias else 0)
    up_rows = hidden + (1 if model.bias else 0)
    tensors = [
        Tensor("attention_norm", norm_size(model), tp),
        Tensor("qkv", qkv_rows * shard.heads * width),
        Tensor("qkv", qkv_rows * 2 * shard.kv_heads * width, shard.kv_copies),
        Tensor("attention_out", shard.heads * width * hidden),
        Tensor("mlp_norm", norm_size(model), tp),
        Tensor("mlp_up", up_rows * up),
        Tensor("mlp_down", shard.ffn * hidden),
    ]
    if model.bias:
        tensors += [Tensor("attention_out", hidden, tp), Tensor("mlp_down", hidden, tp)]
    return tuple(tensors)


def embedding_tensors(model: Model, tp: int) -> tuple[Tensor, ...]:
    """What one rank of the first stage holds of the embedding."""
    tensors = [Tensor("embedding", Shard.of(model, tp).vocab * model.hidden)]
    if model.positions == "learned":
        tensors.append(Tensor("positions", model.max_positions * model.hidden, tp))
    return tuple(tensors)


def head_tensors(model: Model, tp: int, stages: int) -> tuple[Tensor, ...]:
    """What one rank of the last stage holds behind the layers: final norm and head.

    A tied head on the embedding's own stage has no tensor; on another stage it is a copy.
    """
    norm = Tensor("final_norm", norm_size(model), tp)
    if model.tied_embeddings and stages == 1:
        return (norm,)
    return (norm, Tensor("head", Shard.of(model, tp).vocab * model.hidden))


def stage_tensors(job: Job, stage: int, layers: int) -> tuple[Tensor, ...]:
    """What one rank of a stage with this many layers holds."""
    tp, stages = job.parallelism.tp, job.parallelism.pp
    tensors = layer_tensors(job.model, tp) * layers
    if stage == 0:
        tensors += embedding_tensors(job.model, tp)
    if stage == stages - 1:
        tensors += head_tensors(job.model, tp, stages)
    return tensors


def stage_parameters(job: Job, layers_of_stage: Sequence[int]) -> list[int]:
    """Parameters of one rank of each stage, padded vocabulary, copies included."""
    return [
        sum(tensor.size for tensor in stage_tensors(job, stage, layers)) for stage, layers in enumerate(layers_of_stage)
    ]


def distinct_parameters(job: Job, layers_of_stage: Sequence[int]) -> int:
    """Parameters of the whole model counted once: all tp ranks of all stages less the copies they hold.

    Equal to the published total where the vocabulary needs no padding.
    """
    model, tp, stages = job.model, job.parallelism.tp, job.parallelism.pp
    total = sum(
        tensor.size * tp // tensor.copies
        for stage, layers in enumerate(layers_of_stage)
        for tensor in stage_tensors(job, stage, layers)
    )
    copy_of_embedding = Shard.of(model, tp).vocab * tp * model.hidden
    return total - (copy_of_embedding if model.tied_embeddings and stages > 1 else 0)
