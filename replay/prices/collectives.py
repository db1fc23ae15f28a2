"""How long a collective takes under execution `streams`, and what it puts on each dimension (DEFINITIONS 3-5, 14).

A group that is the full product of its coordinates runs dimension by dimension, its chunks as a flow shop; any other
group is one flat ring in list order; by a ``one*`` name every group is one flat list. `algorithms` has the steps of a
chunk, `ports` what they cross: no port and no directed ring link carries more than its bandwidth. Execution `astra` has
its own rules in `astra_collectives.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import floor, prod

import numpy as np

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.fabric import Algorithm, Fabric, coordinates
from tracegen.replay.prices.algorithms import Stay, stay, steps
from tracegen.replay.prices.flow_shop import Visit, flow_shop
from tracegen.replay.prices.ports import Use, Uses, across, on_dimension
from tracegen.replay.prices.routes import routes

_SCATTERING = (Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK)


@dataclass(frozen=True)
class Cost:
    """Duration of a collective and what it puts on the network.

    Parameters
    ----------
    duration_ns : from the last member's issue to the end.
    uses : of each dimension, alike for all members (means where they differ).
    edge_messages, edge_bytes : messages each member sends to the one after it in list order, over whatever dimensions
        lie between the two, and the bytes of each.
    closed : the last member sends to the first; else it sends nothing.
    """

    duration_ns: int
    uses: Uses = ()
    edge_messages: int = 0
    edge_bytes: float = 0.0
    closed: bool = True


@dataclass(frozen=True)
class Shape:
    """A group's geometry: its coordinates per dimension in order of appearance, and whether it is their product."""

    ranks: tuple[int, ...]
    coordinates: tuple[tuple[int, ...], ...]
    product: bool

    @classmethod
    def of(cls, size: tuple[int, ...], ranks: tuple[int, ...]) -> Shape:
        """The shape of these ranks on dimensions of these sizes."""
        table = coordinates(size)[np.array(ranks, np.int64)] if size else np.zeros((len(ranks), 0), np.int32)
        appearing = tuple(tuple(dict.fromkeys(table[:, d].tolist())) for d in range(len(size)))
        return cls(ranks, appearing, prod(len(values) for values in appearing) == len(ranks))


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
        return _pipeline(fabric, shape, nbytes, inward=kind == Collective.REDUCE)
    if kind in (Collective.GATHER, Collective.SCATTER):
        return _rooted(fabric, shape, nbytes if kind == Collective.GATHER else nbytes / n)
    chunks = max(1, min(fabric.splits, nbytes))
    algorithms = fabric.algorithm(kind)
    flat = bool(algorithms) and algorithms[0].flat
    if flat or not shape.product:
        return _flat(fabric, shape, kind, algorithms[0] if flat else Algorithm("ring"), nbytes / chunks, chunks)
    stays = _hierarchy(fabric, shape, kind, nbytes / chunks, min(fabric.active, chunks))
    visits = [Visit(station, ns, ns) for station, (ns, _) in stays]
    totals: dict[int, Use] = {}
    for _, (_, uses) in stays:
        for d, use in uses:
            totals[d] = totals.get(d, Use()).and_then(use, chunks)
    return Cost(flow_shop([visits] * chunks, fabric.active), tuple(sorted(totals.items())))


def _hierarchy(fabric: Fabric, shape: Shape, kind: int, chunk: float, share: int) -> list[tuple[int, Stay]]:
    """Stays of one chunk on the dimensions the group spans, in the order of DEFINITIONS 5.

    One algorithm alone is that of every dimension. A dimension of a double binary tree all-reduces the chunk whole on
    the way outward and has no part in the way back.
    """
    crossed = [d for d, values in enumerate(shape.coordinates) if len(values) > 1]
    algorithms = fabric.algorithm(kind)
    if len(algorithms) == 1:
        algorithms *= fabric.dimensions
    if len(algorithms) != fabric.dimensions:
        raise InputError(
            f"{Collective(kind).name} has {len(algorithms)} algorithms for {fabric.dimensions} dimensions; "
            f"give {fabric.dimensions}"
        )
    carried = chunk

    def one(d: int, part: Collective) -> tuple[int, Stay]:
        nonlocal carried
        members = np.array(shape.coordinates[d], np.int64)
        n = len(members)
        crossings = partial(on_dimension, fabric, d, members)
        found = stay(algorithms[d], n, part, carried, crossings, share, fabric.endpoint_delay_ns)
        if part == Collective.REDUCE_SCATTER:
            carried /= n
        elif part == Collective.ALL_GATHER:
            carried *= n
        return d, found

    if kind in _SCATTERING:
        return [one(d, Collective.REDUCE_SCATTER) for d in crossed]
    if kind == Collective.ALL_TO_ALL:
        return [one(d, Collective.ALL_TO_ALL) for d in crossed]
    if kind == Collective.ALL_GATHER:
        return [one(d, Collective.ALL_GATHER) for d in reversed(crossed)]
    whole = [algorithms[d].name == "double_binary_tree" or d == crossed[-1] for d in crossed]
    outward = [
        one(d, Collective.ALL_REDUCE if all_at_once else Collective.REDUCE_SCATTER)
        for d, all_at_once in zip(crossed, whole, strict=True)
    ]
    back = [d for d, all_at_once in zip(crossed, whole, strict=True) if not all_at_once]
    return [*outward, *(one(d, Collective.ALL_GATHER) for d in reversed(back))]


def _flat(fabric: Fabric, shape: Shape, kind: int, algorithm: Algorithm, chunk: float, chunks: int) -> Cost:
    """All members as one list, chunk after chunk, ``active`` at a time."""
    part = {Collective.REDUCE_SCATTER_BLOCK: Collective.REDUCE_SCATTER, Collective.BARRIER: Collective.ALL_REDUCE}.get(
        Collective(kind), Collective(kind)
    )
    members = np.array(shape.ranks, np.int64)
    crossings = partial(across, fabric, members)
    share = min(fabric.active, chunks)
    ns, uses = stay(algorithm, len(members), part, chunk, crossings, share, fabric.endpoint_delay_ns)
    rounds = -(-chunks // fabric.active)
    if algorithm.name == "ring":
        ((times, _, _, message),) = steps(algorithm, len(members), part, chunk)
        return Cost(rounds * ns, edge_messages=times * chunks, edge_bytes=message)
    return Cost(rounds * ns, tuple((d, Use().and_then(use, chunks)) for d, use in uses))


def _pipeline(fabric: Fabric, shape: Shape, nbytes: float, *, inward: bool) -> Cost:
    """Broadcast or reduce: a pipelined ring, m/B plus the latency and endpoint delay of n - 1 hops (DEFINITIONS 14).

    A reduce flows ``inward``, towards the first member; what crosses an edge is counted at its earlier member.
    """
    at = np.arange(len(shape.ranks) - 1)
    ends = (at + 1, at) if inward else (at, at + 1)
    chain = across(fabric, np.array(shape.ranks, np.int64), *ends, both_ways=False)
    ns = floor(float(chain.latency.sum()) + float((chain.load * nbytes / chain.rate).max()))
    return Cost(ns + len(at) * fabric.endpoint_delay_ns, edge_messages=1, edge_bytes=nbytes, closed=False)


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


__all__ = ["Cost", "Shape", "Use", "duration"]
