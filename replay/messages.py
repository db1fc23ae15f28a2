"""Every send and receive of every rank, and which belong together. Owns the matching; judges nothing.

First in, first out within a key, in the order of ids: (source, target, tag) under ``streams``; under ``astra`` also the
size, and the tag modulo 500,000,000 (astra_sim rules for traces, Matching).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import Kind, TraceSet
from tracegen.replay.cells.plan import TAG_SPACE


class Pairs(NamedTuple):
    """Rows of `Messages` that belong together, and those left over."""

    send: NDArray[np.int64]
    recv: NDArray[np.int64]
    lone_sends: NDArray[np.int64]
    lone_recvs: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Messages:
    """One row per send and receive, sorted by nothing in particular.

    Parameters
    ----------
    rank, position : whose node it is and where in its graph.
    is_send : whether it sends.
    src, dst : ranks; -1 where the trace names none.
    tag, size : as in the trace; -1 where absent.
    id : u64, the node's id, which orders messages of one key.
    """

    rank: NDArray[np.int64]
    position: NDArray[np.int64]
    is_send: NDArray[np.bool_]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    tag: NDArray[np.int64]
    size: NDArray[np.int64]
    id: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.rank)

    def at(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Messages:
        """Only these rows."""
        return Messages(*(getattr(self, name)[rows] for name in Messages.__dataclass_fields__))


def messages(traces: TraceSet, ranks: NDArray[np.integer] | None = None) -> Messages:
    """Sends and receives of these ranks, or of all."""
    wanted = np.arange(traces.ranks) if ranks is None else np.asarray(ranks, np.int64)
    columns: list[tuple[NDArray[np.generic], ...]] = []
    for index, graph in enumerate(traces.graphs):
        mine = wanted[traces.class_of[wanted] == index]
        positions = np.flatnonzero((graph.kind == Kind.SEND) | (graph.kind == Kind.RECV))
        if not len(mine) or not len(positions):
            continue
        rank = np.repeat(mine, len(positions))
        position = np.tile(positions, len(mine))
        slot = graph.slot[position]
        peer = np.where(slot >= 0, traces.slots[rank, slot], -1).astype(np.int64)
        sends = graph.kind[position] == Kind.SEND
        columns.append((
            rank, position, sends, np.where(sends, rank, peer), np.where(sends, peer, rank), graph.tag[position],
            graph.comm_bytes[position], graph.id[position],
        ))  # fmt: skip
    if not columns:
        none = np.zeros(0, np.int64)
        return Messages(none, none, none.astype(np.bool_), none, none, none, none, none.astype(np.uint64))
    return Messages(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def pair(all_messages: Messages, execution: str) -> Pairs:
    """Match sends with receives by the rule of the execution."""
    keys = key_of(all_messages, execution)
    order = np.lexsort((all_messages.id, ~all_messages.is_send, keys))
    key, send = keys[order], all_messages.is_send[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (key[1:] != key[:-1]) | (send[1:] != send[:-1])
    turn = np.arange(len(order)) - np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))
    together = np.lexsort((~send, turn, key))
    rows = order[together]
    key, turn, send = key[together], turn[together], send[together]
    paired = np.zeros(len(rows), np.bool_)
    paired[:-1] = (key[1:] == key[:-1]) & (turn[1:] == turn[:-1]) & (send[1:] != send[:-1])
    first = np.flatnonzero(paired)
    alone = np.ones(len(rows), np.bool_)
    alone[first] = alone[first + 1] = False
    return Pairs(rows[first], rows[first + 1], np.sort(rows[alone & send]), np.sort(rows[alone & ~send]))


def key_of(all_messages: Messages, execution: str) -> NDArray[np.int64]:
    """A number per message, equal where the execution takes one for the partner of another."""
    if execution == "astra":
        columns = [all_messages.size, all_messages.tag % TAG_SPACE]
    else:
        columns = [all_messages.tag]
    columns += [all_messages.dst, all_messages.src]
    order = np.lexsort(columns)
    changes = np.zeros(len(order), np.int64)
    for column in columns:
        changes[1:] |= column[order][1:] != column[order][:-1]
    key = np.empty(len(order), np.int64)
    key[order] = np.cumsum(changes)
    return key
