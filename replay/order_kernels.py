"""A topological sweep over dependencies in CSR. Nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.compiled import kernel


@kernel
def use_up(succ_ptr: NDArray[np.int64], succ: NDArray[np.int32], waits: NDArray[np.int32]) -> None:
    """Count down ``waits``, the open dependencies of each node, as far as they can be met; what can run ends at 0."""
    stack = np.empty(len(waits), np.int32)
    top = 0
    for node in range(len(waits)):
        if waits[node] == 0:
            stack[top] = node
            top += 1
    while top > 0:
        top -= 1
        node = stack[top]
        for edge in range(succ_ptr[node], succ_ptr[node + 1]):
            other = succ[edge]
            waits[other] -= 1
            if waits[other] == 0:
                stack[top] = other
                top += 1
