"""Rules of ASTRA-sim's congestion-unaware backend for one collective: chunks, phases, steps, closed forms.

Sources are sections of ``docs`` on ASTRA-sim's semantics, as measured (5 chunks, 6 phases, 7 groups, 8 algorithms, 10
closed forms). `collective_rule` decides how a collective is settled: by a closed form where all members enter at one
tick, by the exact recursion over its steps where they do not, or, where neither is known, by the last entry plus the
closed form (`paths` then has the run simulated message by message). The compiled `collective_finish` in
``astra_kernels.py`` applies the rule. The congestion-aware backend's closed forms are in `aware`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.fabric import RING, Algorithm, Fabric
from tracegen.replay.prices.collectives import Cost, Use
from tracegen.replay.prices.flow_shop import Visit, flow_shop
from tracegen.replay.prices.routes import message_ns, routes

NEVER, NO_CLOSED_FORM = -1, -2
# How members that enter at different ticks are settled.
LAST_ENTRY, STEPWISE, ONE_SHOT = 0, 1, 2
# ASTRA-sim charges this at every step of a group that does not hold all ranks, whatever endpoint-delay says (7).
GROUP_ENDPOINT_DELAY_NS = 10
_RUN_BY_ASTRA = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)


class Unsettled(Exception):  # noqa: N818
    """No form here settles the collective: it has to be simulated message by message."""


@dataclass(frozen=True)
class Step:
    """``count`` equal steps: a message of ``nbytes`` to the next member (``partner`` 0) or to the one at XOR distance
    ``partner``, and a reception that reduces for ``reduce_ns``."""

    count: int
    nbytes: int
    reduce_ns: int
    partner: int = 0


@dataclass(frozen=True)
class Rule:
    """How one collective is settled.

    Parameters
    ----------
    span_ns : from a common entry to the end on all members; NEVER, or NO_CLOSED_FORM where members end apart.
    lag_ns : between the last internal event and the end; it decides the order of ends at one tick.
    form : what to do when members enter at different ticks.
    endpoint_ns, rounds : delay at every step; how often the chunk's steps are gone through, one after the other.
    steps : of STEPWISE; for ONE_SHOT one entry with the message and the reduction.
    """

    span_ns: int
    lag_ns: int = 0
    form: int = LAST_ENTRY
    endpoint_ns: int = 0
    rounds: int = 1
    steps: tuple[Step, ...] = ()


class _Phase(NamedTuple):
    """One chunk's stay on one dimension: its constant time and the lag of its last event."""

    ns: int
    lag: int


class _Line(NamedTuple):
    """Members an algorithm runs over: all of a dimension (``dim``), or a flat list of ranks (``dim`` -1)."""

    n: int
    dim: int
    endpoint_ns: int
    subset: bool


def chunking(kind: int, nbytes: int, splits: int, ranks: int) -> tuple[int, int]:
    """Size of a chunk and how many there are (semantics 5); (0, 0) where ASTRA-sim never gets to an end.

    Raises
    ------
    InputError
        No splits, ASTRA-sim's default: it divides by them.
    """
    if splits < 1:
        raise InputError("system.json: preferred-dataset-splits is missing or 0, on which ASTRA-sim crashes; write 1")
    chunk = nbytes // splits
    if kind != Collective.ALL_GATHER and chunk < ranks:
        chunk, nbytes = ranks, splits * ranks
    if chunk == 0:
        return 0, 0
    return chunk, -(-nbytes // chunk)


def collective_rule(fabric: Fabric, members: Sequence[int], mask: int, kind: int, nbytes: int) -> Rule:
    """How a collective of ``members`` is settled.

    Parameters
    ----------
    members : ranks in ring order.
    mask : dimensions the collective runs over if its members are all ranks on those; 0 for any other group.

    Raises
    ------
    InputError
        What ASTRA-sim aborts on.
    Unsettled
        No form is known for it.
    """
    if kind not in _RUN_BY_ASTRA:
        raise InputError(f"ASTRA-sim does not run {_name(kind)}; use --execution streams")
    algorithms = fabric.algorithm(kind)
    if not algorithms:
        raise InputError(f"system.json: {_name(kind)} is used but has no implementation list")
    chunk, chunks = chunking(kind, nbytes, fabric.splits, fabric.ranks)
    if len(members) == 1 or chunk == 0:
        return Rule(NEVER)
    if mask and not algorithms[0].flat:
        if len(algorithms) != fabric.dimensions:
            raise Unsettled
        dims = [d for d in range(fabric.dimensions) if mask >> d & 1]
        if len(dims) > 1:
            return _over_dimensions(fabric, dims, algorithms, kind, chunk, chunks)
        line = _Line(fabric.size[dims[0]], dims[0], fabric.endpoint_delay_ns, False)
        return _over_line(fabric, members, line, algorithms[dims[0]], kind, chunk, chunks)
    whole = len(members) == fabric.ranks
    delay = fabric.endpoint_delay_ns if whole else GROUP_ENDPOINT_DELAY_NS
    algorithm = algorithms[0] if len(algorithms) == 1 else Algorithm("ring")
    return _over_line(fabric, members, _Line(len(members), -1, delay, not whole), algorithm, kind, chunk, chunks)


def _name(kind: int) -> str:
    return Collective(kind).name if kind in tuple(Collective) else f"collective type {kind}"


def reduction_ns(fabric: Fabric, nbytes: int) -> int:
    """P(m): two reads and a write of local memory, each truncated (8)."""
    return 3 * floor(nbytes / fabric.memory_bandwidth) if fabric.memory_bandwidth else 0


def stepwise_steps(fabric: Fabric, algorithm: Algorithm, part: int, chunk: int, n: int) -> tuple[Step, ...] | None:
    """Steps of a stepwise algorithm over n members (8), None where the algorithm is not stepwise."""
    if algorithm.name == "ring":
        message = chunk if part == Collective.ALL_GATHER else chunk // n
        _refuse_empty(message, algorithm, n)
        reduce_ns = reduction_ns(fabric, message)
        reducing = Step(n - 1, message, reduce_ns)
        plain = Step(n - 1, message, 0)
        return {
            Collective.ALL_REDUCE: (reducing, plain),
            Collective.REDUCE_SCATTER: (reducing,),
            Collective.ALL_GATHER: (plain,),
            Collective.ALL_TO_ALL: (Step(n * (n - 1) // 2, message, 0),),
        }[Collective(part)]
    if algorithm.name != "halving_doubling":
        return None
    if n & (n - 1) or part == Collective.ALL_TO_ALL:
        why = "has no all-to-all" if part == Collective.ALL_TO_ALL else f"needs a power of two of members, not {n}"
        raise InputError(f"halvingDoubling {why}; use ring or direct")
    levels = n.bit_length() - 1
    if part == Collective.ALL_GATHER:
        return tuple(Step(1, chunk << j, 0, n >> (j + 1)) for j in range(levels))
    sizes = [chunk >> k for k in range(1, levels + 1)]
    _refuse_empty(sizes[-1], algorithm, n)
    # Reception k charges the reduction of message k + 1; the last one is free.
    after = [*(reduction_ns(fabric, m) for m in sizes[1:]), 0]
    down = tuple(Step(1, m, p, 1 << k) for k, (m, p) in enumerate(zip(sizes, after, strict=True)))
    if part == Collective.REDUCE_SCATTER:
        return down
    # The size is halved once more before it doubles back: an odd last message returns smaller by one, and one byte as
    # none, which explains why 1 KB in 16 splits over 64 ranks aborts (section 8). No measured row decides it.
    back = sizes[-1] >> 1
    _refuse_empty(back, algorithm, n)
    return down + tuple(Step(1, back << (j + 1), 0, n >> (j + 1)) for j in range(levels))


def _refuse_empty(message: int, algorithm: Algorithm, n: int) -> None:
    if message == 0:
        raise InputError(
            f"a chunk is too small to cut for {algorithm.name} over {n} members; ASTRA-sim aborts on empty messages"
        )


def _over_line(
    fabric: Fabric, members: Sequence[int], line: _Line, algorithm: Algorithm, kind: int, chunk: int, chunks: int
) -> Rule:
    """One phase over one dimension, or over a flat list of ranks."""
    queues = fabric.queues
    servers = -(-fabric.active // queues)
    # The all-reduce of localBWAware takes the lower half of the queues only (6).
    used = max(queues // 2, 1) if kind == Collective.ALL_REDUCE and fabric.bandwidth_aware else queues
    rounds = ceil(ceil(chunks / used) / servers)
    rule = _stepwise(fabric, members, line, algorithm, kind, chunk) or _direct(
        fabric, members, line, algorithm, kind, chunk
    )
    span = rule.span_ns * rounds if rule.span_ns >= 0 else rule.span_ns
    if queues > 1 and rule.span_ns == NO_CLOSED_FORM:
        raise Unsettled
    return replace(rule, span_ns=span, rounds=rounds, form=rule.form if queues == 1 else LAST_ENTRY)


def _stepwise(
    fabric: Fabric, members: Sequence[int], line: _Line, algorithm: Algorithm, kind: int, chunk: int
) -> Rule | None:
    steps = stepwise_steps(fabric, algorithm, kind, chunk, line.n)
    if steps is None:
        return None
    ranks = np.array(members, np.int64)
    span = line.endpoint_ns
    for step in steps:
        partner = np.roll(ranks, -1) if step.partner == 0 else ranks[np.arange(line.n) ^ step.partner]
        way = routes(fabric, ranks, partner, lowest_only=True)
        took = message_ns(way.latency, way.bandwidth, np.array(step.nbytes))
        if np.ptp(took):
            span = NO_CLOSED_FORM
            break
        span += step.count * (int(took[0]) + line.endpoint_ns + step.reduce_ns)
    lag = steps[-1].reduce_ns or line.endpoint_ns
    return Rule(span, lag, STEPWISE, line.endpoint_ns, 1, steps)


def _direct(fabric: Fabric, members: Sequence[int], line: _Line, algorithm: Algorithm, kind: int, chunk: int) -> Rule:
    """Direct over one dimension or a flat list (8; closed forms 10.2 and 10.3)."""
    if algorithm.name != "direct":
        raise Unsettled
    n, e = line.n, line.endpoint_ns
    message = chunk if kind == Collective.ALL_GATHER else chunk // n
    _refuse_empty(message, algorithm, n)
    window = min(algorithm.window or n - 1, n - 1)
    reduce_ns = reduction_ns(fabric, message)
    charge = reduce_ns if kind == Collective.REDUCE_SCATTER else 0
    ring = line.dim >= 0 and fabric.topology[line.dim] == RING
    whole_window = window == n - 1
    farthest = _equal_farthest(fabric, members, message)
    if kind == Collective.ALL_REDUCE:
        if ring and whole_window and n > 2:
            return Rule(_ring_direct_all_reduce(fabric, line, message, reduce_ns), e)
        if not whole_window or farthest is None or not farthest.same:
            raise Unsettled
        twice = line.subset and n > 2
        return Rule(3 * e + 2 * farthest.ns + (1 + twice) * reduce_ns, reduce_ns if twice else e)
    if whole_window:
        span = NO_CLOSED_FORM if farthest is None else 2 * e + farthest.ns + charge
        return Rule(span, charge or e, ONE_SHOT, e, 1, (Step(1, message, charge),))
    if farthest is None or not farthest.same:
        raise Unsettled
    rounds = -(-(n - 1) // window)
    charged = rounds if line.subset else -(-rounds // 2)
    return Rule(e + rounds * (farthest.ns + e) + charged * charge, charge or e)


class _Farthest(NamedTuple):
    ns: int
    same: bool


def _equal_farthest(fabric: Fabric, members: Sequence[int], message: int) -> _Farthest | None:
    """Delay from the farthest peer where it is one for all members, and whether all pairs have it; None otherwise."""
    ranks = np.array(members, np.int64)
    n = len(ranks)
    distances = np.arange(1, n)
    if n > 512:  # a whole line of a dimension or of ranks: by translation one member stands for all
        way = routes(fabric, np.full(n - 1, ranks[0]), ranks[distances], lowest_only=True)
        delay = message_ns(way.latency, way.bandwidth, np.array(message))[None, :]
    else:
        src, dst = np.broadcast_arrays(ranks[:, None], ranks[(np.arange(n)[:, None] + distances) % n])
        way = routes(fabric, src, dst, lowest_only=True)
        delay = message_ns(way.latency, way.bandwidth, np.array(message))
    worst = delay.max(axis=1)
    return None if np.ptp(worst) else _Farthest(int(worst[0]), not np.ptp(delay))


def _ring_direct_all_reduce(fabric: Fabric, line: _Line, message: int, reduce_ns: int) -> int:
    """Direct all-reduce on a ring of links, where peers answer at different times (10.2)."""
    n, e = line.n, line.endpoint_ns
    latency, rate = fabric.latency[line.dim], fabric.bandwidth[line.dim]

    def way(h: int) -> int:
        return floor(h * latency + message / rate)

    answers = [2 * e + reduce_ns + way(-(-j // 2)) for j in range(1, n)]
    start = min(g for g in answers if g >= e + way(n // 2))
    return e + max(max(start, g) + way(min(j, n - j)) for j, g in enumerate(answers, 1))


def _parts(fabric: Fabric, dims: list[int], kind: int, chunk: int) -> list[tuple[int, int, int, int]]:
    """Phases of a chunk (6): dimension, half of its queues (0 all, 1 lower, 2 upper), what it does there, its bytes."""
    out: list[tuple[int, int, int, int]] = []
    carried = chunk

    def add(d: int, part: int, half: int = 0) -> None:
        nonlocal carried
        out.append((d, half, part, carried))
        if part == Collective.REDUCE_SCATTER:
            carried //= fabric.size[d]
        elif part == Collective.ALL_GATHER:
            carried *= fabric.size[d]

    if kind == Collective.ALL_GATHER:
        for d in reversed(dims):
            add(d, kind)
    elif kind == Collective.ALL_REDUCE and fabric.bandwidth_aware:
        for d in dims[:-1]:
            add(d, Collective.REDUCE_SCATTER, 1)
        add(dims[-1], Collective.ALL_REDUCE, 1)
        for d in reversed(dims[:-1]):
            add(d, Collective.ALL_GATHER, 2)
    else:
        for d in dims:
            add(d, kind)
    return out


def _over_dimensions(
    fabric: Fabric, dims: list[int], algorithms: Sequence[Algorithm], kind: int, chunk: int, chunks: int
) -> Rule:
    """Phases over several dimensions as a flow shop of chunks (6; 10.7)."""
    phases = [
        (d, half, _phase(fabric, d, algorithms[d], part, carried))
        for d, half, part, carried in _parts(fabric, dims, kind, chunk)
    ]
    servers = -(-fabric.active // fabric.queues)
    visits = [_visits(phases, number, fabric.queues) for number in range(min(chunks, fabric.queues))]
    shop = [visits[k % len(visits)] for k in range(chunks)]
    return Rule(flow_shop(shop, servers), phases[-1][2].lag)


def _visits(phases: list[tuple[int, int, _Phase]], chunk: int, queues: int) -> list[Visit]:
    """A chunk's stations: the queues of each dimension in turn, or those of one half (6)."""
    lower = max(queues // 2, 1)
    out = []
    for d, half, phase in phases:
        queue = {0: chunk % queues, 1: chunk % lower, 2: (queues - lower) + chunk % lower}[half]
        out.append(Visit(d * queues + queue, phase.ns, phase.lag))
    return out


def _phase(fabric: Fabric, d: int, algorithm: Algorithm, part: int, chunk: int) -> _Phase:
    """One chunk through one whole dimension, all its members entering at one tick."""
    line = _Line(fabric.size[d], d, fabric.endpoint_delay_ns, False)
    stride = int(np.prod(fabric.size[:d], dtype=np.int64))
    members = [i * stride for i in range(line.n)]
    rule = _stepwise(fabric, members, line, algorithm, part, chunk) or _direct(
        fabric, members, line, algorithm, part, chunk
    )
    return _Phase(rule.span_ns, rule.lag_ns)


def astra_cost(fabric: Fabric, members: Sequence[int], mask: int, kind: int, nbytes: int) -> Cost:
    """What a collective puts on the network under `astra` (its duration depends on who enters when, and is left 0)."""
    chunk, chunks = chunking(kind, nbytes, fabric.splits, fabric.ranks)
    algorithms = fabric.algorithm(kind)
    if kind not in _RUN_BY_ASTRA or chunk == 0 or len(members) == 1 or not algorithms:
        return Cost(0)
    if mask and not algorithms[0].flat:
        dims = [d for d in range(fabric.dimensions) if mask >> d & 1]
        totals: dict[int, Use] = {}
        for d, _, part, size in _parts(fabric, dims, kind, chunk):
            for count, message in _messages(fabric, algorithms[d], part, size, fabric.size[d]):
                use = Use(count * message, count * floor(message / fabric.bandwidth[d]))
                totals[d] = totals.get(d, Use()).and_then(use, chunks)
        return Cost(0, tuple(sorted(totals.items())))
    algorithm = algorithms[0] if len(algorithms) == 1 else Algorithm("ring")
    sent = _messages(fabric, algorithm, kind, chunk, len(members))
    count = sum(times for times, _ in sent)
    mean = sum(times * message for times, message in sent) / count
    return Cost(0, edge_messages=count * chunks, edge_bytes=mean)


def _messages(fabric: Fabric, algorithm: Algorithm, part: int, chunk: int, n: int) -> list[tuple[int, int]]:
    """How many messages of how many bytes a member sends for one chunk."""
    steps = stepwise_steps(fabric, algorithm, part, chunk, n)
    if steps is not None:
        return [(step.count, step.nbytes) for step in steps]
    message = chunk if part == Collective.ALL_GATHER else chunk // n
    return [((2 if part == Collective.ALL_REDUCE else 1) * (n - 1), message)]


__all__ = [
    "LAST_ENTRY",
    "NEVER",
    "NO_CLOSED_FORM",
    "ONE_SHOT",
    "STEPWISE",
    "Rule",
    "Step",
    "Unsettled",
    "astra_cost",
    "chunking",
    "collective_rule",
]
