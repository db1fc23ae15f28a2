"""What the generator can build today. A legal job that asks for more is refused here, in one line, before any work."""

from __future__ import annotations

from collections.abc import Iterator

from tracegen.proto.errors import InputError
from tracegen.spec.job import Job

_LATER_AXES = {
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "etp": "tensor parallelism of experts",
    "vpp": "interleaving",
}


def supported(job: Job) -> None:
    """Refuse a job that uses keys which do not work yet.

    Raises
    ------
    InputError
        One line with the place of the first such key.
    """
    for key, message in _later(job):
        raise InputError(f"{job.place(key)}: {message}")


def _later(job: Job) -> Iterator[tuple[str, str]]:
    model, split, workload = job.model, job.parallelism, job.workload
    if workload.kind != "training":
        yield "workload.kind", f"{workload.kind} is not built yet; only training"
    if model.is_moe:
        why = f"has {model.experts} experts per layer; mixture of experts is not built yet, only dense models"
        yield "model", f"{model.name} {why}"
    if model.is_mla:
        yield "model", f"{model.name} has latent attention (mla), which is not built yet; only mha and gqa"
    if 0 < model.window < workload.sequence_length:
        why = f"{model.window} is below sequence_length {workload.sequence_length}, and windows are not built yet"
        yield "model.window", f"{why}; nearest: sequence_length {model.window}"
    if model.attention_sinks:
        yield "model.attention_sinks", "true is not built yet; only false"
    if model.qk_norm:
        yield "model.qk_norm", "true is not built yet; only false"
    for axis, what in _LATER_AXES.items():
        if getattr(split, axis) > 1:
            yield f"parallelism.{axis}", f"{axis} {getattr(split, axis)}: {what} is not built yet; only {axis} 1"
    if workload.schedule not in ("gpipe", "1f1b"):
        yield "workload.schedule", f"{workload.schedule} is not built yet; only gpipe and 1f1b"
    if workload.recompute == "selective":
        yield "workload.recompute", "selective is not built yet; only none and full"
    if workload.zero > 1:
        yield "workload.zero", f"{workload.zero} is not built yet; only 0 and 1"
