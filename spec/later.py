"""What the generator cannot build yet, as features: the keys that ask for each, and what to say. Owns no rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracegen.spec.model import Model
from tracegen.spec.parallelism import Parallelism
from tracegen.spec.workload import Workload

_AXES = {
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "etp": "tensor parallelism of experts",
}
_MOE = {"experts", "top_k", "shared_experts", "expert_ffn", "first_dense_layers", "moe_every"}
_MLA = {"attention", "q_lora_rank", "kv_lora_rank", "nope_head_dim", "rope_head_dim", "v_head_dim"}


@dataclass(frozen=True)
class Feature:
    """One feature that a job asks for and that is not built.

    Parameters
    ----------
    key : the key that asks for it, dotted.
    said : that it is not built, and what is.
    value : what the key says, to go before ``said`` where nothing else does.
    keys : other keys whose rules it brings, so that a refusal of theirs says first that the feature is not there.
    within : for a feature of the model, the key in it that asks.
    """

    key: str
    said: str
    value: str
    keys: frozenset[str] = frozenset()
    within: str = ""


def features(model: Model, split: Parallelism, workload: Workload) -> Iterator[Feature]:
    """The features of a job that are not built yet."""
    if workload.kind != "training":
        yield Feature("workload.kind", "is not built yet; only training", f"{workload.kind} ")
    if model.is_moe:
        said = "mixture of experts is not built yet, only dense models"
        keys = {*_below("model", _MOE), "parallelism.ep", "parallelism.etp", "parallelism.order"}
        value = f"{model.name} has {model.experts} experts per layer; "
        yield Feature("model", said, value, frozenset(keys), "model.experts")
    if model.is_mla:
        said = "latent attention (mla) is not built yet, only mha and gqa"
        yield Feature("model", said, f"{model.name}: ", frozenset(_below("model", _MLA)), "model.attention")
    if 0 < model.window < workload.sequence_length:
        said = f"windows are not built yet; nearest: sequence_length {model.window}"
        value = f"{model.window} is below sequence_length {workload.sequence_length}, and "
        yield Feature("model.window", said, value)
    for key in ("attention_sinks", "qk_norm"):
        if getattr(model, key):
            yield Feature(f"model.{key}", "is not built yet; only false", "true ")
    yield from _split_features(split)
    if workload.schedule not in ("gpipe", "1f1b"):
        said = f"schedule {workload.schedule} is not built yet; only gpipe and 1f1b"
        keys = {"parallelism.vpp", "workload.global_batch"} if workload.schedule == "interleaved" else set()
        yield Feature("workload.schedule", said, "", frozenset(keys))
    if workload.recompute == "selective":
        yield Feature("workload.recompute", "is not built yet; only none and full", "selective ")
    if workload.zero > 1:
        yield Feature("workload.zero", "is not built yet; only 0 and 1", f"{workload.zero} ")


def _split_features(split: Parallelism) -> Iterator[Feature]:
    for axis, what in _AXES.items():
        if (degree := getattr(split, axis)) > 1:
            keys = {"workload.sequence_length"} if axis == "cp" else {"parallelism.order", "parallelism.ep"}
            said = f"{what} is not built yet; only {axis} 1"
            yield Feature(f"parallelism.{axis}", said, f"{axis} {degree}: ", frozenset(keys))
    if split.vpp > 1:
        yield Feature("parallelism.vpp", "interleaving is not built yet; only vpp 1", f"vpp {split.vpp}: ")


def _below(section: str, keys: set[str]) -> set[str]:
    return {f"{section}.{key}" for key in keys}
