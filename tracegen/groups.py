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
    """A number for every group, ascending from 1, kind after kind.

    A number is left out where it would equal, modulo 500, that of an earlier group with which its group shares two
    ranks. Groups of one kind share none.
    """
    numbers: list[list[int]] = []
    following = 1
    for i, kind in enumerate(kinds):
        row_of = placement.group_of(kind)
        taken: dict[int, set[int]] = {}
        for earlier, theirs in zip(kinds[:i], numbers, strict=True):
            for row, other in _close(row_of, placement.group_of(earlier)):
                taken.setdefault(row, set()).add(theirs[other] % TAG_SPACE)
        mine = []
        for row in range(len(placement.groups(kind))):
            while following % TAG_SPACE in taken.get(row, ()):
                following += 1
            mine.append(following)
            following += 1
        numbers.append(mine)
    return np.array([number for each in numbers for number in each], np.int64)


def _close(one: NDArray[np.int32], other: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Rows of two kinds that share two ranks or more."""
    both = (one >= 0) & (other >= 0)
    width = int(other.max(initial=0)) + 1
    pairs, shared = np.unique(one[both].astype(np.int64) * width + other[both], return_counts=True)
    return [divmod(pair, width) for pair in pairs[shared > 1].tolist()]


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
