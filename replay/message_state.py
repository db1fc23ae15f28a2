"""The arrays of a message-level run: what is given and what grows. Laid out for the kernels; no rules here."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracegen.replay import message_pool_kernels as p

Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]

# Pools that grow, with their columns, and the hash table in front of those that are looked up.
POOLS = {
    "heap": p.EVENT_COLUMNS,
    "ticks": p.TICK_COLUMNS,
    "timers": p.TIMER_COLUMNS,
    "items": p.ITEM_COLUMNS,
    "entries": p.ENTRY_COLUMNS,
    "flights": p.FLIGHT_COLUMNS,
}
BUCKETS = {"ticks": "tick_buckets", "entries": "entry_buckets"}


class State(NamedTuple):
    """Everything a run reads and writes. Row numbers link the tables; -1 is none.

    Parameters
    ----------
    clock : i64, scalars, see ``message_pool_kernels``.
    heap : i64[., 3] events: time, sequence, code. ticks, timers : timers of one rank and tick, in order.
    items : what is to happen when a message comes or has left. entries : messages with one key. flights : under way.
    tick_buckets, entry_buckets : heads of hash chains.
    links : i64[links or ranks x dimensions, 8], see ``message_pool_kernels``.
    chunks : i64, chunk slots of every rank. queues : i64[ranks x dimensions x queues, 3].
    rank : i64[ranks, .], state of a rank. turns : i32[ranks, 7 x dimensions], round robins of queues and trees.
    made : i64[ranks, slots], chunks of a group. pools : i64[pools, 3], remote memories; waiting : i64[ranks].
    left, store, later, ahead : i32[nodes]; ready, start, end : i64[nodes], in id order per rank.
    span : i64[nodes], duration of timed and memory nodes.
    node_ptr : i64[ranks + 1]; class_start : i64[ranks]; lane_ptr : i64[ranks, 4].
    node : i32[class nodes, 4] act, lane, slot, signature; succ_ptr : i64; succ : i32.
    messages : i64[signatures, 2] bytes and tag; jobs : i32[signatures, groups]; job : i64[jobs, 4]; phases : i64.
    slots, place : i32[ranks, slots]; group_ptr, group_number : i64; members : i32.
    sizes, topology : i64[dimensions]; latency, bandwidth : f64[dimensions]; memory_rate : f64[1].
    pool_of : i64[ranks], remote memory of a rank, -1 its own without a queue.
    """

    clock: Ints
    heap: Ints
    ticks: Ints
    timers: Ints
    items: Ints
    entries: Ints
    flights: Ints
    tick_buckets: Ints
    entry_buckets: Ints
    links: Ints
    chunks: Ints
    queues: Ints
    rank: Ints
    turns: Shorts
    made: Ints
    pools: Ints
    waiting: Ints
    left: Shorts
    store: Shorts
    later: Shorts
    ahead: Shorts
    ready: Ints
    start: Ints
    end: Ints
    span: Ints
    node_ptr: Ints
    class_start: Ints
    lane_ptr: Ints
    node: Shorts
    succ_ptr: Ints
    succ: Shorts
    messages: Ints
    jobs: Shorts
    job: Ints
    phases: Ints
    slots: Shorts
    place: Shorts
    group_ptr: Ints
    group_number: Ints
    members: Shorts
    sizes: Ints
    topology: Ints
    latency: NDArray[np.float64]
    bandwidth: NDArray[np.float64]
    memory_rate: NDArray[np.float64]
    pool_of: Ints


def empty_pools(rows: int) -> dict[str, Ints]:
    """Pools of this many rows and their hash tables."""
    made: dict[str, Ints] = {name: np.zeros((rows, columns), np.int64) for name, columns in POOLS.items()}
    for name, buckets in BUCKETS.items():
        made[buckets] = np.full(_buckets(len(made[name])), -1, np.int64)
    return made


def grown(state: State, which: int) -> State:
    """The state with one pool twice as large."""
    name = list(POOLS)[which]
    old = getattr(state, name)
    changed: dict[str, Any] = {name: np.concatenate([old, np.zeros_like(old)])}
    if name in BUCKETS:
        changed[BUCKETS[name]] = np.full(_buckets(2 * len(old)), -1, np.int64)
        p.rehash(changed[name], getattr(state, BUCKETS[name]), changed[BUCKETS[name]])
    return state._replace(**changed)


def _buckets(rows: int) -> int:
    return 1 << max(rows - 1, 1).bit_length()
