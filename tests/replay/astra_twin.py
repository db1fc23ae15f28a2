"""ASTRA-sim's analytical backends as an obvious event simulator: the twin of ``replay/message/workload_kernels.py``.

Owns the reading of `astra_sim_semantics.md` (sections in brackets) in plain Python: one heap of events, closures, no
arrays, no hurry. Reading inputs: `astra_inputs`; phases of collectives: `astra_algorithms`; messages: `astra_network`.

What had to be settled beyond the page's words is marked "Inferred".
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from astra_algorithms import Phase, phases_of, start_phase
from astra_inputs import COLL, COMP, INVALID, MEM_LOAD, MEM_STORE, METADATA, RECV, SEND, Inputs, Node, Refused
from astra_network import Action, Memory, Network

BROADCAST = 5
RENDEZVOUS_BYTES = 8192


@dataclass
class Result:
    """Ticks by rank and node id; an end is None where the node never ends, a finish where the rank does not."""

    start: dict[int, dict[int, int]]
    end: dict[int, dict[int, int | None]]
    finish: dict[int, int | None]
    messages: int
    links: dict[Any, list[int]] = field(default_factory=dict)  # (from, to): messages, bytes, busy ns, queueing ns


class Timers:
    """A rank's timers: those for one tick run together, at the place of the first registration (3, 14.8)."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.at: dict[int, list[Action]] = {}

    def after(self, delay: int, action: Action) -> None:
        tick = self.sim.now + delay
        if tick in self.at:  # also while this very list runs: then it is appended to the running list (14.7)
            self.at[tick].append(action)
            return
        self.at[tick] = [action]
        self.sim.schedule(tick, lambda: self.run(tick))

    def run(self, tick: int) -> None:
        index = 0
        while index < len(self.at[tick]):
            self.at[tick][index]()
            index += 1
        del self.at[tick]


@dataclass
class Chunk:
    """A chunk of a collective on one rank, on its way through its phases."""

    rank: Rank
    tag: int
    phases: list[Phase]
    done: Action
    at: int = 0


class Queue:
    """One logical queue of a dimension: so many chunks in service, the rest FIFO (6)."""

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self.running: list[Chunk] = []
        self.waiting: deque[Chunk] = deque()

    def try_start(self) -> None:
        while self.waiting and len(self.running) < self.servers:
            chunk = self.waiting.popleft()
            self.running.append(chunk)
            start_phase(chunk.rank.sim, chunk, chunk.phases[chunk.at], lambda chunk=chunk: chunk.rank.leave(chunk))


class Rank:
    """Workload and system layer of one rank (4, 5, 6)."""

    def __init__(self, sim: Simulation, number: int, nodes: list[Node]) -> None:
        self.sim, self.number = sim, number
        self.timers = Timers(sim)
        self.nodes = {node.id: node for node in nodes}
        self.left = {node.id: set(node.deps) for node in nodes}
        self.children: dict[int, list[int]] = defaultdict(list)
        for node in nodes:
            for dep in node.deps:
                if dep not in self.nodes:
                    raise Refused(f"rank {number} node {node.id} waits for {dep}, which does not exist")
                self.children[dep].append(node.id)
        self.ready = {node.id for node in nodes if not node.deps}
        self.held: set[str] = set()
        self.start: dict[int, int] = {}
        self.end: dict[int, int | None] = {}
        self.finish: int | None = None
        self.chunks_made = 0
        self.group_chunks: dict[int, int] = defaultdict(int)
        servers = -(-sim.inputs.active // sim.inputs.queues)
        self.queues: dict[tuple[int, int], Queue] = defaultdict(lambda: Queue(servers))
        # Round robins over a dimension's queues: over all, over the lower half, over the upper half; they go on across
        # collectives (14.5). Inferred: three separate counters.
        self.turn: dict[tuple[int, str], int] = defaultdict(int)
        self.tree_turn: dict[tuple[int, int], int] = defaultdict(int)

    # --- workload
    def issue_loop(self) -> None:
        """Issue ready nodes by ascending id where their slot is free; a snapshot: nodes freed inside wait (4)."""
        for id in sorted(self.ready):
            node = self.nodes[id]
            slot = self._slot(node)
            if slot in self.held:
                continue
            self.ready.remove(id)
            self.start[id] = self.sim.now
            self.end[id] = None
            if self._skipped(node):
                self._free(node)
                continue
            if slot:
                self.held.add(slot)
            self._issue(node)
        if all(id in self.end and self.end[id] is not None for id in self.nodes):
            self.finish = self.sim.now

    def _slot(self, node: Node) -> str:
        if node.cpu:
            return "cpu"
        return {COMP: "compute", RECV: ""}.get(node.kind, "communication")

    def _skipped(self, node: Node) -> bool:
        if self.sim.inputs.replay_only:
            return False
        if node.kind in (INVALID, METADATA):
            return True
        return bool(self.sim.inputs.roofline and node.kind == COMP and not node.cpu and node.tensor_size == 0)

    def _free(self, node: Node) -> None:
        self.end[node.id] = self.sim.now
        for child in self.children[node.id]:
            self.left[child].discard(node.id)
            if not self.left[child]:
                self.ready.add(child)

    def complete(self, node: Node) -> None:
        self.held.discard(self._slot(node))
        self._free(node)
        self.issue_loop()

    def _issue(self, node: Node) -> None:
        inputs = self.sim.inputs

        def done() -> None:
            self.complete(node)

        replayed = inputs.replay_only or (node.kind == COLL and node.collective == BROADCAST)
        if replayed or node.kind == COMP:
            self.timers.after(inputs.compute_ns(node, replayed), done)
        elif node.kind in (MEM_LOAD, MEM_STORE):
            self.sim.memory.issue(self, node.tensor_size, done)
        elif node.kind == SEND:
            self.sim.send("message", node.tag, self.number, node.peer, node.size, done)
        elif node.kind == RECV:
            self.sim.receive("message", node.tag, node.peer, self.number, node.size, done)
        else:
            self._collective(node, done)

    # --- system layer
    def _collective(self, node: Node, done: Action) -> None:
        """Cut into chunks, all created now (5)."""
        inputs = self.sim.inputs
        chunk, count = inputs.chunking(node)
        group = inputs.groups[node.group] if node.group else None
        if group is not None and self.number not in group:
            raise Refused(f"rank {self.number} is not in group {node.group}")
        pending = count

        def ended() -> None:
            nonlocal pending
            pending -= 1
            if not pending:
                done()

        if not chunk or (group is not None and len(group) == 1):
            return  # never ends
        for _ in range(count):
            tag = node.group * 1_000_000 + self.group_chunks[node.group] if node.group else self.chunks_made
            self.group_chunks[node.group] += 1
            self.chunks_made += 1
            phases = phases_of(inputs, self, node, chunk)
            if not phases:
                return
            one = Chunk(self, tag, phases, ended)
            queue = self.queues[phases[0].queue]
            queue.waiting.append(one)
            queue.try_start()

    def leave(self, chunk: Chunk) -> None:
        """A chunk has gone through a phase: append it to its next queue, release its place, then try that queue (6)."""
        old = self.queues[chunk.phases[chunk.at].queue]
        chunk.at += 1
        if chunk.at == len(chunk.phases):
            # Inferred: the collective's end is told before the place is released.
            chunk.done()
            old.running.remove(chunk)
            old.try_start()
            return
        new = self.queues[chunk.phases[chunk.at].queue]
        new.waiting.append(chunk)
        old.running.remove(chunk)
        old.try_start()
        new.try_start()


class Simulation:
    """The whole run."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.now = 0
        self._events: list[tuple[int, int, Action]] = []
        self._sequence = 0
        self.network = Network(self)
        self.memory = Memory(self)
        self.ranks = [Rank(self, number, nodes) for number, nodes in enumerate(inputs.ranks)]

    def schedule(self, tick: int, action: Action) -> None:
        if tick == 0:
            raise Refused("an event for t = 0: ASTRA-sim aborts")
        heapq.heappush(self._events, (tick, self._sequence, action))
        self._sequence += 1

    def send(self, space: str, tag: int, src: int, dst: int, size: int, sent: Action | None) -> None:
        """A message; under the rendezvous protocol it leaves when the receiver's 8192 bytes have come (2.1)."""
        if not self.inputs.rendezvous:
            self.network.send(space, tag, src, dst, size, sent)
            return
        self.network.receive(
            f"{space} request",
            tag,
            dst,
            src,
            RENDEZVOUS_BYTES,
            lambda: self.network.send(space, tag, src, dst, size, sent),
        )

    def receive(self, space: str, tag: int, src: int, dst: int, size: int, received: Action) -> None:
        """A posted receive; under rendezvous it is really posted when the request has reached the sender."""
        if not self.inputs.rendezvous:
            self.network.receive(space, tag, src, dst, size, received)
            return
        self.network.send(
            f"{space} request", tag, dst, src, RENDEZVOUS_BYTES,
            lambda: self.network.receive(space, tag, src, dst, size, received),
        )  # fmt: skip

    def run(self) -> Result:
        for rank in self.ranks:
            rank.issue_loop()
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()
        return Result(
            {rank.number: rank.start for rank in self.ranks},
            {rank.number: rank.end for rank in self.ranks},
            {rank.number: rank.finish for rank in self.ranks},
            self.network.messages,
            dict(self.network.links),
        )


def simulate(inputs: Inputs) -> Result:
    """Run; raises `Refused` where ASTRA-sim aborts."""
    return Simulation(inputs).run()
