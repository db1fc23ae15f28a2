"""Compiled loops over one graph's nodes: reversed edges, stream order, counts on a slot. Plain arrays in and out."""

from typing import Any

import numpy as np

from tracegen.proto.compiled import kernel


@kernel
def reverse(
    data_ptr: Any, data_deps: Any, ctrl_ptr: Any, ctrl_deps: Any, succ_ptr: Any, succ: Any, indegree: Any
) -> None:
    """Successors in CSR and indegrees of the union of two dependency CSRs; an edge in both counts once."""
    n = len(data_ptr) - 1
    seen = np.full(n, -1, np.int64)
    for pass_ in range(2):
        for v in range(n):
            for e in range(data_ptr[v], data_ptr[v + 1]):
                u = data_deps[e]
                if seen[u] != v + pass_ * n:
                    seen[u] = v + pass_ * n
                    if pass_ == 0:
                        succ_ptr[u + 1] += 1
                        indegree[v] += 1
                    else:
                        succ[succ_ptr[u]] = v
                        succ_ptr[u] += 1
            for e in range(ctrl_ptr[v], ctrl_ptr[v + 1]):
                u = ctrl_deps[e]
                if seen[u] != v + pass_ * n:
                    seen[u] = v + pass_ * n
                    if pass_ == 0:
                        succ_ptr[u + 1] += 1
                        indegree[v] += 1
                    else:
                        succ[succ_ptr[u]] = v
                        succ_ptr[u] += 1
        if pass_ == 0:
            for u in range(n):
                succ_ptr[u + 1] += succ_ptr[u]
    for u in range(n, 0, -1):
        succ_ptr[u] = succ_ptr[u - 1]
    succ_ptr[0] = 0


@kernel
def chain(key: Any, keys: Any, before: Any, after: Any, ordinal: Any) -> None:
    """Nodes of equal key one after the other: the one before, the one after (-1 none), and how many came before."""
    last = np.full(keys, -1, np.int32)
    count = np.zeros(keys, np.int32)
    for v in range(len(key)):
        k = key[v]
        if k >= 0:
            before[v] = last[k]
            if last[k] >= 0:
                after[last[k]] = v
            last[k] = v
            ordinal[v] = count[k]
            count[k] += 1
