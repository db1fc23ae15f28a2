"""64-bit mixing of arrays, to tell colours and group shapes apart by value. Not cryptographic; wraps modulo 2^64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

# Finaliser constants of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) and an odd base for polynomial hashes.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BASE = np.uint64(0xD1342543DE82EF95)
_BASE_INVERSE = np.uint64(pow(int(BASE), -1, 2**64))


def mix(values: NDArray[Any]) -> Hashes:
    """Scatter each value over 64 bits (splitmix64)."""
    bits = values.view(np.uint64) if values.dtype.itemsize == 8 else values.astype(np.int64).view(np.uint64)
    z: Hashes
    with np.errstate(over="ignore"):
        z = bits + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _M1
        z = (z ^ (z >> np.uint64(27))) * _M2
        z = z ^ (z >> np.uint64(31))
    return z


def combine(first: NDArray[Any], *rest: NDArray[Any]) -> Hashes:
    """One hash per row of several columns, order of columns included."""
    out = mix(first)
    with np.errstate(over="ignore"):
        for column in rest:
            out = mix(out * BASE + mix(column))
    return out


def columns(table: Hashes) -> list[Hashes]:
    """The columns of a two-dimensional array."""
    return [table[:, j] for j in range(table.shape[1])]


def powers(base: np.uint64, count: int) -> Hashes:
    """base^0 .. base^(count - 1), wrapping."""
    with np.errstate(over="ignore"):
        factors = np.concatenate([np.ones(1, np.uint64), np.full(max(count - 1, 0), base)])
        return np.cumprod(factors, dtype=np.uint64)


def sums(values: Hashes, ptr: NDArray[np.int64]) -> Hashes:
    """Sum of each CSR row, wrapping; rows may be empty."""
    with np.errstate(over="ignore"):
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
        out: Hashes = running[ptr[1:]] - running[ptr[:-1]]
    return out


def within(ptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position of each CSR entry inside its row."""
    return np.arange(int(ptr[-1])) - np.repeat(ptr[:-1], np.diff(ptr))


def sequences(values: Hashes, ptr: NDArray[np.int64]) -> Hashes:
    """One hash per CSR row that depends on the order in it."""
    longest = int(np.diff(ptr).max(initial=0))
    with np.errstate(over="ignore"):
        return sums(values * powers(BASE, longest + 1)[within(ptr)], ptr)


def rotations(values: Hashes, ptr: NDArray[np.int64]) -> Hashes:
    """Per CSR entry, the hash of its row read cyclically from that entry on.

    With b the base, x the row and n its length: H(i) = sum_j x[(i + j) mod n] b^j
    = b^-i (S(n) - S(i)) + b^(n - i) S(i), where S(i) = sum_{j < i} x[j] b^j.
    """
    lengths = np.diff(ptr)
    longest = int(lengths.max(initial=0))
    up, down = powers(BASE, longest + 1), powers(_BASE_INVERSE, longest + 1)
    at = within(ptr)
    with np.errstate(over="ignore"):
        terms = values * up[at]
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        row = np.repeat(np.arange(len(lengths)), lengths)
        before = running[:-1] - running[ptr[:-1]][row]
        whole = (running[ptr[1:]] - running[ptr[:-1]])[row]
        out: Hashes = down[at] * (whole - before) + up[lengths[row] - at] * before
    return out
