"""Small traces written by hand, as tests need them: nodes as dicts, one list per rank, into a `TraceSet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tracegen.proto.graph import Collective, Groups, Kind, NameTable, RankGraph, TraceSet

Node = dict[str, Any]


def comp(id: int, ns: int = 1000, deps: Sequence[int] = (), **more: Any) -> Node:
    """A compute node of ``ns`` nanoseconds."""
    return {"id": id, "kind": Kind.COMP, "ns": ns, "deps": list(deps), **more}


def coll(
    id: int, group: int, type: str = "ALL_REDUCE", size: int = 1 << 20, deps: Sequence[int] = (), **more: Any
) -> Node:
    """A collective on the group with this number in files; 0 is all ranks."""
    return {"id": id, "kind": Kind.COLL, "group": group, "collective": Collective[type], "size": size,
            "deps": list(deps), **more}  # fmt: skip


def send(id: int, peer: int, size: int = 1 << 20, tag: int = 0, deps: Sequence[int] = (), **more: Any) -> Node:
    """A send to rank ``peer``."""
    return {"id": id, "kind": Kind.SEND, "peer": peer, "size": size, "tag": tag, "deps": list(deps), **more}


def recv(id: int, peer: int, size: int = 1 << 20, tag: int = 0, deps: Sequence[int] = (), **more: Any) -> Node:
    """A receive from rank ``peer``."""
    return {"id": id, "kind": Kind.RECV, "peer": peer, "size": size, "tag": tag, "deps": list(deps), **more}


def graph(nodes: Sequence[Node], slots: Mapping[tuple[str, int], int]) -> RankGraph:
    """One rank's nodes as columns; ``slots`` says which slot a ("group", number) or ("peer", rank) has."""
    n = len(nodes)
    position = {node["id"]: index for index, node in enumerate(nodes)}
    dangling: list[tuple[int, int, int]] = []

    def csr(key: str, which: int) -> tuple[np.ndarray, np.ndarray]:
        lists = []
        for index, node in enumerate(nodes):
            named = node.get(key, [])
            dangling.extend((index, which, other) for other in named if other not in position)
            lists.append([position[other] for other in named if other in position])
        ptr = np.zeros(n + 1, np.int64)
        np.cumsum([len(entry) for entry in lists], out=ptr[1:])
        return ptr, np.array([other for entry in lists for other in entry], np.int32)

    def column(key: str, default: Any, dtype: Any) -> np.ndarray:
        return np.array([node.get(key, default) for node in nodes], dtype)

    def slot(node: Node) -> int:
        if "group" in node:
            return slots[("group", node["group"])]
        return slots[("peer", node["peer"])] if "peer" in node else -1

    data_ptr, data_deps = csr("deps", 0)
    ctrl_ptr, ctrl_deps = csr("ctrl", 1)
    ns = column("ns", -1, np.int64)
    us = np.array([node.get("us", max(node.get("ns", 0), 0) // 1000) for node in nodes], np.int64)
    extra = [node.get("extra", b"") for node in nodes]
    extra_ptr = np.zeros(n + 1, np.int64)
    np.cumsum([len(text) for text in extra], out=extra_ptr[1:])
    return RankGraph(
        id=column("id", 0, np.uint64), kind=column("kind", 0, np.uint8), cpu=column("cpu", False, np.bool_),
        duration_ns=ns, duration_us=us, flops=column("flops", 0, np.int64), mem_bytes=column("mem_bytes", 0, np.int64),
        comm_bytes=column("size", -1, np.int64), collective=column("collective", -1, np.int8),
        slot=np.array([slot(node) for node in nodes], np.int32), tag=column("tag", -1, np.int64),
        priority=column("priority", 0, np.int32), dims=column("dims", 0, np.uint32),
        operator=np.full(n, -1, np.int32), layer=column("layer", -1, np.int32), phase=column("phase", -1, np.int8),
        microbatch=column("microbatch", -1, np.int32), chunk=column("chunk", -1, np.int32),
        name=np.arange(n, dtype=np.int32), data_ptr=data_ptr, data_deps=data_deps, ctrl_ptr=ctrl_ptr,
        ctrl_deps=ctrl_deps, names=NameTable.of([node.get("name", f"node {node['id']}") for node in nodes]),
        operators=(), dangling=np.array([(a, b) for a, b, _ in dangling], np.int64).reshape(-1, 2),
        dangling_id=np.array([other for _, _, other in dangling], np.uint64), extra_ptr=extra_ptr,
        extra=np.frombuffer(b"".join(extra), np.uint8), schema="0.0.4",
    )  # fmt: skip


def traces(
    ranks: Sequence[Sequence[Node]],
    groups: Mapping[int, Sequence[int]] | None = None,
    labels: Mapping[int, str] | None = None,
    message_label: str = "p2p",
) -> TraceSet:
    """One class per rank; ``groups`` by their number in files, 0 (all ranks) is added where a node uses it."""
    members = {number: list(group) for number, group in (groups or {}).items()}
    named = {node["group"] for nodes in ranks for node in nodes if "group" in node}
    if 0 in named and 0 not in members:
        members[0] = list(range(len(ranks)))
    numbers = sorted(members)
    given = labels or {}
    table = Groups.of(
        [members[number] for number in numbers],
        [given.get(number, "world" if number == 0 else f"group {number}") for number in numbers],
        numbers,
    )
    row = {number: index for index, number in enumerate(numbers)}
    keys: list[list[tuple[str, int]]] = []
    graphs = []
    for nodes in ranks:
        mine: dict[tuple[str, int], int] = {}
        for node in nodes:
            for key in ("group", "peer"):
                if key in node:
                    mine.setdefault((key, node[key]), len(mine))
        keys.append(list(mine))
        graphs.append(graph(nodes, mine))
    slots = np.full((len(ranks), max((len(mine) for mine in keys), default=0)), -1, np.int32)
    for rank, mine_keys in enumerate(keys):
        for index, (key, value) in enumerate(mine_keys):
            slots[rank, index] = row.get(value, -1) if key == "group" else value
    return TraceSet(tuple(graphs), np.arange(len(ranks), dtype=np.int32), table, slots, message_label=message_label)


def replayed(traces: TraceSet, fabric: Any = None) -> Any:
    """A `Run` of a small trace under ``streams``, by the rules of DEFINITIONS 6 read aloud; one byte takes one ns.

    Every message and collective lasts as many nanoseconds as it has bytes. Nodes that never can run end at -1.
    """
    from tracegen.replay.run import Run

    sizes = np.array([len(traces.graph(rank)) for rank in range(traces.ranks)], np.int64)
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    blank = np.full(ptr[-1], -1, np.int64)
    columns = {name: blank.copy() for name in ("ready_ns", "issue_ns", "transfer_ns", "end_ns")}
    ready, issue, transfer, end = columns.values()
    ahead, late = np.full(ptr[-1], -1, np.int32), np.full(ptr[-1], -1, np.int32)
    duration = np.full(ptr[-1], -1, np.int64)
    streams: dict[tuple[Any, ...], list[int]] = {}
    sends: dict[tuple[int, int, int], list[int]] = {}
    recvs: dict[tuple[int, int, int], list[int]] = {}
    owner = np.repeat(np.arange(traces.ranks), sizes)

    def slot(rank: int, position: int) -> int:
        return int(traces.slots[rank, traces.graph(rank).slot[position]])

    for rank in range(traces.ranks):
        g = traces.graph(rank)
        for position in np.argsort(g.id, kind="stable").tolist():
            node, kind = int(ptr[rank]) + position, g.kind[position]
            if kind == Kind.RECV:
                recvs.setdefault((slot(rank, position), rank, int(g.tag[position])), []).append(node)
                streams[("recv", node)] = [node]
                continue
            if kind == Kind.SEND:
                sends.setdefault((rank, slot(rank, position), int(g.tag[position])), []).append(node)
            key = ("cpu" if g.cpu[position] else "compute",) if kind == Kind.COMP else (str(kind), slot(rank, position))
            streams.setdefault((rank, *key), []).append(node)
    partner = {b: a for key, nodes in recvs.items() for a, b in zip(sends.get(key, []), nodes, strict=False)}
    lines = {key: list(nodes) for key, nodes in streams.items()}
    moved = True
    while moved:
        moved = False
        for line in lines.values():
            while line:
                node = line[0]
                rank = int(owner[node])
                g, position = traces.graph(rank), node - int(ptr[rank])
                deps = [*g.data_deps[g.data_ptr[position] : g.data_ptr[position + 1]],
                        *g.ctrl_deps[g.ctrl_ptr[position] : g.ctrl_ptr[position + 1]]]  # fmt: skip
                ends = [int(end[ptr[rank] + dep]) for dep in deps]
                stream = next(nodes for nodes in streams.values() if node in nodes)
                before = stream[stream.index(node) - 1] if stream.index(node) else -1
                if -1 in ends or (before >= 0 and end[before] < 0):
                    break
                if issue[node] < 0:
                    ready[node] = max(ends, default=0)
                    ahead[node] = before - ptr[rank] if before >= 0 else -1
                    issue[node] = max(ready[node], end[before] if before >= 0 else 0)
                    transfer[node] = issue[node]
                    moved = True
                size = int(g.comm_bytes[position])
                if g.kind[position] == Kind.COMP:
                    duration[node] = g.duration_ns[position]
                    end[node] = issue[node] + duration[node]
                elif g.kind[position] == Kind.SEND:
                    end[node] = issue[node] + size
                elif g.kind[position] == Kind.RECV:
                    source = partner.get(node, -1)
                    if source < 0 or end[source] < 0:
                        break
                    transfer[node], late[node] = issue[source], owner[source]
                    end[node] = max(end[source], ready[node])
                else:
                    members = traces.groups.ranks(slot(rank, position)).tolist()
                    turn = stream.index(node)
                    peers = [
                        nodes[turn]
                        for member in members
                        for key, nodes in streams.items()
                        if key[0] == member and key[1:] == (str(Kind.COLL), slot(rank, position)) and len(nodes) > turn
                    ]
                    if len(peers) < len(members) or any(issue[peer] < 0 for peer in peers):
                        break
                    start = max(int(issue[peer]) for peer in peers)
                    transfer[node] = start
                    late[node] = min(int(owner[peer]) for peer in peers if issue[peer] == start)
                    end[node] = start + size
                line.pop(0)
                moved = True
    return Run(
        traces=traces, fabric=fabric, execution="streams", cell_of=np.arange(traces.ranks, dtype=np.int32),
        representative=np.arange(traces.ranks, dtype=np.int32), node_ptr=ptr.astype(np.int64), ahead=ahead,
        late_rank=late, duration_ns=duration, notes=(), assembly=None, slots=None, **columns,
    )  # fmt: skip


@st.composite
def programs(draw: Any) -> Any:
    """Ranks that run one common list of operations, so that nothing can dead-lock; dependencies go backwards.

    Gives the nodes of each rank, the groups, and a stage of each rank or None.
    """
    ranks = draw(st.integers(1, 4))
    groups = {1: list(range(ranks)), 2: [0, ranks - 1], 3: list(range(ranks // 2, ranks))}
    groups = {number: sorted(set(members)) for number, members in groups.items() if len(set(members)) > 1}
    nodes: list[list[Node]] = [[] for _ in range(ranks)]

    def place(rank: int, make: Any) -> None:
        earlier = [node["id"] for node in nodes[rank]]
        deps = draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)) if earlier else []
        nodes[rank].append(make(len(earlier) * 3 + 1, deps))

    for tag in range(draw(st.integers(1, 12))):
        what, size = draw(st.sampled_from(["comp", "coll", "message"])), draw(st.integers(0, 30))
        if what == "coll" and groups:
            number = draw(st.sampled_from(sorted(groups)))
            for rank in groups[number]:
                place(rank, lambda i, deps, number=number, size=size: coll(i, number, size=size, deps=deps))
        elif what == "message" and ranks > 1:
            source, target = draw(st.permutations(range(ranks)))[:2]
            place(source, lambda i, d, t=target, size=size, tag=tag: send(i, t, size=size, tag=tag, deps=d))
            place(target, lambda i, d, s=source, size=size, tag=tag: recv(i, s, size=size, tag=tag, deps=d))
        else:
            place(draw(st.integers(0, ranks - 1)), lambda i, deps, size=size: comp(i, size, deps))
    stages = draw(st.none() | st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks))
    return nodes, groups, stages
