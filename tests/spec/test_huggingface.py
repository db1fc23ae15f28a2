"""A Hugging Face config.json is a model: its keys under our names, sums as published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracegen.spec import Job, catalog
from tracegen.spec.model import Model
from tracegen.spec.units import WRITTEN

Load = Callable[..., Job]
Refused = Callable[..., str]

BASE = """
model: config.json
device: h100-sxm5-80gb
workload: {sequence_length: 1024, global_batch: 1}
"""


def llama_like(layers: int, hidden: int, ffn: int, heads: int, kv: int, vocab: int, **more: Any) -> dict[str, Any]:
    shape = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
    }
    return shape | more


LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

# the released configs' keys that matter, and the catalogue's entry of the same model
CONFIGS: list[tuple[dict[str, Any], str]] = [
    (llama_like(32, 4096, 14336, 32, 8, 128256, model_type="llama"), "llama3-8b"),
    (llama_like(32, 4096, 14336, 32, 8, 32000, model_type="mistral", sliding_window=4096), "mistral-7b"),
    (llama_like(32, 4096, 14336, 32, 8, 32000, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2,
                sliding_window=None), "mixtral-8x7b"),
    (llama_like(28, 3584, 18944, 28, 4, 152064, model_type="qwen2", use_sliding_window=False, sliding_window=131072),
     "qwen2.5-7b"),
    (llama_like(48, 2048, 6144, 32, 4, 151936, model_type="qwen3_moe", head_dim=128, num_experts=128,
                num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[]),
     "qwen3-30b-a3b"),
    (llama_like(44, 6144, 24576, 64, 64, 50432, model_type="gpt_neox", rotary_pct=0.25), "gpt-neox-20b"),
    (llama_like(60, 5120, 12288, 128, 128, 102400, model_type="deepseek_v2", n_routed_experts=160, n_shared_experts=2,
                num_experts_per_tok=6, moe_intermediate_size=1536, first_k_dense_replace=1, moe_layer_freq=1, **LATENT),
     "deepseek-v2"),
    (llama_like(61, 7168, 18432, 128, 128, 129280, model_type="deepseek_v3", n_routed_experts=256, n_shared_experts=1,
                num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3, **LATENT), "deepseek-v3"),
    (llama_like(36, 2880, 2880, 64, 8, 201088, model_type="gpt_oss", head_dim=64, num_local_experts=128,
                num_experts_per_tok=4, sliding_window=128, attention_bias=True), "gpt-oss-120b"),
    ({"model_type": "llama4", "text_config": llama_like(
        48, 5120, 8192, 40, 8, 202048, head_dim=128, num_local_experts=128, intermediate_size_mlp=16384,
        interleave_moe_layer_step=2)}, "llama4-maverick"),
    (llama_like(48, 5120, 8192, 40, 8, 202048, model_type="llama4_text", head_dim=128), "llama4-scout"),
]  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], None]:
    def written(config: object) -> None:
        text = config if isinstance(config, str) else json.dumps(config, indent=2)
        (tmp_path / "config.json").write_text(text)

    return written


@pytest.mark.parametrize(("config", "name"), CONFIGS, ids=[name for _, name in CONFIGS])
def test_a_config_is_the_catalogue_s_model(
    load: Load, write: Callable[[object], None], config: dict[str, Any], name: str
) -> None:
    write(config)
    own = {"name": True, "source": True, "max_positions": True}
    known = Model.model_validate(catalog.load("models", name).data, context=WRITTEN)
    assert load(text=BASE).model.model_dump(exclude=own) == known.model_dump(exclude=own)


def test_gpt2_is_gpt2(load: Load, write: Callable[[object], None]) -> None:
    write({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024})
    model = load(text=BASE).model
    assert model.parameters() == 124_439_808  # K64
    assert (model.ffn, model.positions, model.tied_embeddings) == (3072, "learned", True)


def test_absent_keys_of_gpt2_and_gpt_neox_are_those_of_transformers(
    load: Load, write: Callable[[object], None]
) -> None:
    # transformers' GPT2Config() and GPTNeoXConfig(): the 124M and the 20B model
    write({"model_type": "gpt2"})
    gpt2 = load(text=BASE).model
    assert (gpt2.hidden, gpt2.layers, gpt2.heads, gpt2.max_positions, gpt2.vocab) == (768, 12, 12, 1024, 50257)
    assert (gpt2.ffn, gpt2.parameters()) == (3072, 124_439_808)
    write({"model_type": "gpt_neox"})
    own = {"name": True, "source": True, "max_positions": True}
    known = Model.model_validate(catalog.load("models", "gpt-neox-20b").data, context=WRITTEN)
    assert load(text=BASE).model.model_dump(exclude=own) == known.model_dump(exclude=own)
    write({"model_type": "gpt_neox", "hidden_size": 4096, "num_attention_heads": 32})
    assert (load(text=BASE).model.hidden, load(text=BASE).model.ffn) == (4096, 24576)


def test_qwen3_has_heads_of_128_and_a_norm_on_each(load: Load, write: Callable[[object], None]) -> None:
    write(llama_like(36, 2560, 9728, 32, 8, 151936, model_type="qwen3", tie_word_embeddings=True))
    model = load(text=BASE).model
    assert (model.head_dim, model.qk_norm, model.tied_embeddings) == (128, True, True)
    assert model.parameters() == 4_022_468_096  # Qwen3-4B as released


def test_a_config_may_be_a_base(load: Load, write: Callable[[object], None]) -> None:
    write(CONFIGS[0][0])
    job = load(text=BASE.replace("config.json", "{base: ./config.json, layers: 4}"))
    assert (job.model.layers, job.model.hidden) == (4, 4096)


def test_errors_name_the_line_of_the_config(refused: Refused, write: Callable[[object], None]) -> None:
    write(CONFIGS[0][0] | {"num_attention_heads": 31})
    assert "config.json:5 model.heads: hidden 4096 does not divide by heads 31" in refused(text=BASE)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "bert"}, 'model_type "bert" is not read; known: llama, mistral, mixtral, qwen2'),
        ({}, "model_type null is not read"),
        (
            {"model_type": "llama", "hidden_size": 8},
            "a llama config needs num_hidden_layers, num_attention_heads, vocab_size, intermediate_size",
        ),
        ("[1]", "its top is no mapping"),
        ("{\n  'a': 1}", "config.json:2: is no JSON"),
        ("", "config.json:1: is no JSON"),
        (CONFIGS[0][0] | {"attention_bias": True}, "attention_bias true cannot be described here"),
        (CONFIGS[4][0] | {"mlp_only_layers": [3]}, "mlp_only_layers [3] cannot be described here"),
        (CONFIGS[0][0] | {"hidden_size": -5}, "model.hidden: -5 is too small; nearest legal value 1"),
        ({"model_type": "gpt2", "n_embd": "many"}, 'model.hidden: must be a whole number, not "many"'),
        (CONFIGS[0][0] | {"vocab_size": "many"}, 'model.vocab: must be a whole number, not "many"'),
    ],
)
def test_configs_that_are_refused(refused: Refused, write: Callable[[object], None], config: object, said: str) -> None:
    write(config)
    assert said in refused(text=BASE)


def test_a_missing_config_is_one_line(refused: Refused) -> None:
    assert "config.json: no such file" in refused(text=BASE)
