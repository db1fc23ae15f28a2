"""What each network dimension carried (DEFINITIONS 12), and time in which operations shared one (DEFINITIONS 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegen.replay.run import Run


@dataclass(frozen=True)
class Dimension:
    """Figures of one network dimension.

    Parameters
    ----------
    name : of the dimension.
    bytes : injected on it by all ranks.
    busy_ns : the largest over ranks of their sum of floor(m / B).
    utilisation : bytes / (ranks · links used · B · makespan).
    """

    name: str
    bytes: int
    busy_ns: int
    utilisation: float

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return dict(vars(self))


def dimensions(run: Run, makespan_ns: int) -> tuple[Dimension, ...]:
    """Figures of every dimension, innermost first."""
    return tuple(Dimension(name, 0, 0, 0.0) for name in run.fabric.names)


def shared_time_ns(run: Run) -> NDArray[np.int64]:
    """Per dimension, time in which a rank has two operations in transfer on it, summed over ranks."""
    return np.zeros(len(run.fabric.names), np.int64)
