"""Collective algorithms under `streams`: which messages one chunk sends, step by step, and how long that takes.

An algorithm runs among n members by their places 0..n-1; a `Crossings` says what messages between places cross: one
dimension, or whatever lies between ranks of a flat list. Owns no chunking and no hierarchy (`collectives`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import floor
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.fabric import Algorithm
from tracegen.replay.prices.ports import Crossing, Ranks, Use, Uses


class Crossings(Protocol):
    """What equal messages from places ``src`` to places ``dst`` cross when all are sent at once."""

    def __call__(self, src: Ranks, dst: Ranks, *, both_ways: bool) -> Crossing: ...


class Step(NamedTuple):
    """``times`` steps, one after the other, in each of which every ``src`` sends ``nbytes`` to its ``dst``."""

    times: int
    src: Ranks
    dst: Ranks
    nbytes: float


class Stay(NamedTuple):
    """One chunk's stay on a dimension (or a flat list): its time, and what it puts on the network."""

    ns: int
    uses: Uses


def stay(
    algorithm: Algorithm, n: int, part: Collective, size: float, crossings: Crossings, share: int, endpoint_ns: int
) -> Stay:
    """One chunk of ``size`` bytes (all-gather: a member's part) through n members.

    Parameters
    ----------
    share : chunks that share each port at the same time.
    endpoint_ns : paid once per step.

    Raises
    ------
    InputError
        An algorithm that cannot do this collective, or not among so many members.
    """
    if algorithm.name == "double_binary_tree":
        return _trees(n, part, size, crossings, share, endpoint_ns)
    both_ways = algorithm.name == "direct"
    ns = 0
    totals: dict[int, Use] = {}
    for times, src, dst, nbytes in steps(algorithm, n, part, size):
        crossing = crossings(src, dst, both_ways=both_ways)
        ns += times * (crossing.ns(nbytes * share) + endpoint_ns)
        for d, use in crossing.uses(nbytes):
            totals[d] = totals.get(d, Use()).and_then(use, times)
    return Stay(ns, tuple(sorted(totals.items())))


def steps(algorithm: Algorithm, n: int, part: Collective, size: float) -> Iterator[Step]:
    """Steps of ring, direct and halving-doubling.

    ring : to the next member; n - 1 steps of size / n to scatter, as many to gather, n (n - 1) / 2 for all-to-all.
    direct : to every other member at once, or with a window w to those at distances 1..w, then w + 1..2 w, and so on.
    halving_doubling : to the member at XOR distance 1, 2, 4, ... half of what is left, and back again to gather
        (recursive halving of Thakur, Rabenseifner, Gropp 2005, near members first as ASTRA-sim has it).

    Raises
    ------
    InputError
        As `stay`.
    """
    at = np.arange(n)
    message = size if part == Collective.ALL_GATHER else size / n
    twice = 2 if part == Collective.ALL_REDUCE else 1
    if algorithm.name == "ring":
        times = n * (n - 1) // 2 if part == Collective.ALL_TO_ALL else twice * (n - 1)
        yield Step(times, at, (at + 1) % n, message)
    elif algorithm.name == "direct":
        window = min(algorithm.window or n - 1, n - 1)
        for first in range(1, n, window):
            far = np.arange(first, min(first + window, n))
            yield Step(twice, np.repeat(at, len(far)), (at[:, None] + far).reshape(-1) % n, message)
    elif algorithm.name == "halving_doubling":
        _refuse_halving(n, part)
        whole = size * n if part == Collective.ALL_GATHER else size
        for level in range(n.bit_length() - 1):
            yield Step(twice, at, at ^ (1 << level), whole / 2 ** (level + 1))
    else:
        raise InputError(
            f"{algorithm.name} is not available under execution streams; "
            "use ring, direct, halving_doubling or double_binary_tree"
        )


def _refuse_halving(n: int, part: Collective) -> None:
    if n & (n - 1):
        raise InputError(f"halving_doubling needs a power of two of members; a group spans {n} (use ring or direct)")
    if part == Collective.ALL_TO_ALL:
        raise InputError("halving_doubling has no all-to-all; use ring or direct")


class Tree(NamedTuple):
    """A binary tree: the parent of each place (-1 the root's), and edges from the deepest leaf to the root."""

    parent: NDArray[np.int64]
    depth: int


@lru_cache(maxsize=64)
def double_tree(n: int) -> tuple[Tree, Tree]:
    """Two in-order binary trees over places 0..n-1, in which no place but a root is an inner node twice.

    The first has place n - 1 above the in-order tree of 0..n-2, in which even places are leaves; the second place 0
    above that of 1..n-1, in which odd places are. Any n of 2 or more.

    References
    ----------
    Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing
    35 (2009): in-order numbering, the second tree shifted by one place.
    """
    number = np.arange(1, n)  # places of an in-order tree of n - 1 nodes, counted from 1: odd ones are leaves
    low = number & -number
    up = (number ^ low) | (low << 1)
    up = np.where(up >= n, number ^ low, up)  # beyond the end: the nearest smaller ancestor; 0 above the top
    first = np.full(n, -1)
    first[:-1] = np.where(up > 0, up - 1, n - 1)
    second = np.full(n, -1)
    second[1:] = up  # the same tree one place on; place 0 is above the top
    return Tree(first, _depth(first)), Tree(second, _depth(second))


def _depth(parent: NDArray[np.int64]) -> int:
    at, depth = np.flatnonzero(parent >= 0), 0
    while len(at):
        at = parent[at]
        at = at[parent[at] >= 0]
        depth += 1
    return depth


def _trees(n: int, part: Collective, size: float, crossings: Crossings, share: int, endpoint_ns: int) -> Stay:
    """All-reduce up and down both trees at once, each with half of the chunk, in pieces small enough to stream.

    A chunk takes the latency and endpoint delay of the steps from the deepest leaf to the root and back, and the time
    that the busiest port or link needs for all that the chunk puts on it: at full bandwidth 2 size / B, since an inner
    node of one tree sends half to its parent and to two children there, and half up as a leaf of the other tree.
    """
    if part != Collective.ALL_REDUCE:
        raise InputError(f"double_binary_tree only all-reduces, it has no {part.name}; use ring or direct")
    trees = double_tree(n)
    child = np.concatenate([np.flatnonzero(tree.parent >= 0) for tree in trees])
    parent = np.concatenate([tree.parent[tree.parent >= 0] for tree in trees])
    crossing = crossings(np.concatenate([child, parent]), np.concatenate([parent, child]), both_ways=False)
    way_ns = 0.0
    for tree, first in zip(trees, (0, n - 1), strict=True):
        up, down = (crossing.latency[start + first : start + first + n - 1] for start in (0, len(child)))
        way_ns = max(way_ns, _longest_way(tree, up + down))
    streaming = (crossing.load * (size / 2 * share) / crossing.rate).max()
    stations = 2 * max(tree.depth for tree in trees)
    return Stay(floor(way_ns + float(streaming)) + stations * endpoint_ns, crossing.uses(size / 2))


def _longest_way(tree: Tree, edge: NDArray[np.float64]) -> float:
    """Largest sum of edges from a place to the root; ``edge`` f64[n - 1], to the parent of each place but the root."""
    above = np.zeros(len(tree.parent))
    above[tree.parent >= 0] = edge
    at = np.arange(len(tree.parent))
    total = np.zeros(len(at))
    while (at >= 0).any():
        on = at >= 0
        total[on] += above[at[on]]
        at[on] = tree.parent[at[on]]
    return float(total.max())
