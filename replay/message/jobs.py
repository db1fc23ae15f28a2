"""Collectives as tables of phases for the message-level kernels. Owns the rules of chunks, dimensions and step counts.

Sections in brackets are of ASTRA-sim's semantics as measured. What ASTRA-sim aborts on is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.fabric import Algorithm, Fabric
from tracegen.replay.message import chunk_kernels as c
from tracegen.replay.prices.astra_collectives import GROUP_ENDPOINT_DELAY_NS, chunking

_KINDS = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
_NUMBER = {"ring": c.RING, "direct": c.DIRECT, "halving_doubling": c.HALVING, "double_binary_tree": c.TREE}
# Without `involved_dim` ASTRA-sim takes four trues, whatever the network (2.6).
_DEFAULT_DIMENSIONS = 4


@dataclass(frozen=True)
class PhaseRow:
    """A row of the table of phases; the fields are its columns in order."""

    dim: int
    half: int
    algorithm: int
    window: int
    steps: int
    size: int
    members: int
    stride: int
    delay: int
    block: int
    first: int
    reduces: int
    hold: int
    levels: int
    gather: int
    tree_kind: int = 0
    tree_visits: int = 0
    tree_visit: int = 0

    def columns(self) -> tuple[int, ...]:
        """The row."""
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True)
class Job:
    """A collective as the kernels see it: so many equal chunks through these phases; no chunks where it never ends."""

    chunks: int
    phases: tuple[PhaseRow, ...] = ()


def make_job(fabric: Fabric, kind: int, nbytes: int, dims: int, members: int, *, named: bool) -> Job:
    """The chunks and phases of a collective.

    Parameters
    ----------
    dims : ``involved_dim`` as a bit mask, 0 where absent; counts only where no group is named.
    members : size of the group.
    named : whether a group is named; one that lists all ranks is the all-ranks case (7).

    Raises
    ------
    InputError
        What ASTRA-sim aborts, throws or never ends on because of the algorithm.
    """
    if kind not in _KINDS:
        name = Collective(kind).name if kind in tuple(Collective) else f"collective type {kind}"
        raise InputError(f"ASTRA-sim does not run {name}; use --execution streams")
    algorithms = fabric.algorithm(kind)
    if not algorithms:
        raise InputError(f"system.json: {Collective(kind).name} is used but has no implementation list")
    chunk, chunks = chunking(kind, nbytes, fabric.splits, fabric.ranks)
    if members == 1 or not chunks:
        return Job(0)
    halves = kind == Collective.ALL_REDUCE and fabric.bandwidth_aware
    half = c.LOWER if halves else c.ALL
    if members < fabric.ranks:
        algorithm = algorithms[0] if len(algorithms) == 1 else Algorithm("ring")
        if algorithm.name == "double_binary_tree":
            raise InputError("doubleBinaryTree runs over all ranks only (ASTRA-sim crashes on a part); use ring")
        row = _row(fabric, algorithm, kind, chunk, members, 0, half, stride=0, delay=GROUP_ENDPOINT_DELAY_NS)
        return Job(chunks, (row,))
    if algorithms[0].flat:
        row = _row(fabric, algorithms[0], kind, chunk, members, 0, half, stride=1, delay=fabric.endpoint_delay_ns)
        return Job(chunks, (row,))
    everything = (1 << fabric.dimensions) - 1
    mask = everything if named else (dims or (1 << _DEFAULT_DIMENSIONS) - 1) & everything
    used = [d for d in range(min(fabric.dimensions, len(algorithms))) if mask >> d & 1]
    if not used:
        return Job(0)
    return Job(chunks, _over_dimensions(fabric, algorithms, kind, chunk, used))


def _over_dimensions(
    fabric: Fabric, algorithms: Sequence[Algorithm], kind: int, chunk: int, used: list[int]
) -> tuple[PhaseRow, ...]:
    """Phases in order (6)."""
    if kind == Collective.ALL_GATHER:
        order = [(d, kind, c.ALL) for d in reversed(used)]
    elif kind == Collective.ALL_REDUCE and fabric.bandwidth_aware:
        order = [(d, int(Collective.REDUCE_SCATTER), c.LOWER) for d in used[:-1]]
        order += [(used[-1], kind, c.LOWER)]
        order += [(d, int(Collective.ALL_GATHER), c.UPPER) for d in reversed(used[:-1])]
    else:
        order = [(d, kind, c.ALL) for d in used]
    rows: list[PhaseRow] = []
    size = chunk
    for d, part, half in order:
        n, algorithm = fabric.size[d], algorithms[d]
        stride = prod(fabric.size[:d])
        row = _row(fabric, algorithm, part, size, n, d, half, stride=stride, delay=fabric.endpoint_delay_ns)
        if row.algorithm == c.TREE:
            # The two trees take turns per collective type and dimension, one turn for every phase.
            earlier = sum(1 for other in rows if other.dim == d)
            visits = sum(1 for other, _, _ in order if other == d)
            tree_kind = _KINDS.index(Collective(kind)) * fabric.dimensions + d
            row = replace(row, tree_kind=tree_kind, tree_visits=visits, tree_visit=earlier)
        elif part == Collective.REDUCE_SCATTER:
            size //= n
        elif part == Collective.ALL_GATHER:
            size *= n
        rows.append(row)
    return tuple(rows)


def _row(
    fabric: Fabric, algorithm: Algorithm, part: int, size: int, n: int, dim: int, half: int, *, stride: int, delay: int
) -> PhaseRow:
    """One algorithm over n members (8)."""
    reduces = {Collective.ALL_REDUCE: c.EVEN, Collective.REDUCE_SCATTER: c.ALWAYS}.get(Collective(part), c.NEVER)
    both = part == Collective.ALL_REDUCE
    gather = part == Collective.ALL_GATHER
    window, levels, hold, steps, message, first = 1, 0, 0, 0, size, 1
    if algorithm.name in ("ring", "direct"):
        message = size if gather else size // n
    if algorithm.name == "ring":
        steps = 2 * (n - 1) if both else n * (n - 1) // 2 if part == Collective.ALL_TO_ALL else n - 1
        block = n
    elif algorithm.name == "direct":
        steps = 2 * (n - 1) if both else n - 1
        window = first = min(algorithm.window or n - 1, n - 1)
        block = window * (2 if stride else n)  # subset groups count all receptions as reducing ones (7)
        hold = n - 1 if both else 0
    else:
        if n & (n - 1):
            raise InputError(f"{_astra_name(algorithm)} needs a power of two of members, not {n}; use ring or direct")
        block = levels = n.bit_length() - 1
        if algorithm.name == "halving_doubling":
            if part == Collective.ALL_TO_ALL:
                raise InputError("halvingDoubling has no all-to-all; use ring or direct")
            steps = 2 * levels if both else levels
            # An all-reduce halves once more before it doubles, so one byte at the last level becomes none.
            message = size if gather else size >> (levels + both)
        else:
            levels = 0
    if message == 0:
        raise InputError(
            f"a chunk of {size} bytes is too small to cut for {_astra_name(algorithm)} over {n} members; "
            "ASTRA-sim aborts on empty messages"
        )
    kept = size if algorithm.name == "halving_doubling" else message
    return PhaseRow(
        dim, half, _NUMBER[algorithm.name], window, steps, kept, n, stride, delay, block, first, reduces, hold, levels,
        int(gather),
    )  # fmt: skip


def _astra_name(algorithm: Algorithm) -> str:
    first, *rest = algorithm.name.split("_")
    return first + "".join(word.capitalize() for word in rest)
