"""What a timeline is told beside the traces: the job's work per step and each rank's stage. Owns no traces, no time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError


@dataclass(frozen=True, eq=False)
class Facts:
    """Figures of a job that its traces do not hold; None where nobody said.

    Parameters
    ----------
    stage_of : i32[ranks], pipeline stage of each rank.
    tokens_per_step : tokens one optimizer step reads (DEFINITIONS 1).
    model_flops : FLOPs of a step by the published convention (DEFINITIONS 11), all ranks together.
    executed_flops : FLOPs that are executed in a step, all ranks together.
    peak_flops : dense FLOP/s of one device in the compute type.
    """

    stage_of: NDArray[np.int32] | None = None
    tokens_per_step: int | None = None
    model_flops: int | None = None
    executed_flops: int | None = None
    peak_flops: float | None = None

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], where: str = "manifest.json") -> Facts:
        """Facts as `emit` wrote them; keys that are absent or null stay unknown.

        Raises
        ------
        InputError
            A figure is not a number above 0, or stages are not a list of whole numbers.
        """
        return cls(
            stage_of=_stages(manifest.get("stage_of"), where),
            tokens_per_step=_whole(manifest, "tokens_per_step", where),
            model_flops=_whole(manifest, "model_flops_per_step", where),
            executed_flops=_whole(manifest, "executed_flops_per_step", where),
            peak_flops=_positive(manifest, "peak_flops_per_gpu", where),
        )


def _stages(value: Any, where: str) -> NDArray[np.int32] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(type(stage) is int for stage in value):
        raise InputError(f"{where} stage_of: a list with one whole number per rank is needed, not {value!r:.60}")
    return np.array(value, np.int32)


def _positive(manifest: Mapping[str, Any], key: str, where: str) -> float | None:
    value = manifest.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InputError(f"{where} {key}: {value!r} is not a number above 0")
    return float(value)


def _whole(manifest: Mapping[str, Any], key: str, where: str) -> int | None:
    value = manifest.get(key)
    if value is None:
        return None
    if type(value) is not int or value <= 0:
        raise InputError(f"{where} {key}: {value!r} is not a whole number above 0")
    return value
