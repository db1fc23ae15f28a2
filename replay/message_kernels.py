"""The workload of a message-level run: slots, the issue loop, the loop over events. Compiled; the floor is in
``message_pool_kernels.py``, collectives in ``message_chunk_kernels.py``. Sections in brackets: ASTRA-sim's semantics.
"""

import numpy as np

from tracegen.proto.compiled import kernel
from tracegen.replay.message_chunk_kernels import (
    CHUNK_GROUP,
    CHUNK_ORDINAL,
    CHUNK_PHASE,
    CHUNK_QUEUE,
    CHUNK_RANK,
    CHUNK_TAG,
    DIM,
    HALF,
    QUEUE_RUNNING,
    RANK_CHUNKS,
    RANK_COUNT,
    RANK_PLACE,
    TREE_KIND,
    TREE_VISITS,
    enqueue,
    processed,
    received,
    serve,
)
from tracegen.replay.message_pool_kernels import (
    ABORTED,
    AT_DEVICE,
    AT_RELEASE,
    AT_TICK,
    CONGESTION,
    DIMS,
    ENTRY_PAIR,
    EVENTS,
    FLIGHT_AT,
    FLIGHT_ENTRY,
    ITEM_DST,
    ITEM_RANK,
    ITEM_SIZE,
    ITEM_SPACE,
    ITEM_SRC,
    ITEM_TAG,
    ITEM_THEN,
    ITEM_WHAT,
    ITEM_WHO,
    MEMORY,
    MESSAGES,
    NODE,
    NOW,
    POST,
    PROCESSED,
    RANKS,
    RECEIVED,
    REDUCE,
    ROOM,
    RUNNING,
    SEND_DATA,
    STARTING,
    USED,
    arrive,
    drop_item,
    expect,
    hop,
    launch,
    make_item,
    next_timer,
    pop,
    receive,
    release,
    send,
    set_timer,
)

# node
NODE_ACT, NODE_LANE, NODE_SLOT, NODE_SIGNATURE = 0, 1, 2, 3
INSTANT, TIMED, SEND, RECV, JOIN, REMOTE = 0, 1, 2, 3, 4, 5
NO_LANE, LANES = 0, 4
# rank, after the columns of message_chunk_kernels; the last three have one for each lane
RANK_COLUMNS = 21
RANK_PENDING, RANK_NODE, RANK_MADE, RANK_LEFT, RANK_FINISH, RANK_LATER, RANK_HELD, RANK_LAST, RANK_READY = (
    3, 4, 5, 6, 7, 8, 9, 13, 17,
)  # fmt: skip
# job
JOB_COLUMNS, JOB_COUNT, JOB_FIRST, JOB_STOP = 3, 0, 1, 2
# pools of remote memory
MEMORY_COLUMNS, MEMORY_BUSY, MEMORY_HEAD, MEMORY_TAIL = 3, 0, 1, 2
# outcomes
FINISHED, ABORT, PAUSED = -1, -2, -3  # from 0 on: the pool of this number is too small
_MESSAGE_SPACE = 0
_GROUP_TAGS = 1_000_000


@kernel
def _ready_push(s, rank, lane, position):  # type: ignore[no-untyped-def]
    """Add a ready node to a lane's heap of positions."""
    store, base = s.store, s.lane_ptr[rank, lane]
    at = s.rank[rank, RANK_READY + lane]
    s.rank[rank, RANK_READY + lane] = at + 1
    while at > 0:
        up = (at - 1) >> 1
        if store[base + up] <= position:
            break
        store[base + at] = store[base + up]
        at = up
    store[base + at] = position


@kernel
def _ready_pop(s, rank, lane):  # type: ignore[no-untyped-def]
    """Take the lowest position off a lane's heap."""
    store, base = s.store, s.lane_ptr[rank, lane]
    last = s.rank[rank, RANK_READY + lane] - 1
    s.rank[rank, RANK_READY + lane] = last
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


@kernel
def _end(s, rank, v, inside):  # type: ignore[no-untyped-def]
    """A node has ended; what waited for it becomes ready, or, inside an issue loop, is looked at in the next one (4)."""
    now, base = s.clock[NOW], s.node_ptr[rank]
    g = s.class_start[rank] + v - base
    s.end[v] = now
    s.rank[rank, RANK_LEFT] -= 1
    if s.rank[rank, RANK_LEFT] == 0:
        s.rank[rank, RANK_FINISH] = now
    if not inside:
        s.rank[rank, RANK_HELD + s.node[g, NODE_LANE]] = 0
    for e in range(s.succ_ptr[g], s.succ_ptr[g + 1]):
        x = np.int64(s.succ[e])
        s.left[base + x] -= 1
        if s.left[base + x] == 0:
            s.ready[base + x] = now
            if inside:
                s.later[base + x] = s.rank[rank, RANK_LATER]
                s.rank[rank, RANK_LATER] = x
            else:
                _ready_push(s, rank, s.node[s.class_start[rank] + x, NODE_LANE], x)


@kernel
def _collective(s, rank, v, g):  # type: ignore[no-untyped-def]
    """Cut a collective into chunks, all created now, each tried at once (5, 6)."""
    slot, mine, chunks = s.node[g, NODE_SLOT], s.rank[rank], s.chunks
    group = s.slots[rank, slot]
    job = s.jobs[s.node[g, NODE_SIGNATURE], group]
    count, first = s.job[job, JOB_COUNT], s.job[job, JOB_FIRST]
    mine[RANK_COUNT] = count
    mine[RANK_PENDING] = count
    mine[RANK_NODE] = v
    mine[RANK_PLACE] = s.place[rank, slot]
    if count > 0:
        for phase in range(first, s.job[job, JOB_STOP]):
            s.turns[rank, 3 * s.phases[phase, DIM] + s.phases[phase, HALF]] += count
            if s.phases[phase, TREE_VISITS] > 0:
                s.turns[rank, 3 * s.clock[DIMS] + s.phases[phase, TREE_KIND]] += count
    number = s.group_number[group]
    for k in range(count):
        chunk = mine[RANK_CHUNKS] + k
        chunks[chunk, CHUNK_RANK] = rank
        chunks[chunk, CHUNK_GROUP] = group
        chunks[chunk, CHUNK_ORDINAL] = k
        chunks[chunk, CHUNK_TAG] = number * _GROUP_TAGS + s.made[rank, slot] if number > 0 else mine[RANK_MADE]
        s.made[rank, slot] += 1
        mine[RANK_MADE] += 1
        serve(s, enqueue(s, chunk, first))


@kernel
def _remote(s, rank, v):  # type: ignore[no-untyped-def]
    """A request to remote memory: at once, or behind others of its pool (2.4)."""
    pool = s.pool_of[rank]
    if pool < 0:
        set_timer(s, rank, s.span[v], NODE, v, 0)
    elif s.pools[pool, MEMORY_BUSY]:
        s.rank[rank, RANK_NODE] = v
        s.waiting[rank] = -1
        if s.pools[pool, MEMORY_HEAD] >= 0:
            s.waiting[s.pools[pool, MEMORY_TAIL]] = rank
        else:
            s.pools[pool, MEMORY_HEAD] = rank
        s.pools[pool, MEMORY_TAIL] = rank
    else:
        s.pools[pool, MEMORY_BUSY] = 1
        set_timer(s, rank, s.span[v], MEMORY, v, 0)


@kernel
def _next_request(s, rank):  # type: ignore[no-untyped-def]
    """A remote memory has served a rank: on to the next one waiting."""
    pool = s.pool_of[rank]
    other = s.pools[pool, MEMORY_HEAD]
    if other < 0:
        s.pools[pool, MEMORY_BUSY] = 0
        return
    s.pools[pool, MEMORY_HEAD] = s.waiting[other]
    v = s.rank[other, RANK_NODE]
    set_timer(s, other, s.span[v], MEMORY, v, 0)


@kernel
def _issue(s, rank):  # type: ignore[no-untyped-def]
    """Issue ready nodes by ascending id where their slot is free (4)."""
    mine, base, now = s.rank[rank], s.node_ptr[rank], s.clock[NOW]
    x = mine[RANK_LATER]
    mine[RANK_LATER] = -1
    while x >= 0:
        _ready_push(s, rank, s.node[s.class_start[rank] + x, NODE_LANE], x)
        x = np.int64(s.later[base + x])
    while True:
        position, lane = np.int64(1) << 62, -1
        for one in range(LANES):
            if mine[RANK_READY + one] > 0 and mine[RANK_HELD + one] == 0:
                first = np.int64(s.store[s.lane_ptr[rank, one]])
                if first < position:
                    position, lane = first, one
        if lane < 0:
            return
        _ready_pop(s, rank, lane)
        v, g = base + position, s.class_start[rank] + position
        s.start[v] = now
        if now > s.ready[v]:
            s.ahead[v] = mine[RANK_LAST + lane]
        act = s.node[g, NODE_ACT]
        if act == INSTANT:
            _end(s, rank, v, True)
            continue
        if lane != NO_LANE:
            mine[RANK_HELD + lane] = 1
            mine[RANK_LAST + lane] = position
        if act == TIMED:
            if s.span[v] >= 0:
                set_timer(s, rank, s.span[v], NODE, v, 0)
        elif act == JOIN:
            _collective(s, rank, v, g)
        elif act == REMOTE:
            _remote(s, rank, v)
        else:
            peer = np.int64(s.slots[rank, s.node[g, NODE_SLOT]])
            size, tag = s.messages[s.node[g, NODE_SIGNATURE], 0], s.messages[s.node[g, NODE_SIGNATURE], 1]
            item = make_item(s, NODE, v, rank, 0, 0, 0, 0, 0, -1)
            if act == SEND:
                send(s, _MESSAGE_SPACE, tag, rank, peer, size, item)
            else:
                receive(s, _MESSAGE_SPACE, tag, peer, rank, size, item)


@kernel
def _move_on(s, chunk):  # type: ignore[no-untyped-def]
    """A chunk has gone through a phase: into its next queue, out of the old one (6). Where the collective ends, its end is told before the last chunk's place is released.
    """
    rank, old = s.chunks[chunk, CHUNK_RANK], s.chunks[chunk, CHUNK_QUEUE]
    node = s.rank[rank, RANK_NODE]
    slot = s.node[s.class_start[rank] + node - s.node_ptr[rank], NODE_SLOT]
    signature = s.node[s.class_start[rank] + node - s.node_ptr[rank], NODE_SIGNATURE]
    stop = s.job[s.jobs[signature, s.slots[rank, slot]], JOB_STOP]
    if s.chunks[chunk, CHUNK_PHASE] + 1 < stop:
        new = enqueue(s, chunk, s.chunks[chunk, CHUNK_PHASE] + 1)
        s.queues[old, QUEUE_RUNNING] -= 1
        serve(s, old)
        serve(s, new)
        return
    s.rank[rank, RANK_PENDING] -= 1
    if s.rank[rank, RANK_PENDING] == 0:
        _end(s, rank, node, False)
        _issue(s, rank)
    s.queues[old, QUEUE_RUNNING] -= 1
    serve(s, old)


@kernel
def _act(s, what, who, rank, more):  # type: ignore[no-untyped-def]
    """Do what a timer or an item says."""
    if what == PROCESSED:
        if processed(s, who):
            _move_on(s, who)
    elif what == REDUCE:
        set_timer(s, rank, more, PROCESSED, who, 0)
    elif what == RECEIVED:
        received(s, who)
    else:
        if what == MEMORY:
            _next_request(s, rank)
        _end(s, rank, who, False)
        _issue(s, rank)


@kernel
def _run_item(s, item):  # type: ignore[no-untyped-def]
    """Do what an item says and hand it back."""
    items = s.items
    what, then, rank = items[item, ITEM_WHAT], items[item, ITEM_THEN], items[item, ITEM_RANK]
    who, size = items[item, ITEM_WHO], items[item, ITEM_SIZE]
    space, tag, src, dst = items[item, ITEM_SPACE], items[item, ITEM_TAG], items[item, ITEM_SRC], items[item, ITEM_DST]
    drop_item(s, item)
    if what == SEND_DATA:
        launch(s, space, tag, src, dst, size, then)
    elif what == POST:
        expect(s, space, tag, src, dst, size, then)
    else:
        _act(s, what, who, rank, 0)


@kernel
def _begin(s, rank):  # type: ignore[no-untyped-def]
    """What a rank can do at 0."""
    base = s.node_ptr[rank]
    for x in range(s.node_ptr[rank + 1] - base):
        if s.left[base + x] == 0:
            s.ready[base + x] = 0
            _ready_push(s, rank, s.node[s.class_start[rank] + x, NODE_LANE], x)
    _issue(s, rank)


@kernel
def _at_device(s, flight):  # type: ignore[no-untyped-def]
    """A message has come to a device: on to the next, or there."""
    n = s.clock[RANKS]
    if s.clock[CONGESTION]:
        at = s.flights[flight, FLIGHT_AT]
        if at != s.entries[s.flights[flight, FLIGHT_ENTRY], ENTRY_PAIR] % n:
            hop(s, flight)
            return
    done, item = arrive(s, flight)
    if done >= 0:
        _run_item(s, done)
    if item >= 0:
        _run_item(s, item)


@kernel
def advance(s, most):  # type: ignore[no-untyped-def]
    """Run until nothing is left, an event at 0, a pool short of room, or ``most`` more messages; which of these."""
    clock = s.clock
    limit = clock[MESSAGES] + most
    room = clock[ROOM]
    while True:
        if clock[EVENTS] + room > len(s.heap):
            return 0
        if clock[USED + 1] + room > len(s.ticks):
            return 1
        if clock[USED + 2] + room > len(s.timers):
            return 2
        if clock[USED + 3] + room > len(s.items):
            return 3
        if clock[USED + 4] + room > len(s.entries):
            return 4
        if clock[USED + 5] + room > len(s.flights):
            return 5
        if clock[STARTING] < clock[RANKS]:
            _begin(s, clock[STARTING])
            clock[STARTING] += 1
            continue
        if clock[ABORTED]:
            return ABORT
        if clock[RUNNING] >= 0:
            rank = s.ticks[clock[RUNNING], 1]
            what, who, more = next_timer(s, clock[RUNNING])
            if what < 0:
                clock[RUNNING] = -1
            else:
                _act(s, what, who, rank, more)
            continue
        if clock[EVENTS] == 0:
            return FINISHED
        if clock[MESSAGES] > limit:
            return PAUSED
        code = pop(s)
        row, kind = code >> 3, code & 7
        if kind == AT_TICK:
            clock[RUNNING] = row
        elif kind == AT_DEVICE:
            _at_device(s, row)
        elif kind == AT_RELEASE:
            release(s, row)
        else:
            _run_item(s, row)
