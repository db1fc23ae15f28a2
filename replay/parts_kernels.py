"""The walk of DEFINITIONS 9-10 over one rank's replayed nodes. Nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.compiled import kernel


@kernel
def held_by(
    node: np.int64,
    ids: NDArray[np.uint64],
    data_ptr: NDArray[np.int64],
    data_deps: NDArray[np.int32],
    ctrl_ptr: NDArray[np.int64],
    ctrl_deps: NDArray[np.int32],
    ready: NDArray[np.int64],
    issue: NDArray[np.int64],
    end: NDArray[np.int64],
    ahead: NDArray[np.int32],
) -> np.int64:
    """What a node waited for: the operation it queued behind, else its predecessor that finished last; -1 nothing."""
    if issue[node] > ready[node] and ahead[node] >= 0:
        return np.int64(ahead[node])
    best = np.int64(-1)
    for edge in range(data_ptr[node], data_ptr[node + 1]):
        other = np.int64(data_deps[edge])
        if best < 0 or end[other] > end[best] or (end[other] == end[best] and ids[other] < ids[best]):
            best = other
    for edge in range(ctrl_ptr[node], ctrl_ptr[node + 1]):
        other = np.int64(ctrl_deps[edge])
        if best < 0 or end[other] > end[best] or (end[other] == end[best] and ids[other] < ids[best]):
            best = other
    return best


@kernel
def cut_gaps(
    compute: NDArray[np.int64],
    last: int,
    ids: NDArray[np.uint64],
    data_ptr: NDArray[np.int64],
    data_deps: NDArray[np.int32],
    ctrl_ptr: NDArray[np.int64],
    ctrl_deps: NDArray[np.int32],
    ready: NDArray[np.int64],
    issue: NDArray[np.int64],
    transfer: NDArray[np.int64],
    end: NDArray[np.int64],
    ahead: NDArray[np.int32],
    label: NDArray[np.int64],
    bubbles: NDArray[np.bool_],
    totals: NDArray[np.int64],
) -> None:
    """Add a rank's time up to its finish to ``totals``: [compute, bubble, idle, exposed to label 0, 1, ...].

    ``compute`` holds the positions of the compute stream's nodes in the order they ran, ``last`` the position of the
    node that finished last (-1 none). ``label`` is -1 for nodes that are no communication; ``bubbles`` says whether
    time a node waits for its partner is bubble.
    """
    low = np.int64(0)  # everything before is accounted for
    count = len(compute)
    for gap in range(count + 1):
        if gap < count:
            t = issue[compute[gap]]
            high = end[compute[gap]]
            node = np.int64(-1)
            if t > low:
                node = np.int64(
                    held_by(compute[gap], ids, data_ptr, data_deps, ctrl_ptr, ctrl_deps, ready, issue, end, ahead)
                )
            totals[0] += max(high - max(t, low), 0)
        elif last >= 0:
            node = np.int64(last)
            t = end[node]
            high = t
        else:
            break
        while t > low:
            if node < 0:
                totals[2] += t - low
                break
            edge = min(t, max(end[node], low))
            totals[2] += t - edge
            t = edge
            if label[node] >= 0:
                edge = min(t, max(transfer[node], low))
                totals[3 + label[node]] += t - edge
                t = edge
            edge = min(t, max(issue[node], low))
            if bubbles[node]:
                totals[1] += t - edge
            else:
                totals[2] += t - edge
            t = edge
            if t > low:
                node = np.int64(held_by(node, ids, data_ptr, data_deps, ctrl_ptr, ctrl_deps, ready, issue, end, ahead))
        low = max(low, high)
