"""Granularity ``block``: the compute operators between two communications become one node. One array operation.

A block begins at a compute node that waits for a communication, behind one that a communication waits for, and where
the microbatch or the direction changes (so that provenance stays true). Whatever waited for an operator inside a block
waited for its last, so no time changes: a block takes the sum of its operators' nanoseconds (DEFINITIONS 7).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracegen.patterns import COLUMNS, Edges, Pattern
from tracegen.proto.errors import InputError
from tracegen.proto.graph import Phase

LARGEST = 2.0**63  # what a column of int64 cannot hold any more


def merge_blocks(whole: Pattern, operators: Sequence[str]) -> tuple[Pattern, list[str]]:
    """A rank's nodes with runs of compute merged, and the names of operators and blocks.

    A block has the layer, phase and microbatch of its first operator, and both its first and its last operator's name.
    """
    size = len(whole)
    compute = np.flatnonzero(whole.compute)
    starts = compute[_begins(whole, compute)]
    keep = ~whole.compute
    keep[starts] = True
    kept = np.flatnonzero(keep)
    block_of = np.searchsorted(starts, np.arange(size), side="right") - 1
    head = np.where(whole.compute, starts[block_of] if len(starts) else 0, np.arange(size))
    moved = np.cumsum(keep) - 1
    columns = {name: getattr(whole, name)[kept] for name in COLUMNS}
    if len(starts):
        at = moved[starts]
        first_of = np.searchsorted(compute, starts)
        for name in ("duration_ns", "flops", "mem_bytes", "parameters"):
            column = getattr(whole, name)[compute]
            _refuse_too_large(name, np.add.reduceat(column.astype(np.float64), first_of))
            columns[name][at] = np.add.reduceat(column, first_of)
        last = compute[np.append(first_of[1:], len(compute)) - 1]
        columns["operator"][at], names = _block_names(whole.operator[starts], whole.operator[last], operators)
    else:
        names = list(operators)
    old = whole.edges.known()
    to, source = moved[head[old.to]], moved[head[old.source]]
    across = to != source
    return Pattern(**columns, edges=Edges.unique(to[across], source[across], old.order[across])), names


def _refuse_too_large(name: str, sums: NDArray[np.float64]) -> None:
    """Refuse blocks whose sums int64 cannot hold."""
    if (largest := sums.max(initial=0)) >= LARGEST:
        raise InputError(
            f"workload.granularity block: a block has {largest:.3g} of {name}, a trace holds at most {LARGEST:.3g}; "
            "use granularity operator, or a lower micro_batch"
        )


def _begins(whole: Pattern, compute: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[compute nodes]: where a block begins."""
    edges = whole.edges.known()
    to, source = edges.to, edges.source
    waits, waited_for = np.zeros(len(whole), np.bool_), np.zeros(len(whole), np.bool_)
    waits[to[~whole.compute[source]]] = True
    waited_for[source[~whole.compute[to]]] = True
    direction = np.select([whole.phase == Phase.F, whole.phase == Phase.R], [0, 1], 2)
    begins = np.ones(len(compute), np.bool_)
    here, before = compute[1:], compute[:-1]
    begins[1:] = (
        waits[here]
        | waited_for[before]
        | (whole.microbatch[here] != whole.microbatch[before])
        | (direction[here] != direction[before])
    )
    return begins


def _block_names(
    first: NDArray[np.int32], last: NDArray[np.int32], operators: Sequence[str]
) -> tuple[NDArray[np.int32], list[str]]:
    """The operator index of every block, and all names."""
    pairs, which = np.unique(first.astype(np.int64) * len(operators) + last, return_inverse=True)
    names = list(operators)
    index = np.empty(len(pairs), np.int32)
    for i, (start, end) in enumerate(zip(*divmod(pairs, len(operators)), strict=True)):
        if start == end:
            index[i] = start
        else:
            index[i] = len(names)
            names.append(f"{operators[start]}..{operators[end]}")
    return index[which], names
