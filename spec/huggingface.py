"""A Hugging Face ``config.json`` as the keys of a model. Owns their names for things; checks no rule of ours.

A key that is null counts as absent. What an absent key means is said in docs/spec.md: gpt2 and gpt_neox take the
defaults of their configuration classes in ``transformers``, the others must give their shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tracegen.proto.errors import InputError
from tracegen.spec.source import KeyPath, Source, read_text
from tracegen.spec.units import as_label


class _Config:
    """A config's keys on their way to ours: which of theirs each of ours came from, and which are missing."""

    def __init__(self, data: Mapping[str, Any], shown: str) -> None:
        self.data = data
        self.shown = shown
        self.missing: list[str] = []
        self.keys: dict[str, Any] = {}
        self.origin: dict[str, str] = {}

    def get(self, key: str, default: Any = None) -> Any:
        value = self.data.get(key)
        return default if value is None else value

    def take(self, **names: str) -> None:
        """Ours = theirs; theirs must be there."""
        for ours, theirs in names.items():
            if self.get(theirs) is None:
                self.missing.append(theirs)
            self.keys[ours], self.origin[ours] = self.get(theirs), theirs

    def take_if(self, **names: str) -> None:
        """Ours = theirs where theirs is there."""
        for ours, theirs in names.items():
            if self.get(theirs) is not None:
                self.take(**{ours: theirs})

    def set(self, **values: Any) -> None:
        """Ours as the architecture fixes it."""
        self.keys |= values

    def refuse(self, key: str, why: str) -> None:
        raise InputError(f"{self.shown}: {key} {json.dumps(self.data.get(key))} cannot be described here: {why}")


_SHAPE = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
}


def _shape(config: _Config) -> None:
    """What nearly every decoder's config says in the same words."""
    config.take(**_SHAPE)
    _common(config)


def _common(config: _Config) -> None:
    config.take_if(kv_heads="num_key_value_heads", head_dim="head_dim", max_positions="max_position_embeddings")
    config.set(gated=True, norm="rms", positions="rotary")
    _with_defaults(config, {"tied_embeddings": ("tie_word_embeddings", False)})


def _biases(config: _Config) -> None:
    """``attention_bias`` and ``mlp_bias`` alike, since ours is one key for all projections."""
    attention, mlp = bool(config.get("attention_bias", False)), bool(config.get("mlp_bias", False))
    if attention != mlp:
        config.refuse("attention_bias", f"biases are on all projections or none, and mlp_bias is {json.dumps(mlp)}")
    config.set(bias=attention)


def _llama(config: _Config) -> None:
    _shape(config)
    config.take(ffn="intermediate_size")
    _biases(config)


def _mistral(config: _Config) -> None:
    _shape(config)
    config.take(ffn="intermediate_size")
    config.take_if(window="sliding_window")


def _mixtral(config: _Config) -> None:
    _shape(config)
    config.take(expert_ffn="intermediate_size")
    experts = {"experts": ("num_local_experts", 8), "top_k": ("num_experts_per_tok", 2)}
    _with_defaults(config, experts)
    config.take_if(window="sliding_window")


def _with_defaults(config: _Config, names: Mapping[str, tuple[str, Any]]) -> None:
    for ours, (theirs, default) in names.items():
        config.set(**{ours: config.get(theirs, default)})
        config.origin[ours] = theirs


def _qwen2(config: _Config) -> None:
    _shape(config)
    config.take(ffn="intermediate_size")
    config.set(qkv_bias=True)
    _qwen_window(config)


def _qwen_window(config: _Config) -> None:
    if not config.get("use_sliding_window", False):
        return
    if config.get("max_window_layers", 0):
        config.refuse("max_window_layers", "a window in the last layers only")
    config.take_if(window="sliding_window")


def _qwen3(config: _Config) -> None:
    _shape(config)
    config.take(ffn="intermediate_size")
    _qwen3_attention(config)


def _qwen3_attention(config: _Config) -> None:
    config.keys.setdefault("head_dim", 128)
    config.set(qk_norm=True)
    if config.get("attention_bias", False):
        config.refuse("attention_bias", "biases in attention only")
    _qwen_window(config)


def _qwen3_moe(config: _Config) -> None:
    _shape(config)
    config.take(expert_ffn="moe_intermediate_size")
    _with_defaults(
        config,
        {
            "experts": ("num_experts", 128),
            "top_k": ("num_experts_per_tok", 8),
            "moe_every": ("decoder_sparse_step", 1),
        },
    )
    if config.get("mlp_only_layers", []):
        config.refuse("mlp_only_layers", "single layers without experts")
    if config.keys["moe_every"] != 1:
        config.take(ffn="intermediate_size")
    _qwen3_attention(config)


def _gpt_neox(config: _Config) -> None:
    """Defaults of ``GPTNeoXConfig``, which are GPT-NeoX-20B."""
    shape = dict(zip(_SHAPE, (44, 6144, 64, 50432), strict=True))
    _with_defaults(config, {ours: (_SHAPE[ours], default) for ours, default in shape.items()})
    _common(config)
    _with_defaults(
        config,
        {
            "ffn": ("intermediate_size", 24576),
            "rotary_fraction": ("rotary_pct", 0.25),
            "parallel_residual": ("use_parallel_residual", True),
        },
    )
    if not config.get("attention_bias", True):
        config.refuse("attention_bias", "biases in the MLP only")
    config.set(gated=False, norm="layer", bias=True)


def _gpt2(config: _Config) -> None:
    """Defaults of ``GPT2Config``, which are the 124M model."""
    hidden = config.get("n_embd", 768)
    _with_defaults(
        config,
        {
            "layers": ("n_layer", 12),
            "hidden": ("n_embd", 768),
            "heads": ("n_head", 12),
            "vocab": ("vocab_size", 50257),
            "max_positions": ("n_positions", 1024),
            "ffn": ("n_inner", 4 * hidden if isinstance(hidden, int) else hidden),
            "tied_embeddings": ("tie_word_embeddings", True),
        },
    )
    config.set(gated=False, norm="layer", bias=True, positions="learned")


def _deepseek(config: _Config) -> None:
    _shape(config)
    config.keys.pop("head_dim", None)
    config.take(
        ffn="intermediate_size",
        kv_lora_rank="kv_lora_rank",
        nope_head_dim="qk_nope_head_dim",
        rope_head_dim="qk_rope_head_dim",
        v_head_dim="v_head_dim",
    )
    config.take_if(q_lora_rank="q_lora_rank")
    config.set(attention="mla")
    if config.get("attention_bias", False):
        config.refuse("attention_bias", "biases in attention only")
    if config.get("n_routed_experts") is None:
        return
    config.take(experts="n_routed_experts", top_k="num_experts_per_tok", expert_ffn="moe_intermediate_size")
    _with_defaults(
        config,
        {
            "shared_experts": ("n_shared_experts", 0),
            "first_dense_layers": ("first_k_dense_replace", 0),
        },
    )
    if config.get("moe_layer_freq", 1) != 1:
        config.refuse("moe_layer_freq", "experts in some of the later layers only")


def _gpt_oss(config: _Config) -> None:
    _shape(config)
    config.take(expert_ffn="intermediate_size", experts="num_local_experts")
    config.take(top_k="num_experts_per_tok" if config.get("num_experts_per_tok") is not None else "experts_per_token")
    _with_defaults(config, {"window": ("sliding_window", 128)})
    config.set(bias=True, attention_sinks=True, window_every=2)


def _llama4(config: _Config) -> None:
    _shape(config)
    config.take(expert_ffn="intermediate_size")
    _with_defaults(
        config,
        {
            "experts": ("num_local_experts", 16),
            "top_k": ("num_experts_per_tok", 1),
            "moe_every": ("interleave_moe_layer_step", 1),
            "window": ("attention_chunk_size", 8192),
            "window_every": ("no_rope_layer_interval", 4),
        },
    )
    if config.keys["moe_every"] != 1:
        config.take(ffn="intermediate_size_mlp")
    config.set(shared_experts=1)


_READERS: Mapping[str, Callable[[_Config], None]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
}


def read(file: Path, shown: str) -> Source:
    """The model that a ``config.json`` describes, under our keys, each placed at the line of theirs.

    Raises
    ------
    InputError
        The file is missing or no JSON mapping, its ``model_type`` is unknown, keys it needs are missing, or it says
        something that our keys cannot.
    """
    data, text = _json(file, shown)
    kind = data.get("model_type")
    if kind == "llama4" and isinstance(data.get("text_config"), dict):
        data, kind = data["text_config"], "llama4_text"
    if not isinstance(kind, str) or kind not in _READERS:
        raise InputError(f"{shown}: model_type {json.dumps(kind)} is not read; known: {', '.join(_READERS)}")
    config = _Config(data, shown)
    _READERS[kind](config)
    if config.missing:
        raise InputError(f"{shown}: a {kind} config needs {', '.join(config.missing)}")
    places: dict[KeyPath, str] = {(): f"{shown}:1"}
    for ours, theirs in config.origin.items():
        places[(ours,)] = f"{shown}:{_line(text, theirs)}"
    name = as_label(file.resolve().parent.name or "config")
    return Source({"name": name, "source": f"Hugging Face config, model_type {kind}"} | config.keys, places)


def _json(file: Path, shown: str) -> tuple[dict[str, Any], str]:
    text = read_text(file, shown)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as why:
        raise InputError(f"{shown}:{why.lineno}: is no JSON: {why.msg}") from None
    except RecursionError:
        raise InputError(f"{shown}: is no model's config: nested too deeply") from None
    if not isinstance(data, dict):
        raise InputError(f"{shown}: is no Hugging Face config: its top is no mapping")
    return data, text


def _line(text: str, key: str) -> int:
    """The line on which a key first stands; 1 where it is a default."""
    found = re.search(rf'"{re.escape(key)}"\s*:', text)
    return 1 if found is None else text.count("\n", 0, found.start()) + 1
