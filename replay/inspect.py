"""What is in a trace: counts, work, bytes per group, cycles; one node in full. Prints nothing.

Ids are text in every document: JSON readers keep 53 bits only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from tracegen.proto.decode import Decoded
from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective, Kind, Phase, RankGraph, TraceSet
from tracegen.proto.schema import Node
from tracegen.replay.order import stuck_nodes
from tracegen.replay.parts import group_labels

LARGEST_ID = 2**64 - 1
_EXACT = 2**53  # JSON readers keep whole numbers up to here


@dataclass(frozen=True, eq=False)
class View:
    """One graph to look at, and what its nodes name.

    Parameters
    ----------
    ranks : that have it; groups and peers are those of the first.
    graph : the nodes.
    group : i64[n], number of a collective's group (0 all ranks); -1 for other nodes.
    peer : i64[n], target of a send, source of a receive; -1 for other nodes and where absent.
    labels : printed name of a group by number. members : its ranks, where known.
    """

    ranks: tuple[int, ...]
    graph: RankGraph
    group: NDArray[np.int64]
    peer: NDArray[np.int64]
    labels: Mapping[int, str] = field(default_factory=dict)
    members: Mapping[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of_file(cls, decoded: Decoded, rank: int, labels: Mapping[int, str] | None = None) -> View:
        """One rank's file by itself."""
        return cls((rank,), decoded.graph, decoded.group_number, decoded.peer, labels or {})


def views(traces: TraceSet) -> tuple[View, ...]:
    """One view per class of a job's traces, in order of their lowest ranks."""
    out = []
    numbers = np.concatenate([traces.groups.number, [-1]])
    names = dict(zip(traces.groups.number.tolist(), group_labels(traces.groups), strict=True))
    members = {number: traces.groups.ranks(g).tolist() for g, number in enumerate(traces.groups.number.tolist())}
    for index, graph in enumerate(traces.graphs):
        ranks = np.flatnonzero(traces.class_of == index)
        if not len(ranks):
            continue
        slots = np.concatenate([traces.slots[ranks[0]], [-1]]).astype(np.int64)
        target = slots[graph.slot]
        group = numbers[np.where(graph.kind == Kind.COLL, target, -1)]
        message = (graph.kind == Kind.SEND) | (graph.kind == Kind.RECV)
        out.append(View(tuple(ranks.tolist()), graph, group, np.where(message, target, -1), names, members))
    return tuple(sorted(out, key=lambda view: view.ranks[0]))


def parse_id(text: str) -> int:
    """An id from the command line, all 64 bits of it.

    Raises
    ------
    InputError
        Anything but a whole number from 0 to 2^64 - 1: a float would name another node.
    """
    if not (text.isascii() and text.isdigit()) or int(text) > LARGEST_ID:
        raise InputError(f"--node {text}: ids are whole numbers from 0 to {LARGEST_ID}, written in digits")
    return int(text)


def _type_name(table: type[Kind] | type[Collective], value: int) -> str:
    return table(value).name if value in table._value2member_map_ else str(value)


def summary(view: View) -> dict[str, Any]:
    """What a graph holds, as the JSON document of `inspect` has it for each.

    ``kinds`` counts nodes and sums their nanoseconds (our own attribute, else duration_micros); ``collectives`` has a
    row per group and type, ``messages`` one per direction and peer, with bytes as written (comm_size).
    """
    graph = view.graph
    own = graph.duration_ns
    duration = np.where(own >= 0, own, graph.duration_us * 1000)
    kinds = {}
    for kind in np.unique(graph.kind).tolist():
        on = graph.kind == kind
        kinds[_type_name(Kind, kind)] = {"nodes": int(on.sum()), "duration_ns": int(duration[on].sum())}
    return {
        "ranks": list(view.ranks),
        "schema": graph.schema,
        "nodes": len(graph),
        "first_id": str(int(graph.id.min())) if len(graph) else None,
        "last_id": str(int(graph.id.max())) if len(graph) else None,
        "kinds": kinds,
        "cpu_nodes": int(graph.cpu.sum()),
        "flops": int(graph.flops.sum()),
        "memory_bytes": int(graph.mem_bytes.sum()),
        "collectives": _collectives(view),
        "messages": _messages(view),
        "data_edges": len(graph.data_deps),
        "ctrl_edges": len(graph.ctrl_deps),
        "missing_parents": [
            [str(int(graph.id[position])), str(parent)]
            for (position, _), parent in zip(graph.dangling.tolist(), graph.dangling_id.tolist(), strict=True)
        ],
        "cycles": cycles(graph),
        "unknown_attributes": unknown_attributes(graph),
    }


def _collectives(view: View) -> list[dict[str, Any]]:
    graph = view.graph
    on = np.flatnonzero(graph.kind == Kind.COLL)
    keys, which = np.unique(np.stack([view.group[on], graph.collective[on]], 1), axis=0, return_inverse=True)
    rows = []
    for k, (number, collective) in enumerate(keys.tolist()):
        mine = on[which.reshape(-1) == k]
        sizes = graph.comm_bytes[mine]
        rows.append({
            "group": number if number >= 0 else None,
            "label": view.labels.get(number, "world" if number == 0 else f"group {number}"),
            "members": view.members.get(number),
            "type": _type_name(Collective, collective),
            "nodes": len(mine),
            "bytes": int(np.maximum(sizes, 0).sum()),
        })  # fmt: skip
    return rows


def _messages(view: View) -> list[dict[str, Any]]:
    graph = view.graph
    on = np.flatnonzero((graph.kind == Kind.SEND) | (graph.kind == Kind.RECV))
    keys, which = np.unique(np.stack([graph.kind[on], view.peer[on]], 1), axis=0, return_inverse=True)
    rows = []
    for k, (kind, peer) in enumerate(keys.tolist()):
        mine = on[which.reshape(-1) == k]
        rows.append({
            "direction": "send" if kind == Kind.SEND else "receive",
            "peer": peer if peer >= 0 else None,
            "nodes": len(mine),
            "bytes": int(np.maximum(graph.comm_bytes[mine], 0).sum()),
        })  # fmt: skip
    return rows


def unknown_attributes(graph: RankGraph) -> dict[str, int]:
    """How many nodes have each attribute that we do not know, by name."""
    count: Counter[str] = Counter()
    if graph.extra_ptr is not None:
        for position in np.flatnonzero(np.diff(graph.extra_ptr)).tolist():
            count.update({attribute.name for attribute in _rest(graph, position).attr})
    return dict(sorted(count.items()))


def _rest(graph: RankGraph, position: int) -> Any:
    """The fields of a node that became no column, as a protobuf message."""
    if graph.extra_ptr is None:
        return Node()
    return Node.FromString(bytes(graph.extra[graph.extra_ptr[position] : graph.extra_ptr[position + 1]]))


def waiting_graph(graph: RankGraph, positions: NDArray[np.int64]) -> nx.DiGraph:
    """These nodes and the edges among them, each from a node to what it waits for, with its ``edge`` kind."""
    inside = np.zeros(len(graph), np.bool_)
    inside[positions] = True
    out = nx.DiGraph()
    out.add_nodes_from(positions.tolist())
    for edge, ptr, deps in (("ctrl", graph.ctrl_ptr, graph.ctrl_deps), ("data", graph.data_ptr, graph.data_deps)):
        waiter = np.repeat(np.arange(len(graph)), np.diff(ptr))
        on = inside[waiter] & inside[deps]
        out.add_edges_from(zip(waiter[on].tolist(), deps[on].tolist(), strict=True), edge=edge)
    return out


def cycles(graph: RankGraph) -> list[list[dict[str, str]]]:
    """One cycle of every knot of dependencies: ids, names, and the kind of edge by which each waits for the next."""
    stuck = stuck_nodes(graph)
    if not len(stuck):
        return []
    waiting = waiting_graph(graph, stuck)
    out = []
    for knot in nx.strongly_connected_components(waiting):
        part = waiting.subgraph(knot)
        if len(knot) == 1 and not part.number_of_edges():
            continue
        first = min(knot, key=lambda position: int(graph.id[position]))
        out.append([
            {"id": str(int(graph.id[a])), "name": graph.name_of(a), "edge": f"{part.edges[a, b]['edge']}_deps"}
            for a, b in nx.find_cycle(part, first)
        ])  # fmt: skip
    return sorted(out, key=lambda cycle: int(cycle[0]["id"]))


def node_in_full(view: View, number: int) -> dict[str, Any]:
    """Everything a trace says of one node: its fields, parents, children, and attributes we do not know.

    Raises
    ------
    InputError
        No node has this id; the nearest ids are named.
    """
    graph = view.graph
    found = np.flatnonzero(graph.id == np.uint64(number))
    if not len(found):
        raise InputError(f"--node {number}: {_nearest(graph, number)}")
    position = int(found[0])
    duration_ns = int(graph.duration_ns[position])
    out: dict[str, Any] = {
        "ranks": list(view.ranks),
        "id": str(number),
        "name": graph.name_of(position),
        "type": _type_name(Kind, int(graph.kind[position])),
        "position": position,
        "is_cpu_op": bool(graph.cpu[position]),
        "duration_micros": int(graph.duration_us[position]),
        "duration_ns": duration_ns if duration_ns >= 0 else None,
    }
    out |= _work(view, position)
    out |= _provenance(graph, position)
    out["parents"] = _parents(graph, position)
    out["children"] = _children(graph, position)
    out |= _unknown(graph, position)
    return out


def _nearest(graph: RankGraph, number: int) -> str:
    if not len(graph):
        return "the trace has no nodes"
    ids = np.sort(graph.id)
    at = int(np.searchsorted(ids, np.uint64(number)))
    near = [str(int(ids[k])) for k in (at - 1, at) if 0 <= k < len(ids)]
    return f"no node has this id; the nearest are {' and '.join(near)}"


def _work(view: View, position: int) -> dict[str, Any]:
    """Attributes that hold for the node's type."""
    graph, kind = view.graph, int(view.graph.kind[position])
    size = int(graph.comm_bytes[position])
    if kind == Kind.COLL:
        number = int(view.group[position])
        return {
            "comm_type": _type_name(Collective, int(graph.collective[position])),
            "comm_size": size if size >= 0 else None,
            "group": number if number >= 0 else None,
            "label": view.labels.get(number, "world" if number == 0 else f"group {number}"),
            "members": view.members.get(number),
            "involved_dim": f"{int(graph.dims[position]):b}"[::-1] if graph.dims[position] else None,
            "comm_priority": int(graph.priority[position]),
        }
    if kind in (Kind.SEND, Kind.RECV):
        peer = int(view.peer[position])
        return {
            "comm_dst" if kind == Kind.SEND else "comm_src": peer if peer >= 0 else None,
            "comm_size": size if size >= 0 else None,
            "comm_tag": int(graph.tag[position]),
        }
    return {"num_ops": int(graph.flops[position]), "tensor_size": int(graph.mem_bytes[position])}


def _provenance(graph: RankGraph, position: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if graph.operator[position] >= 0:
        out["operator"] = graph.operators[int(graph.operator[position])]
    if graph.phase[position] >= 0:
        out["phase"] = Phase(int(graph.phase[position])).name
    for name in ("layer", "microbatch", "chunk"):
        if (value := int(getattr(graph, name)[position])) >= 0:
            out[name] = value
    return out


def _parents(graph: RankGraph, position: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for edge, ptr, deps in (("data", graph.data_ptr, graph.data_deps), ("ctrl", graph.ctrl_ptr, graph.ctrl_deps)):
        out.extend(
            {"id": str(int(graph.id[parent])), "name": graph.name_of(parent), "edge": f"{edge}_deps"}
            for parent in deps[ptr[position] : ptr[position + 1]].tolist()
        )
    for (waiter, which), parent in zip(graph.dangling.tolist(), graph.dangling_id.tolist(), strict=True):
        if waiter == position:
            out.append({"id": str(parent), "name": None, "edge": f"{('data', 'ctrl')[which]}_deps"})
    return out


def _children(graph: RankGraph, position: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for edge, ptr, deps in (("data", graph.data_ptr, graph.data_deps), ("ctrl", graph.ctrl_ptr, graph.ctrl_deps)):
        children = np.searchsorted(ptr, np.flatnonzero(deps == position), side="right") - 1
        out.extend(
            {"id": str(int(graph.id[child])), "name": graph.name_of(child), "edge": f"{edge}_deps"}
            for child in children.tolist()
        )
    return out


def _unknown(graph: RankGraph, position: int) -> dict[str, Any]:
    """Fields and attributes that became no column, decoded by protobuf."""
    rest = _rest(graph, position)
    out: dict[str, Any] = {}
    if rest.start_time_micros:
        out["start_time_micros"] = _exact(rest.start_time_micros)
    for side in ("inputs", "outputs"):
        if rest.HasField(side):
            told = getattr(rest, side)
            out[side] = {"values": told.values, "shapes": told.shapes, "types": told.types}
    out["unknown_attributes"] = [_attribute(attribute) for attribute in rest.attr]
    return out


def _attribute(attribute: Any) -> dict[str, Any]:
    kind: str | None = attribute.WhichOneof("value")
    value: Any = getattr(attribute, kind) if kind else None
    if kind and kind.endswith("_list"):
        value = [_exact(entry) for entry in value.values]
    else:
        value = _exact(value)
    out = {"name": attribute.name, "kind": kind, "value": value}
    return {**out, "doc_string": attribute.doc_string} if attribute.doc_string else out


def _exact(value: Any) -> Any:
    """A value as JSON can carry it: whole numbers above 2^53, bytes, infinities and NaN as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value
