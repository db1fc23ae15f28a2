"""The arrays of a message-level run: what is given and what grows. Laid out for the kernels; no rules here."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracegen.replay.message import pool_kernels as p

Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]


class State(NamedTuple):
    """Everything a run reads and writes. Row numbers link the tables; -1 is none. Columns: constants of the kernels.

    Few arrays on purpose: numba pays for each in every kernel.

    Parameters
    ----------
    clock : i64, scalars, and where things begin in ``rank`` and ``table``.
    table : i64, sizes and topologies of the dimensions, messages (bytes, tag), job of (collective, group), jobs,
        groups.
    heap : i64[., 3] events: time, sequence, code.
    cells : i64[., 8], timers of a rank and tick, items to be done, messages by key, messages under way.
    buckets : i64, heads of hash chains through the cells.
    links : i64[links or ranks x dimensions, 8].
    chunks : i64[ranks x chunks, .], chunk slots of every rank.
    rank : i64[ranks, .], state of a rank, what its slots name, its queues.
    times : i64[nodes, 4] ready, start, end, span; marks : i32[nodes, 4], both in id order per rank.
    node : i32[class nodes + 1, 5]; succ : i32, positions in the class.
    phases : i64[phases, .]; net : f64[dimensions + 1, 2] latency and bandwidth, then the memory bandwidth.
    """

    clock: Ints
    table: Ints
    heap: Ints
    cells: Ints
    buckets: Ints
    links: Ints
    chunks: Ints
    rank: Ints
    times: Ints
    marks: Shorts
    node: Shorts
    succ: Shorts
    phases: Ints
    net: NDArray[np.float64]


def empty_pools(rows: int) -> dict[str, Ints]:
    """A heap and cells of this many rows, and the hash table."""
    return {
        "heap": np.zeros((rows, p.EVENT_COLUMNS), np.int64),
        "cells": _cells(rows),
        "buckets": _buckets(rows),
    }


def more_events(state: State) -> State:
    """The state with a heap twice as large."""
    return state._replace(heap=np.concatenate([state.heap, np.zeros_like(state.heap)]))


def more_cells(state: State) -> State:
    """The state with twice as many cells."""
    cells = _cells(2 * len(state.cells))
    cells[: len(state.cells)] = state.cells
    buckets = _buckets(len(cells))
    p.rehash(cells, state.buckets, buckets)
    return state._replace(cells=cells, buckets=buckets)


def _cells(rows: int) -> Ints:
    """Cells that each lie in one cache line."""
    room = np.zeros((rows + 1) * p.CELL_COLUMNS, np.int64)
    skip = -room.ctypes.data // room.itemsize % p.CELL_COLUMNS
    return room[skip : skip + rows * p.CELL_COLUMNS].reshape(rows, p.CELL_COLUMNS)


def _buckets(rows: int) -> Ints:
    return np.full(1 << max(rows - 1, 1).bit_length(), -1, np.int64)
