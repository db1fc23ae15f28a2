"""Rules about order: no cycle in a rank's dependencies, none through streams, messages and joined collectives."""

from __future__ import annotations

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.engine import STREAMS, explain, run
from tracegen.replay.fabric import SWITCH, Algorithm, Fabric
from tracegen.replay.order import find_cycle, stuck_nodes
from tracegen.replay.rules.table import Report, Scope, node_text

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
    """That everything can run to its end.

    Under `streams` the engine is a sweep over dependencies, stream order, messages and joined collectives, which
    reaches every node if and only if they form no cycle, whatever the durations: a proof. Under `astra` what runs next
    depends on time, so the traces are played with the durations they have; without a network nothing is said.
    """
    traces = scope.traces
    fabric = scope.fabric
    if fabric is None:
        if scope.execution != STREAMS:
            return
        fabric = _any_network(traces.ranks)
    try:
        played = run(traces, fabric, execution=scope.execution, mode=scope.mode)
    except InputError as why:
        report.add("refused", [("engine", str(why))])
        return
    if len(played.unfinished()):
        report.add("deadlock", [("all ranks", explain(played).replace("\n", "; "))])


def _any_network(ranks: int) -> Fabric:
    """A switch for these ranks: the order of things does not depend on it."""
    rings = {kind: (Algorithm("ring"),) for kind in Collective}
    return Fabric(("any",), (SWITCH,), (ranks,), (1.0,), (0.0,), rings)
