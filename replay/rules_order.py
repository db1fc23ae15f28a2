"""Rules about order: no cycle in a rank's dependencies, none through streams, messages and joined collectives."""

from __future__ import annotations

from tracegen.replay.order import find_cycle, stuck_nodes
from tracegen.replay.rules import Report, Scope, node_text

_LONGEST = 12  # nodes of a cycle that are printed


def check_cycles(scope: Scope, report: Report) -> None:
    """Cycles in the dependencies of each class, one printed per class."""
    for index, graph in enumerate(scope.traces.graphs):
        stuck = stuck_nodes(graph)
        if not len(stuck):
            continue
        cycle = find_cycle(graph, stuck)
        ids = [str(int(graph.id[wait.position])) for wait in cycle]
        shown = [*ids, ids[0]] if len(ids) <= _LONGEST else [*ids[:_LONGEST], f"... ({len(ids)} nodes)", ids[0]]
        told = ", ".join(
            f"{node_text(graph, wait.position)} waits ({wait.edge}_deps) for {ids[(k + 1) % len(ids)]}"
            for k, wait in enumerate(cycle[:_LONGEST])
        )
        report.add("cycle", [(
            scope.where(index), f"{' -> '.join(shown)}: {told}; {len(stuck)} of {len(graph)} nodes can never run",
        )])  # fmt: skip


def check_deadlock(scope: Scope, report: Report) -> None:
    """That everything can run: dependencies, messages, joined collectives and, under `streams`, each stream's order."""
