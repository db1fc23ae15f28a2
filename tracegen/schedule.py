"""In which order a stage runs the forward and backward passes of its microbatches. No time, no ranks, no operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Direction = Literal["F", "B"]
Order = list[tuple[Direction, int]]


def gpipe(stages: int, microbatches: int, stage: int) -> Order:
    """All forward passes, then all backward passes (Huang et al., "GPipe", NeurIPS 2019)."""
    return [("F", i) for i in range(microbatches)] + [("B", i) for i in range(microbatches)]


def one_forward_one_backward(stages: int, microbatches: int, stage: int) -> Order:
    """A forward pass for each stage behind, then one forward and one backward in turn, then what is left.

    PipeDream-Flush (Narayanan et al., ICML 2021). At most min(m, p - s) microbatches of a stage are in flight.
    """
    ahead = min(microbatches, stages - 1 - stage)
    order: Order = [("F", i) for i in range(ahead)]
    for i in range(microbatches - ahead):
        order += [("F", ahead + i), ("B", i)]
    return order + [("B", i) for i in range(microbatches - ahead, microbatches)]


SCHEDULES: dict[str, Callable[[int, int, int], Order]] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def schedule(kind: str, stages: int, microbatches: int, stage: int) -> Order:
    """The passes of one stage, in order: ("F" or "B", microbatch).

    Parameters
    ----------
    kind : ``gpipe`` or ``1f1b``.
    stages, microbatches : both 1 or more. stage : from 0.

    Raises
    ------
    KeyError
        A kind whose order is not known.
    """
    return SCHEDULES[kind](stages, microbatches, stage)
