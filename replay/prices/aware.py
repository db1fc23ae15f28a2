"""Closed forms of ASTRA-sim's congestion-aware backend for one collective whose members enter at one tick.

Only what holds for every member alike and leaves all links free at its end (astra_sim_semantics 10, one dimension): a
link is then never wanted by two messages at once. Everything else is simulated message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.fabric import RING, SWITCH, Algorithm, Fabric
from tracegen.replay.prices.astra_collectives import (
    GROUP_ENDPOINT_DELAY_NS,
    NEVER,
    Rule,
    Unsettled,
    chunking,
    reduction_ns,
    stepwise_steps,
)

_KINDS = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)


def aware_rule(fabric: Fabric, members: Sequence[int], kind: int, nbytes: int) -> Rule:
    """How a collective of ``members`` that enter together is settled on one dimension with congestion.

    Raises
    ------
    InputError
        What ASTRA-sim aborts on.
    Unsettled
        No closed form holds: contention, several chunks at once, members that end apart.
    """
    algorithms = fabric.algorithm(kind)
    if kind not in _KINDS or len(algorithms) != 1:
        raise Unsettled
    n = len(members)
    chunk, chunks = chunking(kind, nbytes, fabric.splits, fabric.ranks)
    if n == 1 or chunk == 0:
        return Rule(NEVER)
    whole = n == fabric.ranks
    if chunks > 1 and (fabric.queues > 1 or fabric.active > 1):
        raise Unsettled
    if fabric.topology[0] == RING and not (whole and algorithms[0].name == "ring"):
        raise Unsettled
    delay = fabric.endpoint_delay_ns if whole else GROUP_ENDPOINT_DELAY_NS
    span, lag = _one_chunk(fabric, algorithms[0], kind, chunk, n, delay, subset=not whole)
    return Rule(span * chunks, lag)


def _one_chunk(
    fabric: Fabric, algorithm: Algorithm, kind: int, chunk: int, n: int, delay: int, *, subset: bool
) -> tuple[int, int]:
    """Time of one chunk, and the lag between the last reception and its end."""
    steps = stepwise_steps(fabric, algorithm, kind, chunk, n)
    if steps is not None:
        span = delay + sum(s.count * (_way(fabric, s.nbytes) + delay + s.reduce_ns) for s in steps)
        return span, steps[-1].reduce_ns or delay
    if algorithm.name != "direct" or min(algorithm.window or n - 1, n - 1) != n - 1:
        raise Unsettled
    message = chunk if kind == Collective.ALL_GATHER else chunk // n
    if message == 0:
        raise InputError(f"a chunk of {chunk} bytes is too small to cut over {n} members; ASTRA-sim aborts")
    reduction = reduction_ns(fabric, message)
    busy = floor(message / fabric.bandwidth[0])
    queued = (n - 2) * busy if fabric.topology[0] == SWITCH else 0  # through one port, one after the other
    once = queued + _way(fabric, message)
    if kind != Collective.ALL_REDUCE:
        charged = reduction if kind == Collective.REDUCE_SCATTER else 0
        return 2 * delay + once + charged, charged or delay
    twice = subset and n > 2
    if fabric.topology[0] != SWITCH:
        return 3 * delay + 2 * once + (1 + twice) * reduction, reduction if twice else delay
    if twice:
        raise Unsettled  # the page gives the saving below for all ranks only
    saved = min(n - 2, (delay + reduction) // busy) * busy if busy else 0
    return 3 * delay + 2 * once + reduction - saved, delay


def _way(fabric: Fabric, nbytes: int) -> int:
    """A message alone between neighbours: stored and forwarded by a switch."""
    links = 2 if fabric.topology[0] == SWITCH else 1
    return links * floor(fabric.latency[0] + nbytes / fabric.bandwidth[0])
