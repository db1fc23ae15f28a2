"""The one place that decides how a run under execution `astra` is computed: folded by closed forms, or by messages.

FOLDED is the engine of cells, closed forms and chunk flow shops: a rank of each cell, no messages. It is exact where
every collective is settled by a form that holds for the ticks at which its members enter. MESSAGES simulates every
message of every rank: always exact, and slow. `choose` says what can be seen beforehand; `holds` what only a folded run
shows. Sections in brackets are of ASTRA-sim's semantics as measured.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective, Kind, TraceSet
from tracegen.replay.astra_mode import Mode
from tracegen.replay.cells.plan import ASTRA, JOIN, STREAMS
from tracegen.replay.fabric import RING, Fabric
from tracegen.replay.prices.astra_collectives import chunking
from tracegen.replay.run import Run

FOLDED, MESSAGES = "folded", "messages"
# Without `involved_dim` ASTRA-sim takes four trues, whatever the network (2.6).
DEFAULT_DIMENSIONS = 4
_TAG_GROUPS = 500  # group numbers equal modulo this share chunk tags (matching)


def refuse_network(fabric: Fabric, mode: Mode) -> None:
    """Refuse networks that the congestion-aware backend has not: several dimensions, a ring of two (9)."""
    if not mode.congestion:
        return
    if fabric.dimensions != 1:
        raise InputError(
            f"the congestion-aware network has one dimension only, not {fabric.dimensions}; "
            "use --network-model analytical"
        )
    if fabric.topology[0] == RING and fabric.size[0] == 2:
        raise InputError(
            "the congestion-aware network has no ring of 2 (ASTRA-sim aborts); use Switch or FullyConnected"
        )


def refuse_mode(fabric: Fabric, mode: Mode, execution: str) -> None:
    """Refuse what an execution or the congestion-aware network has not.

    Raises
    ------
    InputError
        ASTRA-sim's flags under `streams`; congestion over several dimensions or on a ring of two (9).
    """
    if execution == STREAMS:
        for name, on in (
            ("--network-model congestion", mode.congestion),
            ("--rendezvous-protocol", mode.rendezvous),
            ("replay-only", mode.replay_only),
        ):
            if on:
                raise InputError(f"{name} is ASTRA-sim's: it goes with --execution astra, not streams")
    refuse_network(fabric, mode)


def choose(traces: TraceSet, fabric: Fabric, mode: Mode) -> str:
    """FOLDED where that may be exact, as far as traces and network tell; MESSAGES where it is not."""
    kinds = {int(kind) for graph in traces.graphs for kind in np.unique(graph.kind)}
    communicates = bool(kinds & {Kind.SEND, Kind.RECV, Kind.COLL})
    if kinds & {Kind.MEM_LOAD, Kind.MEM_STORE} or mode.replay_only or (mode.rendezvous and communicates):
        return MESSAGES
    if _instant_work(traces, fabric):
        return MESSAGES  # skipped nodes, and work of 0 ns, which aborts at time 0
    if not communicates:
        return FOLDED
    if fabric.endpoint_delay_ns == 0 or instant_messages(traces, fabric):
        return MESSAGES  # events at time 0 abort, and timers of delay 0 have an order of their own (3)
    if mode.congestion and Kind.SEND in kinds:
        return MESSAGES
    return MESSAGES if short_lists(traces, fabric, ASTRA) or _odd_collectives(traces, fabric) else FOLDED


def short_lists(traces: TraceSet, fabric: Fabric, execution: str) -> tuple[str, ...]:
    """Warnings of implementation lists shorter than the dimensions, which ASTRA-sim takes in silence (2.3)."""
    if not any(_short(fabric, kind) for kind in fabric.algorithms):
        return ()
    whole = np.flatnonzero(np.diff(traces.groups.ptr) == traces.ranks)
    used: set[int] = set()
    for number, graph in enumerate(traces.graphs):
        slots = np.flatnonzero(np.isin(traces.slots[traces.class_of == number], whole).any(axis=0))
        used |= set(np.unique(graph.collective[(graph.kind == Kind.COLL) & np.isin(graph.slot, slots)]).tolist())
    told = []
    for kind in sorted(used & set(Collective)):
        if _short(fabric, kind):
            given = len(fabric.algorithm(kind))
            effect = f"as in ASTRA-sim, it runs over the first {given} only and leaves the others out"
            if execution == STREAMS:
                effect = "it is taken for every dimension, where ASTRA-sim runs over the first only"
            told.append(
                f"system.json has {given} implementations of {Collective(kind).name} for {fabric.dimensions} "
                f"dimensions: {effect}; give {fabric.dimensions}"
            )
    return tuple(told)


def _short(fabric: Fabric, kind: int) -> bool:
    algorithms = fabric.algorithm(kind)
    return bool(algorithms) and not algorithms[0].flat and len(algorithms) < fabric.dimensions


def _instant_work(traces: TraceSet, fabric: Fabric) -> bool:
    """Whether the roofline gives a node no time."""
    if not fabric.peak_flops:
        return False
    for graph in traces.graphs:
        ops, nbytes = (column[(graph.kind == Kind.COMP) & ~graph.cpu] for column in (graph.flops, graph.mem_bytes))
        slowest = np.minimum(fabric.memory_bandwidth * 1e9 * (ops / np.maximum(nbytes, 1)), fabric.peak_flops)
        if ((nbytes < 1) | (ops < 1) | (1e9 * ops < 2 * slowest)).any():
            return True
    return False


def instant_messages(traces: TraceSet, fabric: Fabric) -> bool:
    """Whether a message, also of a collective's smallest part, may take no time."""
    if min(fabric.latency) >= 1:
        return False
    least = 1 << 62
    for graph in traces.graphs:
        nbytes = graph.comm_bytes
        parts = nbytes[graph.kind == Kind.COLL] // max(fabric.splits, 1) // fabric.ranks
        least = min(least, int(nbytes[graph.kind == Kind.SEND].min(initial=least)), int(parts.min(initial=least)))
    return min(fabric.latency) + least / max(fabric.bandwidth) < 1


def _odd_collectives(traces: TraceSet, fabric: Fabric) -> bool:
    """Collectives over all ranks that cover some dimensions only without saying so, and groups that mix up tags."""
    groups = traces.groups
    number = groups.number
    everything = np.uint32((1 << fabric.dimensions) - 1)
    for graph in traces.graphs:
        collective = graph.kind == Kind.COLL
        if fabric.dimensions > DEFAULT_DIMENSIONS and (collective & (graph.dims == 0)).any():
            return True
        if (collective & (graph.dims > 0) & (graph.dims & everything == 0)).any():
            return True  # over no dimension at all: it never ends
    rest = number[number > 0] % _TAG_GROUPS
    if len(np.unique(rest)) == len(rest):
        return False
    named = np.flatnonzero(number > 0)
    for one in np.unique(rest).tolist():
        for a, b in combinations(named[rest == one].tolist(), 2):
            if len(np.intersect1d(groups.ranks(a), groups.ranks(b))) > 1:
                return True
    return False


def holds(run: Run, approximate: int) -> bool:
    """Whether a folded run is what ASTRA-sim would say.

    It is not where a collective's members entered at ticks for which no form is known, where nodes were left over (who
    hangs depends on messages), or where ranks had made unequal numbers of chunks in groups before a collective of all,
    whose messages then never match (5).
    """
    return not approximate and not len(run.unfinished()) and not _unequal_chunks(run)


def _unequal_chunks(run: Run) -> bool:
    """Whether cells had created unlike numbers of group chunks when they entered a collective of all ranks."""
    assembly, slots, fabric = run.assembly, run.slots, run.fabric
    groups = slots.groups
    whole = np.diff(groups.ptr) == run.traces.ranks
    # Lines of ranks over some dimensions come from collectives of all ranks (`split_by_dimensions`).
    whole |= groups.number == 0
    made_by_class: dict[int, NDArray[np.int64]] = {}
    issue = run.issue_ns[assembly.places()]
    known: NDArray[np.int64] | None = None
    for cell, number in enumerate(assembly.class_of_cell.tolist()):
        plan = assembly.plans[number]
        joins = np.flatnonzero(plan.act == JOIN)
        if not len(joins):
            continue
        if number not in made_by_class:
            made_by_class[number] = _chunks(plan.nbytes[joins], plan.collective[joins], fabric, run.traces.ranks)
        all_ranks = whole[slots.names[int(run.representative[cell])][plan.slot[joins]]]
        order = np.lexsort((joins, issue[assembly.node_ptr[cell] + joins]))
        made = np.cumsum(np.where(all_ranks, 0, made_by_class[number])[order])[all_ranks[order]]
        if known is not None and not np.array_equal(known, made):
            return True
        known = made
    return False


def _chunks(nbytes: NDArray[np.int64], kind: NDArray[np.int8], fabric: Fabric, ranks: int) -> NDArray[np.int64]:
    """Chunks of each collective."""
    pairs = np.stack([nbytes, kind.astype(np.int64)])
    distinct, which = np.unique(pairs, axis=1, return_inverse=True)
    made = [chunking(kind, size, fabric.splits, ranks)[1] for size, kind in distinct.T.tolist()]
    return np.array(made, np.int64)[which.reshape(-1)]
