"""Reading traces in the generator's tests: nodes by name, and slow, obvious simulations of both executions."""

from __future__ import annotations

from collections import defaultdict

from tracegen.proto.graph import Kind, RankGraph, TraceSet


def names(graph: RankGraph) -> list[str]:
    """Every node's name."""
    return [graph.name_of(i) for i in range(len(graph))]


def deps(graph: RankGraph, node: int) -> tuple[set[int], set[int]]:
    """What a node waits for: data flow, and only order."""
    data = set(graph.data_deps[graph.data_ptr[node] : graph.data_ptr[node + 1]].tolist())
    order = set(graph.ctrl_deps[graph.ctrl_ptr[node] : graph.ctrl_ptr[node + 1]].tolist())
    assert order <= data, "edges that only order stand in data_deps too"
    return data - order, order


def finish_of_streams(graph: RankGraph, comm_ns: dict[int, int]) -> int:
    """One rank under `streams` with communications of given lengths, by order of occurrence."""
    free: dict[object, int] = defaultdict(int)
    end = [0] * len(graph)
    seen = 0
    for node in range(len(graph)):
        start = max((end[i] for i in set().union(*deps(graph, node))), default=0)
        if graph.kind[node] == Kind.COMP:
            stream, length = "compute", int(graph.duration_ns[node])
        else:
            stream, length = (int(graph.kind[node] == Kind.RECV), int(graph.slot[node])), comm_ns[seen]
            seen += 1
        if graph.kind[node] != Kind.RECV:
            start = max(start, free[stream])
            free[stream] = start + length
        end[node] = start + length
    return max(end)


def stuck_with_one_slot(traces: TraceSet, lengths: list[list[int]]) -> list[tuple[int, int]]:
    """Nodes that never end under `astra`: one compute and one communication slot, lowest ready id first.

    ``lengths[rank][node]`` is how long each node takes once it runs. A collective holds its member's slot until all
    members have come; a receive holds nothing.
    """
    graphs = [traces.graph(rank) for rank in range(traces.ranks)]
    waits = [[len(set().union(*deps(g, i))) for i in range(len(g))] for g in graphs]
    children: list[dict[int, list[int]]] = []
    for g in graphs:
        below = defaultdict(list)
        for i in range(len(g)):
            for source in set().union(*deps(g, i)):
                below[source].append(i)
        children.append(below)
    ready = [{i for i in range(len(g)) if waits[r][i] == 0} for r, g in enumerate(graphs)]
    slots = [{"compute": None, "comm": None} for _ in graphs]
    ended = [set() for _ in graphs]
    events: list[tuple[int, int, int]] = []  # (time, rank, node)
    arrived, waiting, members = set(), {}, defaultdict(list)
    calls = [defaultdict(int) for _ in graphs]
    now = 0

    def issue(rank: int) -> None:
        g = graphs[rank]
        for node in sorted(ready[rank]):
            kind, slot = g.kind[node], "compute" if g.kind[node] == Kind.COMP else "comm"
            if kind == Kind.RECV:
                ready[rank].discard(node)
                key = (int(traces.slots[rank, g.slot[node]]), rank, int(g.tag[node]))
                if key in arrived:
                    events.append((now, rank, node))
                else:
                    waiting[key] = (rank, node)
                continue
            if slots[rank][slot] is not None:
                continue
            ready[rank].discard(node)
            slots[rank][slot] = node
            if kind == Kind.COLL:
                group = int(traces.slots[rank, g.slot[node]])
                key = (group, calls[rank][group])
                calls[rank][group] += 1
                members[key].append((rank, node))
                if len(members[key]) == len(traces.groups.ranks(group)):
                    events.extend((now + lengths[r][n], r, n) for r, n in members[key])
            else:
                events.append((now + lengths[rank][node], rank, node))

    for rank in range(traces.ranks):
        issue(rank)
    while events:
        events.sort(reverse=True)
        now, rank, node = events.pop()
        g = graphs[rank]
        ended[rank].add(node)
        for slot, held in slots[rank].items():
            if held == node:
                slots[rank][slot] = None
        if g.kind[node] == Kind.SEND:
            key = (rank, int(traces.slots[rank, g.slot[node]]), int(g.tag[node]))
            arrived.add(key)
            if key in waiting:
                events.append((now, *waiting.pop(key)))
        for child in children[rank][node]:
            waits[rank][child] -= 1
            if waits[rank][child] == 0:
                ready[rank].add(child)
        issue(rank)
    return [(r, i) for r, g in enumerate(graphs) for i in range(len(g)) if i not in ended[r]]
