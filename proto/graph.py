"""A rank's trace as arrays, and a job's traces as a few graphs shared by many ranks. No bytes, time or LLMs here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1


class Kind(IntEnum):
    """Chakra node types."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    SEND = 5
    RECV = 6
    COLL = 7


class Collective(IntEnum):
    """Chakra collective types."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Phase(IntEnum):
    """What part of a microbatch's work a node belongs to; -1 where it belongs to none or is unknown."""

    F = 0  # forward
    B = 1  # input gradient
    W = 2  # weight gradient
    R = 3  # recompute


# Fields of a name template: one control byte each, replaced by the node's provenance when a name is written or shown.
LAYER, MICROBATCH, PHASE, OPERATOR, CHUNK = "\x01", "\x02", "\x03", "\x04", "\x05"


@dataclass(frozen=True, eq=False)
class NameTable:
    """Names as bytes in one buffer: templates of a generator, or the literal names read from a file.

    Parameters
    ----------
    blob : u8[bytes]
        UTF-8 text of all entries, one after the other.
    ptr : i64[entries + 1]
        Where each entry begins.
    literal : bool
        True where entries are names as read; False where control bytes 1-5 stand for provenance.
    """

    blob: NDArray[np.uint8]
    ptr: NDArray[np.int64]
    literal: bool = True

    @classmethod
    def of(cls, entries: list[str], *, literal: bool = True) -> NameTable:
        """A table of these texts, in order."""
        encoded = [entry.encode() for entry in entries]
        ptr = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(text) for text in encoded], out=ptr[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ptr, literal)

    def entry(self, index: int) -> str:
        """Entry ``index`` as text, control bytes left in; bytes that are not UTF-8 become U+FFFD."""
        return bytes(self.blob[self.ptr[index] : self.ptr[index + 1]]).decode(errors="replace")


@dataclass(frozen=True, eq=False)
class RankGraph:
    """One rank's trace: n nodes as columns in schedule (file) order, dependencies as node positions in CSR.

    All columns have length n. A dependency on an id that no node has is not in the CSR but in ``dangling``.

    Parameters
    ----------
    id : u64, as in the file; ascending where we generate, any order and sparse in foreign traces.
    kind : u8, see `Kind`.
    cpu : bool, ``is_cpu_op``.
    duration_ns : i64, our own attribute in ns; -1 where the file has none.
    duration_us : i64, ``duration_micros`` as written.
    flops : i64, ``num_ops``: FLOPs executed, matrix products only.
    mem_bytes : i64, ``tensor_size``: HBM bytes read plus written.
    comm_bytes : i64, ``comm_size`` in bytes; -1 where absent.
    collective : i8, see `Collective`; -1 where absent.
    slot : i32, column of ``TraceSet.slots`` that names the node's group or peer; -1 where it has none.
    tag : i64, ``comm_tag``; -1 where absent.
    priority : i32, ``comm_priority``.
    dims : u32, ``involved_dim`` as a bit mask; 0 where absent.
    operator : i32, index into ``operators``; -1 unknown.
    layer, microbatch, chunk : i32; phase : i8, see `Phase`; -1 unknown or none.
    name : i32, index into ``names``.
    data_ptr, ctrl_ptr : i64[n + 1]; data_deps, ctrl_deps : i32, positions of the nodes waited for.
    names : table of names; operators : table of operator names.
    dangling : i64[k, 2] of (position, 0 data | 1 control) and the ids they name in ``dangling_id`` u64[k].
    extra_ptr : i64[n + 1]; extra : u8, undecoded protobuf fields of each node (unknown attributes), as they stood.
    schema : version text of the file's head; "" where it had none.
    """

    id: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    cpu: NDArray[np.bool_]
    duration_ns: NDArray[np.int64]
    duration_us: NDArray[np.int64]
    flops: NDArray[np.int64]
    mem_bytes: NDArray[np.int64]
    comm_bytes: NDArray[np.int64]
    collective: NDArray[np.int8]
    slot: NDArray[np.int32]
    tag: NDArray[np.int64]
    priority: NDArray[np.int32]
    dims: NDArray[np.uint32]
    operator: NDArray[np.int32]
    layer: NDArray[np.int32]
    phase: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    chunk: NDArray[np.int32]
    name: NDArray[np.int32]
    data_ptr: NDArray[np.int64]
    data_deps: NDArray[np.int32]
    ctrl_ptr: NDArray[np.int64]
    ctrl_deps: NDArray[np.int32]
    names: NameTable
    operators: tuple[str, ...]
    dangling: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    dangling_id: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    extra_ptr: NDArray[np.int64] | None = None
    extra: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    schema: str = ""

    def __len__(self) -> int:
        return len(self.id)

    def name_of(self, position: int) -> str:
        """The node's name, templates filled from its provenance."""
        text = self.names.entry(int(self.name[position]))
        if self.names.literal:
            return text
        phase = int(self.phase[position])
        operator = int(self.operator[position])
        for mark, value in (
            (LAYER, str(int(self.layer[position]))),
            (MICROBATCH, str(int(self.microbatch[position]))),
            (PHASE, Phase(phase).name if phase >= 0 else ""),
            (OPERATOR, self.operators[operator] if operator >= 0 else ""),
            (CHUNK, str(int(self.chunk[position]))),
        ):
            text = text.replace(mark, value)
        return text

    @property
    def nbytes(self) -> int:
        """Bytes held by the columns."""
        total = 0
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, np.ndarray):
                total += value.nbytes
        return total + self.names.blob.nbytes + self.names.ptr.nbytes


@dataclass(frozen=True, eq=False)
class Groups:
    """Communication groups: ordered ranks in CSR, a label and a number in files for each.

    ``number`` is the key in ``comm_group.json`` and the ``pg_name`` in nodes; 0 is the world, which files leave out.
    """

    ptr: NDArray[np.int64]
    members: NDArray[np.int32]
    label: tuple[str, ...]
    number: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.label)

    def ranks(self, group: int) -> NDArray[np.int32]:
        """The group's ranks in their order."""
        return self.members[self.ptr[group] : self.ptr[group + 1]]

    @classmethod
    def of(cls, ranks: list[list[int]], labels: list[str], numbers: list[int]) -> Groups:
        """Groups from lists."""
        ptr = np.zeros(len(ranks) + 1, np.int64)
        np.cumsum([len(r) for r in ranks], out=ptr[1:])
        members = np.array([r for group in ranks for r in group], np.int32)
        return cls(ptr, members, tuple(labels), np.array(numbers, np.int64))


@dataclass(frozen=True, eq=False)
class TraceSet:
    """A job's traces: one graph per rank class, and what each rank's slots name.

    Parameters
    ----------
    graphs : one per class.
    class_of : i32[ranks].
    groups : every group any slot names.
    slots : i32[ranks, slots]: for a slot used by collectives an index into ``groups``, for a slot used by sends and
        receives a rank; -1 unused. A graph uses a slot for one of the two only, and a rank's slots of one use name
        different groups or peers, so "the nodes of a slot" and "the nodes of a group" are the same thing.
    scale : f64[ranks] or None: factor on a rank's compute times.
    message_label : what time exposed to point-to-point messages is charged to.
    """

    graphs: tuple[RankGraph, ...]
    class_of: NDArray[np.int32]
    groups: Groups
    slots: NDArray[np.int32]
    scale: NDArray[np.float64] | None = None
    message_label: str = "p2p"

    @property
    def ranks(self) -> int:
        """How many ranks."""
        return len(self.class_of)

    def graph(self, rank: int) -> RankGraph:
        """The graph of a rank."""
        return self.graphs[int(self.class_of[rank])]

    @property
    def nodes(self) -> int:
        """Nodes over all ranks."""
        sizes = np.array([len(graph) for graph in self.graphs], np.int64)
        return int(sizes[self.class_of].sum())
