"""How long each node takes by itself: compute, messages, and collectives under `streams`. No queues, no waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective, Kind, TraceSet
from tracegen.replay.cells.assembly import Assembly
from tracegen.replay.cells.hashing import mix
from tracegen.replay.cells.plan import ASTRA, SEND, TIMED, ClassPlan, kinds_of_joins
from tracegen.replay.cells.slots import Slots
from tracegen.replay.fabric import Fabric
from tracegen.replay.prices.collectives import Cost, Shape, duration
from tracegen.replay.prices.routes import message_ns

NEVER = -1


@dataclass(frozen=True)
class Jitter:
    """A factor on every compute duration, uniform in [low, high]: a hash of seed, rank and the node's place by id."""

    low: float
    high: float
    seed: int = 0

    def factors(self, ranks: NDArray[np.int32], nodes: int) -> NDArray[np.float64]:
        """Factors f64[ranks, nodes]."""
        with np.errstate(over="ignore"):
            rows = mix(ranks.astype(np.int64) + np.int64(self.seed) * np.int64(1_000_003))
            bits = mix(rows[:, None] + mix(np.arange(nodes, dtype=np.int64))[None, :])
        uniform = (bits >> np.uint64(11)).astype(np.float64) / 2.0**53
        return self.low + (self.high - self.low) * uniform


class StreamCosts:
    """Costs of collectives under `streams`, each kind, size and group geometry priced once."""

    def __init__(self, fabric: Fabric, slots: Slots) -> None:
        self._fabric, self._slots = fabric, slots
        self._shapes: dict[int, Shape] = {}
        self._costs: dict[tuple[int, int, int], Cost] = {}

    def cost(self, shape: int, kind: int, nbytes: int) -> Cost:
        """The cost of a collective of ``kind`` and ``nbytes`` in a group of geometry ``shape``."""
        key = (shape, kind, nbytes)
        if key not in self._costs:
            if shape not in self._shapes:
                group = int(self._slots.shape_of[shape])
                ranks = tuple(self._slots.groups.ranks(group).tolist())
                self._shapes[shape] = Shape.of(self._fabric.size, ranks)
            self._costs[key] = duration(self._fabric, self._shapes[shape], kind, nbytes)
        return self._costs[key]

    def price(self, shape: int, kind: int, nbytes: int) -> int:
        """Its duration, ns."""
        return self.cost(shape, kind, nbytes).duration_ns


def compute_ns(plan: ClassPlan, fabric: Fabric, execution: str) -> NDArray[np.int64]:
    """Duration of a class's timed nodes in id order, i64[n]; NEVER where ASTRA-sim's roofline never ends.

    `streams` takes our own nanoseconds, else duration_micros, else, where the system has a peak, the roofline of
    operations and bytes; `astra` duration_micros, 0 counting as 1 ns, or with ``roofline-enabled``
    floor(1e9 ops / min(M ops / bytes, peak)) on nodes that are not CPU's (semantics 4).
    """
    graph, order = plan.graph, plan.order
    written = graph.duration_us[order] * 1000
    if execution != ASTRA:
        own = graph.duration_ns[order]
        told = np.where(own >= 0, own, written)
        if not fabric.rated_flops:
            return told
        took = graph.flops[order] / fabric.rated_flops * 1e9
        if fabric.memory_bandwidth:
            took = np.maximum(took, graph.mem_bytes[order] / fabric.memory_bandwidth)
        return np.where((told == 0) & ~graph.cpu[order], np.rint(took).astype(np.int64), told)
    out = np.where(written == 0, 1, written)
    if fabric.peak_flops:
        ops, nbytes = graph.flops[order].astype(np.float64), graph.mem_bytes[order].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.minimum(fabric.memory_bandwidth * 1e9 * (ops / nbytes), fabric.peak_flops)
            took = 1e9 * (ops / rate)
        device = (graph.kind[order] == Kind.COMP) & ~graph.cpu[order]
        out = np.where(device, np.where(np.isfinite(took), np.floor(np.nan_to_num(took)), NEVER), out).astype(np.int64)
    return out


def scaled(spans: NDArray[np.int64], factor: NDArray[np.float64]) -> NDArray[np.int64]:
    """Durations times factors, rounded half to even, at least 1 ns; NEVER stays."""
    return np.where(spans == NEVER, NEVER, np.maximum(np.rint(spans * factor), 1)).astype(np.int64)


def fill_spans(
    assembly: Assembly,
    traces: TraceSet,
    slots: Slots,
    fabric: Fabric,
    representative: NDArray[np.int32],
    execution: str,
    jitter: Jitter | None,
) -> NDArray[np.int64]:
    """Span of every node but collectives, i64[nodes]."""
    span = np.zeros(assembly.nodes, np.int64)
    for number, plan in enumerate(assembly.plans):
        cells = assembly.cells_of_class(number)
        if not len(cells):
            continue
        rank = representative[cells]
        rows = assembly.node_ptr[cells][:, None]
        timed = np.flatnonzero(plan.act == TIMED)
        base = np.broadcast_to(compute_ns(plan, fabric, execution)[timed], (len(cells), len(timed)))
        if traces.scale is not None or jitter is not None:
            factor = np.ones(base.shape) if jitter is None else jitter.factors(rank, len(plan))[:, timed]
            if traces.scale is not None:
                factor = factor * traces.scale[rank][:, None]
            # A broadcast that `astra` plays as a delay is no computation.
            base = np.where(plan.graph.kind[plan.order[timed]] == Kind.COMP, scaled(base, factor), base)
        span[rows + timed] = base
        sends = np.flatnonzero(plan.act == SEND)
        column = plan.slot[sends]
        way = slots.peer_routes
        span[rows + sends] = message_ns(
            way.latency[rank][:, column], way.bandwidth[rank][:, column], plan.nbytes[sends]
        )
    return span


def per_join(
    assembly: Assembly,
    slots: Slots,
    representative: NDArray[np.int32],
    price: Callable[[int, int, int], int],
    out: NDArray[np.int64],
) -> None:
    """Write ``price(shape, kind, bytes)`` of every collective to ``out``, by node.

    Raises
    ------
    InputError
        Whatever ``price`` refuses, with the rank and node it was for.
    """
    for number, plan in enumerate(assembly.plans):
        cells = assembly.cells_of_class(number)
        joins, kinds, which = kinds_of_joins(plan)
        if len(cells) and len(joins):
            table = np.zeros((len(cells), len(kinds)), np.int64)
            for k, kind in enumerate(kinds):
                node = int(joins[np.argmax(which == k)])
                table[:, k] = _priced(plan, node, kind, slots, representative[cells], price)
            out[assembly.node_ptr[cells][:, None] + joins] = table[:, which]


def _priced(
    plan: ClassPlan,
    node: int,
    asked: tuple[int, int, int],
    slots: Slots,
    rank: NDArray[np.int32],
    price: Callable[[int, int, int], int],
) -> NDArray[np.int64]:
    """Price of one kind of collective, of which ``node`` is the first, on each rank, i64[ranks]."""
    slot, kind, nbytes = asked
    shape = slots.shape[slots.names[rank, slot]]
    out = np.zeros(len(rank), np.int64)
    for one in np.unique(shape).tolist():
        try:
            if kind not in tuple(Collective):
                raise InputError(f"collective type {kind} is unknown (comm_type is missing or not one of Chakra's)")
            out[shape == one] = price(one, kind, nbytes)
        except InputError as why:
            at = plan.graph.id[plan.order[node]]
            raise InputError(f"rank {rank[shape == one][0]} node {at}: {why}") from None
    return out
