"""The result of a run: when every node of every cell was ready, issued, in transfer and done. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import TraceSet
from tracegen.replay.astra_mode import Mode
from tracegen.replay.cells.assembly import Assembly
from tracegen.replay.cells.slots import Slots
from tracegen.replay.fabric import Fabric


@dataclass(frozen=True, eq=False)
class Run:
    """What the engine found. Columns are flat over cells x nodes, a cell's nodes in their graph's own order.

    Parameters
    ----------
    traces : as run (world collectives over some dimensions already split into lines of ranks).
    execution : streams or astra.
    cell_of : i32[ranks]; representative : i32[cells], the lowest rank of each cell, which is the one simulated.
    node_ptr : i64[cells + 1].
    ready_ns : dependencies done. issue_ns : left its queue (collectives: entered). transfer_ns : send: its start;
        collective: the last member's issue; receive: the start of its send; others: issue. end_ns : done.
        Each is -1 where the node never got that far.
    ahead : i32, position in the same cell of the operation it queued behind; -1 where it did not queue.
    late_rank : i32, receive: the sender; collective: the member that issued last (ties: the lowest); else -1.
    duration_ns : how long it takes by itself: compute as used, a send's way, a collective from the last issue on
        (`astra`: its end minus the last issue; -1 unknown).
    notes : plain sentences on what ASTRA-sim does in silence, or on anything approximate in this run.
    assembly, slots : what the engine ran on (in id order; ``order`` leads back), for `explain` and `traffic`.
    mode : what ASTRA-sim's flags add, under `astra`.
    links : i64[links, 4] of a message-level run as in `MessageRun`; None where no messages were simulated.
    messages : how many were simulated.
    """

    traces: TraceSet
    fabric: Fabric
    execution: str
    cell_of: NDArray[np.int32]
    representative: NDArray[np.int32]
    node_ptr: NDArray[np.int64]
    ready_ns: NDArray[np.int64]
    issue_ns: NDArray[np.int64]
    transfer_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    ahead: NDArray[np.int32]
    late_rank: NDArray[np.int32]
    duration_ns: NDArray[np.int64]
    notes: tuple[str, ...]
    assembly: Assembly
    slots: Slots
    mode: Mode = field(default_factory=Mode)
    links: NDArray[np.int64] | None = None
    messages: int = 0

    @property
    def network_model(self) -> str:
        """``analytical`` or ``congestion``."""
        return "congestion" if self.mode.congestion else "analytical"

    @property
    def cells(self) -> int:
        """How many ranks were simulated."""
        return len(self.representative)

    def nodes_of(self, rank: int) -> slice:
        """Where the columns of a rank's cell lie."""
        cell = int(self.cell_of[rank])
        return slice(int(self.node_ptr[cell]), int(self.node_ptr[cell + 1]))

    def start_ns(self) -> NDArray[np.int64]:
        """Start as shown to users: collectives under `streams` when they begin to move, everything else at issue."""
        if self.execution != "streams":
            return self.issue_ns
        joins = np.concatenate([self.traces.graph(int(rank)).kind for rank in self.representative]) == 7
        return np.where(joins, self.transfer_ns, self.issue_ns)

    def finish_ns(self) -> NDArray[np.int64]:
        """When each cell's last node ended, i64[cells]; -1 where one never does."""
        out = np.zeros(self.cells, np.int64)
        filled = np.diff(self.node_ptr) > 0
        starts = self.node_ptr[:-1][filled]
        if len(starts):
            last = np.maximum.reduceat(self.end_ns, starts)
            first = np.minimum.reduceat(self.end_ns, starts)
            out[filled] = np.where(first < 0, -1, last)
        return out

    def unfinished(self) -> NDArray[np.int64]:
        """Positions (flat) of nodes that never ended."""
        return np.flatnonzero(self.end_ns < 0)
