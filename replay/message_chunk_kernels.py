"""Chunks of collectives in their queues and phases, message by message: ring, direct, halving-doubling, double binary tree.

Column numbers of the tables stand here, since they are part of the compiled code. Sections in brackets: ASTRA-sim's
semantics as measured.
"""

import numpy as np

from tracegen.proto.compiled import kernel
from tracegen.replay.message_pool_kernels import (
    DIMS,
    PROCESSED,
    QUEUES,
    RECEIVED,
    REDUCE,
    SERVERS,
    make_item,
    receive,
    send,
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
CHUNK_COLUMNS = 15
(
    CHUNK_RANK, CHUNK_PHASE, CHUNK_TAG, CHUNK_SENT, CHUNK_INSERTED, CHUNK_ARRIVED, CHUNK_PROCESSED, CHUNK_POSITION,
    CHUNK_QUEUE, CHUNK_NEXT, CHUNK_ORDINAL, CHUNK_FORWARD, CHUNK_TREE, CHUNK_GROUP, CHUNK_PARENT,
) = range(15)  # fmt: skip
QUEUE_COLUMNS, QUEUE_RUNNING, QUEUE_HEAD, QUEUE_TAIL = 3, 0, 1, 2
# ranks: of the collective in flight its chunks, and how many there are
RANK_CHUNKS, RANK_COUNT, RANK_PLACE = 0, 1, 2
_CHUNK_SPACE = 1


@kernel
def _reduce_ns(s, size):  # type: ignore[no-untyped-def]
    """P(m): two reads and a write, each truncated (8)."""
    return 3 * np.int64(np.floor(size / s.memory_rate[0])) if s.memory_rate[0] > 0 else np.int64(0)


@kernel
def _peer(s, chunk, phase, position):  # type: ignore[no-untyped-def]
    """The rank at a position of the line that a phase runs over."""
    stride = s.phases[phase, STRIDE]
    if stride == 0:
        return np.int64(s.members[s.group_ptr[s.chunks[chunk, CHUNK_GROUP]] + position])
    return s.chunks[chunk, CHUNK_RANK] + (position - s.chunks[chunk, CHUNK_POSITION]) * stride


@kernel
def _step_size(s, phase, step):  # type: ignore[no-untyped-def]
    """Bytes of message number ``step``, from 0."""
    size, levels = s.phases[phase, SIZE], s.phases[phase, LEVELS]
    if levels == 0:
        return size
    if s.phases[phase, GATHER]:
        return size << step
    if step < levels:
        return size >> (step + 1)
    return (size >> levels) << (step - levels)


@kernel
def _insert(s, chunk):  # type: ignore[no-untyped-def]
    """Insertion number i of a phase, w at first and then one per reception: a timer e, and a second one P if it reduces."""
    chunks, phases = s.chunks, s.phases
    phase, index = chunks[chunk, CHUNK_PHASE], chunks[chunk, CHUNK_INSERTED]
    chunks[chunk, CHUNK_INSERTED] = index + 1
    block, place = index // phases[phase, BLOCK], index % phases[phase, BLOCK]
    reduces = phases[phase, REDUCES]
    if place >= phases[phase, FIRST] and (reduces == ALWAYS or (reduces == EVEN and block % 2 == 0)):
        took = _reduce_ns(s, _step_size(s, phase, index))
        set_timer(s, chunks[chunk, CHUNK_RANK], phases[phase, DELAY], REDUCE, chunk, took)
    else:
        set_timer(s, chunks[chunk, CHUNK_RANK], phases[phase, DELAY], PROCESSED, chunk, 0)


@kernel
def _send_to(s, chunk, phase, position, size):  # type: ignore[no-untyped-def]
    src, tag = s.chunks[chunk, CHUNK_RANK], s.chunks[chunk, CHUNK_TAG]
    send(s, _CHUNK_SPACE, tag, src, _peer(s, chunk, phase, position), size, -1)


@kernel
def _receive_from(s, chunk, phase, position, size):  # type: ignore[no-untyped-def]
    rank, tag = s.chunks[chunk, CHUNK_RANK], s.chunks[chunk, CHUNK_TAG]
    item = make_item(s, RECEIVED, chunk, rank, 0, 0, 0, 0, 0, -1)
    receive(s, _CHUNK_SPACE, tag, _peer(s, chunk, phase, position), rank, size, item)


@kernel
def _step(s, chunk, phase):  # type: ignore[no-untyped-def]
    """Inject the next message and post the receive of the same step, if one may go (8)."""
    chunks, phases = s.chunks, s.phases
    step = chunks[chunk, CHUNK_SENT]
    if step == phases[phase, STEPS] or step == chunks[chunk, CHUNK_PROCESSED]:
        return
    chunks[chunk, CHUNK_SENT] = step + 1
    n, me = phases[phase, MEMBERS], chunks[chunk, CHUNK_POSITION]
    if phases[phase, ALGORITHM] == HALVING:
        levels = phases[phase, LEVELS]
        if phases[phase, GATHER]:
            level = levels - 1 - step
        else:
            level = step if step < levels else 2 * levels - 1 - step
        to = me ^ (np.int64(1) << level)
        source = to
    else:
        way = np.int64(1) if phases[phase, ALGORITHM] == RING else 1 + step % (n - 1)
        way *= chunks[chunk, CHUNK_FORWARD]
        to, source = (me + way) % n, (me - way) % n
    size = _step_size(s, phase, step)
    _send_to(s, chunk, phase, to, size)
    _receive_from(s, chunk, phase, source, size)


@kernel
def _tree_begin(s, chunk, phase):  # type: ignore[no-untyped-def]
    """A leaf starts its timer, others post what comes from their children (8); positions of the in-order tree from 1."""
    n, shift = s.phases[phase, MEMBERS], s.chunks[chunk, CHUNK_TREE]
    me, top = s.chunks[chunk, CHUNK_POSITION], n // 2
    root = np.int64(0) if shift else n - 1
    size = s.phases[phase, SIZE]
    if me == root:
        _receive_from(s, chunk, phase, top - 1 + shift, size)
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
        set_timer(s, s.chunks[chunk, CHUNK_RANK], s.phases[phase, DELAY], PROCESSED, chunk, 0)
        return
    _receive_from(s, chunk, phase, me - low // 2, size)
    _receive_from(s, chunk, phase, me + low // 2, size)


@kernel
def _tree_processed(s, chunk, phase):  # type: ignore[no-untyped-def]
    """What follows a timer on a tree; True where the rank has done its part."""
    n, shift = s.phases[phase, MEMBERS], s.chunks[chunk, CHUNK_TREE]
    me, size, count = s.chunks[chunk, CHUNK_POSITION], s.phases[phase, SIZE], s.chunks[chunk, CHUNK_PROCESSED]
    root = np.int64(0) if shift else n - 1
    if me == root:
        _send_to(s, chunk, phase, n // 2 - 1 + shift, size)
        return True
    node = me + 1 - shift
    low = node & -node
    inner = low > 1
    if count == (2 if inner else 1):
        _send_to(s, chunk, phase, s.chunks[chunk, CHUNK_PARENT], size)
        _receive_from(s, chunk, phase, s.chunks[chunk, CHUNK_PARENT], size)
        return False
    if count == 1:
        return False
    if inner:
        _send_to(s, chunk, phase, me - low // 2, size)
        _send_to(s, chunk, phase, me + low // 2, size)
    return True


@kernel
def processed(s, chunk):  # type: ignore[no-untyped-def]
    """A reception (or one of the first timers) has been processed; True where the phase has ended on this rank."""
    chunks, phases = s.chunks, s.phases
    phase = chunks[chunk, CHUNK_PHASE]
    chunks[chunk, CHUNK_PROCESSED] += 1
    if phases[phase, ALGORITHM] == TREE:
        return _tree_processed(s, chunk, phase)
    hold, times = phases[phase, HOLD], 1
    if hold > 0 and phases[phase, STEPS] - chunks[chunk, CHUNK_SENT] <= hold:
        # Second half of a direct all-reduce: held back until n - 1 receptions have happened.
        times = phases[phase, WINDOW] if chunks[chunk, CHUNK_ARRIVED] >= hold else 0
    for _ in range(times):
        _step(s, chunk, phase)
    return (
        times > 0
        and chunks[chunk, CHUNK_SENT] == phases[phase, STEPS]
        and chunks[chunk, CHUNK_PROCESSED] - chunks[chunk, CHUNK_SENT] == phases[phase, WINDOW]
    )


@kernel
def received(s, chunk):  # type: ignore[no-untyped-def]
    """A message of a chunk has come and its receive is posted."""
    chunks, phases = s.chunks, s.phases
    phase = chunks[chunk, CHUNK_PHASE]
    chunks[chunk, CHUNK_ARRIVED] += 1
    if phases[phase, ALGORITHM] != TREE:
        _insert(s, chunk)
        return
    shift, me = chunks[chunk, CHUNK_TREE], chunks[chunk, CHUNK_POSITION]
    leaf = (me + 1 - shift) & 1 == 1 and me != (0 if shift else phases[phase, MEMBERS] - 1)
    what, took = (PROCESSED, np.int64(0)) if leaf else (REDUCE, _reduce_ns(s, phases[phase, SIZE]))
    set_timer(s, chunks[chunk, CHUNK_RANK], phases[phase, DELAY], what, chunk, took)


@kernel
def enqueue(s, chunk, phase):  # type: ignore[no-untyped-def]
    """Append a chunk to its queue of a phase (6); the queue's row.

    The round robins have moved on by all chunks of the collective at its issue.
    """
    chunks, phases, queues, clock = s.chunks, s.phases, s.queues, s.clock
    rank, dim, half = chunks[chunk, CHUNK_RANK], phases[phase, DIM], phases[phase, HALF]
    total = clock[QUEUES]
    back = s.rank[rank, RANK_COUNT] - chunks[chunk, CHUNK_ORDINAL]
    turn = s.turns[rank, 3 * dim + half] - back
    lower = total // 2
    if half == ALL:
        queue = turn % total
        forward = total == 1 or queue < lower
    elif half == LOWER:
        queue = turn % max(lower, 1)
        forward = True
    else:
        queue = lower + turn % (total - lower)
        forward = False
    chunks[chunk, CHUNK_FORWARD] = 1 if forward else -1
    chunks[chunk, CHUNK_PHASE] = phase
    for column in (CHUNK_SENT, CHUNK_INSERTED, CHUNK_ARRIVED, CHUNK_PROCESSED):
        chunks[chunk, column] = 0
    n, stride = phases[phase, MEMBERS], phases[phase, STRIDE]
    chunks[chunk, CHUNK_POSITION] = (rank // stride) % n if stride > 0 else s.rank[rank, RANK_PLACE]
    if phases[phase, ALGORITHM] == TREE:
        visits = phases[phase, TREE_VISITS]
        trees = s.turns[rank, 3 * clock[DIMS] + phases[phase, TREE_KIND]] - visits * back + phases[phase, TREE_VISIT]
        chunks[chunk, CHUNK_TREE] = trees % 2
    row = (rank * clock[DIMS] + dim) * total + queue
    chunks[chunk, CHUNK_QUEUE] = row
    chunks[chunk, CHUNK_NEXT] = -1
    if queues[row, QUEUE_HEAD] >= 0:
        chunks[queues[row, QUEUE_TAIL], CHUNK_NEXT] = chunk
    else:
        queues[row, QUEUE_HEAD] = chunk
    queues[row, QUEUE_TAIL] = chunk
    return row


@kernel
def serve(s, row):  # type: ignore[no-untyped-def]
    """Start waiting chunks of a queue while it has room (6)."""
    queues, chunks, phases = s.queues, s.chunks, s.phases
    while queues[row, QUEUE_HEAD] >= 0 and queues[row, QUEUE_RUNNING] < s.clock[SERVERS]:
        chunk = queues[row, QUEUE_HEAD]
        queues[row, QUEUE_HEAD] = chunks[chunk, CHUNK_NEXT]
        queues[row, QUEUE_RUNNING] += 1
        phase = chunks[chunk, CHUNK_PHASE]
        if phases[phase, ALGORITHM] == TREE:
            _tree_begin(s, chunk, phase)
        else:
            for _ in range(phases[phase, WINDOW]):
                _insert(s, chunk)
