"""Chunks of collectives in their queues and phases, message by message: ring, direct, halving-doubling, binary trees.

Column numbers of the tables stand here, since they are part of the compiled code. Sections in brackets: ASTRA-sim's
semantics as measured.
"""

from typing import Any

import numpy as np

from tracegen.proto.compiled import bare, bare_inlined
from tracegen.replay.message.pool_kernels import (
    DIMS,
    GROUPS_AT,
    NONE,
    ONE,
    PROCESSED,
    QUEUES,
    QUEUES_AT,
    RECEIVED,
    REDUCE,
    SERVERS,
    ZERO,
    make_item,
    post,
    set_timer,
)

# phases
PHASE_COLUMNS = 18
DIM, HALF, ALGORITHM, WINDOW, STEPS, SIZE, MEMBERS, STRIDE, DELAY, BLOCK, FIRST, REDUCES, HOLD, LEVELS, GATHER = (
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
)  # fmt: skip
TREE_KIND, TREE_VISITS, TREE_VISIT = 15, 16, 17
ALL, LOWER, UPPER = 0, 1, 2  # HALF: which queues of the dimension
RING, DIRECT, HALVING, TREE = 0, 1, 2, 3
NEVER, ALWAYS, EVEN = 0, 1, 2  # REDUCES: which blocks of insertions reduce
# chunks
CHUNK_COLUMNS = 16
(
    CHUNK_RANK, CHUNK_PHASE, CHUNK_TAG, CHUNK_SENT, CHUNK_INSERTED, CHUNK_ARRIVED, CHUNK_PROCESSED, CHUNK_POSITION,
    CHUNK_QUEUE, CHUNK_NEXT, CHUNK_ORDINAL, CHUNK_FORWARD, CHUNK_TREE, CHUNK_GROUP, CHUNK_PARENT,
    CHUNK_LAST,
) = range(16)  # fmt: skip
QUEUE_COLUMNS, QUEUE_RUNNING, QUEUE_HEAD, QUEUE_TAIL = 3, 0, 1, 2
# ranks: of the collective in flight its chunks, how many there are and the place in the group; round robins of queues,
# three for each dimension, and of trees, four
RANK_CHUNKS, RANK_COUNT, RANK_PLACE = 0, 1, 2
RANK_TURNS = 40
_CHUNK_SPACE = np.int64(1)


@bare
def _reduce_ns(s: Any, size: Any) -> Any:
    """P(m): two reads and a write, each truncated (8)."""
    return 3 * np.int64(np.floor(size / s.net[s.clock[DIMS], 0])) if s.net[s.clock[DIMS], 0] > 0 else ZERO


@bare
def _peer(s: Any, chunk: Any, phase: Any, position: Any) -> Any:
    """The rank at a position of the line that a phase runs over."""
    stride = s.phases[phase, STRIDE]
    if stride == 0:
        return s.table[s.table[s.clock[GROUPS_AT] + s.chunks[chunk, CHUNK_GROUP]] + position]
    return s.chunks[chunk, CHUNK_RANK] + (position - s.chunks[chunk, CHUNK_POSITION]) * stride


@bare
def _step_size(s: Any, phase: Any, step: Any) -> Any:
    """Bytes of message number ``step``, from 0."""
    size, levels = s.phases[phase, SIZE], s.phases[phase, LEVELS]
    if levels == 0:
        return size
    if s.phases[phase, GATHER]:
        return size << step
    if step < levels:
        return size >> (step + 1)
    # Halved once more before it doubles, so an odd last message comes back a byte smaller.
    return (size >> (levels + 1)) << (step - levels + 1)


@bare
def _insert(s: Any, chunk: Any) -> None:
    """Insertion i of a phase, w at first and then one per reception: a timer e, and a second one P if it reduces."""
    chunks, phases = s.chunks, s.phases
    phase, index = chunks[chunk, CHUNK_PHASE], chunks[chunk, CHUNK_INSERTED]
    chunks[chunk, CHUNK_INSERTED] = index + 1
    reduces, block, place = phases[phase, REDUCES], ZERO, index
    if index >= phases[phase, BLOCK]:
        block = index // phases[phase, BLOCK]
        place = index - block * phases[phase, BLOCK]
    if place >= phases[phase, FIRST] and (reduces == ALWAYS or (reduces == EVEN and block % 2 == 0)):
        took = _reduce_ns(s, _step_size(s, phase, index))
        set_timer(s, chunks[chunk, CHUNK_RANK], phases[phase, DELAY], REDUCE, chunk, took)
    else:
        set_timer(s, chunks[chunk, CHUNK_RANK], phases[phase, DELAY], PROCESSED, chunk, ZERO)


@bare
def _message(s: Any, chunk: Any, phase: Any, position: Any, size: Any, sends: Any) -> None:
    """Send to, or post a receive from, a position of the line."""
    rank, tag, peer = s.chunks[chunk, CHUNK_RANK], s.chunks[chunk, CHUNK_TAG], _peer(s, chunk, phase, position)
    if sends:
        post(s, ONE, ONE, _CHUNK_SPACE, tag, rank, peer, size, NONE)
    else:
        post(s, ZERO, ONE, _CHUNK_SPACE, tag, peer, rank, size, make_item(s, RECEIVED, chunk, rank))


@bare
def _step(s: Any, chunk: Any, phase: Any) -> None:
    """Inject the next message and post the receive of the same step (8)."""
    chunks, phases = s.chunks, s.phases
    step = chunks[chunk, CHUNK_SENT]
    chunks[chunk, CHUNK_SENT] = step + 1
    n, me = phases[phase, MEMBERS], chunks[chunk, CHUNK_POSITION]
    if phases[phase, ALGORITHM] == HALVING:
        levels = phases[phase, LEVELS]
        if phases[phase, GATHER]:
            level = levels - 1 - step
        else:
            level = step if step < levels else 2 * levels - 1 - step
        to = me ^ (ONE << level)
        source = to
    else:
        way = ONE
        if phases[phase, ALGORITHM] == DIRECT:
            way = step + 1 if step < n - 1 else step + 2 - n
        to = me + way if me + way < n else me + way - n
        source = me - way if me >= way else me - way + n
        if chunks[chunk, CHUNK_FORWARD] < 0:
            to, source = source, to
    size = _step_size(s, phase, step)
    _message(s, chunk, phase, to, size, ONE)
    _message(s, chunk, phase, source, size, ZERO)


@bare_inlined
def _tree_begin(s: Any, chunk: Any, phase: Any) -> None:
    """A leaf starts its timer, others post what comes from their children (8); the in-order tree counts from 1."""
    n, shift = s.phases[phase, MEMBERS], s.chunks[chunk, CHUNK_TREE]
    me, top = s.chunks[chunk, CHUNK_POSITION], n // 2
    root = ZERO if shift else n - 1
    size = s.phases[phase, SIZE]
    if me == root:
        _message(s, chunk, phase, top - 1 + shift, size, ZERO)
        return
    node = me + 1 - shift
    low = node & -node
    if node == top:
        parent = root
    elif node & (low << 1):
        parent = node - low - 1 + shift
    else:
        parent = node + low - 1 + shift
    s.chunks[chunk, CHUNK_PARENT] = parent
    if low == 1:
        set_timer(s, s.chunks[chunk, CHUNK_RANK], s.phases[phase, DELAY], PROCESSED, chunk, ZERO)
        return
    _message(s, chunk, phase, me - low // 2, size, ZERO)
    _message(s, chunk, phase, me + low // 2, size, ZERO)


@bare_inlined
def _tree_processed(s: Any, chunk: Any, phase: Any) -> Any:
    """What follows a timer on a tree; True where the rank has done its part."""
    n, shift = s.phases[phase, MEMBERS], s.chunks[chunk, CHUNK_TREE]
    me, size, count = s.chunks[chunk, CHUNK_POSITION], s.phases[phase, SIZE], s.chunks[chunk, CHUNK_PROCESSED]
    root = ZERO if shift else n - 1
    if me == root:
        _message(s, chunk, phase, n // 2 - 1 + shift, size, ONE)
        return True
    node = me + 1 - shift
    low = node & -node
    inner = low > 1
    if count == (2 if inner else 1):
        _message(s, chunk, phase, s.chunks[chunk, CHUNK_PARENT], size, ONE)
        _message(s, chunk, phase, s.chunks[chunk, CHUNK_PARENT], size, ZERO)
        return False
    if count == 1:
        return False
    if inner:
        _message(s, chunk, phase, me - low // 2, size, ONE)
        _message(s, chunk, phase, me + low // 2, size, ONE)
    return True


@bare_inlined
def processed(s: Any, chunk: Any) -> Any:
    """A reception (or one of the first timers) has been processed; True where the phase has ended on this rank."""
    chunks, phases = s.chunks, s.phases
    phase = chunks[chunk, CHUNK_PHASE]
    chunks[chunk, CHUNK_PROCESSED] += 1
    if phases[phase, ALGORITHM] == TREE:
        return _tree_processed(s, chunk, phase)
    hold, left = phases[phase, HOLD], phases[phase, STEPS] - chunks[chunk, CHUNK_SENT]
    times = min(left, ONE)
    if hold > 0 and left <= hold:
        # Second half of a direct all-reduce: held back until n - 1 receptions have happened.
        if chunks[chunk, CHUNK_ARRIVED] < hold:
            return False
        times = min(left, phases[phase, WINDOW], chunks[chunk, CHUNK_PROCESSED] - chunks[chunk, CHUNK_SENT])
    for _ in range(times):
        _step(s, chunk, phase)
    return (
        chunks[chunk, CHUNK_SENT] == phases[phase, STEPS]
        and chunks[chunk, CHUNK_PROCESSED] - chunks[chunk, CHUNK_SENT] == phases[phase, WINDOW]
    )


@bare_inlined
def received(s: Any, chunk: Any) -> None:
    """A message of a chunk has come and its receive is posted."""
    chunks, phases = s.chunks, s.phases
    phase = chunks[chunk, CHUNK_PHASE]
    chunks[chunk, CHUNK_ARRIVED] += 1
    if phases[phase, ALGORITHM] != TREE:
        _insert(s, chunk)
        return
    shift, me = chunks[chunk, CHUNK_TREE], chunks[chunk, CHUNK_POSITION]
    leaf = (me + 1 - shift) & 1 == 1 and me != (0 if shift else phases[phase, MEMBERS] - 1)
    what, took = (PROCESSED, ZERO) if leaf else (REDUCE, _reduce_ns(s, phases[phase, SIZE]))
    set_timer(s, chunks[chunk, CHUNK_RANK], phases[phase, DELAY], what, chunk, took)


@bare
def enqueue(s: Any, chunk: Any, phase: Any) -> Any:
    """Append a chunk to its queue of a phase (6); the queue's place in the rank's row.

    The round robins have moved on by all chunks of the collective at its issue.
    """
    chunks, phases, clock = s.chunks, s.phases, s.clock
    mine, dim, half = s.rank[chunks[chunk, CHUNK_RANK]], phases[phase, DIM], phases[phase, HALF]
    total = clock[QUEUES]
    back = mine[RANK_COUNT] - chunks[chunk, CHUNK_ORDINAL]
    turn = mine[RANK_TURNS + 3 * dim + half] - back
    lower = total // 2
    forward = True
    if half == ALL:
        queue = turn % total
        forward = total == 1 or queue < lower
    elif half == LOWER:
        queue = turn % max(lower, 1)
    else:
        queue = lower + turn % (total - lower)
        forward = False
    chunks[chunk, CHUNK_FORWARD] = 1 if forward else -1
    chunks[chunk, CHUNK_PHASE] = phase
    for column in (CHUNK_SENT, CHUNK_INSERTED, CHUNK_ARRIVED, CHUNK_PROCESSED):
        chunks[chunk, column] = 0
    n, stride = phases[phase, MEMBERS], phases[phase, STRIDE]
    chunks[chunk, CHUNK_POSITION] = (chunks[chunk, CHUNK_RANK] // stride) % n if stride > 0 else mine[RANK_PLACE]
    visits = phases[phase, TREE_VISITS]
    if visits > 0:
        trees = mine[RANK_TURNS + 3 * clock[DIMS] + phases[phase, TREE_KIND]] - visits * back
        chunks[chunk, CHUNK_TREE] = (trees + phases[phase, TREE_VISIT]) % 2
    at = clock[QUEUES_AT] + QUEUE_COLUMNS * (dim * total + queue)
    chunks[chunk, CHUNK_QUEUE] = at
    chunks[chunk, CHUNK_NEXT] = -1
    if mine[at + QUEUE_HEAD] >= 0:
        chunks[mine[at + QUEUE_TAIL], CHUNK_NEXT] = chunk
    else:
        mine[at + QUEUE_HEAD] = chunk
    mine[at + QUEUE_TAIL] = chunk
    return at


@bare
def serve(s: Any, rank: Any, at: Any) -> None:
    """Start waiting chunks of a queue while it has room (6)."""
    mine, chunks, phases = s.rank[rank], s.chunks, s.phases
    while mine[at + QUEUE_HEAD] >= 0 and mine[at + QUEUE_RUNNING] < s.clock[SERVERS]:
        chunk = mine[at + QUEUE_HEAD]
        mine[at + QUEUE_HEAD] = chunks[chunk, CHUNK_NEXT]
        mine[at + QUEUE_RUNNING] += 1
        phase = chunks[chunk, CHUNK_PHASE]
        if phases[phase, ALGORITHM] == TREE:
            _tree_begin(s, chunk, phase)
        else:
            for _ in range(phases[phase, WINDOW]):
                _insert(s, chunk)
