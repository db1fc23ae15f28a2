"""Binary heaps in plain arrays: events by time, and the ready nodes of a lane by position."""

from typing import Any

import numpy as np

from tracegen.proto.compiled import kernel


@kernel
def push(heap: Any, size: Any, time: Any, registered: Any, sequence: Any, node: Any) -> Any:
    """Put an event on the heap (columns time, registered, sequence, node), which grows as needed."""
    if size == len(heap):
        larger = np.empty((2 * size, 4), np.int64)
        for k in range(size):
            for j in range(4):
                larger[k, j] = heap[k, j]
        heap = larger
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if heap[up, 0] < time or (
            heap[up, 0] == time and (heap[up, 1] < registered or (heap[up, 1] == registered and heap[up, 2] < sequence))
        ):
            break
        for j in range(4):
            heap[at, j] = heap[up, j]
        at = up
    heap[at, 0] = time
    heap[at, 1] = registered
    heap[at, 2] = sequence
    heap[at, 3] = node
    return heap


@kernel
def drop_first(heap: Any, size: Any) -> None:
    """Take the first event off a heap of ``size`` events."""
    last = size - 1
    time, registered, sequence, node = heap[last, 0], heap[last, 1], heap[last, 2], heap[last, 3]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        other = child + 1
        if other < last and (
            heap[other, 0] < heap[child, 0]
            or (
                heap[other, 0] == heap[child, 0]
                and (
                    heap[other, 1] < heap[child, 1]
                    or (heap[other, 1] == heap[child, 1] and heap[other, 2] < heap[child, 2])
                )
            )
        ):
            child = other
        if time < heap[child, 0] or (
            time == heap[child, 0]
            and (registered < heap[child, 1] or (registered == heap[child, 1] and sequence < heap[child, 2]))
        ):
            break
        for j in range(4):
            heap[at, j] = heap[child, j]
        at = child
    heap[at, 0] = time
    heap[at, 1] = registered
    heap[at, 2] = sequence
    heap[at, 3] = node


@kernel
def ready_push(store: Any, base: Any, counts: Any, lane: Any, position: Any) -> None:
    """Add a ready node to a lane's heap of positions."""
    at = counts[lane]
    counts[lane] += 1
    while at > 0:
        up = (at - 1) >> 1
        if store[base + up] <= position:
            break
        store[base + at] = store[base + up]
        at = up
    store[base + at] = position


@kernel
def ready_pop(store: Any, base: Any, counts: Any, lane: Any) -> Any:
    """Take the lowest position off a lane's heap."""
    first = store[base]
    counts[lane] -= 1
    last = counts[lane]
    position = store[base + last]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        if child + 1 < last and store[base + child + 1] < store[base + child]:
            child += 1
        if position <= store[base + child]:
            break
        store[base + at] = store[base + child]
        at = child
    store[base + at] = position
    return first
