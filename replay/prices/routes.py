"""What a message between two ranks crosses, and what it costs. Pure functions on arrays; knows no node and no queue."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracegen.replay.fabric import FULLY_CONNECTED, RING, Fabric


class Routes(NamedTuple):
    """Per pair of ranks: latency f64 ns in all, bandwidth f64 bytes/ns, dims u32 bit mask of dimensions crossed.

    A pair of equal ranks crosses nothing: latency 0, infinite bandwidth.
    """

    latency: NDArray[np.float64]
    bandwidth: NDArray[np.float64]
    dims: NDArray[np.uint32]


def hops(fabric: Fabric, dim: int, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.int64]:
    """Links between coordinates of one dimension: ring min(x, n - x), switch 2, fully connected 1; 0 where equal."""
    if fabric.topology[dim] == RING:
        ahead = (b.astype(np.int64) - a) % fabric.size[dim]
        around: NDArray[np.int64] = np.minimum(ahead, fabric.size[dim] - ahead)
        return around
    links = 1 if fabric.topology[dim] == FULLY_CONNECTED else 2
    return np.where(a != b, links, 0)


def routes(fabric: Fabric, src: NDArray[Any], dst: NDArray[Any], *, lowest_only: bool) -> Routes:
    """Routes of pairs of ranks.

    Parameters
    ----------
    src, dst : ranks, equal shapes.
    lowest_only : execution `astra`: only the lowest dimension in which the ends differ counts
        (astra_sim_semantics 9). Else latencies add up and the smallest bandwidth holds (DEFINITIONS 4).
    """
    latency = np.zeros(src.shape)
    bandwidth = np.full(src.shape, np.inf)
    dims = np.zeros(src.shape, np.uint32)
    a, b = src.astype(np.int64), dst.astype(np.int64)
    for d, n in enumerate(fabric.size):
        links = hops(fabric, d, a % n, b % n)
        a, b = a // n, b // n
        used = links > 0
        if lowest_only:
            used &= dims == 0
        latency = np.where(used, latency + links * fabric.latency[d], latency)
        bandwidth = np.where(used, np.minimum(bandwidth, fabric.bandwidth[d]), bandwidth)
        dims |= np.where(used, np.uint32(1 << d), np.uint32(0))
    return Routes(latency, bandwidth, dims)


def message_ns(latency: NDArray[Any], bandwidth: NDArray[Any], nbytes: NDArray[Any]) -> NDArray[np.int64]:
    """Time of a message, ns: floor(latency + bytes / bandwidth), the floor of the whole expression in double."""
    whole: NDArray[np.int64] = np.floor(latency + nbytes / bandwidth).astype(np.int64)
    return whole
