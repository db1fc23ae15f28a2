"""What messages sent at once put on ports and links, and so how long each takes (DEFINITIONS 3-5). Knows no collective.

A switch port belongs to a rank and a dimension: all that the rank sends over the dimension leaves through its up port,
all that it receives comes through its down port. A link of a pair (fully connected) or of neighbours (ring) carries
whatever passes it, also for others; routes take their dimensions in ascending order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracegen.replay.fabric import FULLY_CONNECTED, RING, Fabric
from tracegen.replay.prices.routes import hops

Ranks = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Use:
    """What one collective does to one dimension.

    Parameters
    ----------
    nbytes : bytes a member injects on it (the mean over members where they differ).
    busy_ns : sum over the busiest member's messages of floor(bytes / bandwidth).
    links : links of a member used at once.
    """

    nbytes: float = 0.0
    busy_ns: int = 0
    links: int = 1

    def and_then(self, other: Use, times: int = 1) -> Use:
        """Both uses, the other one ``times`` times."""
        return Use(
            self.nbytes + times * other.nbytes, self.busy_ns + times * other.busy_ns, max(self.links, other.links)
        )


Uses = tuple[tuple[int, Use], ...]


class Sent(NamedTuple):
    """Messages on one dimension: how many a member sends (mean, most), and links of a member used at once."""

    dim: int
    mean: float
    most: int
    links: int


@dataclass(frozen=True, eq=False)
class Crossing:
    """Equal messages sent at once.

    Parameters
    ----------
    latency : f64[messages], ns of all links on the way.
    load, rate : f64[messages]: messages that the slowest port or link on the way carries, and its bytes per ns.
    sent : of each dimension.
    bandwidth : bytes per ns of every dimension.
    """

    latency: Floats
    load: Floats
    rate: Floats
    sent: tuple[Sent, ...]
    bandwidth: tuple[float, ...]

    def ns(self, nbytes: float) -> int:
        """Until the slowest message of ``nbytes`` has arrived: floor(latency + load bytes / rate)."""
        return int(np.floor(self.latency + self.load * nbytes / self.rate).max())

    def uses(self, nbytes: float) -> Uses:
        """What messages of ``nbytes`` put on each dimension."""
        return tuple(
            (d, Use(nbytes * mean, most * floor(nbytes / self.bandwidth[d]), links))
            for d, mean, most, links in self.sent
        )


def on_dimension(fabric: Fabric, d: int, members: Ranks, src: Ranks, dst: Ranks, *, both_ways: bool) -> Crossing:
    """Messages between coordinates of one line of dimension ``d``.

    Parameters
    ----------
    members : coordinates, in the order of the group.
    src, dst : i64[messages], places in ``members``; no message to itself.
    both_ways : a message to the opposite point of a ring goes half each way, else towards increasing coordinates.
    """
    n = fabric.size[d]
    a, b = members[src], members[dst]
    leaving = np.bincount(a, minlength=n)
    most = int(leaving.max())
    if fabric.topology[d] == RING:
        load, links = ring_load(n, a, b, both_ways=both_ways)
    elif fabric.topology[d] == FULLY_CONNECTED:
        pairs = np.bincount(a * n + b, minlength=n * n)
        load, links = pairs[a * n + b].astype(float), int((pairs.reshape(n, n) > 0).sum(axis=1).max())
    else:
        load, links = np.maximum(leaving[a], np.bincount(b, minlength=n)[b]).astype(float), 1
    rate = np.full(len(a), fabric.bandwidth[d])
    sent = (Sent(d, len(a) / len(members), most, links),)
    latency = np.asarray(hops(fabric, d, a, b) * fabric.latency[d], np.float64)
    return Crossing(latency, load, rate, sent, fabric.bandwidth)


def across(fabric: Fabric, members: Ranks, src: Ranks, dst: Ranks, *, both_ways: bool) -> Crossing:
    """Messages between ranks, over whatever dimensions lie between them; parameters as of `on_dimension`, for ranks."""
    a, b = members[src], members[dst]
    latency, load, rate = np.zeros(len(a)), np.ones(len(a)), np.full(len(a), np.inf)
    sent = []
    stride = 1
    for d, n in enumerate(fabric.size):
        here, there = a // stride % n, b // stride % n
        hit = np.flatnonzero(here != there)
        # On its way along this dimension a message is where it goes in the dimensions before, where it comes from in
        # those after: that is the line of ranks whose links it takes.
        line = b % stride + a // (stride * n) * stride
        stride *= n
        if not len(hit):
            continue
        latency += hops(fabric, d, here, there) * fabric.latency[d]
        on, links = _loads(fabric, d, (a[hit], b[hit]), (here[hit], there[hit]), line[hit], both_ways=both_ways)
        slower = on / fabric.bandwidth[d] > load[hit] / rate[hit]
        load[hit[slower]], rate[hit[slower]] = on[slower], fabric.bandwidth[d]
        most = int(np.bincount(src[hit]).max())
        sent.append(Sent(d, len(hit) / len(members), most, links))
    return Crossing(latency, load, rate, tuple(sent), fabric.bandwidth)


def _loads(
    fabric: Fabric, d: int, ends: tuple[Ranks, Ranks], at: tuple[Ranks, Ranks], line: Ranks, *, both_ways: bool
) -> tuple[Floats, int]:
    """Load of each message that crosses dimension ``d``, and links used by the member that uses most."""
    n = fabric.size[d]
    if fabric.topology[d] == RING:
        load = np.ones(len(line))
        for one in np.unique(line):
            on = np.flatnonzero(line == one)
            load[on] = ring_load(n, at[0][on], at[1][on], both_ways=both_ways)[0]
        ahead = (at[1] - at[0]) % n
        forward = 2 * ahead <= n
        back = 2 * ahead >= n if both_ways else ~forward
        first = 2 * line  # the links that a rank's messages leave by: a line of ranks, and a direction on it
        taken = [ends[0][on] * (2 * fabric.ranks) + first[on] + way for way, on in enumerate((forward, back))]
        return load, _most_links(np.concatenate(taken), 2 * fabric.ranks)
    if fabric.topology[d] == FULLY_CONNECTED:
        pairs = _times_seen((line * n + at[0]) * n + at[1])
        return pairs.astype(float), _most_links((ends[0] * fabric.ranks + line) * n + at[1], fabric.ranks * n)
    return np.maximum(_times_seen(ends[0]), _times_seen(ends[1])).astype(float), 1


def _most_links(taken: NDArray[np.int64], links: int) -> int:
    """Most different links of one rank; ``taken`` are rank x links + link, once per message."""
    return int(_times_seen(np.unique(taken) // links).max())


def _times_seen(keys: NDArray[Any]) -> NDArray[np.int64]:
    """Of each key, how often it occurs."""
    _, number, count = np.unique(keys, return_inverse=True, return_counts=True)
    seen: NDArray[np.int64] = count[number.reshape(-1)]
    return seen


def ring_load(n: int, src: Ranks, dst: Ranks, *, both_ways: bool) -> tuple[Floats, int]:
    """Per message, the messages its busiest directed link carries; and links used by the busiest member.

    A message takes the shorter way; to the opposite point of the ring half of it goes each way where ``both_ways``,
    else all of it towards increasing coordinates.
    """
    ahead = (dst - src) % n
    worst = np.zeros(len(src))
    leaving = np.zeros((2, n), np.int64)
    for direction, steps in enumerate((ahead, n - ahead)):
        ways = np.flatnonzero(2 * steps <= n if both_ways or direction == 0 else 2 * steps < n)
        weight = np.where(2 * steps[ways] == n, 0.5, 1.0) if both_ways else np.ones(len(ways))
        # Links are numbered by where they start, counted in the direction of travel.
        start = src[ways] if direction == 0 else (n - src[ways]) % n
        leaving[direction] = np.bincount(src[ways], minlength=n)
        turns = np.zeros(2 * n + 1)
        np.add.at(turns, start, weight)
        np.add.at(turns, start + steps[ways], -weight)
        passing = np.cumsum(turns)[: 2 * n]
        load = passing[:n] + passing[n:]
        if len(ways) and np.ptp(load) == 0:
            busiest = np.full(len(ways), load[0])
        else:
            twice = np.concatenate([load, load])
            busiest = np.array([twice[a : a + k].max() for a, k in zip(start, steps[ways], strict=True)])
        worst[ways] = np.maximum(worst[ways], busiest)
    return worst, int((leaving > 0).sum(axis=0).max())
