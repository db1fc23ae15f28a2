"""Events in time order, timers per rank and tick, messages by key, links: the compiled floor of a message-level run.

Column numbers of the tables in `message_state.State` stand here, since they are part of the compiled code. What is
passed to other kernels is np.int64, because numba compiles a kernel anew for every plain literal it is called with.
Sections in brackets: ASTRA-sim's semantics as measured. Free cells are chained through column 0.
"""

from typing import Any

import numpy as np

from tracegen.proto.compiled import bare, bare_entry, bare_inlined

# clock: scalars
NOW, SEQUENCE, EVENTS, CURRENT, STARTING, RUNNING, ABORTED, MESSAGES, ROOM, FREE, USED, PENDING = range(12)
RANKS, DIMS, QUEUES, SERVERS, CONGESTION, RENDEZVOUS, PLAYED = range(12, 19)  # PLAYED ranks stand for all
# clock: where things begin in a row of `rank` and in `table` (which begins with the sizes and topologies of dimensions)
MADE_AT, SLOTS_AT, PLACE_AT, QUEUES_AT, MESSAGES_AT, JOB_OF_AT, JOBS_AT, GROUPS_AT, NUMBERS_AT, GROUPS = range(19, 29)
CLOCK_COLUMNS = 29
EVENT_COLUMNS = 3
# cells: one pool for five kinds of rows
CELL_COLUMNS = 8  # a cache line
TICK_RANK, TICK_TIME, TICK_HEAD, TICK_TAIL, TICK_MARK = 2, 3, 4, 5, 1  # the mark is never a tag
TIMER_WHAT, TIMER_WHO, TIMER_MORE = 1, 2, 3
ITEM_WHAT, ITEM_WHO, ITEM_RANK, ITEM_TAG, ITEM_PAIR, ITEM_SIZE, ITEM_THEN = range(1, 8)
ENTRY_TAG, ENTRY_PAIR, ENTRY_SIZE, ENTRY_KEPT, ENTRY_HEAD, ENTRY_TAIL, ENTRY_FLYING = range(1, 8)
FLIGHT_ENTRY, FLIGHT_DONE, FLIGHT_AT, FLIGHT_SINCE, FLIGHT_SRC, FLIGHT_DST = range(1, 7)
LINK_COLUMNS, LINK_UNTIL, LINK_RELEASE, LINK_HEAD, LINK_TAIL, LINK_MESSAGES, LINK_BYTES, LINK_BUSY, LINK_QUEUED = (
    8, 0, 1, 2, 3, 4, 5, 6, 7,
)  # fmt: skip
# event codes: 8 x row + kind
AT_TICK, AT_DEVICE, AT_RELEASE, AT_LATE = range(4)
# what a timer or an item does
NODE, MEMORY, REDUCE, PROCESSED, RECEIVED, SEND_DATA, POST, NOTHING = (np.int64(what) for what in range(8))
NONE, ZERO, ONE = np.int64(-1), np.int64(0), np.int64(1)
_TICK = np.int64(-2)
_REQUEST_BYTES = np.int64(8192)  # of the rendezvous protocol (2.1)
SPACES = 4  # messages, chunks, and the requests of each (14.3)
_TAG_SPACE = 500_000_000
_RING, _SWITCH = 0, 2


@bare
def push(s: Any, time: Any, sequence: Any, code: Any) -> None:
    """Put an event on the heap. One at 0 makes ASTRA-sim abort (3)."""
    heap = s.heap
    if time == 0:
        s.clock[ABORTED] = 1
    at = s.clock[EVENTS]
    s.clock[EVENTS] += 1
    while at > 0:
        up = (at - 1) >> 2
        if heap[up, 0] < time or (heap[up, 0] == time and heap[up, 1] < sequence):
            break
        heap[at, 0] = heap[up, 0]
        heap[at, 1] = heap[up, 1]
        heap[at, 2] = heap[up, 2]
        at = up
    heap[at, 0] = time
    heap[at, 1] = sequence
    heap[at, 2] = code


@bare
def schedule(s: Any, time: Any, code: Any) -> None:
    """An event after all scheduled before it for the same tick."""
    sequence = s.clock[SEQUENCE]
    s.clock[SEQUENCE] += 1
    push(s, time, sequence, code)


@bare_inlined
def pop(s: Any) -> Any:
    """Take the first event off the heap: the time becomes now; returns its code."""
    heap = s.heap
    s.clock[NOW] = heap[0, 0]
    s.clock[CURRENT] = heap[0, 1]
    code = heap[0, 2]
    last = s.clock[EVENTS] - 1
    s.clock[EVENTS] = last
    time, sequence, moved = heap[last, 0], heap[last, 1], heap[last, 2]
    at = 0
    while True:
        first = 4 * at + 1
        if first >= last:
            break
        best = first
        for child in range(first + 1, min(first + 4, last)):
            if heap[child, 0] < heap[best, 0] or (heap[child, 0] == heap[best, 0] and heap[child, 1] < heap[best, 1]):
                best = child
        if time < heap[best, 0] or (time == heap[best, 0] and sequence < heap[best, 1]):
            break
        heap[at, 0] = heap[best, 0]
        heap[at, 1] = heap[best, 1]
        heap[at, 2] = heap[best, 2]
        at = best
    heap[at, 0] = time
    heap[at, 1] = sequence
    heap[at, 2] = moved
    return code


@bare
def take(clock: Any, cells: Any) -> Any:
    """A free cell; the caller has seen to it that there is room."""
    row = clock[FREE]
    if row >= 0:
        clock[FREE] = cells[row, 0]
    else:
        row = clock[USED]
        clock[USED] += 1
    return row


@bare
def give(clock: Any, cells: Any, row: Any) -> None:
    """Hand a cell back."""
    cells[row, 0] = clock[FREE]
    clock[FREE] = row


@bare
def _place(a: Any, b: Any, c: Any, buckets: Any) -> Any:
    """Hash chain of a key of three numbers."""
    h = a * 0x9E3779B97F4A7C1 + b * 0x2545F4914F6CDD1D + c * 0x27D4EB2F165667C5
    h ^= h >> 29
    h *= 0x165667B19E3779F9
    h ^= h >> 32
    return h & (buckets - 1)


@bare_entry
def rehash(cells: Any, old: Any, new: Any) -> None:
    """Move the chains of one hash table into a larger one; the key is columns 1 to 3."""
    for bucket in range(len(old)):
        row = old[bucket]
        while row >= 0:
            after = cells[row, 0]
            there = _place(cells[row, 1], cells[row, 2], cells[row, 3], len(new))
            cells[row, 0] = new[there]
            new[there] = row
            row = after


@bare
def _unchain(clock: Any, cells: Any, buckets: Any, row: Any) -> None:
    """Take a cell out of its hash chain and hand it back."""
    bucket = _place(cells[row, 1], cells[row, 2], cells[row, 3], len(buckets))
    at = buckets[bucket]
    if at == row:
        buckets[bucket] = cells[row, 0]
    else:
        while cells[at, 0] != row:
            at = cells[at, 0]
        cells[at, 0] = cells[row, 0]
    give(clock, cells, row)


@bare
def set_timer(s: Any, rank: Any, delay: Any, what: Any, who: Any, more: Any) -> None:
    """Register a timer: all of a rank for one tick run together, at the place of the first (3, 14.7, 14.8)."""
    clock, cells = s.clock, s.cells
    time = clock[NOW] + delay
    timer = take(clock, cells)
    cells[timer, 0] = -1
    cells[timer, TIMER_WHAT] = what
    cells[timer, TIMER_WHO] = who
    cells[timer, TIMER_MORE] = more
    bucket = _place(_TICK, rank, time, len(s.buckets))
    tick = s.buckets[bucket]
    while tick >= 0 and (
        cells[tick, TICK_RANK] != rank or cells[tick, TICK_TIME] != time or cells[tick, TICK_MARK] != _TICK
    ):
        tick = cells[tick, 0]
    if tick >= 0:
        if cells[tick, TICK_HEAD] >= 0:
            cells[cells[tick, TICK_TAIL], 0] = timer
        else:
            cells[tick, TICK_HEAD] = timer
        cells[tick, TICK_TAIL] = timer
        return
    tick = take(clock, cells)
    cells[tick, 0] = s.buckets[bucket]
    s.buckets[bucket] = tick
    cells[tick, TICK_MARK] = _TICK
    cells[tick, TICK_RANK] = rank
    cells[tick, TICK_TIME] = time
    cells[tick, TICK_HEAD] = timer
    cells[tick, TICK_TAIL] = timer
    schedule(s, time, 8 * tick + AT_TICK)


@bare_inlined
def next_timer(s: Any) -> Any:
    """Take the next timer of the list that runs; -1 where it is empty, which is then gone."""
    clock, cells = s.clock, s.cells
    tick = clock[RUNNING]
    timer = cells[tick, TICK_HEAD]
    if timer < 0:
        _unchain(clock, cells, s.buckets, tick)
        clock[RUNNING] = -1
    else:
        cells[tick, TICK_HEAD] = cells[timer, 0]
    return timer


@bare
def make_item(s: Any, what: Any, who: Any, rank: Any) -> Any:
    """Something to do when a message comes or has left; its cell."""
    item = take(s.clock, s.cells)
    s.cells[item, 0] = -1
    s.cells[item, ITEM_WHAT] = what
    s.cells[item, ITEM_WHO] = who
    s.cells[item, ITEM_RANK] = rank
    return item


@bare
def _entry(s: Any, space: Any, tag: Any, src: Any, dst: Any, size: Any) -> Any:
    """The entry of a key, made where there is none (4: tag modulo 5e8, ends, size)."""
    cells = s.cells
    tag = (tag % _TAG_SPACE) * SPACES + space
    pair = src * s.clock[RANKS] + dst
    bucket = _place(tag, pair, size, len(s.buckets))
    row = s.buckets[bucket]
    while row >= 0:
        if cells[row, ENTRY_PAIR] == pair and cells[row, ENTRY_TAG] == tag and cells[row, ENTRY_SIZE] == size:
            return row
        row = cells[row, 0]
    row = take(s.clock, cells)
    cells[row, 0] = s.buckets[bucket]
    s.buckets[bucket] = row
    cells[row, ENTRY_TAG] = tag
    cells[row, ENTRY_PAIR] = pair
    cells[row, ENTRY_SIZE] = size
    cells[row, ENTRY_KEPT] = 0
    cells[row, ENTRY_HEAD] = -1
    cells[row, ENTRY_TAIL] = -1
    cells[row, ENTRY_FLYING] = 0
    return row


@bare
def _forget(s: Any, row: Any) -> None:
    """Hand an entry back once nothing of it is under way, kept or waited for."""
    cells = s.cells
    if cells[row, ENTRY_FLYING] == 0 and cells[row, ENTRY_KEPT] == 0 and cells[row, ENTRY_HEAD] < 0:
        _unchain(s.clock, cells, s.buckets, row)


@bare
def transmit(s: Any, link: Any, flight: Any) -> None:
    """Occupy a link: the arrival is scheduled first, the release only reserves its place and is scheduled when somebody
    waits for it (9)."""
    clock, links = s.clock, s.links
    size = s.cells[s.cells[flight, FLIGHT_ENTRY], ENTRY_SIZE]
    ready = size / s.net[0, 1]
    busy = np.int64(np.floor(ready))
    schedule(s, clock[NOW] + np.int64(np.floor(s.net[0, 0] + ready)), 8 * flight + AT_DEVICE)
    links[link, LINK_UNTIL] = clock[NOW] + busy
    links[link, LINK_RELEASE] = clock[SEQUENCE]
    clock[SEQUENCE] += 1
    if links[link, LINK_UNTIL] == 0:
        clock[ABORTED] = 1
    links[link, LINK_MESSAGES] += 1
    links[link, LINK_BYTES] += size
    links[link, LINK_BUSY] += busy
    if links[link, LINK_HEAD] >= 0:
        push(s, links[link, LINK_UNTIL], links[link, LINK_RELEASE], 8 * link + AT_RELEASE)


@bare_inlined
def release(s: Any, link: Any) -> None:
    """A link somebody waits for has become free."""
    links, cells = s.links, s.cells
    flight = links[link, LINK_HEAD]
    links[link, LINK_HEAD] = cells[flight, 0]
    links[link, LINK_QUEUED] += s.clock[NOW] - cells[flight, FLIGHT_SINCE]
    transmit(s, link, flight)


@bare
def hop(s: Any, flight: Any) -> None:
    """Send a message on from where it is, over its next link, or queue it there."""
    clock, links, cells = s.clock, s.links, s.cells
    n, device = clock[RANKS], cells[flight, FLIGHT_AT]
    src, dst = cells[flight, FLIGHT_SRC], cells[flight, FLIGHT_DST]
    if s.table[clock[DIMS]] == _RING:
        ahead = dst - src if dst >= src else dst - src + n
        if ahead <= n - ahead:  # a tie goes towards increasing ranks
            link, there = 2 * device, device + 1 if device + 1 < n else ZERO
        else:
            link, there = 2 * device + 1, device - 1 if device > 0 else n - 1
    elif s.table[clock[DIMS]] == _SWITCH:
        if device < n:
            link, there = src, n
        else:
            link, there = n + dst, dst
    else:
        link, there = src * n + dst, dst
    cells[flight, FLIGHT_AT] = there
    until = links[link, LINK_UNTIL]
    if clock[NOW] > until or (clock[NOW] == until and clock[CURRENT] > links[link, LINK_RELEASE]):
        transmit(s, link, flight)
        return
    cells[flight, FLIGHT_SINCE] = clock[NOW]
    cells[flight, 0] = -1
    if links[link, LINK_HEAD] >= 0:
        cells[links[link, LINK_TAIL], 0] = flight
    else:
        links[link, LINK_HEAD] = flight
        push(s, until, links[link, LINK_RELEASE], 8 * link + AT_RELEASE)
    links[link, LINK_TAIL] = flight


@bare_inlined
def _direct(s: Any, flight: Any, src: Any, dst: Any, size: Any) -> None:
    """Without congestion: floor(h latency + m / B) of the lowest dimension in which the ends differ (9)."""
    a, b, d = src, dst, 0
    if s.clock[DIMS] > 1:
        while a % s.table[d] == b % s.table[d]:
            a //= s.table[d]
            b //= s.table[d]
            d += 1
        a %= s.table[d]
        b %= s.table[d]
    if s.table[s.clock[DIMS] + d] == _RING:
        ahead = abs(b - a)
        hops = min(ahead, s.table[d] - ahead)
    else:
        hops = s.table[s.clock[DIMS] + d]
    ready = size / s.net[d, 1]
    link = src * s.clock[DIMS] + d
    s.links[link, LINK_MESSAGES] += 1
    s.links[link, LINK_BYTES] += size
    s.links[link, LINK_BUSY] += np.int64(np.floor(ready))
    schedule(s, s.clock[NOW] + np.int64(np.floor(hops * s.net[d, 0] + ready)), 8 * flight + AT_DEVICE)


@bare_inlined
def arrive(s: Any, flight: Any) -> Any:
    """A message has reached its target: the items to run, the sender's and the receiver's; -1 none.

    Messages of one key arrive in the order in which they were sent: the same delay, or the same links.
    """
    cells = s.cells
    entry, done = cells[flight, FLIGHT_ENTRY], cells[flight, FLIGHT_DONE]
    give(s.clock, cells, flight)
    cells[entry, ENTRY_FLYING] -= 1
    item = cells[entry, ENTRY_HEAD]
    if item >= 0:
        cells[entry, ENTRY_HEAD] = cells[item, 0]
    else:
        cells[entry, ENTRY_KEPT] += 1
    _forget(s, entry)
    return done, item


@bare
def post(s: Any, sends: Any, asks: Any, space: Any, tag: Any, src: Any, dst: Any, size: Any, item: Any) -> None:
    """A message from src to dst, or a receive of one; ``item`` is to run at arrival, -1 none.

    Where ``asks``, under the rendezvous protocol (2.1) the receiver first sends a request, at whose arrival the receive
    is really posted, and the sender waits for it before it sends.
    """
    clock, cells = s.clock, s.cells
    if asks and clock[RENDEZVOUS]:
        first = make_item(s, SEND_DATA if sends else POST, ZERO, src if sends else dst)
        cells[first, ITEM_TAG] = tag * SPACES + space
        cells[first, ITEM_PAIR] = src * clock[RANKS] + dst
        cells[first, ITEM_SIZE] = size
        cells[first, ITEM_THEN] = item
        sends, space, src, dst, size, item = not sends, space + 2, dst, src, _REQUEST_BYTES, first
    if clock[PLAYED] < clock[RANKS]:  # one rank stands for all: what it sends is what it gets from as far behind
        src, dst = ZERO, (dst - src) % clock[RANKS]
    entry = _entry(s, space, tag, src, dst, size)
    if sends:
        cells[entry, ENTRY_FLYING] += 1
        flight = take(clock, cells)
        cells[flight, FLIGHT_ENTRY] = entry
        cells[flight, FLIGHT_DONE] = item
        cells[flight, FLIGHT_AT] = src
        cells[flight, FLIGHT_SRC] = src
        cells[flight, FLIGHT_DST] = dst
        clock[MESSAGES] += 1
        if clock[CONGESTION]:
            hop(s, flight)
        else:
            _direct(s, flight, src, dst, size)
    elif cells[entry, ENTRY_KEPT] > 0:
        # It has come already: an event of this tick, after what runs now (14.2).
        cells[entry, ENTRY_KEPT] -= 1
        schedule(s, clock[NOW], 8 * item + AT_LATE)
        _forget(s, entry)
    else:
        if cells[entry, ENTRY_HEAD] >= 0:
            cells[cells[entry, ENTRY_TAIL], 0] = item
        else:
            cells[entry, ENTRY_HEAD] = item
        cells[entry, ENTRY_TAIL] = item
