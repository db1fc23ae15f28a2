"""Why a run stopped: for every unfinished rank what it waits for, and the cycle if there is one. Reads a `Run`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracegen.proto.graph import Collective
from tracegen.replay.cells.plan import ASTRA, JOIN, RECV, SEND, ClassPlan
from tracegen.replay.run import Run

_MOST_LINES = 8


class Wait(NamedTuple):
    """A node that never ended: its rank, what it says, and the flat node (id order) it waits for, -1 if none."""

    rank: int
    text: str
    blocker: int


def describe_waits(run: Run) -> str:
    """Lines of who waits for whom, one per unfinished rank as far as they help, then the cycle."""
    look = _Look(run)
    lines: list[str] = []
    shown: set[int] = set()
    cycle: list[int] = []
    stuck = sorted({int(run.assembly.cell_of_node[v]) for v in look.unfinished})
    for cell in stuck:
        chain, loop = look.follow(look.first_of(cell))
        cycle = cycle or loop
        for v in loop or chain[-1:]:
            wait = look.wait(v)
            if v not in shown and len(lines) < _MOST_LINES:
                lines.append(wait.text)
            shown.add(v)
    if cycle:
        ranks = [look.rank(v) for v in cycle]
        hops = [r for k, r in enumerate(ranks) if k == 0 or r != ranks[k - 1]]
        if len(hops) > 1 and hops[0] == hops[-1]:
            hops.pop()
        lines.append("cycle: " + " -> ".join(map(str, [*hops, hops[0]])))
    left = int((run.end_ns < 0).sum())
    lines.append(f"{left} of {len(run.end_ns)} nodes never ran to their end, on {len(stuck)} of {run.cells} ranks")
    return "\n".join(lines)


class _Look:
    """A run's columns in id order, and what each unfinished node waits for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        place = run.assembly.places()
        self.ready, self.issue, self.end = run.ready_ns[place], run.issue_ns[place], run.end_ns[place]
        self.unfinished = np.flatnonzero(self.end < 0).tolist()

    def first_of(self, cell: int) -> int:
        """The first unfinished node of a cell, one that was issued before one that was not."""
        begin, stop = (int(x) for x in self.run.assembly.node_ptr[cell : cell + 2])
        left = begin + np.flatnonzero(self.end[begin:stop] < 0)
        begun = left[self.issue[left] >= 0]
        return int(begun[0] if len(begun) else left[0])

    def follow(self, v: int) -> tuple[list[int], list[int]]:
        """From a node along what each waits for: the chain, and its cycle if it runs into one."""
        chain: list[int] = []
        place: dict[int, int] = {}
        while v >= 0 and v not in place:
            place[v] = len(chain)
            chain.append(v)
            v = self.wait(v).blocker
        return chain, chain[place[v] :] if v >= 0 else []

    def rank(self, v: int) -> int:
        """The rank simulated for a node's cell."""
        return int(self.run.representative[self.run.assembly.cell_of_node[v]])

    def name(self, v: int) -> str:
        """``rank 3 node 17 (name)``."""
        cell = int(self.run.assembly.cell_of_node[v])
        plan = self.run.assembly.plans[int(self.run.assembly.class_of_cell[cell])]
        at = int(plan.order[v - self.run.assembly.node_ptr[cell]])
        return f"rank {self.rank(v)} node {plan.graph.id[at]} ({plan.graph.name_of(at)})"

    def wait(self, v: int) -> Wait:
        """What one unfinished node waits for."""
        assembly = self.run.assembly
        cell = int(assembly.cell_of_node[v])
        first = int(assembly.node_ptr[cell])
        plan = assembly.plans[int(assembly.class_of_cell[cell])]
        at = v - first
        if self.ready[v] < 0:
            return self._on_dependency(v, first, int(plan.order[at]))
        if self.issue[v] < 0:
            return self._in_queue(v, first, at)
        if plan.act[at] == RECV:
            return self._on_message(v, at)
        if plan.act[at] == SEND:
            return self._on_receiver(v, at)
        if plan.act[at] == JOIN:
            return self._on_members(v, at)
        return Wait(self.rank(v), f"{self.name(v)} was issued and never ends under this execution", -1)

    def _on_dependency(self, v: int, first: int, position: int) -> Wait:
        plan = self.run.assembly.plans[int(self.run.assembly.class_of_cell[self.run.assembly.cell_of_node[v]])]
        graph = plan.graph
        deps = [
            *graph.data_deps[graph.data_ptr[position] : graph.data_ptr[position + 1]].tolist(),
            *graph.ctrl_deps[graph.ctrl_ptr[position] : graph.ctrl_ptr[position + 1]].tolist(),
        ]
        place = np.argsort(plan.order)
        open_ = sorted(first + int(place[d]) for d in deps if self.end[first + int(place[d])] < 0)
        blocker = open_[0] if open_ else -1
        behind = (
            f"waits for its dependency {self.name(blocker)}" if open_ else "waits, though its dependencies are done"
        )
        return Wait(self.rank(v), f"{self.name(v)} {behind}", blocker)

    def _in_queue(self, v: int, first: int, at: int) -> Wait:
        assembly = self.run.assembly
        cell = int(assembly.cell_of_node[v])
        plan = assembly.plans[int(assembly.class_of_cell[cell])]
        ahead = int(plan.before[at])
        if self.run.execution == ASTRA:
            nodes = slice(first, int(assembly.node_ptr[cell + 1]))
            holding = np.flatnonzero((plan.lane == plan.lane[at]) & (self.issue[nodes] >= 0) & (self.end[nodes] < 0))
            ahead = int(holding[0]) if len(holding) else -1
        if ahead < 0:
            return Wait(self.rank(v), f"{self.name(v)} is ready, but no event of its rank is left to start it", -1)
        return Wait(self.rank(v), f"{self.name(v)} queues behind {self.name(first + ahead)}", first + ahead)

    def _on_message(self, v: int, at: int) -> Wait:
        assembly = self.run.assembly
        cell = int(assembly.cell_of_node[v])
        plan = assembly.plans[int(assembly.class_of_cell[cell])]
        peer = int(self.run.slots.names[self.rank(v), plan.slot[at]])
        what = f"{self.name(v)} waits for src {peer} tag {plan.tag[at]} {plan.nbytes[at]} B"
        mate = int(assembly.mate[v])
        if mate < 0:
            return Wait(self.rank(v), f"{what}: no send exists", -1)
        return Wait(self.rank(v), f"{what}: {self.name(mate)} was not sent", mate)

    def _on_receiver(self, v: int, at: int) -> Wait:
        """A send that never ends: under the rendezvous protocol it waits for its receive to be posted."""
        assembly = self.run.assembly
        plan = assembly.plans[int(assembly.class_of_cell[int(assembly.cell_of_node[v])])]
        peer = int(self.run.slots.names[self.rank(v), plan.slot[at]])
        what = f"{self.name(v)} waits for dst {peer} to receive tag {plan.tag[at]} {plan.nbytes[at]} B (rendezvous)"
        mate = int(assembly.mate[v])
        if mate < 0:
            return Wait(self.rank(v), f"{what}: no receive exists", -1)
        return Wait(self.rank(v), f"{what}: {self.name(mate)} was not posted", mate)

    def _on_members(self, v: int, at: int) -> Wait:
        assembly, slots = self.run.assembly, self.run.slots
        cell = int(assembly.cell_of_node[v])
        plan = assembly.plans[int(assembly.class_of_cell[cell])]
        instance = int(assembly.instance[v])
        pool = int(assembly.pool_of_instance[instance])
        group = int(slots.names[self.rank(v), plan.slot[at]])
        number = int(slots.groups.number[group])
        what = (
            f"{self.name(v)} waits in {Collective(int(plan.collective[at])).name} {int(plan.ordinal[at])} of "
            f"{slots.groups.label[group] or 'group'} ({number}), {plan.nbytes[at]} B"
        )
        begin, stop = int(assembly.member_ptr[instance]), int(assembly.member_ptr[instance + 1])
        members = assembly.members[begin:stop].tolist()
        for seat, w in enumerate(members):
            if w < 0:
                return self._on_absent(v, what, group, int(assembly.pools.ptr[pool]) + seat)
            if self.issue[w] < 0:
                return Wait(self.rank(v), f"{what}: {self.name(w)} was not issued", w)
        sizes = {self._asked(w) for w in members}
        if len(sizes) > 1:
            return Wait(self.rank(v), f"{what}: its members ask for {' and '.join(sorted(sizes))}", -1)
        return Wait(self.rank(v), f"{what}: {self._never(plan, at, group)}", -1)

    def _never(self, plan: ClassPlan, at: int, group: int) -> str:
        """Why ASTRA-sim never ends a collective that all members entered alike."""
        fabric = self.run.fabric
        if len(self.run.slots.groups.ranks(group)) == 1:
            return "ASTRA-sim never ends one in a group of one rank"
        if plan.collective[at] == Collective.ALL_GATHER and plan.nbytes[at] < fabric.splits:
            return f"ASTRA-sim never ends an all-gather of fewer bytes than the {fabric.splits} splits"
        dims = int(plan.graph.dims[plan.order[at]])
        if dims and not dims & ((1 << fabric.dimensions) - 1):
            return "ASTRA-sim never ends one whose involved_dim names no dimension of the network"
        return (
            "its messages never meet in ASTRA-sim: members made unequal numbers of chunks in groups before it, or end "
            "its phases in unlike orders"
        )

    def _asked(self, w: int) -> str:
        """Type and bytes of a collective."""
        assembly = self.run.assembly
        cell = int(assembly.cell_of_node[w])
        plan, at = assembly.plans[int(assembly.class_of_cell[cell])], w - int(assembly.node_ptr[cell])
        return f"{Collective(int(plan.collective[at])).name} {plan.nbytes[at]} B"

    def _on_absent(self, v: int, what: str, group: int, pair: int) -> Wait:
        """A seat nobody has taken: the member's next collective on the group, or none."""
        assembly = self.run.assembly
        cell, slot = int(assembly.pools.cell[pair]), int(assembly.pools.slot[pair])
        members = self.run.slots.groups.ranks(group)
        rank = int(members[self.run.cell_of[members] == cell][0])
        plan, first = assembly.plans[int(assembly.class_of_cell[cell])], int(assembly.node_ptr[cell])
        nodes = np.flatnonzero((plan.act == JOIN) & (plan.slot == slot))
        later = nodes[self.issue[first + nodes] < 0]
        if not len(later):
            return Wait(self.rank(v), f"{what}: rank {rank} has no such collective", -1)
        blocker = first + int(later[0])
        return Wait(self.rank(v), f"{what}: {self.name(blocker)} was not issued", blocker)


__all__ = ["describe_waits"]
