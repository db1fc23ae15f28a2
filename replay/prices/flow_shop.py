"""Chunks of a collective through FIFO stations of several servers. Knows no bytes; both executions use it.

Constant service times; a chunk that leaves a station is first appended to its next one, then the old station starts
its next chunk, then the new one is tried (astra_sim_semantics 6 and 10.7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple


class Visit(NamedTuple):
    """A chunk's stay: at which station, for how many ns, and how many ns before its end its last internal event is
    set, which decides between ends at the same tick."""

    station: int
    ns: int
    lag: int


def flow_shop(chunks: Sequence[Sequence[Visit]], servers: int) -> int:
    """When the last chunk has made all its visits, ns from the common start.

    Parameters
    ----------
    chunks : visits of each chunk, in order; all chunks stand in their first queue at 0, in this order.
    servers : chunks each station serves at once.
    """
    first = chunks[0]
    if len(first) == 1 and all(visits is first for visits in chunks):
        return -(-len(chunks) // servers) * first[0].ns
    waiting: dict[int, deque[int]] = {visit.station: deque() for visits in chunks for visit in visits}
    free = dict.fromkeys(waiting, servers)
    at = [0] * len(chunks)
    ends: list[tuple[int, int, int, int]] = []
    started = 0

    def start(station: int, now: int) -> None:
        nonlocal started
        while free[station] and waiting[station]:
            chunk = waiting[station].popleft()
            visit = chunks[chunk][at[chunk]]
            free[station] -= 1
            heappush(ends, (now + visit.ns, now + visit.ns - visit.lag, started, chunk))
            started += 1

    for chunk, visits in enumerate(chunks):
        waiting[visits[0].station].append(chunk)
    for station in waiting:
        start(station, 0)
    now = 0
    while ends:
        now, _, _, chunk = heappop(ends)
        old = chunks[chunk][at[chunk]].station
        free[old] += 1
        at[chunk] += 1
        if at[chunk] < len(chunks[chunk]):
            waiting[chunks[chunk][at[chunk]].station].append(chunk)
        start(old, now)
        if at[chunk] < len(chunks[chunk]):
            start(chunks[chunk][at[chunk]].station, now)
    return now
