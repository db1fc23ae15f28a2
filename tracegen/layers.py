"""What one microbatch does on a rank, step by step: operators and the communications between them, as Megatron.

Owns the order of steps inside a layer, the embedding and the head, what each step waits for, and the kind, group and
size of every communication of DEFINITIONS 13 that happens per microbatch. Does not know how many layers or microbatches
there are, which ranks form a group, or how long anything takes.

Overlap is in the order and the edges: the reduction of an input gradient stands between the input-gradient product and
the weight-gradient product, which does not wait for it; the second gather of a saved input stands before the
input-gradient product, which does not wait for it either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracegen import operators as op
from tracegen.operators import Operator, Sizes
from tracegen.parameters import Tensor, embedding_tensors, head_tensors, layer_tensors
from tracegen.proto.graph import Collective, Phase

if TYPE_CHECKING:
    from tracegen.spec.job import Job

F, B, W, R = Phase.F, Phase.B, Phase.W, Phase.R
LOSS_BYTES = 4  # the loss is reduced in fp32


@dataclass(frozen=True)
class Communication:
    """A collective of a group kind; ``size`` in bytes as DEFINITIONS 14 counts it."""

    name: str
    group: str
    collective: Collective
    size: int


@dataclass(frozen=True)
class Message:
    """A send to, or a receive from, the next or the previous stage; ``size`` in bytes."""

    name: str
    peer: str  # "next" | "previous"
    sends: bool
    size: int


@dataclass(frozen=True)
class Step:
    """One operator, collective or message, and what it waits for beside the compute step before it.

    Parameters
    ----------
    uses : steps whose results it takes, as ``key`` names them; ``INPUT`` for the compute step before the first one;
        None for the step before this one.
    parameters : how many parameters have their gradient once this step is done.
    """

    work: Operator | Communication | Message
    phase: Phase | None
    uses: tuple[str, ...] | None = None
    parameters: int = 0

    @property
    def key(self) -> str:
        """Its name among the steps of one list."""
        return self.work.name if self.phase is None else f"{self.work.name}.{self.phase.name}"


Steps = list[Step]
INPUT = ""
NOTHING: tuple[str, ...] = ()  # takes nothing that this list of steps made


@dataclass(frozen=True)
class Layers:
    """The steps of every piece of a dense model, on one rank, for one microbatch.

    ``forward`` and ``backward`` are of one layer; under full recompute ``backward`` begins with the forward again.
    """

    forward: Steps
    backward: Steps
    embedding: Steps
    embedding_backward: Steps
    head: Steps
    head_backward: Steps
    message_bytes: int

    @classmethod
    def of(cls, job: Job) -> Layers:
        """The steps of a job's layers."""
        sizes, model, tp = Sizes.of(job), job.model, job.parallelism.tp
        owned = _gradients(layer_tensors(model, tp))
        learned = model.positions == "learned"
        if model.parallel_residual:
            forward, backward = _parallel_forward(sizes), _parallel_backward(sizes, owned)
        else:
            forward, backward = _serial_forward(sizes), _serial_backward(sizes, owned)
        if job.workload.recompute == "full":
            backward = _again(forward) + backward
        first = _gradients(embedding_tensors(model, tp))
        last = _gradients(head_tensors(model, tp, job.parallelism.pp))
        return cls(
            forward=forward,
            backward=backward,
            embedding=_embedding(sizes, learned),
            embedding_backward=_embedding_backward(sizes, learned, first),
            head=_head(sizes),
            head_backward=_head_backward(sizes, last),
            message_bytes=sizes.tokens_held * sizes.hidden * sizes.activation,
        )


def _gradients(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Parameters by the operator whose backward pass makes their gradient."""
    owned: dict[str, int] = {}
    for tensor in tensors:
        owned[tensor.operator] = owned.get(tensor.operator, 0) + tensor.size
    return owned


def _again(forward: Steps) -> Steps:
    """Forward steps as recompute runs them: from the layer's kept input, so that the first takes no new result."""
    steps = [
        replace(step, phase=R, uses=step.uses and tuple(use.replace(".F", ".R") for use in step.uses))
        for step in forward
    ]
    return [replace(steps[0], uses=NOTHING), *steps[1:]]


# Communications over tp. Each gives an empty list where the group would be one rank.


def _gather(sizes: Sizes, name: str, phase: Phase, uses: tuple[str, ...] | None = None) -> Steps:
    """With sp: collect the tokens of all tp ranks."""
    if not sizes.sp:
        return []
    size = sizes.tokens_held * sizes.hidden * sizes.activation
    return [Step(Communication(f"{name}_all_gather", "tp", Collective.ALL_GATHER, size), phase, uses)]


def _reduce(sizes: Sizes, name: str, phase: Phase, uses: tuple[str, ...] | None = None) -> Steps:
    """Sum partial results over tp: each rank keeps its tokens with sp, all of them without."""
    if sizes.shard.tp == 1:
        return []
    size = sizes.tokens * sizes.hidden * sizes.activation
    if sizes.sp:
        return [Step(Communication(f"{name}_reduce_scatter", "tp", Collective.REDUCE_SCATTER, size), phase, uses)]
    return [Step(Communication(f"{name}_all_reduce", "tp", Collective.ALL_REDUCE, size), phase, uses)]


def _loss_reduce(sizes: Sizes, name: str) -> Steps:
    if sizes.shard.tp == 1:
        return []
    size = LOSS_BYTES * sizes.tokens
    return [Step(Communication(f"{name}_all_reduce", "tp", Collective.ALL_REDUCE, size), F)]


# Forward.


def _mixing(sizes: Sizes) -> Steps:
    """From the fused projection's output to the output projection's input."""
    rope = [Step(op.rope(sizes), F)] if sizes.rotary_dim else []
    return rope + [Step(each, F) for each in op.attention(sizes, F)]


def _serial_forward(sizes: Sizes) -> Steps:
    """x + attention(norm(x)), then y + mlp(norm(y))."""
    return [
        Step(op.norm(sizes, "attention_norm", F), F),
        *_gather(sizes, "qkv", F),
        Step(op.qkv(sizes, F), F),
        *_mixing(sizes),
        Step(op.attention_out(sizes, F), F),
        *_reduce(sizes, "attention_out", F),
        Step(op.residual(sizes, "attention_residual", F, biases=1), F),
        Step(op.norm(sizes, "mlp_norm", F), F),
        *_gather(sizes, "mlp_up", F),
        Step(op.mlp_up(sizes, F), F),
        Step(op.activation(sizes, F), F),
        Step(op.mlp_down(sizes, F), F),
        *_reduce(sizes, "mlp_down", F),
        Step(op.residual(sizes, "mlp_residual", F, biases=1), F),
    ]


def _parallel_forward(sizes: Sizes) -> Steps:
    """x + attention(norm(x)) + mlp(norm(x)): one reduction, and with sp one gather, for both branches.

    The two norms differ in their weights only, so one pass over x serves both, and what is gathered is x without them.
    """
    norm = Step(op.norm(sizes, "norms", F, norms=2), F)
    gather = _gather(sizes, "branches", F)
    return [
        norm,
        *gather,
        Step(op.qkv(sizes, F), F),
        *_mixing(sizes),
        Step(op.attention_out(sizes, F), F),
        Step(op.mlp_up(sizes, F), F, (gather[0].key if gather else norm.key,)),
        Step(op.activation(sizes, F), F),
        Step(op.mlp_down(sizes, F), F),
        Step(op.branch_sum(sizes), F, ("attention_out.F", "mlp_down.F")),
        *_reduce(sizes, "branches", F),
        Step(op.residual(sizes, "residual", F, biases=2), F),
    ]


def _embedding(sizes: Sizes, learned: bool) -> Steps:
    steps = [Step(op.embedding(sizes, F), F, NOTHING), *_reduce(sizes, "embedding", F)]
    return [*steps, Step(op.positions(sizes, F), F)] if learned else steps


def _head(sizes: Sizes) -> Steps:
    """Final norm, logits and vocabulary-parallel cross-entropy."""
    largest, target, total, loss = op.cross_entropy(sizes)
    return [
        Step(op.norm(sizes, "final_norm", F), F),
        *_gather(sizes, "head", F),
        Step(op.head(sizes, F), F),
        Step(largest, F),
        *_loss_reduce(sizes, "loss_max"),
        Step(target, F),
        *_loss_reduce(sizes, "loss_target"),
        Step(total, F),
        *_loss_reduce(sizes, "loss_sum"),
        Step(loss, F),
    ]


# Backward.


def _row_backward(sizes: Sizes, down: Operator, weights: Operator, source: str, owned: dict[str, int]) -> Steps:
    """Backward of a product whose output was reduced over tp; its gradient came from step ``source``."""
    return [
        Step(down, B, (source,)),
        Step(weights, W, (source,), owned[weights.name]),
    ]


def _column_backward(sizes: Sizes, inputs: Operator, weights: Operator, source: str, owned: dict[str, int]) -> Steps:
    """Backward of a product whose input tp ranks share, with its communications beside it."""
    saved = _gather(sizes, f"{weights.name}_saved", B, NOTHING)
    return [
        *saved,
        Step(inputs, B, (source,)),
        *_reduce(sizes, weights.name, B, (f"{inputs.name}.B",)),
        Step(weights, W, (source, *(step.key for step in saved)), owned[weights.name]),
    ]


def _mixing_backward(sizes: Sizes) -> Steps:
    """From the gradient of the output projection's input to that of the fused projection's output."""
    first, *others = op.attention(sizes, B)
    steps = [Step(first, B, ("attention_out.B",)), *(Step(each, B) for each in others)]
    if sizes.rotary_dim:
        steps.append(Step(op.rope(sizes), B))
    return steps


def _serial_backward(sizes: Sizes, owned: dict[str, int]) -> Steps:
    """The MLP's half, then attention's."""
    after_mlp, after_attention = _gather(sizes, "mlp_down", B, (INPUT,)), _gather(sizes, "attention_out", B)
    mixing = _mixing_backward(sizes)
    return [
        *after_mlp,
        *_row_backward(
            sizes, op.mlp_down(sizes, B), op.mlp_down(sizes, W), after_mlp[0].key if after_mlp else INPUT, owned
        ),
        Step(op.activation(sizes, B), B, ("mlp_down.B",)),
        *_column_backward(sizes, op.mlp_up(sizes, B), op.mlp_up(sizes, W), "activation.B", owned),
        *_norm_backward(sizes, "mlp_norm", "mlp_up", owned),
        Step(op.residual(sizes, "mlp_residual", B), B),
        *after_attention,
        *_row_backward(
            sizes,
            op.attention_out(sizes, B),
            op.attention_out(sizes, W),
            after_attention[0].key if after_attention else "mlp_residual.B",
            owned,
        ),
        *mixing,
        *_column_backward(sizes, op.qkv(sizes, B), op.qkv(sizes, W), mixing[-1].key, owned),
        *_norm_backward(sizes, "attention_norm", "qkv", owned),
        Step(op.residual(sizes, "attention_residual", B), B),
    ]


def _parallel_backward(sizes: Sizes, owned: dict[str, int]) -> Steps:
    """Both branches from one gathered gradient; their input gradients are summed, then reduced once."""
    gathered = _gather(sizes, "branches", B, (INPUT,))
    saved = _gather(sizes, "branches_saved", B, NOTHING)
    source = gathered[0].key if gathered else INPUT
    kept = tuple(step.key for step in saved)
    mixing = _mixing_backward(sizes)
    norms = {"norms": owned["attention_norm"] + owned["mlp_norm"]}
    return [
        *gathered,
        *_row_backward(sizes, op.mlp_down(sizes, B), op.mlp_down(sizes, W), source, owned),
        Step(op.activation(sizes, B), B, ("mlp_down.B",)),
        *saved,
        Step(op.mlp_up(sizes, B), B, ("activation.B",)),
        Step(op.mlp_up(sizes, W), W, ("activation.B", *kept), owned["mlp_up"]),
        *_row_backward(sizes, op.attention_out(sizes, B), op.attention_out(sizes, W), source, owned),
        *mixing,
        Step(op.qkv(sizes, B), B),
        Step(op.branch_sum(sizes), B, ("mlp_up.B", "qkv.B")),
        *_reduce(sizes, "branches", B),
        Step(op.qkv(sizes, W), W, (mixing[-1].key, *kept), owned["qkv"]),
        *_norm_backward(sizes, "norms", "branches", norms, norms=2, unreduced="branch_sum"),
        Step(op.residual(sizes, "residual", B), B),
    ]


def _norm_backward(
    sizes: Sizes, name: str, below: str, owned: dict[str, int], *, norms: int = 1, unreduced: str = ""
) -> Steps:
    """Backward of the norm before step ``below``: of its input gradient, reduced over tp where there is tp."""
    reduced = _reduce(sizes, below, B)
    source = reduced[0].key if reduced else f"{unreduced or below}.B"
    return [Step(op.norm(sizes, name, B, norms), B, (source,), owned[name])]


def _head_backward(sizes: Sizes, owned: dict[str, int]) -> Steps:
    return [
        Step(op.cross_entropy_backward(sizes), B, NOTHING),
        *_column_backward(sizes, op.head(sizes, B), op.head(sizes, W), "loss.B", {"head": 0, **owned}),
        *_norm_backward(sizes, "final_norm", "head", owned),
    ]


def _embedding_backward(sizes: Sizes, learned: bool, owned: dict[str, int]) -> Steps:
    first = [Step(op.positions(sizes, W), W, (INPUT,), owned["positions"])] if learned else []
    gathered = _gather(sizes, "embedding", B, (INPUT,))
    source = gathered[0].key if gathered else INPUT
    return [*first, *gathered, Step(op.embedding(sizes, W), W, (source,), owned["embedding"])]
