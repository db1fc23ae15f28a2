"""Rules that one rank's graph breaks by itself: ids, dependencies, node types, missing attributes, durations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import Collective, Kind, NameTable
from tracegen.replay.cells.plan import STREAMS
from tracegen.replay.order import after_any
from tracegen.replay.rules.table import CAP, Report, Scope, kind_text, node_text

TAG_LIMIT = 1 << 31
_COMMUNICATION = (b"nccl", b"rccl", b"c10d::", b"gloo:")  # in names of communication that PyTorch's traces hold
_BROADCAST = Collective.BROADCAST
_UNSUPPORTED = (
    Collective.REDUCE, Collective.GATHER, Collective.SCATTER, Collective.REDUCE_SCATTER_BLOCK, Collective.BARRIER,
)  # fmt: skip


def check_nodes(scope: Scope, report: Report) -> None:
    """Every rule of this module, on every class."""
    for index in range(len(scope.traces.graphs)):
        if not len(scope.ranks_of[index]):
            continue
        _shape(scope, report, index)
        _identity(scope, report, index)
        _kinds(scope, report, index)
        _host(scope, report, index)
        _messages(scope, report, index)
        _collectives(scope, report, index)


def _shape(scope: Scope, report: Report, index: int) -> None:
    graph = scope.traces.graphs[index]
    if not len(graph):
        report.add("empty-trace", [(scope.where(index), "the trace has no nodes; every rank needs at least one")])
        return
    if (graph.kind == Kind.METADATA).all():
        report.add("empty-trace", [(scope.where(index), "the trace has METADATA nodes only, so nothing runs")])
    waits = (np.diff(graph.data_ptr) > 0) | (np.diff(graph.ctrl_ptr) > 0)
    waits[graph.dangling[:, 0]] = True
    if waits.all():
        report.add("no-root", [(scope.where(index), "every node waits for another, so nothing can start")])


def _identity(scope: Scope, report: Report, index: int) -> None:
    graph = scope.traces.graphs[index]
    if len(graph) > 1 and not (graph.id[1:] > graph.id[:-1]).all():
        order = np.argsort(graph.id, kind="stable")
        same = np.flatnonzero(graph.id[order[1:]] == graph.id[order[:-1]])
        pairs = [(int(order[k]), int(order[k + 1])) for k in same[:CAP]]
        report.add("duplicate-id", [
            (scope.where(index), f"id {int(graph.id[a])} is at position {a} ({kind_text(int(graph.kind[a]))}) and at "
             f"position {b} ({kind_text(int(graph.kind[b]))}); ids must be unique within a rank")
            for a, b in pairs
        ], len(same))  # fmt: skip
    edges = zip(graph.dangling.tolist(), graph.dangling_id.tolist(), strict=True)
    described = [
        (scope.where(index), f"{node_text(graph, position)}: {int(graph.id[position])} -> {parent}: it waits "
         f"({('data', 'ctrl')[which]}_deps) for node {parent}, which the trace does not have")
        for (position, which), parent in list(edges)[:CAP]
    ]  # fmt: skip
    report.add("missing-parent", described, len(graph.dangling))


def _kinds(scope: Scope, report: Report, index: int) -> None:
    graph = scope.traces.graphs[index]
    kind = graph.kind
    memory = (kind == Kind.MEM_LOAD) | (kind == Kind.MEM_STORE)
    replayed = scope.mode.replay_only
    timed_memory = scope.mode.memory is not None or replayed
    timeless = (kind == Kind.COMP) & (graph.duration_ns <= 0) & (graph.duration_us <= 0)
    roofline = scope.fabric is not None and scope.fabric.peak_flops > 0 and scope.execution != STREAMS
    limited = (kind == Kind.COMP) & ~graph.cpu & (roofline and not replayed)
    rated = scope.fabric is not None and scope.fabric.rated_flops > 0 and scope.execution == STREAMS
    estimated = limited | (rated & (graph.flops > 0))
    for rule, mask, message in (
        ("invalid-node", kind == Kind.INVALID, "node type INVALID (0): leave it out and join its edges"),
        ("metadata-node", kind == Kind.METADATA, "node type METADATA (1): leave it out"),
        ("node-type", kind > max(Kind), "node type is not in the schema (0 to 7)"),
        ("memory-node", memory & (scope.execution == STREAMS or not timed_memory),
         "a memory node needs a remote memory: --execution astra and --memory with a memory-type other than "
         "NO_MEMORY_EXPANSION"),
        ("memory-size", memory & timed_memory & (graph.mem_bytes < 1) & ~replayed, "tensor_size is missing or 0"),
        ("comm-on-cpu", graph.cpu & (kind >= Kind.SEND) & (kind <= Kind.COLL),
         "is_cpu_op is true on a communication node: write false"),
        ("zero-duration", timeless & ~estimated, "no duration: it counts 1 ns or less; write duration_micros"),
        ("roofline-operations", limited & (graph.flops < 1) & (graph.mem_bytes > 0),
         "num_ops is missing or 0 and roofline-enabled is set: ASTRA-sim computes 0 / 0 and never ends the node"),
        ("roofline-bytes", limited & (graph.mem_bytes < 1),
         "tensor_size is missing or 0 and roofline-enabled is set: ASTRA-sim skips the node and stalls its children"),
    ):  # fmt: skip
        scope.mark(report, rule, index, np.flatnonzero(mask), message)


def _named_after(names: NameTable, marks: tuple[bytes, ...]) -> NDArray[np.bool_]:
    """Which entries of a table hold one of the marks, in any case."""
    text = names.blob.tobytes().lower()
    found = np.zeros(len(names.ptr) - 1, np.bool_)
    for mark in marks:
        at = text.find(mark)
        while at >= 0:
            entry = int(np.searchsorted(names.ptr, at, side="right")) - 1
            found[entry] |= at + len(mark) <= int(names.ptr[entry + 1])
            at = text.find(mark, at + 1)
    return found


def _host(scope: Scope, report: Report, index: int) -> None:
    """Traces linked from a host's and a device's: communication in the wrong place."""
    graph = scope.traces.graphs[index]
    compute = graph.kind == Kind.COMP
    if compute.any() and graph.names.literal:
        named = _named_after(graph.names, _COMMUNICATION)
        text = "a compute node is named after communication: give it a communication type, or it moves nothing"
        scope.mark(report, "host-communication", index, np.flatnonzero(compute & named[graph.name]), text)
    if not graph.cpu.any() or not (compute & ~graph.cpu).any():
        return
    # A dependency on the GPU's work or on other communication, at any distance through the CPU's nodes.
    after = after_any(graph, ~graph.cpu)
    early = (graph.kind >= Kind.SEND) & (graph.kind <= Kind.COLL) & ~graph.cpu & ~after & (graph.kind != Kind.RECV)
    text = "communication starts at 0 with no GPU predecessor: the link from the host trace may be lost"
    scope.mark(report, "early-communication", index, np.flatnonzero(early), text)


def _messages(scope: Scope, report: Report, index: int) -> None:
    graph = scope.traces.graphs[index]
    message = (graph.kind == Kind.SEND) | (graph.kind == Kind.RECV)
    if not message.any():
        return
    for rule, mask, text in (
        ("message-no-size", graph.comm_bytes < 0, "comm_size is missing"),
        ("message-zero", graph.comm_bytes == 0, "comm_size is 0: a message needs at least 1 byte"),
        ("message-no-tag", graph.tag < 0, "comm_tag is missing or negative"),
        ("tag-range", graph.tag >= TAG_LIMIT, f"comm_tag is not below 2^31 = {TAG_LIMIT}"),
    ):
        scope.mark(report, rule, index, np.flatnonzero(message & mask), text)


def _collectives(scope: Scope, report: Report, index: int) -> None:
    graph = scope.traces.graphs[index]
    coll = graph.kind == Kind.COLL
    if not coll.any():
        return
    splits = scope.fabric.splits if scope.fabric is not None else 1
    dims = scope.fabric.dimensions if scope.fabric is not None else 0
    kind, size = graph.collective, graph.comm_bytes
    gather = kind == Collective.ALL_GATHER
    simulated = np.full(len(graph), not scope.mode.replay_only) & (kind != _BROADCAST)
    for rule, mask, text in (
        ("collective-no-type", kind == -1, "comm_type is missing"),
        ("collective-type", (kind < -1) | (kind > max(Collective)), "comm_type is not in the schema (0 to 9)"),
        ("collective-unsupported", np.isin(kind, _UNSUPPORTED), "ASTRA-sim aborts: unsupported collective"),
        ("collective-broadcast", kind == _BROADCAST, "ASTRA-sim only lets the node's duration pass, or 1 ns"),
        ("collective-no-size", (size < 0) & (kind != Collective.BARRIER), "comm_size is missing"),
        ("collective-zero", (size == 0) & ~gather & (kind != Collective.BARRIER), "comm_size is 0"),
        ("gather-zero", (size == 0) & gather, "comm_size of an all-gather is 0"),
        ("gather-below-splits", (size > 0) & (size < splits) & gather,
         f"comm_size of an all-gather is below the {splits} splits of system.json"),
        ("no-splits", simulated & (splits < 1), "system.json has no preferred-dataset-splits, or 0: write 1"),
    ):  # fmt: skip
        scope.mark(report, rule, index, np.flatnonzero(coll & mask), text)
    if dims > 4:
        world = _world_slots(scope, index)
        bare = coll & (graph.dims == 0) & np.isin(graph.slot, world)
        text = f"ASTRA-sim covers 4 of {dims} dimensions without involved_dim: write {dims} values"
        scope.mark(report, "dims-missing", index, np.flatnonzero(bare), text)


def _world_slots(scope: Scope, index: int) -> NDArray[np.int64]:
    """Slots of a class that name all ranks."""
    row = scope.traces.slots[scope.ranks_of[index][0]]
    groups = scope.traces.groups
    return np.array([slot for slot, group in enumerate(row.tolist())
                     if 0 <= group < len(groups) and groups.number[group] == 0], np.int64)  # fmt: skip
