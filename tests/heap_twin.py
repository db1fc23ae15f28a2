"""A slow, obvious twin of the replay engine: plain Python objects, one heap, no folding. Tests hold the engine to it.

It shares with the engine only the prices of a single message or collective (`routes`, `collectives.duration`,
`astra_collectives.collective_rule`), which have tests of their own; order, queues, matching and skew are done anew.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from tracegen.proto.graph import Collective, Kind, TraceSet
from tracegen.replay.fabric import Fabric
from tracegen.replay.prices.astra_collectives import LAST_ENTRY, collective_rule
from tracegen.replay.prices.collectives import Shape, duration
from tracegen.replay.prices.routes import message_ns, routes


@dataclass
class TwinNode:
    """One node of one rank."""

    rank: int
    id: int
    position: int
    kind: int
    deps: set[int]
    queue: Any
    ready: int = -1
    issue: int = -1
    end: int = -1
    entered: list[Any] = field(default_factory=list)


def merged(traces: TraceSet) -> TraceSet:
    """The same traces with one class per distinct graph."""
    numbers: dict[tuple[Any, ...], int] = {}
    graphs, class_of = [], []
    for graph in traces.graphs:
        columns = [getattr(graph, f.name) for f in fields(graph)]
        key = tuple(c.tobytes() for c in columns if isinstance(c, np.ndarray))
        if key not in numbers:
            numbers[key] = len(graphs)
            graphs.append(graph)
        class_of.append(numbers[key])
    return replace(traces, graphs=tuple(graphs), class_of=np.array(class_of, np.int32)[traces.class_of])


def way_ns(fabric: Fabric, src: int, dst: int, nbytes: int, execution: str) -> int:
    """Time of one message."""
    way = routes(fabric, np.array([src]), np.array([dst]), lowest_only=execution == "astra")
    return int(message_ns(way.latency, way.bandwidth, np.array([nbytes]))[0])


def play_twin(traces: TraceSet, fabric: Fabric, execution: str) -> list[TwinNode]:
    """Every node of every rank with its times, in rank and position order."""
    return _Twin(traces, fabric, execution).run()


class _Twin:
    def __init__(self, traces: TraceSet, fabric: Fabric, execution: str) -> None:
        self.traces, self.fabric, self.astra = traces, fabric, execution == "astra"
        self.execution = execution
        self.nodes: list[TwinNode] = []
        self.of_rank: list[dict[int, TwinNode]] = []
        for rank in range(traces.ranks):
            graph = traces.graph(rank)
            mine = {}
            for i in range(len(graph)):
                deps = [
                    *graph.data_deps[graph.data_ptr[i] : graph.data_ptr[i + 1]].tolist(),
                    *graph.ctrl_deps[graph.ctrl_ptr[i] : graph.ctrl_ptr[i + 1]].tolist(),
                ]
                node = TwinNode(rank, int(graph.id[i]), i, int(graph.kind[i]), set(deps), None)
                node.queue = self.queue_of(node)
                mine[i] = node
                self.nodes.append(node)
            self.of_rank.append(mine)
        self.heap: list[tuple[int, int, int, TwinNode]] = []
        self.count = 0
        self.busy: dict[Any, TwinNode] = {}
        self.turns = {n.queue: deque() for n in self.nodes}
        for node in sorted(self.nodes, key=lambda n: n.id):
            self.turns[node.queue].append(node)
        self.sends: dict[Any, deque[TwinNode]] = defaultdict(deque)
        self.recvs: dict[Any, deque[TwinNode]] = defaultdict(deque)
        self.partner: dict[int, TwinNode] = {}
        self.joined: dict[Any, int] = defaultdict(int)
        self.meeting: dict[Any, list[TwinNode]] = defaultdict(list)
        if not self.astra:
            self.pair_by_id()

    def pair_by_id(self) -> None:
        """`streams`: the k-th send and the k-th receive of one tag between two ranks, by id, belong together."""
        for node in sorted(self.nodes, key=lambda n: n.id):
            if node.kind == Kind.SEND:
                self.match(node, self.sends, self.recvs, (node.rank, self.named(node), self.column(node, "tag")))
            elif node.kind == Kind.RECV:
                self.match(node, self.recvs, self.sends, (self.named(node), node.rank, self.column(node, "tag")))

    def named(self, node: TwinNode) -> int:
        graph = self.traces.graph(node.rank)
        return int(self.traces.slots[node.rank, graph.slot[node.position]])

    def column(self, node: TwinNode, name: str) -> int:
        return int(getattr(self.traces.graph(node.rank), name)[node.position])

    def queue_of(self, node: TwinNode) -> Any:
        """What a node stands in line for."""
        if node.kind == Kind.RECV:
            return (node.rank, "recv", node.position)
        if node.kind == Kind.COMP:
            return (node.rank, "cpu" if self.column(node, "cpu") else "gpu")
        if self.astra:
            return (node.rank, "comm")
        return (node.rank, node.kind, self.named(node))

    def run(self) -> list[TwinNode]:
        for rank in range(self.traces.ranks):
            for node in self.of_rank[rank].values():
                if not node.deps:
                    node.ready = 0
        for rank in range(self.traces.ranks):
            self.look(rank, 0)
        while self.heap:
            now, _, _, node = heapq.heappop(self.heap)
            self.finish(node, now)
            partner = self.partner.get(id(node))
            if node.kind == Kind.SEND and partner is not None and partner.issue >= 0:
                self.finish(partner, now)
        return self.nodes

    def finish(self, node: TwinNode, now: int) -> None:
        node.end = now
        if self.busy.get(node.queue) is node:
            del self.busy[node.queue]
        for other in self.of_rank[node.rank].values():
            if node.position in other.deps:
                other.deps.remove(node.position)
                if not other.deps:
                    other.ready = now
        self.look(node.rank, now)

    def look(self, rank: int, now: int) -> None:
        """Issue whatever can be, lowest id first."""
        for node in sorted(self.of_rank[rank].values(), key=lambda n: n.id):
            if node.ready < 0 or node.issue >= 0 or node.queue in self.busy:
                continue
            if not self.astra and self.turns[node.queue][0] is not node:
                continue
            self.turns[node.queue].remove(node)
            self.issue(node, now)

    def at(self, time: int, registered: int, node: TwinNode) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, registered, self.count, node))

    def issue(self, node: TwinNode, now: int) -> None:
        node.issue = now
        if node.kind != Kind.RECV:
            self.busy[node.queue] = node
        if node.kind == Kind.COMP:
            written = self.column(node, "duration_us") * 1000
            own = self.column(node, "duration_ns")
            took = max(written, 1) if self.astra else (own if own >= 0 else written)
            self.at(now + took, now, node)
        elif node.kind == Kind.SEND:
            size = self.column(node, "comm_bytes")
            if self.astra:
                self.match(node, self.sends, self.recvs, (node.rank, self.named(node), *self.key(node)))
            self.at(now + way_ns(self.fabric, node.rank, self.named(node), size, self.execution), now, node)
        elif node.kind == Kind.RECV:
            if self.astra:
                self.match(node, self.recvs, self.sends, (self.named(node), node.rank, *self.key(node)))
            partner = self.partner.get(id(node))
            if partner is not None and partner.end >= 0:
                self.at(now, now, node)
        else:
            self.join(node, now)

    def key(self, node: TwinNode) -> tuple[int, ...]:
        """ASTRA-sim matches messages by this, first issued to first posted."""
        return self.column(node, "tag") % 500_000_000, self.column(node, "comm_bytes")

    def match(self, node: TwinNode, own: Any, other: Any, key: Any) -> None:
        if other[key]:
            partner = other[key].popleft()
            self.partner[id(node)] = partner
            self.partner[id(partner)] = node
        else:
            own[key].append(node)

    def join(self, node: TwinNode, now: int) -> None:
        group = self.named(node)
        turn = self.joined[node.rank, group]
        self.joined[node.rank, group] += 1
        members = self.traces.groups.ranks(group).tolist()
        waiting = self.meeting[group, turn]
        waiting.append(node)
        if len(waiting) < len(members):
            return
        kind, size = self.column(node, "collective"), self.column(node, "comm_bytes")
        asked = {(self.column(one, "collective"), self.column(one, "comm_bytes")) for one in waiting}
        if len(asked) > 1:
            return  # members that disagree wait for ever
        if not self.astra:
            took = duration(self.fabric, Shape.of(self.fabric.size, tuple(members)), kind, size).duration_ns
            for one in waiting:
                self.at(now + took, now, one)
            return
        whole = len(members) == self.traces.ranks
        members = sorted(members) if whole else members
        mask = (1 << self.fabric.dimensions) - 1 if whole else 0
        rule = collective_rule(self.fabric, members, mask, kind, size)
        by_rank = {one.rank: one for one in waiting}
        enter = [by_rank[rank].issue for rank in members]
        for rank, end in zip(members, self.ends(rule, members, enter), strict=True):
            self.at(end, end - rule.lag_ns, by_rank[rank])

    def ends(self, rule: Any, members: list[int], enter: list[int]) -> list[int]:
        """When each member of a ring leaves it."""
        if rule.form == LAST_ENTRY:
            return [max(enter) + rule.span_ns] * len(members)
        n = len(members)
        for _ in range(rule.rounds):
            inject = [x + rule.endpoint_ns for x in enter]
            for step in rule.steps:
                for _ in range(step.count):
                    assert step.partner == 0, "the twin knows rings only"
                    came = [
                        inject[i - 1] + way_ns(self.fabric, members[i - 1], members[i], step.nbytes, "astra")
                        for i in range(n)
                    ]
                    inject = [max(came[i], inject[i]) + rule.endpoint_ns + step.reduce_ns for i in range(n)]
            enter = inject
        return enter


def rings(size: tuple[int, ...], topology: tuple[str, ...], **more: Any) -> Fabric:
    """A fabric on which every collective runs as a ring."""
    from tracegen.replay.fabric import Algorithm

    kinds = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
    values: dict[str, Any] = {
        "names": tuple(f"d{i}" for i in range(len(size))),
        "topology": topology,
        "size": size,
        "bandwidth": tuple(50.0 / (i + 1) for i in range(len(size))),
        "latency": tuple(500.0 * (i + 1) for i in range(len(size))),
        "algorithms": {kind: (Algorithm("ring"),) * len(size) for kind in kinds},
        **more,
    }
    return Fabric(**values)
