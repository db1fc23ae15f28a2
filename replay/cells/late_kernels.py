"""Compiled search for the member of each collective that issued last. Plain arrays in and out."""

from typing import Any

import numpy as np

from tracegen.proto.compiled import kernel


@kernel
def last_members(
    pool_of_instance: Any,
    member_ptr: Any,
    members: Any,
    shared: Any,
    pair_ptr: Any,
    row_of: Any,
    row_ptr: Any,
    lowest: Any,
    issue: Any,
    late: Any,
) -> None:
    """``late[v]`` = the lowest rank of the pairs that issued last in v's instance, among the ranks of v's own group.

    ``lowest[row_ptr[row] + pair]`` is the lowest rank of a pair in the group of a (cell, slot) row; ``row_of[pair]``
    names the row of each pair of each pool. Where all rows of a pool are one group, one search serves all.
    """
    for i in range(len(pool_of_instance)):
        first, stop = member_ptr[i], member_ptr[i + 1]
        latest = np.int64(-1)
        complete = True
        for e in range(first, stop):
            if members[e] < 0 or issue[members[e]] < 0:
                complete = False
            else:
                latest = max(latest, issue[members[e]])
        if not complete:
            continue
        pool = pool_of_instance[i]
        found = np.int32(-1)
        for e in range(first, stop):
            if e == first or not shared[pool]:
                row = row_of[pair_ptr[pool] + e - first]
                found = np.int32(-1)
                for f in range(first, stop):
                    if issue[members[f]] == latest:
                        rank = lowest[row_ptr[row] + f - first]
                        if found < 0 or rank < found:
                            found = rank
            late[members[e]] = found
