"""The slots of a job's graphs: which group or peer each rank's communications name. Owns group numbers in files.

A slot stands for a group kind (its groups from `Placement`) or for a neighbour stage. Group numbers are small positive
whole numbers; ASTRA-sim takes tags modulo 500 groups, so two groups whose numbers are equal modulo 500 must not share
two ranks or more (facts of `check`'s rule on group ids).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracegen.placement import Placement
from tracegen.proto.graph import Groups

PEERS = {"next": 1, "previous": -1}
TAG_SPACE = 500  # group numbers equal modulo this share tags in ASTRA-sim


def group_table(placement: Placement, kinds: Sequence[str]) -> tuple[Groups, dict[str, int]]:
    """All groups of these kinds, labelled by kind, and the index of each kind's first."""
    rows = [placement.groups(kind) for kind in kinds]
    first = dict(zip(kinds, np.cumsum([0, *(len(each) for each in rows)]).tolist(), strict=False))
    labels = tuple(kind for kind, each in zip(kinds, rows, strict=True) for _ in each)
    sizes = [size for each in rows for size in [each.shape[1]] * len(each)]
    pointers = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=pointers[1:])
    members = np.concatenate([each.ravel() for each in rows] or [np.zeros(0, np.int32)]).astype(np.int32)
    return Groups(pointers, members, labels, group_numbers(placement, kinds)), first


def group_numbers(placement: Placement, kinds: Sequence[str]) -> NDArray[np.int64]:
    """A number for every group, from 1 up, kind after kind.

    A kind's numbers start a little higher where they would otherwise meet, modulo 500, an earlier group with which one
    of its groups shares two ranks.
    """
    taken: list[tuple[NDArray[np.int32], int]] = []
    numbers: list[NDArray[np.int64]] = []
    start = 1
    for kind in kinds:
        row_of = placement.group_of(kind)
        while any(_meets(row_of, start, other, other_start) for other, other_start in taken):
            start += 1
        taken.append((row_of, start))
        count = len(placement.groups(kind))
        numbers.append(np.arange(start, start + count))
        start += count
    return np.concatenate(numbers or [np.zeros(0, np.int64)]).astype(np.int64)


def _meets(one: NDArray[np.int32], start: int, other: NDArray[np.int32], other_start: int) -> bool:
    """Whether two kinds have groups that share two ranks and a number modulo 500."""
    both = (one >= 0) & (other >= 0)
    pairs, shared = np.unique(np.stack([one[both], other[both]]), axis=1, return_counts=True)
    close = pairs[:, shared > 1].astype(np.int64)
    return bool(((close[0] + start - close[1] - other_start) % TAG_SPACE == 0).any())


def slot_table(placement: Placement, slots: Sequence[str], first: dict[str, int]) -> NDArray[np.int32]:
    """i32[ranks, slots]: for a group kind the index of each rank's group, for a peer its rank; -1 for none."""
    table = np.full((placement.world, len(slots)), -1, np.int32)
    for i, slot in enumerate(slots):
        if slot in PEERS:
            table[:, i] = placement.peer(PEERS[slot])
        else:
            row = placement.group_of(slot)
            table[:, i] = np.where(row >= 0, row + first[slot], -1)
    return table
