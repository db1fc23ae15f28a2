"""How long one operator takes on one device: a roofline with one compute and one memory efficiency.

Owns the two functions through which every duration in a trace comes. Does not know what the operators are for, nor
where a device's figures were measured (the catalogue does, see benchmarks/fit_efficiency.py).
"""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tracegen.spec.device import Device

NS_PER_S = 10**9
LONGEST_NS = 2**62
"""The longest time that a trace may hold, of one operator or of all ranks together: half of what int64 holds."""


def seconds(flops: int, mem_bytes: int, kind: Literal["matrix", "memory"], dtype: str, device: Device) -> float:
    """Time of one operator in seconds.

    Parameters
    ----------
    flops : FLOPs executed, 2 per multiply-add.
    mem_bytes : bytes read from and written to HBM, each operand once.
    kind : ``matrix`` runs on the tensor cores; ``memory`` is pointwise work, bound by HBM whatever its arithmetic.
    dtype : what the tensor cores multiply.
    device : peak FLOP/s by dtype, memory bandwidth in bytes/s, and the efficiency reached of each.

    Returns
    -------
    The time; infinity where a float cannot hold it.

    Raises
    ------
    InputError
        The device has no peak for ``dtype``.

    Notes
    -----
    ``max(flops / (peak * compute efficiency), bytes / (bandwidth * memory efficiency))`` (Williams, Waterman and
    Patterson, "Roofline", CACM 2009, with each roof lowered to what real kernels reach).
    """
    moving = _over(mem_bytes, device.memory_bandwidth * device.efficiency.memory)
    if kind == "memory":
        return moving
    return max(_over(flops, device.peak(dtype) * device.efficiency.compute), moving)


def _over(amount: int, rate: float) -> float:
    """Amount / rate, where both a huge amount and a rate that is rounded to 0 give infinity."""
    try:
        return amount / rate
    except (OverflowError, ZeroDivisionError):
        return inf


def nanoseconds(seconds: float) -> int:
    """Seconds as the integer nanoseconds that graphs hold: nearest, halves to even, at least 1.

    Raises
    ------
    ValueError
        The time is negative or not finite.
    """
    if not isfinite(seconds) or seconds < 0:
        raise ValueError(f"a duration of {seconds} s")
    return max(1, round(seconds * NS_PER_S))
