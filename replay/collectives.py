"""How long a collective takes under execution `streams`, and what it puts on each dimension (DEFINITIONS 3-5, 14).

A group that is the full product of its coordinates runs dimension by dimension, its chunks as a flow shop; any other
group is one flat ring in list order. One function, `exchange`, prices a step in which every pair of a set sends one
message at once, with every port and every directed ring link within its bandwidth; all algorithms are built on it.
Execution `astra` has its own rules in `astra_collectives.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, prod

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.fabric import FULLY_CONNECTED, RING, Algorithm, Fabric, coordinates
from tracegen.replay.flow_shop import Visit, flow_shop
from tracegen.replay.routes import hops, routes

Ranks = NDArray[np.int64]
_SCATTERING = (Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK)


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


@dataclass(frozen=True)
class Cost:
    """Duration of a collective and what it puts on the network.

    Parameters
    ----------
    duration_ns : from the last member's issue to the end.
    uses : of each dimension, alike for all members.
    edge_messages, edge_bytes : messages each member sends to the one after it in list order, over whatever dimensions
        lie between the two, and the bytes of each.
    """

    duration_ns: int
    uses: tuple[tuple[int, Use], ...] = ()
    edge_messages: int = 0
    edge_bytes: float = 0.0


@dataclass(frozen=True)
class Shape:
    """A group's geometry: its coordinates per dimension in order of appearance, and whether it is their product."""

    ranks: tuple[int, ...]
    coordinates: tuple[tuple[int, ...], ...]
    product: bool

    @classmethod
    def of(cls, size: tuple[int, ...], ranks: tuple[int, ...]) -> Shape:
        """The shape of these ranks on dimensions of these sizes."""
        table = _coordinates(size, ranks)
        appearing = tuple(tuple(dict.fromkeys(table[:, d].tolist())) for d in range(len(size)))
        return cls(ranks, appearing, prod(len(values) for values in appearing) == len(ranks))


def _coordinates(size: tuple[int, ...], ranks: tuple[int, ...]) -> NDArray[np.int32]:
    return coordinates(size)[np.array(ranks, np.int64)] if size else np.zeros((len(ranks), 0), np.int32)


def duration(fabric: Fabric, shape: Shape, kind: int, nbytes: int) -> Cost:
    """Time of a collective from its last member's issue to the end on all members, and its use of dimensions.

    Parameters
    ----------
    nbytes : the full buffer for all-reduce, reduce-scatter, all-to-all, broadcast, reduce and scatter; what each rank
        contributes for all-gather and gather; a barrier moves none.

    Raises
    ------
    InputError
        An algorithm that cannot run on this many members, or has no `streams` form.
    """
    n = len(shape.ranks)
    if n == 1:
        return Cost(0)
    if kind == Collective.BARRIER:
        nbytes = 0
    if kind in (Collective.BROADCAST, Collective.REDUCE):
        return _pipeline(fabric, shape, nbytes)
    if kind in (Collective.GATHER, Collective.SCATTER):
        return _rooted(fabric, shape, nbytes if kind == Collective.GATHER else nbytes / n)
    chunks = max(1, min(fabric.splits, nbytes))
    share = min(fabric.active, chunks)
    if not shape.product:
        steps, message, step_ns = _flat_ring(fabric, shape, kind, nbytes / chunks, share)
        rounds = -(-chunks // fabric.active)
        return Cost(rounds * steps * step_ns, edge_messages=steps * chunks, edge_bytes=message)
    phases = _hierarchy(fabric, shape, kind, nbytes / chunks, share)
    visits = [Visit(phase.station, phase.ns, phase.ns) for phase in phases]
    totals: dict[int, Use] = {}
    for phase in phases:
        for d, use in phase.uses:
            totals[d] = totals.get(d, Use()).and_then(use, chunks)
    return Cost(flow_shop([visits] * chunks, fabric.active), tuple(sorted(totals.items())))


@dataclass(frozen=True)
class _Phase:
    """One chunk's stay at one station."""

    station: int
    ns: int
    uses: tuple[tuple[int, Use], ...]


def _hierarchy(fabric: Fabric, shape: Shape, kind: int, chunk: float, share: int) -> list[_Phase]:
    """Phases of one chunk over the dimensions the group spans, in the order of DEFINITIONS 5."""
    crossed = [d for d, values in enumerate(shape.coordinates) if len(values) > 1]
    algorithms = fabric.algorithm(kind)
    if len(algorithms) != fabric.dimensions:
        raise InputError(f"no algorithm per dimension is given for {Collective(kind).name}; give {fabric.dimensions}")
    carried = chunk

    def phase(d: int, part: Collective) -> _Phase:
        nonlocal carried
        members = np.array(shape.coordinates[d], np.int64)
        if part == Collective.REDUCE_SCATTER:
            carried /= len(members)
        size = carried * len(members) if part == Collective.REDUCE_SCATTER else carried
        out = _phase(fabric, d, members, algorithms[d], part, size, share)
        if part == Collective.ALL_GATHER:
            carried *= len(members)
        return out

    if kind in _SCATTERING:
        return [phase(d, Collective.REDUCE_SCATTER) for d in crossed]
    if kind == Collective.ALL_TO_ALL:
        return [phase(d, Collective.ALL_TO_ALL) for d in crossed]
    if kind == Collective.ALL_GATHER:
        return [phase(d, Collective.ALL_GATHER) for d in reversed(crossed)]
    inner = [phase(d, Collective.REDUCE_SCATTER) for d in crossed[:-1]]
    outer = phase(crossed[-1], Collective.ALL_REDUCE)
    return [*inner, outer, *(phase(d, Collective.ALL_GATHER) for d in reversed(crossed[:-1]))]


def _phase(
    fabric: Fabric, d: int, members: Ranks, algorithm: Algorithm, part: Collective, size: float, share: int
) -> _Phase:
    """One chunk of ``size`` bytes (all-gather: a member's part) through one dimension."""
    n = len(members)
    ns, use = 0, Use()
    for times, src, dst, nbytes in _steps(algorithm, n, part, size):
        step, step_use = exchange(
            fabric, d, members[src], members[dst], nbytes, share, both_ways=algorithm.name == "direct"
        )
        ns += times * (step + fabric.endpoint_delay_ns)
        use = use.and_then(step_use, times)
    return _Phase(d, ns, ((d, use),))


def _steps(algorithm: Algorithm, n: int, part: Collective, size: float) -> list[tuple[int, Ranks, Ranks, float]]:
    """Steps of an algorithm among n members: (how often, senders, receivers, bytes of each message)."""
    at = np.arange(n)
    message = size if part == Collective.ALL_GATHER else size / n
    twice = 2 if part == Collective.ALL_REDUCE else 1
    if algorithm.name == "ring":
        times = n * (n - 1) // 2 if part == Collective.ALL_TO_ALL else twice * (n - 1)
        return [(times, at, (at + 1) % n, message)]
    if algorithm.name == "direct":
        src, dst = np.divmod(np.arange(n * n), n)
        apart = src != dst
        return [(twice, src[apart], dst[apart], message)]
    if algorithm.name == "halving_doubling":
        if n & (n - 1):
            raise InputError(
                f"halving_doubling needs a power of two of members; a group spans {n} (use ring or direct)"
            )
        if part == Collective.ALL_TO_ALL:
            raise InputError("halving_doubling has no all-to-all; use ring or direct")
        levels = n.bit_length() - 1
        whole = size * n if part == Collective.ALL_GATHER else size
        halving = [(twice, at, at ^ (1 << k), whole / 2 ** (k + 1)) for k in range(levels)]
        return halving
    raise InputError(f"{algorithm.name} is not available under execution streams; use ring, direct or halving_doubling")


def exchange(
    fabric: Fabric, d: int, src: Ranks, dst: Ranks, nbytes: float, share: int, *, both_ways: bool
) -> tuple[int, Use]:
    """One step on dimension ``d``: every pair sends ``nbytes`` at once, ``share`` chunks share each port.

    Each message takes floor(h latency + load bytes / B), where load counts the messages (times ``share``) that its most
    loaded port or link carries; the step is as slow as its slowest message. On a switch the ports are the members' up
    and down links; on a ring every directed link on the way. A message to the opposite point of a ring goes half each
    way where ``both_ways``, else towards increasing coordinates.

    Returns
    -------
    ns : of the step. use : bytes, busy time and links of the busiest member.
    """
    n, rate, latency = fabric.size[d], fabric.bandwidth[d], fabric.latency[d]
    links = hops(fabric, d, src, dst)
    sends = np.bincount(src, minlength=n)
    most = int(sends.max())
    if fabric.topology[d] == RING:
        load, used = _ring_load(n, src, dst, both_ways)
    elif fabric.topology[d] == FULLY_CONNECTED:
        load, used = np.ones(len(src)), most
    else:
        load, used = np.maximum(sends[src], np.bincount(dst, minlength=n)[dst]).astype(float), 1
    ns = int(np.floor(links * latency + load * (nbytes * share) / rate).max())
    return ns, Use(nbytes * most, most * floor(nbytes / rate), used)


def _ring_load(n: int, src: Ranks, dst: Ranks, both_ways: bool) -> tuple[NDArray[np.float64], int]:
    """Per message, the messages its busiest directed link carries; and links used by the busiest member."""
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


def _flat_ring(fabric: Fabric, shape: Shape, kind: int, chunk: float, share: int) -> tuple[int, float, int]:
    """One chunk around the members in list order: steps, bytes of a message, ns of a step (its slowest edge's)."""
    n = len(shape.ranks)
    src = np.array(shape.ranks, np.int64)
    edges = routes(fabric, src, np.roll(src, -1), lowest_only=False)
    message = chunk if kind == Collective.ALL_GATHER else chunk / n
    if kind == Collective.ALL_TO_ALL:
        steps = n * (n - 1) // 2
    else:
        steps = (2 if kind in (Collective.ALL_REDUCE, Collective.BARRIER) else 1) * (n - 1)
    transit = _transit(fabric, src, np.roll(src, -1))
    ns = int(np.floor(edges.latency + message * share * transit).max()) + fabric.endpoint_delay_ns
    return steps, message, ns


def _transit(fabric: Fabric, src: Ranks, dst: Ranks) -> NDArray[np.float64]:
    """Per edge, the largest over its dimensions of (edges on its busiest directed ring link) / bandwidth, ns per byte.

    A route takes its dimensions in ascending order; only links of ring dimensions carry transit.
    """
    worst = np.zeros(len(src))
    place = np.zeros(len(src), np.int64)  # the ring an edge travels on: coordinates of the other dimensions
    a, b = _coordinates(fabric.size, tuple(src.tolist())), _coordinates(fabric.size, tuple(dst.tolist()))
    for d, n in enumerate(fabric.size):
        crossing = np.flatnonzero(a[:, d] != b[:, d])
        load = np.ones(len(crossing))
        if fabric.topology[d] == RING and len(crossing):
            place = np.zeros(len(src), np.int64)
            for other, count in enumerate(fabric.size):
                if other != d:
                    place = place * count + (b if other < d else a)[:, other]
            for ring in np.unique(place[crossing]):
                on = np.flatnonzero(place[crossing] == ring)
                src_at, dst_at = (x[crossing[on], d].astype(np.int64) for x in (a, b))
                load[on] = _ring_load(n, src_at, dst_at, both_ways=False)[0]
        worst[crossing] = np.maximum(worst[crossing], load / fabric.bandwidth[d])
    return worst


def _pipeline(fabric: Fabric, shape: Shape, nbytes: float) -> Cost:
    """Broadcast or reduce: a pipelined ring, m/B plus the latency and endpoint delay of n - 1 hops (DEFINITIONS 14)."""
    src = np.array(shape.ranks[:-1], np.int64)
    edges = routes(fabric, src, np.array(shape.ranks[1:], np.int64), lowest_only=False)
    ns = floor(float(edges.latency.sum()) + nbytes / float(edges.bandwidth.min()))
    return Cost(ns + len(src) * fabric.endpoint_delay_ns, edge_messages=1, edge_bytes=nbytes)


def _rooted(fabric: Fabric, shape: Shape, shard: float) -> Cost:
    """Gather or scatter: n - 1 messages of a shard through the first member's port."""
    n = len(shape.ranks)
    root = np.full(n - 1, shape.ranks[0], np.int64)
    edges = routes(fabric, root, np.array(shape.ranks[1:], np.int64), lowest_only=False)
    ns = floor(float(edges.latency.max()) + (n - 1) * shard / float(edges.bandwidth.min()))
    uses = []
    for d in range(fabric.dimensions):
        crossing = int((edges.dims >> d & 1).sum())
        if crossing:
            uses.append((d, Use(crossing * shard / n, crossing * floor(shard / fabric.bandwidth[d]))))
    return Cost(ns + fabric.endpoint_delay_ns, tuple(uses))
