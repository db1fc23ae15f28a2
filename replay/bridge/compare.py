"""Our replay beside ASTRA-sim's run of the same traces: differences per rank, and the first node where they part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegen.replay.bridge.timeline import BridgeTimeline, FinishTimes
from tracegen.replay.timeline import Timeline


@dataclass(frozen=True)
class Row:
    """One figure of both, in ns; None where a side has none.

    Parameters
    ----------
    rank : whose finish; None for the makespan.
    builtin_ns, astra_sim_ns : ours and the simulator's.
    """

    rank: int | None
    builtin_ns: int | None
    astra_sim_ns: int | None

    @property
    def difference_ns(self) -> int | None:
        """Ours minus the simulator's."""
        if self.builtin_ns is None or self.astra_sim_ns is None:
            return None
        return self.builtin_ns - self.astra_sim_ns

    @property
    def difference_percent(self) -> float | None:
        """The difference in percent of the simulator's."""
        if self.difference_ns is None or not self.astra_sim_ns:
            return None
        return 100 * self.difference_ns / self.astra_sim_ns

    @property
    def equal(self) -> bool:
        """Whether both say the same."""
        return self.builtin_ns == self.astra_sim_ns

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {**vars(self), "difference_ns": self.difference_ns, "difference_percent": self.difference_percent}


@dataclass(frozen=True)
class NodeDifference:
    """A node that starts or ends at another tick: (start, end) in ns of both, -1 where it never did."""

    rank: int
    node: int
    name: str
    builtin_ns: tuple[int, int]
    astra_sim_ns: tuple[int, int]

    def document(self) -> dict[str, Any]:
        """As `--json` prints it; ids are text, since JSON readers keep 53 bits only."""

        def pair(times: tuple[int, int]) -> list[int | None]:
            return [time if time >= 0 else None for time in times]

        return {
            "rank": self.rank,
            "node": str(self.node),
            "name": self.name,
            "builtin_start_end_ns": pair(self.builtin_ns),
            "astra_sim_start_end_ns": pair(self.astra_sim_ns),
        }


@dataclass(frozen=True)
class Comparison:
    """Both results side by side.

    Parameters
    ----------
    makespan : of both. ranks : the finish of each rank.
    nodes : how many nodes could be compared; 0 without a node log.
    differing_nodes : how many of them start or end at another tick.
    first : the earliest of those (by the earlier of its two starts, then rank and id); None without.
    """

    makespan: Row
    ranks: tuple[Row, ...]
    nodes: int
    differing_nodes: int
    first: NodeDifference | None

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.makespan.equal and all(row.equal for row in self.ranks) and not self.differing_nodes

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "equal": self.equal,
            "makespan": self.makespan.document(),
            "ranks": [row.document() for row in self.ranks],
            "nodes": self.nodes,
            "differing_nodes": self.differing_nodes,
            "first_difference": self.first.document() if self.first else None,
        }


def compare(builtin: Timeline, bridge: BridgeTimeline | FinishTimes) -> Comparison:
    """Our replay under execution `astra` beside ASTRA-sim's run of the same traces."""
    ours, theirs = builtin.finish_ns.tolist(), bridge.result.finish_ns.tolist()
    rows = tuple(
        Row(rank, mine if mine >= 0 else None, its if its >= 0 else None)
        for rank, (mine, its) in enumerate(zip(ours, theirs, strict=True))
    )
    nodes = differing = 0
    first: tuple[tuple[int, int, int], NodeDifference] | None = None
    for rank in range(len(rows) if isinstance(bridge, BridgeTimeline) else 0):
        assert isinstance(bridge, BridgeTimeline)
        nodes += len(builtin.run.traces.graph(rank))
        for found in _differences(builtin, bridge, rank):
            differing += found[2]
            if first is None or found[0] < first[0]:
                first = found[:2]
    makespan = Row(None, builtin.makespan_ns, bridge.makespan_ns)
    return Comparison(makespan, rows, nodes, differing, first[1] if first else None)


def _differences(
    builtin: Timeline, bridge: BridgeTimeline, rank: int
) -> Iterator[tuple[tuple[int, int, int], NodeDifference, int]]:
    """The first difference of a rank, if any: what orders it, itself, and how many nodes of the rank differ."""
    mine, its = builtin.run.nodes_of(rank), bridge.run.nodes_of(rank)
    our_start, our_end = builtin.run.issue_ns[mine], builtin.run.end_ns[mine]
    its_start, its_end = bridge.run.issue_ns[its], bridge.run.end_ns[its]
    apart = np.flatnonzero((our_start != its_start) | (our_end != its_end))
    if not len(apart):
        return
    graph = builtin.run.traces.graph(rank)
    never = np.iinfo(np.int64).max
    starts = [np.where(column[apart] < 0, never, column[apart]) for column in (our_start, its_start)]
    at = int(np.lexsort((graph.id[apart], np.minimum(*starts)))[0])
    node, when = int(apart[at]), int(np.minimum(*starts)[at])
    yield (
        (when, rank, int(graph.id[node])),
        NodeDifference(
            rank,
            int(graph.id[node]),
            graph.name_of(node),
            (int(our_start[node]), int(our_end[node])),
            (int(its_start[node]), int(its_end[node])),
        ),
        len(apart),
    )
