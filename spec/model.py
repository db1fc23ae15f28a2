"""A model's architecture and nothing else: shapes, and how many parameters they make."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tracegen.spec.units import Amount, Count, Frozen, Label, Share, shown, wrong


def _pad_to(value: object) -> object:
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if value == "tp":
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        legal = "neither tp (pads to a multiple of tp) nor a whole number k (to a multiple of k·tp)"
        raise ValueError(f"{shown(value)} is {legal}")
    if not 1 <= value <= 2**20:
        side, nearest = ("small", 1) if value < 1 else ("large", 2**20)
        raise ValueError(f"{value} is too {side}; nearest legal value {nearest}")
    return value


def _positive(value: object) -> bool:
    """A number of 1 or more, whole or to be refused for not being so."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < float("inf")


class Model(Frozen):
    """A decoder-only transformer.

    Parameters
    ----------
    layers, hidden, heads, head_dim, vocab : as the field uses them; ``head_dim`` defaults to hidden / heads.
    ffn : width of the dense MLP, 0 where every layer has experts.
    kv_heads : key/value heads; defaults to ``heads``.
    vocab_pad_to : ``tp`` pads the vocabulary to a multiple of tp; a number k to a multiple of k·tp (Megatron: 128).
    gated : three MLP matrices (SwiGLU) instead of two.
    bias, qkv_bias : biases on every projection; on Q, K, V only (defaults to ``bias``).
    qk_norm : a norm of head_dim on queries and on keys.
    rotary_fraction : share of head_dim that is rotated.
    parallel_residual : attention and MLP read the same input (NeoX).
    window : tokens each position attends to, 0 for all; ``window_every`` n: of n layers the last has no window
        (1: every layer has it).
    experts, top_k, shared_experts, expert_ffn : experts per MoE layer, those a token uses, those all tokens use,
        width of one.
    first_dense_layers, moe_every : leading layers without experts; then of n layers the last has experts.
    max_positions : longest sequence it was made for; the rows of a learned position table.
    q_lora_rank, kv_lora_rank, nope_head_dim, rope_head_dim, v_head_dim : multi-head latent attention.
    attention_sinks : one learned logit per head.
    """

    name: Label = "inline"
    source: str = ""
    layers: Annotated[Count, Field(le=10_000)]
    hidden: Annotated[Count, Field(le=2**20)]
    ffn: Annotated[Amount, Field(le=2**24)] = 0
    heads: Annotated[Count, Field(le=2**16)]
    kv_heads: Annotated[Count, Field(le=2**16)]
    head_dim: Annotated[Count, Field(le=2**16)]
    vocab: Annotated[Count, Field(le=2**28)]
    vocab_pad_to: Annotated[Literal["tp"] | int, BeforeValidator(_pad_to)] = "tp"
    gated: bool = True
    norm: Literal["rms", "layer"] = "rms"
    tied_embeddings: bool = False
    bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    positions: Literal["rotary", "learned", "none"] = "rotary"
    rotary_fraction: Share = 1.0
    parallel_residual: bool = False
    attention: Literal["mha", "gqa", "mla"]
    window: Amount = 0
    window_every: Count = 1
    experts: Annotated[Amount, Field(le=2**16)] = 0
    top_k: Annotated[Amount, Field(le=2**16)] = 0
    shared_experts: Annotated[Amount, Field(le=2**10)] = 0
    expert_ffn: Annotated[Amount, Field(le=2**24)] = 0
    first_dense_layers: Amount = 0
    moe_every: Count = 1
    max_positions: Amount = 0
    q_lora_rank: Annotated[Amount, Field(le=2**20)] = 0
    kv_lora_rank: Annotated[Amount, Field(le=2**20)] = 0
    nope_head_dim: Annotated[Amount, Field(le=2**16)] = 0
    rope_head_dim: Annotated[Amount, Field(le=2**16)] = 0
    v_head_dim: Annotated[Amount, Field(le=2**16)] = 0
    attention_sinks: bool = False

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """Fill the defaults that follow from other keys."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        heads, hidden = data.get("heads"), data.get("hidden")
        if not _positive(heads) or not _positive(hidden):  # refused by their own bounds: say no more of what follows
            return {"kv_heads": 1, "head_dim": 1, "attention": "mha"} | data
        data.setdefault("kv_heads", heads)
        if data.get("kv_lora_rank"):
            data.setdefault("attention", "mla")
            parts = data.get("nope_head_dim", 0), data.get("rope_head_dim", 0)
            data.setdefault("head_dim", sum(part for part in parts if isinstance(part, int)))
        data.setdefault("attention", "mha" if data.get("kv_heads") == heads else "gqa")
        if "bias" in data:
            data.setdefault("qkv_bias", data["bias"])
        if "head_dim" not in data:
            if hidden % heads:
                low = int(hidden // heads) * int(heads)
                fix = " or ".join(str(width) for width in (low, low + int(heads)) if width)
                why = f"hidden {hidden} does not divide by heads {heads}"
                raise wrong("heads", f"{why}; give head_dim, or hidden {fix}")
            data["head_dim"] = int(hidden // heads)
        return data

    @property
    def is_moe(self) -> bool:
        """Whether any layer has experts."""
        return self.experts > 0

    @property
    def is_mla(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return self.attention == "mla"

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return sum(self.has_experts(layer) for layer in range(self.layers))

    def has_experts(self, layer: int) -> bool:
        """Whether this layer (from 0) has experts instead of a dense MLP."""
        after = layer - self.first_dense_layers
        return self.is_moe and after >= 0 and after % self.moe_every == self.moe_every - 1

    def padded_vocab(self, tp: int) -> int:
        """Vocabulary rows held by a tp group together."""
        multiple = tp if self.vocab_pad_to == "tp" else int(self.vocab_pad_to) * tp
        return ceil(self.vocab / multiple) * multiple

    def kv_copies(self, tp: int) -> int:
        """Ranks of a tp group that hold the same key/value head; 1 where heads are not copied."""
        return max(1, tp // self.kv_heads)

    def parameters(self) -> int:
        """All parameters, vocabulary unpadded: the published total (multi-token prediction heads left out)."""
        return self._total(self.experts)

    def active_parameters(self) -> int:
        """Parameters a token uses, embeddings included: as `parameters` with ``top_k`` experts per layer."""
        return self._total(self.top_k)

    def _total(self, experts: int) -> int:
        norm = self._norm(self.hidden)
        moe = self.moe_layers
        layers = self.layers * (self._attention() + 2 * norm)
        layers += (self.layers - moe) * self._mlp(self.ffn)
        layers += moe * (self._router() + (experts + self.shared_experts) * self._mlp(self.expert_ffn))
        tables = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        if self.positions == "learned":
            tables += self.max_positions * self.hidden
        return layers + norm + tables

    def _norm(self, width: int) -> int:
        return width * (2 if self.norm == "layer" else 1)

    def _mlp(self, width: int) -> int:
        matrices = 3 if self.gated else 2
        return matrices * self.hidden * width + self.bias * ((matrices - 1) * width + self.hidden)

    def _router(self) -> int:
        return (self.hidden + self.bias) * self.experts

    def _attention(self) -> int:
        if self.is_mla:
            return self._latent_attention()
        query, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        total = self.hidden * (query + 2 * keys) + query * self.hidden
        total += self.qkv_bias * (query + 2 * keys) + self.bias * self.hidden
        total += self.qk_norm * 2 * self._norm(self.head_dim) + self.attention_sinks * self.heads
        return total

    def _latent_attention(self) -> int:
        """DeepSeek-V2 (arXiv 2405.04434, section 2.1): low-rank queries, and keys and values from one latent."""
        per_head = self.nope_head_dim + self.rope_head_dim
        if self.q_lora_rank:
            query = self.q_lora_rank * (self.hidden + self.heads * per_head) + self._norm(self.q_lora_rank)
        else:
            query = self.hidden * self.heads * per_head
        latent = self.hidden * (self.kv_lora_rank + self.rope_head_dim) + self._norm(self.kv_lora_rank)
        latent += self.kv_lora_rank * self.heads * (self.nope_head_dim + self.v_head_dim)
        return query + latent + self.heads * self.v_head_dim * self.hidden
