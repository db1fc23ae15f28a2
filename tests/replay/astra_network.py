"""Messages and remote memory of the twin: delays or links, matching by key, queues (4, 9, 2.4). No workload here."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import floor
from typing import Any

from astra_inputs import Refused

TAG_SPACE = 500_000_000
Action = Callable[[], None]


@dataclass
class Entry:
    """One message between two ranks: FIFO inside its key."""

    sent: Action | None = None  # run at arrival on the sending side
    received: Action | None = None
    arrived: bool = False


class Network:
    """Delays or links, and who gets told when a message arrives (4, 9)."""

    def __init__(self, sim: Any) -> None:
        self.sim = sim
        self.entries: dict[tuple[Any, ...], Entry] = {}
        self.turns: dict[tuple[Any, ...], int] = defaultdict(int)
        self.busy: set[tuple[int, int]] = set()
        self.waiting: dict[tuple[int, int], deque[tuple[int, int, list[int], Action]]] = defaultdict(deque)
        self.messages = 0
        self.links: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    def _entry(self, side: str, key: tuple[Any, ...]) -> Entry:
        turn = self.turns[(side, *key)]
        self.turns[(side, *key)] += 1
        return self.entries.setdefault((*key, turn), Entry())

    def send(self, space: str, tag: int, src: int, dst: int, size: int, sent: Action | None) -> None:
        if size <= 0:
            raise Refused(f"rank {src} sends a message of {size} bytes to rank {dst}")
        entry = self._entry("send", (space, tag % TAG_SPACE, src, dst, size))
        entry.sent = sent
        self.messages += 1

        def arrive() -> None:
            # The sender's side first, then the receiver's (no difference seen between the two orders: 14.9).
            entry.arrived = True
            received = entry.received
            if entry.sent:
                entry.sent()
            if received:
                received()

        if self.sim.inputs.aware:
            self._hop(size, self.route(src, dst), arrive)
        else:
            self.sim.schedule(self.sim.now + self.delay(src, dst, size), arrive)

    def receive(self, space: str, tag: int, src: int, dst: int, size: int, received: Action) -> None:
        entry = self._entry("receive", (space, tag % TAG_SPACE, src, dst, size))
        if entry.arrived:  # an event of the same tick, after what runs now (14.2)
            self.sim.schedule(self.sim.now, received)
        else:
            entry.received = received

    def delay(self, src: int, dst: int, size: int) -> int:
        """One message without contention: the lowest dimension in which the ends differ (9)."""
        net = self.sim.inputs
        a, b = src, dst
        for topology, n, latency, bandwidth in zip(net.topology, net.size, net.latency, net.bandwidth, strict=True):
            x, y = a % n, b % n
            if x != y:
                away = (y - x) % n
                hops = {"FullyConnected": 1, "Switch": 2, "Ring": min(away, n - away)}[topology]
                return floor(hops * latency + size / bandwidth)
            a, b = a // n, b // n
        raise Refused(f"rank {src} sends a message to itself")

    def route(self, src: int, dst: int) -> list[int]:
        """Devices from source to target; the switch is device n."""
        net = self.sim.inputs
        n, topology = net.size[0], net.topology[0]
        if topology == "Switch":
            return [src, n, dst]
        if src == dst:
            raise Refused(f"rank {src} sends a message to itself")
        if topology == "FullyConnected":
            return [src, dst]
        ahead = (dst - src) % n
        step = 1 if ahead <= n - ahead else -1  # a tie goes towards increasing ranks
        path = [src]
        while path[-1] != dst:
            path.append((path[-1] + step) % n)
        return path

    def _hop(self, size: int, path: list[int], arrive: Action) -> None:
        link = (path[0], path[1])
        if link in self.busy:
            self.waiting[link].append((self.sim.now, size, path, arrive))
        else:
            self._transmit(link, size, path, arrive)

    def _transmit(self, link: tuple[int, int], size: int, path: list[int], arrive: Action) -> None:
        """Occupy the link; the arrival is scheduled before the link's release (9: at equal ticks it runs first)."""
        net = self.sim.inputs
        self.busy.add(link)
        count = self.links[link]
        count[0] += 1
        count[1] += size
        count[2] += floor(size / net.bandwidth[0])
        there = arrive if len(path) == 2 else lambda: self._hop(size, path[1:], arrive)
        self.sim.schedule(self.sim.now + floor(net.latency[0] + size / net.bandwidth[0]), there)
        self.sim.schedule(self.sim.now + floor(size / net.bandwidth[0]), lambda: self._release(link))

    def _release(self, link: tuple[int, int]) -> None:
        self.busy.remove(link)
        if self.waiting[link]:
            since, *rest = self.waiting[link].popleft()
            self.links[link][3] += self.sim.now - since
            self._transmit(link, *rest)


class Memory:
    """Remote memory: latency + floor(size / bandwidth), queued per node or over all ranks (2.4)."""

    def __init__(self, sim: Any) -> None:
        self.sim = sim
        self.spec = sim.inputs.memory
        self.ongoing: set[int] = set()
        self.waiting: dict[int, deque[tuple[Any, int, Action]]] = defaultdict(deque)

    def issue(self, rank: Any, size: int, done: Action) -> None:
        kind = self.spec.get("memory-type", "NO_MEMORY_EXPANSION")
        if kind == "NO_MEMORY_EXPANSION":
            raise Refused(f"rank {rank.number}: a memory node without remote memory")
        service = int(self.spec.get("remote-mem-latency", 0)) + size // int(self.spec["remote-mem-bw"])
        if kind == "PER_NPU_MEMORY_EXPANSION":
            rank.timers.after(service, done)
            return
        pool = rank.number // int(self.spec["num-npus-per-node"]) if kind == "PER_NODE_MEMORY_EXPANSION" else 0
        if pool in self.ongoing:
            self.waiting[pool].append((rank, service, done))
        else:
            self._serve(pool, rank, service, done)

    def _serve(self, pool: int, rank: Any, service: int, done: Action) -> None:
        self.ongoing.add(pool)

        def finished() -> None:
            # The next request before the callback (no difference seen: 14.9).
            self.ongoing.remove(pool)
            if self.waiting[pool]:
                self._serve(pool, *self.waiting[pool].popleft())
            done()

        rank.timers.after(service, finished)
