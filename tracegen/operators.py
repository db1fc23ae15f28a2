"""The kernels of a dense transformer as one rank runs them: shape, FLOPs and HBM bytes, for each phase.

Owns the formulas of FLOPs (matrix products only, 2 per multiply-add) and bytes (read plus written, each operand once;
DEFINITIONS 8). Does not know in which order operators run, what is communicated, or how long anything takes.

In the formulas n is tokens of a microbatch (sequence s times sequences b), h the hidden size, and heads, feed-forward
width and vocabulary are those of the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tracegen.parameters import Shard, norm_size
from tracegen.proto.graph import Phase
from tracegen.spec.units import dtype_bytes

if TYPE_CHECKING:
    from tracegen.spec.job import Job
    from tracegen.spec.workload import Precision

FP32_BYTES = 4  # softmax statistics and the loss are kept in fp32 whatever the compute type
TOKEN_ID_BYTES = 8  # token ids are 64-bit integers
MOMENTS = 2  # Adam keeps two moments of every parameter (Kingma and Ba, 2015)

F, B, W = Phase.F, Phase.B, Phase.W


@dataclass(frozen=True)
class Operator:
    """One kernel on one rank.

    Parameters
    ----------
    name : the word for it in traces.
    kind : ``matrix`` runs on the tensor cores, ``memory`` is bound by HBM.
    shape : (m, n, k) of a matrix product, (batch, m, n, k) of a batched one, the tensor's shape otherwise.
    flops : FLOPs executed, 0 for pointwise work.
    mem_bytes : HBM bytes read plus written.
    """

    name: str
    kind: Literal["matrix", "memory"]
    shape: tuple[int, ...]
    flops: int
    mem_bytes: int


def activation_bytes(precision: Precision) -> int:
    """Bytes of an activation element: the compute type, or the weights' type where products are taken in 8 bits."""
    return max(dtype_bytes(precision.compute), min(2, dtype_bytes(precision.weights)))


@dataclass(frozen=True)
class Sizes:
    """Everything the formulas need, as one rank sees it.

    Parameters
    ----------
    sequence, batch : tokens per sequence, sequences per microbatch.
    tokens : sequence times batch. tokens_held : what a rank keeps between layers: tokens / tp with ``sp``.
    hidden, head_dim, rotary_dim : elements; rotary_dim is the part of a head that is rotated, 0 without RoPE.
    up : width of the first MLP product: the feed-forward width, twice that with a gate.
    norm : parameters of one norm.
    activation, weight, gradient : bytes per element.
    """

    shard: Shard
    sequence: int
    batch: int
    tokens: int
    tokens_held: int
    hidden: int
    head_dim: int
    rotary_dim: int
    up: int
    norm: int
    qkv_bias: bool
    bias: bool
    sp: bool
    flash: bool
    activation: int
    weight: int
    gradient: int

    @classmethod
    def of(cls, job: Job) -> Sizes:
        """The sizes of a job's rank."""
        model, work, tp = job.model, job.workload, job.parallelism.tp
        shard = Shard.of(model, tp)
        tokens = work.sequence_length * work.micro_batch
        sp = job.parallelism.sp and tp > 1
        return cls(
            shard=shard,
            sequence=work.sequence_length,
            batch=work.micro_batch,
            tokens=tokens,
            tokens_held=tokens // tp if sp else tokens,
            hidden=model.hidden,
            head_dim=model.head_dim,
            rotary_dim=int(model.head_dim * model.rotary_fraction) if model.positions == "rotary" else 0,
            up=shard.ffn * (2 if model.gated else 1),
            norm=norm_size(model),
            qkv_bias=model.qkv_bias,
            bias=model.bias,
            sp=sp,
            flash=work.attention_kernel == "flash",
            activation=activation_bytes(work.precision),
            weight=dtype_bytes(work.precision.weights),
            gradient=dtype_bytes(work.precision.gradients),
        )

    @property
    def qkv(self) -> int:
        """Columns of the fused query, key and value product."""
        return (self.shard.heads + 2 * self.shard.kv_heads) * self.head_dim

    @property
    def attention_width(self) -> int:
        """Columns of the attention's output."""
        return self.shard.heads * self.head_dim


def product(sizes: Sizes, name: str, phase: Phase, inputs: int, outputs: int, bias: bool = False) -> Operator:
    """A product of the tokens with a weight matrix of ``inputs`` rows and ``outputs`` columns.

    Notes
    -----
    F: Y[n, o] = X[n, i] A[i, o]; B: dX[n, i] = dY A'; W: dA[i, o] = X' dY. All three take 2 n i o FLOPs and touch X or
    dX, Y or dY, and A or dA once.
    """
    tokens = sizes.tokens
    shape = {F: (tokens, outputs, inputs), B: (tokens, inputs, outputs), W: (inputs, outputs, tokens)}[phase]
    matrix = inputs * outputs + (outputs if bias and phase != B else 0)
    element = sizes.gradient if phase == W else sizes.weight
    moved = sizes.activation * tokens * (inputs + outputs) + element * matrix
    return Operator(name, "matrix", shape, 2 * tokens * inputs * outputs, moved)


def qkv(sizes: Sizes, phase: Phase) -> Operator:
    """Queries, keys and values in one product; keys and values of as many heads as the rank holds."""
    return product(sizes, "qkv", phase, sizes.hidden, sizes.qkv, sizes.qkv_bias)


def attention_out(sizes: Sizes, phase: Phase) -> Operator:
    """Output projection. Its bias is added with the residual, behind the reduction over tp."""
    return product(sizes, "attention_out", phase, sizes.attention_width, sizes.hidden)


def mlp_up(sizes: Sizes, phase: Phase) -> Operator:
    """First MLP product, gate and up in one."""
    return product(sizes, "mlp_up", phase, sizes.hidden, sizes.up, sizes.bias)


def mlp_down(sizes: Sizes, phase: Phase) -> Operator:
    """Second MLP product. Its bias is added with the residual, behind the reduction over tp."""
    return product(sizes, "mlp_down", phase, sizes.shard.ffn, sizes.hidden)


def head(sizes: Sizes, phase: Phase) -> Operator:
    """Logits of the rank's part of the padded vocabulary."""
    return product(sizes, "head", phase, sizes.hidden, sizes.shard.vocab)


def norm(sizes: Sizes, name: str, phase: Phase, norms: int = 1) -> Operator:
    """RMS or layer norm of the tokens the rank holds; ``norms`` share one pass where they differ in weights only.

    F reads x and writes y; B reads x and dy, writes dx and the gradients of the weights.
    """
    elements = sizes.tokens_held * sizes.hidden
    weights = norms * sizes.norm
    if phase == F:
        moved = 2 * elements * sizes.activation + weights * sizes.weight
    else:
        moved = 3 * elements * sizes.activation + weights * (sizes.weight + sizes.gradient)
    return _pointwise(name, (sizes.tokens_held, sizes.hidden), moved)


def rope(sizes: Sizes) -> Operator:
    """Rotary positions: reads and writes the rotated part of queries and keys; the same work in both directions."""
    heads = sizes.shard.heads + sizes.shard.kv_heads
    elements = sizes.tokens * heads * sizes.rotary_dim
    return _pointwise("rope", (sizes.tokens, heads, sizes.rotary_dim), 2 * elements * sizes.activation)


def attention(sizes: Sizes, phase: Phase) -> tuple[Operator, ...]:
    """Causal self-attention between RoPE and the output projection.

    Notes
    -----
    Full attention is 2 products of 2 s^2 d FLOPs per head and sequence; causal attention counts half (DEFINITIONS 8).
    Flash runs both in one kernel that never writes the scores; its backward pass recomputes the scores and takes 5
    products instead of 4, 2.5 times the forward (Dao et al., "FlashAttention", NeurIPS 2022, algorithm 4). It keeps one
    fp32 log-sum per query. Unfused, scores and probabilities go through HBM.
    """
    shard, width, element = sizes.shard, sizes.head_dim, sizes.activation
    pairs = sizes.batch * shard.heads * sizes.sequence**2
    query = sizes.tokens * shard.heads * width * element
    key = sizes.tokens * shard.kv_heads * width * element
    one = pairs * width  # FLOPs of one causal product
    shape = (sizes.batch * shard.heads, sizes.sequence, sizes.sequence, width)
    if sizes.flash:
        sums = FP32_BYTES * sizes.tokens * shard.heads
        if phase == F:
            return (Operator("attention", "matrix", shape, 2 * one, 2 * query + 2 * key + sums),)
        return (Operator("attention", "matrix", shape, 5 * one, 4 * query + 4 * key + sums),)
    table = pairs * element
    if phase == F:
        return (
            Operator("scores", "matrix", shape, one, query + key + table),
            _pointwise("softmax", shape[:3], 2 * table),
            Operator("context", "matrix", shape, one, table + key + query),
        )
    return (
        Operator("context", "matrix", shape, 2 * one, query + 2 * key + 2 * table),
        _pointwise("softmax", shape[:3], 3 * table),
        Operator("scores", "matrix", shape, 2 * one, table + 2 * query + 2 * key),
    )


def activation(sizes: Sizes, phase: Phase) -> Operator:
    """GELU, or SiLU times the other half: F reads the first product's output; B reads it and dy, writes dx."""
    moved = sizes.up + sizes.shard.ffn if phase == F else 2 * sizes.up + sizes.shard.ffn
    return _pointwise("activation", (sizes.tokens, sizes.shard.ffn), sizes.tokens * moved * sizes.activation)


def residual(sizes: Sizes, name: str, phase: Phase, biases: int = 0) -> Operator:
    """Adds a branch to the stream (F, with the branch's biases) or its gradient to the stream's (B)."""
    moved = 3 * sizes.tokens_held * sizes.hidden * sizes.activation
    if phase == F and sizes.bias:
        moved += biases * sizes.hidden * sizes.weight
    return _pointwise(name, (sizes.tokens_held, sizes.hidden), moved)


def branch_sum(sizes: Sizes) -> Operator:
    """Sum of attention and MLP on a rank, of a parallel residual, before the reduction over tp."""
    return _pointwise("branch_sum", (sizes.tokens, sizes.hidden), 3 * sizes.tokens * sizes.hidden * sizes.activation)


def embedding(sizes: Sizes, phase: Phase) -> Operator:
    """Lookup of the rank's share of the rows (F), or the sum of their gradients (W). Each rank handles all tokens."""
    rows = -(-sizes.tokens // sizes.shard.tp) * sizes.hidden
    element = sizes.weight if phase == F else sizes.gradient
    moved = sizes.tokens * (sizes.hidden * sizes.activation + TOKEN_ID_BYTES) + rows * element
    return _pointwise("embedding", (sizes.tokens, sizes.hidden), moved)


def positions(sizes: Sizes, phase: Phase) -> Operator:
    """Adds learned positions (F), or sums their gradient over the sequences of the microbatch (W)."""
    table = sizes.tokens_held // sizes.batch * sizes.hidden
    held = sizes.tokens_held * sizes.hidden * sizes.activation
    moved = 2 * held + table * sizes.weight if phase == F else held + table * sizes.gradient
    return _pointwise("positions", (sizes.tokens_held, sizes.hidden), moved)


def cross_entropy(sizes: Sizes) -> tuple[Operator, Operator, Operator, Operator]:
    """Vocabulary-parallel cross-entropy forward: four passes, with a reduction over tp after each but the last.

    Largest logit (and fp32 copy), target's logit (shifts all), sum of exponentials, loss (normalises all), as Megatron.
    """
    logits = sizes.tokens * sizes.shard.vocab
    shape = (sizes.tokens, sizes.shard.vocab)
    in_place = 2 * logits * FP32_BYTES
    return (
        _pointwise("loss_max", shape, logits * (sizes.activation + FP32_BYTES)),
        _pointwise("loss_target", shape, in_place),
        _pointwise("loss_sum", shape, in_place),
        _pointwise("loss", shape, in_place),
    )


def cross_entropy_backward(sizes: Sizes) -> Operator:
    """Gradient of the logits from the fp32 probabilities kept forward."""
    logits = sizes.tokens * sizes.shard.vocab
    return _pointwise("loss", (sizes.tokens, sizes.shard.vocab), logits * (FP32_BYTES + sizes.activation))


def optimizer(parameters: int, precision: Precision) -> Operator:
    """Adam on this many parameters: reads the gradient, updates both moments and the master copy, writes the weight.

    Where the weights already have the master's type there is no second copy, and they are read and written themselves.
    """
    moments = 2 * MOMENTS * dtype_bytes(precision.optimizer)
    master = 0 if precision.master == precision.weights else 2 * dtype_bytes(precision.master)
    weights = dtype_bytes(precision.weights) * (1 if master else 2)
    per_parameter = dtype_bytes(precision.gradients) + moments + master + weights
    return _pointwise("optimizer", (parameters,), parameters * per_parameter)


def _pointwise(name: str, shape: tuple[int, ...], moved: int) -> Operator:
    return Operator(name, "memory", shape, 0, moved)
