"""Events in time order, timers per rank and tick, messages by key, links: the compiled floor of a message-level run.

Column numbers of the tables in `message_state.State` stand here, since they are part of the compiled code. Sections in
brackets: ASTRA-sim's semantics as measured. Free rows of a pool are chained through column 0.
"""

import numpy as np

from tracegen.proto.compiled import kernel

# clock
NOW, SEQUENCE, EVENTS, CURRENT, STARTING, RUNNING, ABORTED, MESSAGES, ROOM = 0, 1, 2, 3, 4, 5, 6, 7, 8
RANKS, DIMS, QUEUES, SERVERS, CONGESTION, RENDEZVOUS = 9, 10, 11, 12, 13, 14
FREE, USED = 15, 21  # of each pool, in the order heap (no free rows), ticks, timers, items, entries, flights
CLOCK_COLUMNS = 27
_TICKS, _TIMERS, _ITEMS, _ENTRIES, _FLIGHTS = 1, 2, 3, 4, 5
# pools
EVENT_COLUMNS = 3
TICK_COLUMNS, TICK_RANK, TICK_TIME, TICK_HEAD, TICK_TAIL = 5, 1, 2, 3, 4
TIMER_COLUMNS, TIMER_WHAT, TIMER_WHO, TIMER_MORE = 4, 1, 2, 3
ITEM_COLUMNS, ITEM_WHAT, ITEM_WHO, ITEM_RANK, ITEM_SPACE, ITEM_TAG, ITEM_SRC, ITEM_DST, ITEM_SIZE, ITEM_THEN = (
    10, 1, 2, 3, 4, 5, 6, 7, 8, 9,
)  # fmt: skip
ENTRY_COLUMNS, ENTRY_TAG, ENTRY_PAIR, ENTRY_SIZE, ENTRY_KEPT, ENTRY_HEAD, ENTRY_TAIL, ENTRY_FLYING = 8, 1, 2, 3, 4, 5, 6, 7
FLIGHT_COLUMNS, FLIGHT_ENTRY, FLIGHT_DONE, FLIGHT_AT, FLIGHT_SINCE = 5, 1, 2, 3, 4
LINK_COLUMNS, LINK_UNTIL, LINK_RELEASE, LINK_HEAD, LINK_TAIL, LINK_MESSAGES, LINK_BYTES, LINK_BUSY, LINK_QUEUED = (
    8, 0, 1, 2, 3, 4, 5, 6, 7,
)  # fmt: skip
# event codes: 8 x row + kind
AT_TICK, AT_DEVICE, AT_RELEASE, AT_LATE = 0, 1, 2, 3
# what a timer or an item does
NODE, MEMORY, REDUCE, PROCESSED, RECEIVED, SEND_DATA, POST = 0, 1, 2, 3, 4, 5, 6
_REQUEST_BYTES = 8192  # of the rendezvous protocol (2.1)
_SPACES = 4  # messages, chunks, and the requests of each (14.3)
_TAG_SPACE = 500_000_000
_RING, _SWITCH = 0, 2


@kernel
def push(s, time, sequence, code):  # type: ignore[no-untyped-def]
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


@kernel
def schedule(s, time, code):  # type: ignore[no-untyped-def]
    """An event after all scheduled before it for the same tick."""
    sequence = s.clock[SEQUENCE]
    s.clock[SEQUENCE] += 1
    push(s, time, sequence, code)


@kernel
def pop(s):  # type: ignore[no-untyped-def]
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


@kernel
def take(clock, pool, which):  # type: ignore[no-untyped-def]
    """A free row of a pool; the caller has seen to it that there is room."""
    row = clock[FREE + which]
    if row >= 0:
        clock[FREE + which] = pool[row, 0]
    else:
        row = clock[USED + which]
        clock[USED + which] += 1
    return row


@kernel
def give(clock, pool, which, row):  # type: ignore[no-untyped-def]
    """Hand a row back."""
    pool[row, 0] = clock[FREE + which]
    clock[FREE + which] = row


@kernel
def _place(a, b, c, buckets):  # type: ignore[no-untyped-def]
    """Hash chain of a key of three numbers."""
    h = a * 0x9E3779B97F4A7C1 + b * 0x2545F4914F6CDD1D + c * 0x27D4EB2F165667C5
    h ^= h >> 29
    h *= 0x165667B19E3779F9
    h ^= h >> 32
    return h & (buckets - 1)


@kernel
def rehash(pool, old, new):  # type: ignore[no-untyped-def]
    """Move the chains of one hash table into a larger one; the key is columns 1 to 3, or 1 and 2 of ticks."""
    wide = pool.shape[1] == ENTRY_COLUMNS
    for bucket in range(len(old)):
        row = old[bucket]
        while row >= 0:
            after = pool[row, 0]
            there = _place(pool[row, 1], pool[row, 2], pool[row, 3] if wide else 0, len(new))
            pool[row, 0] = new[there]
            new[there] = row
            row = after


@kernel
def _unchain(pool, buckets, bucket, row):  # type: ignore[no-untyped-def]
    at = buckets[bucket]
    if at == row:
        buckets[bucket] = pool[row, 0]
        return
    while pool[at, 0] != row:
        at = pool[at, 0]
    pool[at, 0] = pool[row, 0]


@kernel
def set_timer(s, rank, delay, what, who, more):  # type: ignore[no-untyped-def]
    """Register a timer: all of a rank for one tick run together, at the place of the first (3, 14.7, 14.8)."""
    clock, ticks, timers = s.clock, s.ticks, s.timers
    time = clock[NOW] + delay
    timer = take(clock, timers, _TIMERS)
    timers[timer, 0] = -1
    timers[timer, TIMER_WHAT] = what
    timers[timer, TIMER_WHO] = who
    timers[timer, TIMER_MORE] = more
    bucket = _place(rank, time, 0, len(s.tick_buckets))
    tick = s.tick_buckets[bucket]
    while tick >= 0 and (ticks[tick, TICK_RANK] != rank or ticks[tick, TICK_TIME] != time):
        tick = ticks[tick, 0]
    if tick >= 0:
        if ticks[tick, TICK_TAIL] >= 0:
            timers[ticks[tick, TICK_TAIL], 0] = timer
        else:
            ticks[tick, TICK_HEAD] = timer
        ticks[tick, TICK_TAIL] = timer
        return
    tick = take(clock, ticks, _TICKS)
    ticks[tick, 0] = s.tick_buckets[bucket]
    s.tick_buckets[bucket] = tick
    ticks[tick, TICK_RANK] = rank
    ticks[tick, TICK_TIME] = time
    ticks[tick, TICK_HEAD] = timer
    ticks[tick, TICK_TAIL] = timer
    schedule(s, time, 8 * tick + AT_TICK)


@kernel
def next_timer(s, tick):  # type: ignore[no-untyped-def]
    """Take the first timer of a list: what, who, more; what is -1 where the list is empty, which is then gone."""
    ticks, timers = s.ticks, s.timers
    timer = ticks[tick, TICK_HEAD]
    if timer < 0:
        _unchain(ticks, s.tick_buckets, _place(ticks[tick, TICK_RANK], ticks[tick, TICK_TIME], 0, len(s.tick_buckets)), tick)
        give(s.clock, ticks, _TICKS, tick)
        return -1, 0, 0
    what, who, more = timers[timer, TIMER_WHAT], timers[timer, TIMER_WHO], timers[timer, TIMER_MORE]
    ticks[tick, TICK_HEAD] = timers[timer, 0]
    if timers[timer, 0] < 0:
        ticks[tick, TICK_TAIL] = -1
    give(s.clock, timers, _TIMERS, timer)
    return what, who, more


@kernel
def make_item(s, what, who, rank, space, tag, src, dst, size, then):  # type: ignore[no-untyped-def]
    """Something to do later; its row."""
    items = s.items
    item = take(s.clock, items, _ITEMS)
    items[item, 0] = -1
    items[item, ITEM_WHAT] = what
    items[item, ITEM_WHO] = who
    items[item, ITEM_RANK] = rank
    items[item, ITEM_SPACE] = space
    items[item, ITEM_TAG] = tag
    items[item, ITEM_SRC] = src
    items[item, ITEM_DST] = dst
    items[item, ITEM_SIZE] = size
    items[item, ITEM_THEN] = then
    return item


@kernel
def drop_item(s, item):  # type: ignore[no-untyped-def]
    """Hand an item's row back."""
    give(s.clock, s.items, _ITEMS, item)


@kernel
def _entry(s, space, tag, src, dst, size):  # type: ignore[no-untyped-def]
    """The entry of a key, made where there is none (4: tag modulo 5e8, ends, size)."""
    entries = s.entries
    tag = (tag % _TAG_SPACE) * _SPACES + space
    pair = src * s.clock[RANKS] + dst
    bucket = _place(tag, pair, size, len(s.entry_buckets))
    row = s.entry_buckets[bucket]
    while row >= 0:
        if entries[row, ENTRY_PAIR] == pair and entries[row, ENTRY_TAG] == tag and entries[row, ENTRY_SIZE] == size:
            return row
        row = entries[row, 0]
    row = take(s.clock, entries, _ENTRIES)
    entries[row, 0] = s.entry_buckets[bucket]
    s.entry_buckets[bucket] = row
    entries[row, ENTRY_TAG] = tag
    entries[row, ENTRY_PAIR] = pair
    entries[row, ENTRY_SIZE] = size
    entries[row, ENTRY_KEPT] = 0
    entries[row, ENTRY_HEAD] = -1
    entries[row, ENTRY_TAIL] = -1
    entries[row, ENTRY_FLYING] = 0
    return row


@kernel
def _forget(s, row):  # type: ignore[no-untyped-def]
    """Hand an entry back once nothing of it is under way, kept or waited for."""
    entries = s.entries
    if entries[row, ENTRY_FLYING] == 0 and entries[row, ENTRY_KEPT] == 0 and entries[row, ENTRY_HEAD] < 0:
        bucket = _place(entries[row, ENTRY_TAG], entries[row, ENTRY_PAIR], entries[row, ENTRY_SIZE], len(s.entry_buckets))
        _unchain(entries, s.entry_buckets, bucket, row)
        give(s.clock, entries, _ENTRIES, row)


@kernel
def transmit(s, link, flight):  # type: ignore[no-untyped-def]
    """Occupy a link: the arrival is scheduled first, the release only reserves its place and is scheduled when somebody
    waits for it (9)."""
    clock, links = s.clock, s.links
    size = s.entries[s.flights[flight, FLIGHT_ENTRY], ENTRY_SIZE]
    ready = size / s.bandwidth[0]
    busy = np.int64(np.floor(ready))
    schedule(s, clock[NOW] + np.int64(np.floor(s.latency[0] + ready)), 8 * flight + AT_DEVICE)
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


@kernel
def release(s, link):  # type: ignore[no-untyped-def]
    """A link somebody waits for has become free."""
    links, flights = s.links, s.flights
    flight = links[link, LINK_HEAD]
    links[link, LINK_HEAD] = flights[flight, 0]
    links[link, LINK_QUEUED] += s.clock[NOW] - flights[flight, FLIGHT_SINCE]
    transmit(s, link, flight)


@kernel
def hop(s, flight):  # type: ignore[no-untyped-def]
    """Send a message on from where it is, over its next link, or queue it there."""
    clock, links, flights = s.clock, s.links, s.flights
    n, device = clock[RANKS], flights[flight, FLIGHT_AT]
    pair = s.entries[flights[flight, FLIGHT_ENTRY], ENTRY_PAIR]
    src, dst = pair // n, pair % n
    if s.topology[0] == _RING:
        ahead = (dst - src) % n
        if ahead <= n - ahead:  # a tie goes towards increasing ranks
            link, there = 2 * device, (device + 1) % n
        else:
            link, there = 2 * device + 1, (device - 1) % n
    elif s.topology[0] == _SWITCH:
        if device < n:
            link, there = src, n
        else:
            link, there = n + dst, dst
    else:
        link, there = pair, dst
    flights[flight, FLIGHT_AT] = there
    until = links[link, LINK_UNTIL]
    if clock[NOW] > until or (clock[NOW] == until and clock[CURRENT] > links[link, LINK_RELEASE]):
        transmit(s, link, flight)
        return
    flights[flight, FLIGHT_SINCE] = clock[NOW]
    flights[flight, 0] = -1
    if links[link, LINK_HEAD] >= 0:
        flights[links[link, LINK_TAIL], 0] = flight
    else:
        links[link, LINK_HEAD] = flight
        push(s, until, links[link, LINK_RELEASE], 8 * link + AT_RELEASE)
    links[link, LINK_TAIL] = flight


@kernel
def _direct(s, flight, src, dst, size):  # type: ignore[no-untyped-def]
    """Without congestion: floor(h latency + m / B) of the lowest dimension in which the ends differ (9)."""
    a, b, d = src, dst, 0
    while a % s.sizes[d] == b % s.sizes[d]:
        a //= s.sizes[d]
        b //= s.sizes[d]
        d += 1
    if s.topology[d] == _RING:
        ahead = (b - a) % s.sizes[d]
        hops = min(ahead, s.sizes[d] - ahead)
    else:
        hops = s.topology[d]
    ready = size / s.bandwidth[d]
    link = src * s.clock[DIMS] + d
    s.links[link, LINK_MESSAGES] += 1
    s.links[link, LINK_BYTES] += size
    s.links[link, LINK_BUSY] += np.int64(np.floor(ready))
    schedule(s, s.clock[NOW] + np.int64(np.floor(hops * s.latency[d] + ready)), 8 * flight + AT_DEVICE)


@kernel
def launch(s, space, tag, src, dst, size, done):  # type: ignore[no-untyped-def]
    """Put a message on its way; ``done`` is the item to run at its arrival, -1 none."""
    clock, flights = s.clock, s.flights
    entry = _entry(s, space, tag, src, dst, size)
    s.entries[entry, ENTRY_FLYING] += 1
    flight = take(clock, flights, _FLIGHTS)
    flights[flight, FLIGHT_ENTRY] = entry
    flights[flight, FLIGHT_DONE] = done
    flights[flight, FLIGHT_AT] = src
    clock[MESSAGES] += 1
    if clock[CONGESTION]:
        hop(s, flight)
    else:
        _direct(s, flight, src, dst, size)


@kernel
def expect(s, space, tag, src, dst, size, item):  # type: ignore[no-untyped-def]
    """Post a receive: run the item at arrival, or, where the message is here, as an event of this tick (14.2)."""
    entries = s.entries
    entry = _entry(s, space, tag, src, dst, size)
    if entries[entry, ENTRY_KEPT] > 0:
        entries[entry, ENTRY_KEPT] -= 1
        schedule(s, s.clock[NOW], 8 * item + AT_LATE)
        _forget(s, entry)
        return
    if entries[entry, ENTRY_HEAD] >= 0:
        s.items[entries[entry, ENTRY_TAIL], 0] = item
    else:
        entries[entry, ENTRY_HEAD] = item
    entries[entry, ENTRY_TAIL] = item


@kernel
def arrive(s, flight):  # type: ignore[no-untyped-def]
    """A message has reached its target: the items to run, the sender's and the receiver's; -1 none.

    Messages of one key arrive in the order in which they were sent: the same delay, or the same links.
    """
    entries, entry = s.entries, s.flights[flight, FLIGHT_ENTRY]
    done = s.flights[flight, FLIGHT_DONE]
    give(s.clock, s.flights, _FLIGHTS, flight)
    entries[entry, ENTRY_FLYING] -= 1
    item = entries[entry, ENTRY_HEAD]
    if item >= 0:
        entries[entry, ENTRY_HEAD] = s.items[item, 0]
    else:
        entries[entry, ENTRY_KEPT] += 1
    _forget(s, entry)
    return done, item


@kernel
def send(s, space, tag, src, dst, size, done):  # type: ignore[no-untyped-def]
    """A message; under rendezvous it leaves when the receiver's request has come (2.1)."""
    if s.clock[RENDEZVOUS]:
        item = make_item(s, SEND_DATA, 0, src, space, tag, src, dst, size, done)
        expect(s, space + 2, tag, dst, src, _REQUEST_BYTES, item)
    else:
        launch(s, space, tag, src, dst, size, done)


@kernel
def receive(s, space, tag, src, dst, size, item):  # type: ignore[no-untyped-def]
    """A posted receive; under rendezvous it is really posted when the request has reached the sender."""
    if s.clock[RENDEZVOUS]:
        done = make_item(s, POST, 0, dst, space, tag, src, dst, size, item)
        launch(s, space + 2, tag, dst, src, _REQUEST_BYTES, done)
    else:
        expect(s, space, tag, src, dst, size, item)
