"""What a rank must hold whatever runs on it: weights, gradients and optimizer states, and whether they fit.

Owns the bytes per parameter and how ZeRO shards them. Does not count parameters (the layers do) and does not know
activations yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracegen.spec.units import dtype_bytes

if TYPE_CHECKING:
    from tracegen.spec.job import Job
    from tracegen.spec.workload import Precision

GB = 10**9
ADAM_MOMENTS = 2  # first and second moment of every parameter (Kingma and Ba, 2015)


@dataclass(frozen=True)
class States:
    """Bytes that one rank keeps from step to step."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All three together, bytes."""
        return self.weights + self.gradients + self.optimizer


def states(parameters: int, precision: Precision, zero: int, replicas: int) -> States:
    """Bytes of one rank's states under Adam.

    Parameters
    ----------
    parameters : what the rank holds, after tensor and pipeline splitting.
    precision : types of weights, gradients, moments (``optimizer``) and of the master copy of the weights.
    zero : 0 keeps everything on every replica; 1 shards the optimizer states over the replicas.
    replicas : ranks that hold the same parameters (dp times cp).

    Notes
    -----
    With Psi parameters, N replicas and the types of mixed-precision Adam, stage 0 is (2 + 2 + 12) Psi bytes and stage
    1 is (2 + 2 + 12 / N) Psi (Rajbhandari et al., "ZeRO", SC 2020, figure 1). Weights that already have the master's
    type need no copy. A shard is rounded up to whole parameters.
    """
    if zero not in (0, 1):
        raise ValueError(f"states of ZeRO stage {zero} are not known yet")
    copies = 0 if precision.master == precision.weights else dtype_bytes(precision.master)
    per_parameter = ADAM_MOMENTS * dtype_bytes(precision.optimizer) + copies
    sharded = -(-parameters // replicas) if zero else parameters
    return States(
        weights=parameters * dtype_bytes(precision.weights),
        gradients=parameters * dtype_bytes(precision.gradients),
        optimizer=sharded * per_parameter,
    )


def states_of_stages(job: Job, parameters: Sequence[int]) -> tuple[States, ...]:
    """The states of a rank of each stage.

    Parameters
    ----------
    parameters : what one rank of each stage holds, embedding and head included.
    """
    replicas = job.parallelism.dp * job.parallelism.cp
    return tuple(states(count, job.workload.precision, job.workload.zero, replicas) for count in parameters)


@dataclass(frozen=True)
class Fit:
    """What the fullest rank must keep, against what its device has; bytes. ``line`` says it in words."""

    needed: int
    usable: int
    line: str

    @property
    def fits(self) -> bool:
        """Whether there is room."""
        return self.needed <= self.usable


def fits(job: Job, parameters: Sequence[int]) -> Fit:
    """Whether the states of the fullest stage fit the device.

    Parameters
    ----------
    parameters : what one rank of each stage holds, embedding and head included.
    """
    needed = max(each.total for each in states_of_stages(job, parameters))
    return Fit(needed, job.device.memory_bytes, memory_line(needed, job.device.memory_bytes))


def memory_line(needed: int, usable: int) -> str:
    """One line that says whether the states fit, from the two figures that a manifest has too.

    Parameters
    ----------
    needed : bytes of the states of a rank of the fullest stage. usable : bytes of the device.
    """
    verdict = "" if needed <= usable else ", which does not fit"
    return (
        f"weights, gradients and optimizer states: {_gb(needed)} of {_gb(usable)} on the fullest stage{verdict}; "
        "activations not counted yet"
    )


def memory_warning(manifest: Mapping[str, Any]) -> str | None:
    """The line, where a manifest says that the states do not fit; None where they do, or nobody said."""
    needed, usable = manifest.get("state_bytes_per_gpu"), manifest.get("memory_bytes_per_gpu")
    if not isinstance(needed, int) or not isinstance(usable, int) or needed <= usable:
        return None
    return f"{memory_line(needed, usable)}; split over more ranks, or set workload.zero to 1"


def _gb(size: int) -> str:
    """Bytes in GB with three significant digits, and no fraction from a thousand up."""
    return f"{size / GB:.3g} GB" if size < 999.5 * GB else f"{size / GB:,.0f} GB"
