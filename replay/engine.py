"""Runs traces on a fabric. The one entry to the engines; `Timeline` is made of its `Run`.

Owns the folded run: plan, fold, lay out, sweep or play. Which runs are simulated message by message instead, `paths`
decides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Kind, TraceSet
from tracegen.replay.astra_mode import Mode
from tracegen.replay.cells.assembly import Assembly, assemble
from tracegen.replay.cells.astra import RuleBook, fabric_tables, in_rank_order, lane_starts, position_ranks
from tracegen.replay.cells.astra_kernels import play
from tracegen.replay.cells.fold import fold_ranks
from tracegen.replay.cells.late import late_ranks
from tracegen.replay.cells.plan import ASTRA, EXECUTIONS, STREAMS, plan_class
from tracegen.replay.cells.slots import Slots, name_slots, ring_edges, split_by_dimensions
from tracegen.replay.cells.spans import Jitter, StreamCosts, fill_spans, per_join
from tracegen.replay.cells.streams_kernels import sweep
from tracegen.replay.fabric import Fabric, refuse_other_size
from tracegen.replay.message.run import Progress, run_messages
from tracegen.replay.paths import FOLDED, choose, holds, instant_messages, refuse_mode, short_lists
from tracegen.replay.prices.astra_collectives import Unsettled
from tracegen.replay.run import Run
from tracegen.replay.waits import describe_waits

Array = NDArray[Any]
_Number = TypeVar("_Number", np.int32, np.int64)

# Above this many nodes a deadlock is explained on the folded run.
_MOST_NODES_UNFOLDED = 50_000_000


class Times(NamedTuple):
    """Columns over the nodes of an assembly, as `Run` describes them, in id order; -1 where never."""

    ready: NDArray[np.int64]
    issue: NDArray[np.int64]
    transfer: NDArray[np.int64]
    end: NDArray[np.int64]
    ahead: NDArray[np.int32]

    @classmethod
    def unset(cls, nodes: int) -> Times:
        """Nothing has happened yet."""
        ready, issue, transfer, end = (np.full(nodes, -1, np.int64) for _ in range(4))
        return cls(ready, issue, transfer, end, np.full(nodes, -1, np.int32))


def run(
    traces: TraceSet,
    fabric: Fabric,
    *,
    execution: str,
    fold: bool = True,
    jitter: Jitter | None = None,
    colours: NDArray[np.int64] | None = None,
    mode: Mode | None = None,
    path: str | None = None,
    progress: Progress | None = None,
) -> Run:
    """Play the traces and say when everything happened.

    Parameters
    ----------
    execution : ``streams`` or ``astra`` (DEFINITIONS 6).
    fold : simulate one rank per cell; the result is the same without.
    jitter : a random factor on every compute duration; nothing folds then.
    colours : i64[ranks], ranks of unlike colour are never folded together (a stage, say).
    mode : ASTRA-sim's backend and flags, under `astra`.
    path : under `astra` `paths.MESSAGES`, `paths.FOLDED` (where there is a form, whether it is exact or not), or None:
        as `paths` decides.
    progress : called now and then with (messages sent, ns reached) where messages are simulated.

    Raises
    ------
    InputError
        The traces' rank count is not the network's, or a node that this execution cannot run. A run that does not
        finish is no error here: `Run.unfinished` and `explain` tell.
    """
    if execution not in EXECUTIONS:
        raise InputError(f"execution {execution!r} is unknown; use one of {', '.join(EXECUTIONS)}")
    mode = mode or Mode()
    refuse_other_size(fabric, traces.ranks)
    refuse_mode(fabric, mode, execution)
    if execution == STREAMS:
        _refuse_memory_nodes(traces)
        split, mask = split_by_dimensions(traces, fabric)
        done, _ = _folded(split, mask, fabric, execution, fold and jitter is None, jitter, colours, mode)
        return replace(done, notes=short_lists(traces, fabric, execution))
    notes = short_lists(traces, fabric, execution)
    split, mask = split_by_dimensions(traces, fabric, named=False)
    split = in_rank_order(split)
    if (path or choose(traces, fabric, mode)) == FOLDED:
        try:
            done, approximate = _folded(split, mask, fabric, execution, fold and jitter is None, jitter, colours, mode)
        except Unsettled:
            pass
        else:
            if path == FOLDED or holds(done, approximate):
                return done
    # Messages of no time tie ranks within one tick, and who comes first is decided by their numbers.
    fold = fold and not instant_messages(traces, fabric)
    return run_messages(traces, split, mask, fabric, mode, fold=fold, jitter=jitter, progress=progress, notes=notes)


def _folded(
    traces: TraceSet,
    mask: NDArray[np.int64],
    fabric: Fabric,
    execution: str,
    fold: bool,
    jitter: Jitter | None,
    colours: NDArray[np.int64] | None,
    mode: Mode,
) -> tuple[Run, int]:
    """A run by closed forms, and how many collectives were not exact in it."""
    plans = tuple(plan_class(graph, traces.slots.shape[1], execution) for graph in traces.graphs)
    slots = name_slots(traces, plans, fabric, mask, lowest_only=execution == ASTRA)
    if fold:
        cell_of = _fold(traces, slots, fabric, execution, colours)
    else:
        cell_of = np.arange(traces.ranks, dtype=np.int32)
    representative = np.unique(cell_of, return_index=True)[1].astype(np.int32)
    assembly = assemble(plans, traces.class_of[representative], slots, cell_of, representative, execution)
    span = fill_spans(assembly, traces, slots, fabric, representative, execution, jitter)
    if execution == STREAMS:
        approximate = 0
        times = _sweep(assembly, slots, fabric, representative, span)
    else:
        book = RuleBook(fabric, slots, congestion=mode.congestion)
        times, assembly, approximate, open_ties = _play(assembly, slots, fabric, representative, span, book)
        if open_ties and len(representative) < traces.ranks:
            # Ranks of a cell are alike but for their numbers, which decide such ties in ASTRA-sim: all must be played.
            return _folded(traces, mask, fabric, execution, False, jitter, colours, mode)
    late = late_ranks(assembly, slots, cell_of, representative, times.issue)
    return Run(
        traces=traces,
        fabric=fabric,
        execution=execution,
        cell_of=cell_of,
        representative=representative,
        node_ptr=assembly.node_ptr,
        ready_ns=_in_graph_order(assembly, times.ready),
        issue_ns=_in_graph_order(assembly, times.issue),
        transfer_ns=_in_graph_order(assembly, times.transfer),
        end_ns=_in_graph_order(assembly, times.end),
        ahead=_in_graph_order(assembly, _as_positions(assembly, times.ahead)),
        late_rank=_in_graph_order(assembly, late),
        duration_ns=_in_graph_order(assembly, span),
        notes=(),
        assembly=assembly,
        slots=slots,
        mode=mode,
    ), approximate


def _fold(
    traces: TraceSet, slots: Slots, fabric: Fabric, execution: str, colours: NDArray[np.int64] | None
) -> NDArray[np.int32]:
    if execution == STREAMS:
        return fold_ranks(traces, slots, colours=colours)
    # Only hierarchical collectives end on all members at once; around a ring each member has its own end.
    dimensions = sum((slots.mask >> d & 1) for d in range(fabric.dimensions))
    return fold_ranks(
        traces, slots, around=ring_edges(slots.groups, fabric), turned=np.asarray(dimensions < 2), colours=colours
    )


def _sweep(
    assembly: Assembly,
    slots: Slots,
    fabric: Fabric,
    representative: NDArray[np.int32],
    span: NDArray[np.int64],
) -> Times:
    """`streams`: prices of collectives into ``span``, then the longest path."""
    times = Times.unset(assembly.nodes)
    per_join(assembly, slots, representative, StreamCosts(fabric, slots).price, span)
    sweep(*_layout(assembly), assembly.before, assembly.after, assembly.asked, *_meetings(assembly), span, *times)
    return times


def _play(
    assembly: Assembly,
    slots: Slots,
    fabric: Fabric,
    representative: NDArray[np.int32],
    span: NDArray[np.int64],
    book: RuleBook,
) -> tuple[Times, Assembly, int, int]:
    """`astra`: events. The assembly comes back with messages and collectives as the order of issue paired them.

    The figures count collectives that are not exact, and ties that only the order of ranks decides.
    """
    times = Times.unset(assembly.nodes)
    rule_of = np.full(assembly.nodes, -1, np.int64)
    per_join(assembly, slots, representative, book.price, rule_of)
    assembly = replace(
        assembly,
        mate=assembly.mate.copy(),
        instance=np.full_like(assembly.instance, -1),
        members=np.full_like(assembly.members, -1),
    )
    approximate, open_ties = play(
        *_layout(assembly),
        assembly.lane,
        lane_starts(assembly),
        assembly.channel,
        int(assembly.channel.max(initial=-1)) + 1,
        *_meetings(assembly),
        assembly.slot,
        assembly.first_instance,
        assembly.pools.seat,
        assembly.pool_of_instance,
        assembly.pools.position_ptr,
        assembly.pools.position,
        position_ranks(assembly, slots),
        rule_of,
        *book.tables(),
        *fabric_tables(fabric),
        span,
        *times,
    )
    return times, assembly, approximate, open_ties


def _layout(assembly: Assembly) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    return (
        assembly.node_ptr,
        assembly.cell_of_node,
        assembly.class_start,
        assembly.act,
        assembly.succ_ptr,
        assembly.succ,
        assembly.indegree,
    )


def _meetings(assembly: Assembly) -> tuple[Array, Array, Array, Array, Array]:
    return (assembly.mate, assembly.instance, assembly.member_ptr, assembly.members, assembly.needed.copy())


def _refuse_memory_nodes(traces: TraceSet) -> None:
    for number, graph in enumerate(traces.graphs):
        memory = np.flatnonzero((graph.kind == Kind.MEM_LOAD) | (graph.kind == Kind.MEM_STORE))
        if len(memory):
            rank = int(np.flatnonzero(traces.class_of == number)[0])
            at = int(memory[0])
            raise InputError(
                f"rank {rank} node {graph.id[at]}: {Kind(int(graph.kind[at])).name} needs a remote memory, "
                "which only --execution astra has (with --memory)"
            )


def _in_graph_order(assembly: Assembly, column: NDArray[_Number]) -> NDArray[_Number]:
    """A column over the assembly's nodes with each cell's nodes back in the order of its graph."""
    if not any(plan.reordered for plan in assembly.plans):
        return column
    out = np.empty_like(column)
    out[assembly.places()] = column
    return out


def _as_positions(assembly: Assembly, ahead: NDArray[np.int32]) -> NDArray[np.int32]:
    """Nodes of the same cell, given by their place by id, as positions in its graph; -1 stays."""
    place = assembly.places() - assembly.node_ptr[assembly.cell_of_node]
    out = ahead.copy()
    behind = np.flatnonzero(ahead >= 0)
    out[behind] = place[assembly.node_ptr[assembly.cell_of_node[behind]] + ahead[behind]]
    return out


def explain(run: Run) -> str:
    """Why a run did not finish: who waits for whom, and the cycle if there is one; "" where it did.

    A folded run is played again rank by rank, so that every rank named is the one meant.
    """
    if not len(run.unfinished()):
        return ""
    if run.cells < run.traces.ranks and run.traces.nodes <= _MOST_NODES_UNFOLDED:
        run = play_again(run)
    return describe_waits(run)


def play_again(run: Run) -> Run:
    """The same traces without folding."""
    return _folded(run.traces, run.slots.mask, run.fabric, run.execution, False, None, None, run.mode)[0]


__all__ = ["ASTRA", "STREAMS", "Jitter", "explain", "run"]
