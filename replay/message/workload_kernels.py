"""The workload of a message-level run: slots, the issue loop, the loop over events. Compiled; the floor is in
``message_pool_kernels.py``, collectives in ``message_chunk_kernels.py``. Sections in brackets: ASTRA-sim's semantics.
"""

from typing import Any

import numpy as np

from tracegen.proto.compiled import bare, bare_entry, bare_inlined
from tracegen.replay.message import chunk_kernels as c
from tracegen.replay.message import pool_kernels as p
from tracegen.replay.message.chunk_kernels import enqueue, processed, received, serve
from tracegen.replay.message.pool_kernels import (
    NONE,
    ONE,
    ZERO,
    arrive,
    give,
    hop,
    make_item,
    next_timer,
    pop,
    post,
    release,
    set_timer,
)

# node: what it does, its slot, what it names, its signature (of a message or a collective), its first successor
NODE_COLUMNS, NODE_ACT, NODE_LANE, NODE_SLOT, NODE_SIGNATURE, NODE_EDGES = 5, 0, 1, 2, 3, 4
INSTANT, TIMED, SEND, RECV, JOIN, REMOTE = range(6)
NO_LANE, LANES = 0, 4
# times and marks of a node
READY, START, END, SPAN = range(4)
LEFT, STORE, LATER, AHEAD = range(4)
# rank, after the columns of message_chunk_kernels; those with a gap behind them have one for each lane
(
    RANK_PENDING, RANK_NODE, RANK_MADE, RANK_LEFT, RANK_FINISH, RANK_LATER, RANK_NODES, RANK_TOTAL, RANK_CLASS,
    RANK_POOL, RANK_WAITING,
) = range(3, 14)  # fmt: skip
POOL_BUSY, POOL_HEAD, POOL_TAIL = 14, 15, 16  # in the row of a pool's number
RANK_HELD, RANK_LAST, RANK_READY, RANK_LANE = 20, 24, 28, 32
# job
JOB_COLUMNS, JOB_COUNT, JOB_FIRST, JOB_STOP = 3, 0, 1, 2
# outcomes
FINISHED, ABORT, PAUSED, MORE_EVENTS, MORE_CELLS = range(5)
_MESSAGE_SPACE = np.int64(0)
_GROUP_TAGS = 1_000_000


@bare
def _ready_push(s: Any, rank: Any, lane: Any, position: Any) -> None:
    """Add a ready node to a lane's heap of positions."""
    store, mine = s.marks, s.rank[rank]
    base, at = mine[RANK_LANE + lane], mine[RANK_READY + lane]
    mine[RANK_READY + lane] = at + 1
    while at > 0:
        up = (at - 1) >> 1
        if store[base + up, STORE] <= position:
            break
        store[base + at, STORE] = store[base + up, STORE]
        at = up
    store[base + at, STORE] = position


@bare
def _ready_pop(s: Any, rank: Any, lane: Any) -> None:
    """Take the lowest position off a lane's heap."""
    store, mine = s.marks, s.rank[rank]
    base, last = mine[RANK_LANE + lane], mine[RANK_READY + lane] - 1
    mine[RANK_READY + lane] = last
    position = store[base + last, STORE]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        if child + 1 < last and store[base + child + 1, STORE] < store[base + child, STORE]:
            child += 1
        if position <= store[base + child, STORE]:
            break
        store[base + at, STORE] = store[base + child, STORE]
        at = child
    store[base + at, STORE] = position


@bare
def _end(s: Any, rank: Any, v: Any, inside: Any) -> None:
    """A node has ended; what waited for it becomes ready, or, inside an issue loop, is left to the next one (4)."""
    now, mine = s.clock[p.NOW], s.rank[rank]
    base = mine[RANK_NODES]
    g = mine[RANK_CLASS] + v - base
    s.times[v, END] = now
    mine[RANK_LEFT] -= 1
    if mine[RANK_LEFT] == 0:
        mine[RANK_FINISH] = now
    if not inside:
        mine[RANK_HELD + s.node[g, NODE_LANE]] = 0
    for e in range(s.node[g, NODE_EDGES], s.node[g + 1, NODE_EDGES]):
        x = np.int64(s.succ[e])
        s.marks[base + x, LEFT] -= 1
        if s.marks[base + x, LEFT] == 0:
            s.times[base + x, READY] = now
            if inside:
                s.marks[base + x, LATER] = mine[RANK_LATER]
                mine[RANK_LATER] = x
            else:
                _ready_push(s, rank, np.int64(s.node[mine[RANK_CLASS] + x, NODE_LANE]), x)


@bare_inlined
def _collective(s: Any, rank: Any, v: Any, g: Any) -> None:
    """Cut a collective into chunks, all created now, each tried at once (5, 6)."""
    clock, table, mine, chunks = s.clock, s.table, s.rank[rank], s.chunks
    slot = s.node[g, NODE_SLOT]
    group = mine[clock[p.SLOTS_AT] + slot]
    number = table[clock[p.JOB_OF_AT] + s.node[g, NODE_SIGNATURE] * clock[p.GROUPS] + group]
    job = clock[p.JOBS_AT] + JOB_COLUMNS * number
    count, first = table[job + JOB_COUNT], table[job + JOB_FIRST]
    mine[c.RANK_COUNT] = count
    mine[RANK_PENDING] = count
    mine[RANK_NODE] = v
    mine[c.RANK_PLACE] = mine[clock[p.PLACE_AT] + slot]
    if count > 0:
        for phase in range(first, table[job + JOB_STOP]):
            mine[c.RANK_TURNS + 3 * s.phases[phase, c.DIM] + s.phases[phase, c.HALF]] += count
            if s.phases[phase, c.TREE_VISITS] > 0:
                mine[c.RANK_TURNS + 3 * clock[p.DIMS] + s.phases[phase, c.TREE_KIND]] += count
    number, made = table[clock[p.NUMBERS_AT] + group], clock[p.MADE_AT] + slot
    for k in range(count):
        chunk = mine[c.RANK_CHUNKS] + k
        chunks[chunk, c.CHUNK_RANK] = rank
        chunks[chunk, c.CHUNK_GROUP] = group
        chunks[chunk, c.CHUNK_ORDINAL] = k
        chunks[chunk, c.CHUNK_LAST] = table[job + JOB_STOP] - 1
        tag = number * _GROUP_TAGS + mine[made] if number > 0 else mine[RANK_MADE]
        chunks[chunk, c.CHUNK_TAG] = tag
        mine[made] += 1
        mine[RANK_MADE] += 1
        serve(s, rank, enqueue(s, chunk, first))


@bare_inlined
def _remote(s: Any, rank: Any, v: Any) -> None:
    """A request to remote memory: at once, or behind others of its pool (2.4)."""
    mine = s.rank[rank]
    if mine[RANK_POOL] < 0:
        set_timer(s, rank, s.times[v, SPAN], p.NODE, v, ZERO)
        return
    pool = s.rank[mine[RANK_POOL]]
    if pool[POOL_BUSY]:
        mine[RANK_NODE] = v
        mine[RANK_WAITING] = -1
        if pool[POOL_HEAD] >= 0:
            s.rank[pool[POOL_TAIL], RANK_WAITING] = rank
        else:
            pool[POOL_HEAD] = rank
        pool[POOL_TAIL] = rank
    else:
        pool[POOL_BUSY] = 1
        set_timer(s, rank, s.times[v, SPAN], p.MEMORY, v, ZERO)


@bare
def _issue(s: Any, rank: Any) -> None:
    """Issue ready nodes by ascending id where their slot is free (4)."""
    mine, clock = s.rank[rank], s.clock
    base, now = mine[RANK_NODES], clock[p.NOW]
    x = mine[RANK_LATER]
    mine[RANK_LATER] = -1
    while x >= 0:
        _ready_push(s, rank, np.int64(s.node[mine[RANK_CLASS] + x, NODE_LANE]), x)
        x = np.int64(s.marks[base + x, LATER])
    while True:
        position, lane = np.int64(1) << 62, np.int64(-1)
        for one in range(LANES):
            if mine[RANK_READY + one] > 0 and mine[RANK_HELD + one] == 0:
                first = np.int64(s.marks[mine[RANK_LANE + one], STORE])
                if first < position:
                    position, lane = first, np.int64(one)
        if lane < 0:
            return
        _ready_pop(s, rank, lane)
        v, g = base + position, mine[RANK_CLASS] + position
        s.times[v, START] = now
        if now > s.times[v, READY]:
            s.marks[v, AHEAD] = mine[RANK_LAST + lane]
        act = s.node[g, NODE_ACT]
        if act == INSTANT:
            _end(s, rank, v, ONE)
            continue
        if lane != NO_LANE:
            mine[RANK_HELD + lane] = 1
            mine[RANK_LAST + lane] = position
        if act == TIMED:
            if s.times[v, SPAN] >= 0:
                set_timer(s, rank, s.times[v, SPAN], p.NODE, v, ZERO)
        elif act == JOIN:
            _collective(s, rank, v, g)
        elif act == REMOTE:
            _remote(s, rank, v)
        else:
            peer = mine[clock[p.SLOTS_AT] + s.node[g, NODE_SLOT]]
            message = clock[p.MESSAGES_AT] + 2 * s.node[g, NODE_SIGNATURE]
            size, tag = s.table[message], s.table[message + 1]
            src, dst, sends = (rank, peer, ONE) if act == SEND else (peer, rank, ZERO)
            post(s, sends, ONE, _MESSAGE_SPACE, tag, src, dst, size, make_item(s, p.NODE, v, rank))


@bare_inlined
def _next_action(s: Any) -> Any:
    """What happens next, as the cell of a timer or an item, and the rank; -1 where there is nothing to act on."""
    clock, cells = s.clock, s.cells
    if clock[p.PENDING] >= 0:
        cell = clock[p.PENDING]
        clock[p.PENDING] = -1
        return cell, cells[cell, p.ITEM_RANK]
    if clock[p.RUNNING] >= 0:
        rank = cells[clock[p.RUNNING], p.TICK_RANK]
        return next_timer(s), rank
    code = pop(s)
    row, kind = code >> 3, code & 7
    if kind == p.AT_TICK:
        clock[p.RUNNING] = row
    elif kind == p.AT_RELEASE:
        release(s, row)
    elif kind == p.AT_LATE:
        return row, cells[row, p.ITEM_RANK]
    else:
        if clock[p.CONGESTION] and cells[row, p.FLIGHT_AT] != cells[row, p.FLIGHT_DST]:
            hop(s, row)
        else:
            done, item = arrive(s, row)
            if done < 0:
                done = item
            else:
                clock[p.PENDING] = item  # the sender's side first
            if done >= 0:
                return done, cells[done, p.ITEM_RANK]
    return NONE, NONE


@bare_inlined
def _act(s: Any, cell: Any, rank: Any) -> Any:
    """Do what a timer or an item says; the node that ends by it, -1 none, and whether its chunk leaves its queue."""
    cells, chunks = s.cells, s.chunks
    what, who = cells[cell, p.TIMER_WHAT], cells[cell, p.TIMER_WHO]
    if what == p.REDUCE:
        took = cells[cell, p.TIMER_MORE]
        give(s.clock, cells, cell)
        set_timer(s, rank, took, p.PROCESSED, who, ZERO)
        return NONE, NONE
    if what == p.SEND_DATA or what == p.POST:
        space, tag = cells[cell, p.ITEM_TAG] % p.SPACES, cells[cell, p.ITEM_TAG] // p.SPACES
        src, dst = cells[cell, p.ITEM_PAIR] // s.clock[p.RANKS], cells[cell, p.ITEM_PAIR] % s.clock[p.RANKS]
        size, then = cells[cell, p.ITEM_SIZE], cells[cell, p.ITEM_THEN]
        give(s.clock, cells, cell)
        post(s, ONE if what == p.SEND_DATA else ZERO, ZERO, space, tag, src, dst, size, then)
        return NONE, NONE
    give(s.clock, cells, cell)
    if what == p.RECEIVED:
        received(s, who)
        return NONE, NONE
    if what == p.PROCESSED:
        if not processed(s, who):
            return NONE, NONE
        if chunks[who, c.CHUNK_PHASE] < chunks[who, c.CHUNK_LAST]:
            return NONE, who
        s.rank[rank, RANK_PENDING] -= 1
        return (s.rank[rank, RANK_NODE] if s.rank[rank, RANK_PENDING] == 0 else NONE), who
    if what == p.MEMORY:
        pool = s.rank[s.rank[rank, RANK_POOL]]
        other = pool[POOL_HEAD]
        if other < 0:
            pool[POOL_BUSY] = 0
        else:
            pool[POOL_HEAD] = s.rank[other, RANK_WAITING]
            v = s.rank[other, RANK_NODE]
            set_timer(s, other, s.times[v, SPAN], p.MEMORY, v, ZERO)
    return who, NONE


@bare_entry
def advance(s: Any, most: Any) -> Any:
    """Run until nothing is left, an event at 0, a pool short of room, or ``most`` more messages; which of these."""
    clock, chunks = s.clock, s.chunks
    limit = clock[p.MESSAGES] + most
    while True:
        if clock[p.EVENTS] + clock[p.ROOM] > len(s.heap):
            return MORE_EVENTS
        if clock[p.USED] + clock[p.ROOM] > len(s.cells):
            return MORE_CELLS
        if clock[p.STARTING] < clock[p.PLAYED]:
            rank = clock[p.STARTING]
            clock[p.STARTING] += 1
            base = s.rank[rank, RANK_NODES]
            for x in range(s.rank[rank, RANK_TOTAL]):
                if s.marks[base + x, LEFT] == 0:
                    s.times[base + x, READY] = 0
                    _ready_push(s, rank, np.int64(s.node[s.rank[rank, RANK_CLASS] + x, NODE_LANE]), np.int64(x))
            _issue(s, rank)
            continue
        if clock[p.ABORTED]:
            return ABORT
        if clock[p.PENDING] < 0 and clock[p.RUNNING] < 0:
            if clock[p.EVENTS] == 0:
                return FINISHED
            if clock[p.MESSAGES] > limit:
                return PAUSED
        cell, rank = _next_action(s)
        if cell < 0:
            continue
        ended, chunk = _act(s, cell, rank)
        old, new = NONE, NONE
        if chunk >= 0:
            # A chunk leaves a phase: into its next queue, then out of the old one (6). Where the collective ends, its
            # end is told before the last chunk's place is released.
            old = chunks[chunk, c.CHUNK_QUEUE]
            if chunks[chunk, c.CHUNK_PHASE] < chunks[chunk, c.CHUNK_LAST]:
                new = enqueue(s, chunk, chunks[chunk, c.CHUNK_PHASE] + 1)
        if ended >= 0:
            _end(s, rank, ended, ZERO)
            _issue(s, rank)
        if old >= 0:
            s.rank[rank, old + c.QUEUE_RUNNING] -= 1
            serve(s, rank, old)
            if new >= 0:
                serve(s, rank, new)
