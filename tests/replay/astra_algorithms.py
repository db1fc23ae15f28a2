"""The phases of a collective on one rank, and what each algorithm sends and waits for, for the twin only (6 to 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from astra_inputs import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Inputs, Node, Refused

GROUP_DELAY = 10  # ns, whatever endpoint-delay says (7)


@dataclass
class Phase:
    """One stay of a chunk on one queue."""

    queue: tuple[int, int]
    line: list[int]  # ranks in their order
    algorithm: str
    window: int
    kind: int
    size: int
    forward: bool  # clockwise
    delay: int
    subset: bool
    tree: int = 0


def _parse(name: str) -> tuple[str, int, bool]:
    stem = name.rstrip("0123456789")
    flat = stem.startswith("one")
    if flat:
        stem = stem[3].lower() + stem[4:]
    if stem not in ("ring", "direct", "halvingDoubling", "doubleBinaryTree"):
        raise Refused(f"unknown algorithm {name}")
    return stem, int(name[len(name.rstrip("0123456789")) :] or 0), flat


def _line(inputs: Inputs, rank: int, dim: int) -> list[int]:
    stride = 1
    for n in inputs.size[:dim]:
        stride *= n
    n = inputs.size[dim]
    first = rank - (rank // stride % n) * stride
    return [first + k * stride for k in range(n)]


def phases_of(inputs: Inputs, rank: Any, node: Node, chunk: int) -> list[Phase]:
    """The phases of the next chunk of this node; takes its queues, so each call moves the round robins on (6)."""
    kind = node.collective
    names = [_parse(name) for name in inputs.implementation[kind]]
    group = inputs.groups[node.group] if node.group else None
    halves = kind == ALL_REDUCE and inputs.bandwidth_aware
    if group is not None and len(group) < inputs.count:
        stem, window, _ = names[0] if len(names) == 1 else ("ring", 0, False)
        if stem == "doubleBinaryTree":
            raise Refused("doubleBinaryTree on a group")
        queue, forward = _queue(inputs, rank, 0, "lower" if halves else "all")
        return [Phase(queue, group, stem, window, kind, chunk, forward, GROUP_DELAY, True)]
    if names[0][2]:
        stem, window, _ = names[0]
        queue, forward = _queue(inputs, rank, 0, "lower" if halves else "all")
        line = list(range(inputs.count))
        return [Phase(queue, line, stem, window, kind, chunk, forward, inputs.endpoint_delay, False)]
    if len(names) > len(inputs.size):
        raise Refused("more algorithms than dimensions")
    involved = [True] * len(inputs.size)
    if group is None:
        given = node.dims if node.dims is not None else [True] * 4
        involved = [d < len(given) and given[d] for d in range(len(inputs.size))]
    dims = [d for d in range(len(names)) if involved[d]]
    phases: list[Phase] = []
    size = chunk

    def add(dim: int, part: int, half: str) -> None:
        nonlocal size
        stem, window, _ = names[dim]
        queue, forward = _queue(inputs, rank, dim, half)
        tree = 0
        if stem == "doubleBinaryTree":
            # Inferred: one alternation per collective type and dimension, moved on by every phase made.
            tree = rank.tree_turn[(kind, dim)] % 2
            rank.tree_turn[(kind, dim)] += 1
        line = _line(inputs, rank.number, dim)
        phases.append(Phase(queue, line, stem, window, part, size, forward, inputs.endpoint_delay, False, tree))
        if stem != "doubleBinaryTree":
            size = {REDUCE_SCATTER: size // len(line), ALL_GATHER: size * len(line)}.get(part, size)

    if not halves:
        for dim in reversed(dims) if kind == ALL_GATHER else dims:
            add(dim, kind, "all")
    elif dims:
        for dim in dims[:-1]:
            add(dim, REDUCE_SCATTER, "lower")
        add(dims[-1], ALL_REDUCE, "lower")
        for dim in reversed(dims[:-1]):
            add(dim, ALL_GATHER, "upper")
    return phases


def _queue(inputs: Inputs, rank: Any, dim: int, half: str) -> tuple[tuple[int, int], bool]:
    """The next queue of a dimension and whether it runs clockwise (6)."""
    total = inputs.queues
    turn = rank.turn[(dim, half)]
    rank.turn[(dim, half)] += 1
    if half == "all":
        queue = turn % total
        return (dim, queue), total == 1 or queue < total // 2
    if half == "lower":
        return (dim, turn % max(total // 2, 1)), True
    return (dim, total // 2 + turn % (total - total // 2)), False


def start_phase(sim: Any, chunk: Any, phase: Phase, done: Any) -> None:
    """Begin a phase on this chunk's rank; ``done`` is called when it has ended there."""
    if phase.algorithm == "doubleBinaryTree":
        Tree(sim, chunk, phase, done).begin()
    else:
        Steps(sim, chunk, phase, done).begin()


class _Running:
    def __init__(self, sim: Any, chunk: Any, phase: Phase, done: Any) -> None:
        self.sim, self.chunk, self.phase, self.done = sim, chunk, phase, done
        self.rank = chunk.rank
        self.n = len(phase.line)
        self.me = phase.line.index(self.rank.number)

    def send(self, position: int, size: int) -> None:
        self.sim.send("chunk", self.chunk.tag, self.rank.number, self.phase.line[position % self.n], size, None)

    def receive(self, position: int, size: int, received: Any) -> None:
        self.sim.receive("chunk", self.chunk.tag, self.phase.line[position % self.n], self.rank.number, size, received)

    def process(self, nbytes: int, reduces: bool, action: Any) -> None:
        """A timer e, then, where it reduces, a timer P (two timers: 14.1)."""
        if not reduces:
            self.rank.timers.after(self.phase.delay, action)
            return
        self.rank.timers.after(
            self.phase.delay, lambda: self.rank.timers.after(self.sim.inputs.reduce_ns(nbytes), action)
        )


class Steps(_Running):
    """Ring, direct and halvingDoubling: step k sends message k and posts receive k (8)."""

    def __init__(self, sim: Any, chunk: Any, phase: Phase, done: Any) -> None:
        super().__init__(sim, chunk, phase, done)
        n, kind = self.n, phase.kind
        self.window = 1
        if phase.algorithm == "ring":
            message = phase.size if kind == ALL_GATHER else phase.size // n
            steps = {ALL_REDUCE: 2 * (n - 1), ALL_TO_ALL: n * (n - 1) // 2}.get(kind, n - 1)
            self.sizes, self.ways = [message] * steps, [1] * steps
            self.block = n
        elif phase.algorithm == "direct":
            message = phase.size if kind == ALL_GATHER else phase.size // n
            steps = 2 * (n - 1) if kind == ALL_REDUCE else n - 1
            self.window = min(phase.window or n - 1, n - 1)
            self.sizes, self.ways = [message] * steps, [1 + k % (n - 1) for k in range(steps)]
            self.block = n * self.window if phase.subset else 2 * self.window
        else:
            self._halving_doubling()
        self.sent = self.inserted = self.arrived = self.processed = 0

    def _halving_doubling(self) -> None:
        n, size, kind = self.n, self.phase.size, self.phase.kind
        if n & (n - 1) or kind == ALL_TO_ALL:
            raise Refused(f"halvingDoubling over {n} ranks, collective type {kind}")
        levels = n.bit_length() - 1
        down = [size >> k for k in range(1, levels + 1)]
        ways_down = [1 << k for k in range(levels)]
        ways_up = ways_down[::-1]
        if kind == ALL_GATHER:
            self.sizes, self.ways = [size << k for k in range(levels)], ways_up
        else:
            self.sizes, self.ways = down, ways_down
            if kind == ALL_REDUCE:
                # Inferred: the size is halved once more before it doubles, so an odd m_L loses a byte and one of 1 byte
                # becomes 0. The page writes m_L, 2 m_L, ..; but it also says that 1 KB in 16 splits over 64 ranks
                # aborted on an empty message, where m_L = 1. No given row has an odd m_L.
                last = down[-1] // 2 * 2
                self.sizes, self.ways = down + [last << k for k in range(levels)], ways_down + ways_up
        self.block = levels

    def _position(self, step: int, sending: bool) -> int:
        if self.phase.algorithm == "halvingDoubling":
            return self.me ^ self.ways[step]
        forward = self.phase.forward == sending
        return self.me + (self.ways[step] if forward else -self.ways[step])

    def begin(self) -> None:
        for _ in range(self.window):
            self._insert()

    def _insert(self) -> None:
        """Charge insertion number i: the first w of the phase, then one per reception, in the order they happen."""
        index = self.inserted
        self.inserted += 1
        block, place = divmod(index, self.block)
        first = self.window if self.phase.algorithm == "direct" else 1
        kind = self.phase.kind
        reduces = place >= first and (kind == REDUCE_SCATTER or (kind == ALL_REDUCE and block % 2 == 0))
        nbytes = self.sizes[index] if index < len(self.sizes) else self.sizes[-1]
        self.process(nbytes, reduces, self._processed)

    def _received(self) -> None:
        self.arrived += 1
        self._insert()

    def _processed(self) -> None:
        self.processed += 1
        left = len(self.sizes) - self.sent
        if self.phase.algorithm == "direct" and self.phase.kind == ALL_REDUCE and left <= self.n - 1:
            if self.arrived < self.n - 1:
                return
            for _ in range(self.window):
                self._step()
        else:
            self._step()
        if self.sent == len(self.sizes) and self.processed - self.sent == self.window:
            self.done()

    def _step(self) -> None:
        if self.sent == len(self.sizes) or self.processed == self.sent:
            return
        step = self.sent
        self.sent += 1
        self.send(self._position(step, True), self.sizes[step])
        self.receive(self._position(step, False), self.sizes[step], self._received)


class Tree(_Running):
    """doubleBinaryTree (8): up to the root with reductions, and back down."""

    def begin(self) -> None:
        n = self.n
        if n & (n - 1):
            raise Refused(f"doubleBinaryTree over {n} ranks")
        # Tree 0: root n - 1 over the in-order tree of 0..n-2; tree 1: root 0 over that of 1..n-1.
        shift = self.phase.tree
        node = self.me + 1 - shift  # 1..n-1 in the perfect tree; the root is n (tree 0) or 0 (tree 1)
        root = self.me == (0 if shift else n - 1)
        top = n // 2
        if root:
            self._root(top - 1 + shift)
            return
        low = node & -node
        up = None if node == top else node + low if not node & (low << 1) else node - low
        self.parent = (0 if shift else n - 1) if up is None else up - 1 + shift
        if low == 1:
            self.process(0, False, self._leaf_up)
            return
        self.children = [node - low // 2 - 1 + shift, node + low // 2 - 1 + shift]
        self.reductions = 0
        for child in self.children:
            self.receive(child, self.phase.size, self._from_child)

    def _root(self, child: int) -> None:
        def back() -> None:
            self.send(child, self.phase.size)
            self.done()

        self.receive(child, self.phase.size, lambda: self.process(self.phase.size, True, back))

    def _leaf_up(self) -> None:
        self.send(self.parent, self.phase.size)
        self.receive(self.parent, self.phase.size, lambda: self.process(0, False, self.done))

    def _from_child(self) -> None:
        self.process(self.phase.size, True, self._reduced)

    def _reduced(self) -> None:
        self.reductions += 1
        if self.reductions == 2:
            self.send(self.parent, self.phase.size)
            self.receive(self.parent, self.phase.size, lambda: self.process(self.phase.size, True, self._down))

    def _down(self) -> None:
        for child in self.children:
            self.send(child, self.phase.size)
        self.done()
