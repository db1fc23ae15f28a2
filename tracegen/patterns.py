"""Pieces of a rank's trace as columns, and the array operations that make a whole of them: tile, join, insert, finish.

Owns how steps become columns and edges, and how pieces follow one another: every compute node waits for the compute
node before it, every send and collective too (DESIGN, "Order is in the edges"). Does not know what the steps compute.

Inside a piece, edges name local positions; ``BEFORE`` stands for the compute node before the piece, whichever piece it
turns out to be in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from tracegen.layers import INPUT, Communication, Message, Step
from tracegen.operators import Operator
from tracegen.proto.graph import LAYER, MICROBATCH, OPERATOR, PHASE, UNKNOWN, Kind, NameTable, Phase, RankGraph

BEFORE = -1
NS_PER_US = 1000
TEMPLATES = (OPERATOR, f"{OPERATOR} {PHASE} mb{MICROBATCH}", f"L{LAYER} {OPERATOR} {PHASE} mb{MICROBATCH}")
NAMES = NameTable.of(list(TEMPLATES), literal=False)


@dataclass(frozen=True, eq=False)
class Edges:
    """Who waits for whom in a piece: e edges sorted by (to, source), no pair twice.

    Parameters
    ----------
    to, source : i64[e]: positions of who waits and who is waited for; ``source`` may be ``BEFORE``.
    order : bool[e]: the edge only orders; no data flows.
    """

    to: NDArray[np.int64]
    source: NDArray[np.int64]
    order: NDArray[np.bool_]

    @classmethod
    def of(cls, edges: Iterable[tuple[int, int, bool]]) -> Edges:
        """From (to, source, order), in any order."""
        table = np.array(list(edges), np.int64).reshape(-1, 3)
        return cls.unique(table[:, 0], table[:, 1], table[:, 2] == 1)

    @classmethod
    def unique(cls, to: NDArray[np.int64], source: NDArray[np.int64], order: NDArray[np.bool_]) -> Edges:
        """Sorted, each pair once: a pair only orders where all its twins only order."""
        rank = np.lexsort((order, source, to))  # data flow (False) comes before order among twins
        to, source, order = to[rank], source[rank], order[rank]
        first = np.ones(len(to), np.bool_)
        first[1:] = (to[1:] != to[:-1]) | (source[1:] != source[:-1])
        return cls(to[first], source[first], order[first])

    def __len__(self) -> int:
        return len(self.to)

    def only(self, which: NDArray[np.bool_]) -> Edges:
        """The chosen edges."""
        return Edges(self.to[which], self.source[which], self.order[which])

    def known(self) -> Edges:
        """The edges whose source is a node of the piece."""
        return self.only(self.source != BEFORE)


@dataclass(frozen=True, eq=False)
class Pattern:
    """n nodes as columns, and their edges.

    Parameters
    ----------
    kind .. parameters : columns of length n, as in `RankGraph`; ``duration_ns`` is 0 where no compute.
        ``microbatch`` is 0 for what happens in every microbatch and -1 for what happens once a step.
    parameters : gradients complete once the node is done.
    """

    kind: NDArray[np.uint8]
    operator: NDArray[np.int32]
    layer: NDArray[np.int32]
    phase: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    duration_ns: NDArray[np.int64]
    flops: NDArray[np.int64]
    mem_bytes: NDArray[np.int64]
    comm_bytes: NDArray[np.int64]
    collective: NDArray[np.int8]
    slot: NDArray[np.int32]
    parameters: NDArray[np.int64]
    edges: Edges

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def compute(self) -> NDArray[np.bool_]:
        """bool[n]: the compute nodes."""
        return np.equal(self.kind, Kind.COMP)


COLUMNS = tuple(field.name for field in fields(Pattern) if field.name != "edges")
_TYPES = {
    "kind": np.uint8, "phase": np.int8, "collective": np.int8, "operator": np.int32, "layer": np.int32,
    "microbatch": np.int32, "slot": np.int32,
}  # fmt: skip


def pattern(
    steps: Sequence[Step],
    names: Mapping[str, int],
    slots: Mapping[str, int],
    duration: Callable[[Operator], int],
    *,
    layer: bool = False,
    once: bool = False,
) -> Pattern:
    """Columns and edges of a list of steps.

    Parameters
    ----------
    names : index of every operator's name. slots : slot of every group kind, and of the peers ``next``, ``previous``.
    duration : nanoseconds of an operator.
    layer : whether the steps belong to a layer. once : whether they happen once a step, not once a microbatch.
    """
    rows: list[tuple[int, ...]] = []
    edges: list[tuple[int, int, bool]] = []
    position = {INPUT: BEFORE}
    last_compute = BEFORE
    for at, step in enumerate(steps):
        work = step.work
        phase = UNKNOWN if step.phase is None else int(step.phase)
        numbers = _numbers(work, slots, duration)
        provenance = names[work.name], 0 if layer else UNKNOWN, phase, UNKNOWN if once else 0
        rows.append((numbers[0], *provenance, *numbers[1:], step.parameters))
        if numbers[0] != Kind.RECV:
            producers = {at - 1} if step.uses is None else {position[use] for use in step.uses}
            edges += [(at, producer, False) for producer in producers]
            if last_compute not in producers:
                edges.append((at, last_compute, True))
        position[step.key] = at
        if isinstance(work, Operator):
            last_compute = at
    table = np.array(rows, np.int64).reshape(len(rows), len(COLUMNS)).T
    columns = {name: table[i].astype(_TYPES.get(name, np.int64)) for i, name in enumerate(COLUMNS)}
    return Pattern(**columns, edges=Edges.of(edges))


def _numbers(
    work: Operator | Communication | Message, slots: Mapping[str, int], duration: Callable[[Operator], int]
) -> tuple[int, ...]:
    """Kind, duration, FLOPs, bytes of memory, bytes sent, collective, slot."""
    if isinstance(work, Operator):
        return Kind.COMP, duration(work), work.flops, work.mem_bytes, UNKNOWN, UNKNOWN, UNKNOWN
    if isinstance(work, Communication):
        return Kind.COLL, 0, 0, 0, work.size, work.collective, slots[work.group]
    return Kind.SEND if work.sends else Kind.RECV, 0, 0, 0, work.size, UNKNOWN, slots[work.peer]


def at_layer(piece: Pattern, layer: int) -> Pattern:
    """A layer's piece as layer number ``layer``."""
    return replace(piece, layer=np.full(len(piece), layer, np.int32))


def at_microbatch(piece: Pattern, microbatch: int) -> Pattern:
    """A piece as microbatch number ``microbatch``, save what happens once a step."""
    return replace(piece, microbatch=np.where(piece.microbatch < 0, -1, microbatch).astype(np.int32))


def with_edges(piece: Pattern, more: Edges) -> Pattern:
    """The piece with more edges; one it has already keeps the stronger meaning, data flow."""
    return replace(piece, edges=_together([piece.edges, more]))


def _together(parts: Sequence[Edges]) -> Edges:
    return Edges.unique(
        np.concatenate([part.to for part in parts]),
        np.concatenate([part.source for part in parts]),
        np.concatenate([part.order for part in parts]),
    )


def join(pieces: Sequence[Pattern]) -> Pattern:
    """Pieces one after the other; ``BEFORE`` becomes the last compute node of the pieces before, where there is one."""
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    starts = np.cumsum(sizes) - sizes
    last = np.array([np.flatnonzero(p.compute)[-1] if p.compute.any() else -1 for p in pieces], np.int64)
    reached = np.maximum.accumulate(np.where(last >= 0, starts + last, BEFORE))
    before = np.concatenate([[BEFORE], reached[:-1]])
    counts = [len(piece.edges) for piece in pieces]
    offset = np.repeat(starts, counts)
    source = np.concatenate([piece.edges.source for piece in pieces])
    columns = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in COLUMNS}
    edges = Edges(
        np.concatenate([piece.edges.to for piece in pieces]) + offset,
        np.where(source == BEFORE, np.repeat(before, counts), source + offset),
        np.concatenate([piece.edges.order for piece in pieces]),
    )
    return Pattern(**columns, edges=edges)


def insert(piece: Pattern, nodes: Pattern, after: NDArray[np.int64]) -> tuple[Pattern, NDArray[np.int64]]:
    """Put communication nodes behind given nodes of a piece.

    Parameters
    ----------
    nodes : what to insert, in order; its own edges are not looked at.
    after : i64[len(nodes)], ascending: each stands behind this node of the piece.

    Returns
    -------
    The piece and the new nodes' positions. Each waits for the compute node before it; whoever inserts adds data flow.
    """
    size = len(piece)
    rank = np.argsort(np.concatenate([np.arange(size), after]), kind="stable")
    moved = np.empty(len(rank), np.int64)
    moved[rank] = np.arange(len(rank))
    columns = {name: np.concatenate([getattr(piece, name), getattr(nodes, name)])[rank] for name in COLUMNS}
    at = moved[size:]
    compute = columns["kind"] == Kind.COMP
    latest = np.maximum.accumulate(np.where(compute, np.arange(len(rank)), BEFORE))
    old = piece.edges
    kept = Edges(moved[old.to], np.where(old.source == BEFORE, BEFORE, moved[old.source]), old.order)
    chain = Edges(at, latest[at], np.ones(len(at), np.bool_))
    return Pattern(**columns, edges=_together([kept, chain])), at


def finish(whole: Pattern, operators: Sequence[str]) -> RankGraph:
    """A rank's trace: ids are positions, durations both ways (DEFINITIONS 7), edges in CSR.

    Edges that only order stand in ``data_deps`` too, since old feeders read nothing else.
    """
    size = len(whole)
    edges = whole.edges.known()
    message = (whole.kind == Kind.SEND) | (whole.kind == Kind.RECV)
    tag = 2 * whole.microbatch.astype(np.int64) + (whole.phase != Phase.F)
    return RankGraph(
        id=np.arange(size, dtype=np.uint64),
        kind=whole.kind,
        cpu=np.zeros(size, np.bool_),
        duration_ns=np.where(whole.compute, whole.duration_ns, UNKNOWN),
        duration_us=microseconds(whole.duration_ns),
        flops=whole.flops,
        mem_bytes=whole.mem_bytes,
        comm_bytes=whole.comm_bytes,
        collective=whole.collective,
        slot=whole.slot,
        tag=np.where(message, tag, UNKNOWN),
        priority=np.zeros(size, np.int32),
        dims=np.zeros(size, np.uint32),
        operator=whole.operator,
        layer=whole.layer,
        phase=whole.phase,
        microbatch=whole.microbatch,
        chunk=np.full(size, UNKNOWN, np.int32),
        name=np.where(whole.microbatch < 0, 0, np.where(whole.layer < 0, 1, 2)).astype(np.int32),
        data_ptr=_pointers(edges.to, size),
        data_deps=edges.source.astype(np.int32),
        ctrl_ptr=_pointers(edges.to[edges.order], size),
        ctrl_deps=edges.source[edges.order].astype(np.int32),
        names=NAMES,
        operators=tuple(operators),
    )


def microseconds(duration_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Durations in whole microseconds whose running sum is never more than half a microsecond off (DEFINITIONS 7)."""
    clock = (np.cumsum(duration_ns) + NS_PER_US // 2) // NS_PER_US
    return np.diff(clock, prepend=0)


def _pointers(to: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    pointers = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(to, minlength=size), out=pointers[1:])
    return pointers
