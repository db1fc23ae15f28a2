"""Rules about sends and receives over all ranks: peers that exist, partners, sizes, tags that collide."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracegen.replay.cells.plan import TAG_SPACE
from tracegen.replay.fabric import SWITCH
from tracegen.replay.messages import Messages, Pairs, key_of, messages, pair
from tracegen.replay.rules.table import CAP, Report, Scope, node_text


def check_messages(scope: Scope, report: Report) -> None:
    """Every rule of this module."""
    every = messages(scope.traces)
    if not len(every):
        return
    peer = np.where(every.is_send, every.dst, every.src)
    outside = (peer < 0) | (peer >= scope.traces.ranks)
    rows = np.flatnonzero(outside)
    report.add("peer", [
        (_where(scope, every, row), f"its peer is rank {peer[row]}; ranks are 0 to {scope.traces.ranks - 1}")
        if peer[row] >= 0 else (_where(scope, every, row), "it names no peer (comm_src or comm_dst)")
        for row in rows[:CAP]
    ], len(rows))  # fmt: skip
    around = scope.mode.congestion and scope.fabric is not None and scope.fabric.topology[0] == SWITCH
    own = np.flatnonzero((every.src == every.dst) & (not around))  # up to the switch and down again there
    text = "source and target are the same rank"
    report.add("self-send", [(_where(scope, every, row), text) for row in own[:CAP]], len(own))
    inside = every.at(~outside)
    pairs = pair(inside, scope.execution)
    _partners(scope, report, inside, pairs)
    _collisions(scope, report, inside)


def _where(scope: Scope, some: Messages, row: int) -> str:
    rank = int(some.rank[row])
    return f"rank {rank} {node_text(scope.traces.graph(rank), int(some.position[row]))}"


def _partners(scope: Scope, report: Report, some: Messages, pairs: Pairs) -> None:
    unlike = np.flatnonzero(some.size[pairs.send] != some.size[pairs.recv])
    report.add("size-mismatch", [
        _mismatch(scope, some, int(pairs.recv[k]), int(pairs.send[k])) for k in unlike[:CAP]
    ], len(unlike))  # fmt: skip
    sends, recvs = pairs.lone_sends, pairs.lone_recvs
    # Under `astra` sizes are part of the key: what is left over of one (source, target, tag) differs in size.
    meant = np.full(len(recvs), -1, np.int64)
    if len(sends) and len(recvs):
        leftover = pair(some.at(np.concatenate([sends, recvs])), "streams")
        meant[leftover.recv - len(sends)] = sends[leftover.send]
    mismatched, alone = np.flatnonzero(meant >= 0), np.flatnonzero(meant < 0)
    report.add("size-mismatch", [
        _mismatch(scope, some, int(recvs[k]), int(meant[k])) for k in mismatched[:CAP]
    ], len(mismatched))  # fmt: skip
    report.add("recv-without-send", [
        (_where(scope, some, row), f"rank {some.rank[row]} node {some.id[row]} waits for src {some.src[row]} tag "
         f"{some.tag[row]} {some.size[row]} B: no send exists")
        for row in recvs[alone[:CAP]]
    ], len(alone))  # fmt: skip
    idle = np.setdiff1d(sends, meant[meant >= 0])
    report.add("send-without-recv", [
        (_where(scope, some, row), f"rank {some.dst[row]} has no receive for src {some.src[row]} tag {some.tag[row]} "
         f"{some.size[row]} B")
        for row in idle[:CAP]
    ], len(idle))  # fmt: skip


def _mismatch(scope: Scope, some: Messages, recv: int, send: int) -> tuple[str, str]:
    return _where(scope, some, recv), (
        f"it expects {some.size[recv]} B from src {some.src[recv]} tag {some.tag[recv]}, but "
        f"{_where(scope, some, send)} sends {some.size[send]} B; the sizes must be equal"
    )


def _collisions(scope: Scope, report: Report, some: Messages) -> None:
    """Sends of one pair and size whose tags differ but are equal to ASTRA-sim."""
    if scope.execution != "astra" or not (some.tag >= TAG_SPACE).any():
        return
    sends = some.at(some.is_send)
    key = key_of(sends, "astra")
    order: NDArray[np.intp] = np.lexsort((sends.tag, key))
    same = (key[order][1:] == key[order][:-1]) & (sends.tag[order][1:] != sends.tag[order][:-1])
    clash = np.flatnonzero(same)
    report.add("tag-collision", [
        (_where(scope, sends, int(order[k + 1])), f"tag {sends.tag[order[k + 1]]} and tag {sends.tag[order[k]]} of "
         f"{_where(scope, sends, int(order[k]))} are one tag modulo {TAG_SPACE}")
        for k in clash[:CAP]
    ], len(clash))  # fmt: skip
