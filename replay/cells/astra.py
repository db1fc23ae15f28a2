"""What the compiled engine of `astra` reads besides the assembly: rules of collectives and the network, as tables."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import TraceSet
from tracegen.replay.cells.assembly import Assembly
from tracegen.replay.cells.slots import Slots
from tracegen.replay.fabric import RING, SWITCH, Fabric
from tracegen.replay.prices.astra_collectives import Rule, collective_rule
from tracegen.replay.prices.aware import aware_rule

_LANES = 4


def in_rank_order(traces: TraceSet) -> TraceSet:
    """Groups that hold all ranks in rank order: ASTRA-sim treats them as the world and ignores theirs."""
    groups = traces.groups
    whole = np.flatnonzero(np.diff(groups.ptr) == traces.ranks)
    members = groups.members.copy()
    for group in whole.tolist():
        members[groups.ptr[group] : groups.ptr[group + 1]].sort()
    return replace(traces, groups=replace(groups, members=members))


class RuleBook:
    """Rules of collectives, each kind, size and group geometry settled once; numbered for the kernel."""

    def __init__(self, fabric: Fabric, slots: Slots, *, congestion: bool = False) -> None:
        self._fabric, self._slots, self._congestion = fabric, slots, congestion
        self._number: dict[tuple[int, int, int], int] = {}
        self._rules: list[Rule] = []

    def price(self, shape: int, kind: int, nbytes: int) -> int:
        """The number of the rule for a collective of ``kind`` and ``nbytes`` in a group of geometry ``shape``."""
        key = (shape, kind, nbytes)
        if key not in self._number:
            group = int(self._slots.shape_of[shape])
            members = self._slots.groups.ranks(group).tolist()
            if self._congestion:
                rule = aware_rule(self._fabric, members, kind, nbytes)
            else:
                rule = collective_rule(self._fabric, members, int(self._slots.mask[group]), kind, nbytes)
            self._rules.append(rule)
            self._number[key] = len(self._rules) - 1
        return self._number[key]

    def tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """``rules`` i64[rules, 7] and ``steps`` i64[steps, 4] of `collective_finish`."""
        return rule_tables(self._rules)


def rule_tables(rules: list[Rule]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rules as the kernel reads them."""
    steps = [step for rule in rules for step in rule.steps]
    ends = np.cumsum([len(rule.steps) for rule in rules]).tolist()
    rows = [
        (rule.span_ns, rule.lag_ns, rule.form, rule.endpoint_ns, rule.rounds, end - len(rule.steps), end)
        for rule, end in zip(rules, ends, strict=True)
    ]
    return np.array(rows, np.int64).reshape(-1, 7), np.array([astuple(step) for step in steps], np.int64).reshape(-1, 4)


def fabric_tables(
    fabric: Fabric,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Sizes, topologies (0 ring, else links of a crossing), latencies and bandwidths per dimension."""
    links = [0 if name == RING else 2 if name == SWITCH else 1 for name in fabric.topology]
    return (
        np.array(fabric.size, np.int64),
        np.array(links, np.int64),
        np.array(fabric.latency, np.float64),
        np.array(fabric.bandwidth, np.float64),
    )


def lane_starts(assembly: Assembly) -> NDArray[np.int64]:
    """Where each cell's heap of ready nodes of a lane begins, i64[cells, lanes]."""
    counts = np.stack([np.bincount(plan.lane, minlength=_LANES) for plan in assembly.plans])
    before = np.cumsum(counts, axis=1) - counts
    return assembly.node_ptr[:-1, None] + before[assembly.class_of_cell]


def position_ranks(assembly: Assembly, slots: Slots) -> NDArray[np.int64]:
    """Ranks of each pool's group, in ring order, pools one after the other."""
    parts = [slots.groups.ranks(int(group)).astype(np.int64) for group in assembly.pools.group]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
