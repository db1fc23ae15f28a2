"""Rules about communication groups: that they exist, are used by their members, and are called alike by all of them.

Works on whole sequences of collectives: one number per class and slot, compared over the members of every group; only
groups whose members differ are looked at node by node.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import Collective, Groups, Kind
from tracegen.replay.cells.plan import STREAMS
from tracegen.replay.order import call_order, id_order
from tracegen.replay.rules.table import CAP, Report, Scope, collective_text, node_text, ranks_text

LARGEST_NUMBER = 2147  # group number x 1,000,000 must fit in 31 bits
TAG_GROUPS = 500  # a chunk's tag is group number x 1,000,000 + count, modulo 500,000,000
CHUNKS_PER_GROUP = 1_000_000


@dataclass(frozen=True, eq=False)
class Calls:
    """Which collectives each rank calls on each group.

    Parameters
    ----------
    group, rank, index, slot, sequence : i64[rows], one row per rank and group it uses; ``index`` is the rank's class,
        ``sequence`` is equal where the sequences of (type, size, dimensions) are.
    nodes : per class, positions of its collectives in the order they are called.
    """

    group: NDArray[np.int64]
    rank: NDArray[np.int64]
    index: NDArray[np.int64]
    slot: NDArray[np.int64]
    sequence: NDArray[np.int64]
    nodes: tuple[NDArray[np.int64], ...]

    def positions(self, scope: Scope, row: int) -> NDArray[np.int64]:
        """Positions of the row's collectives in its class's graph, in call order."""
        index = int(self.index[row])
        mine = self.nodes[index]
        return np.compress(scope.traces.graphs[index].slot[mine] == self.slot[row], mine)


def check_groups(scope: Scope, report: Report) -> None:
    """Every rule of this module."""
    calls = _calls(scope, report)
    used = np.unique(calls.group)
    _members(scope, report, used)
    _numbers(scope, report, used)
    _agreement(scope, report, calls)
    if scope.fabric is not None:
        _algorithms(scope, report, calls)
        if scope.execution == "astra" and scope.fabric.splits > 0:
            _chunks(scope, report, calls, scope.fabric.splits)


def _calls(scope: Scope, report: Report) -> Calls:
    traces = scope.traces
    sizes = np.diff(traces.groups.ptr)
    known: dict[bytes, int] = {}
    rows: list[NDArray[np.int64]] = []
    nodes: list[NDArray[np.int64]] = []
    for index, graph in enumerate(traces.graphs):
        order = id_order(graph) if scope.execution == STREAMS else call_order(graph)
        mine = order[graph.kind[order] == Kind.COLL]
        nodes.append(mine)
        ranks = scope.ranks_of[index]
        bare = mine[graph.slot[mine] < 0]
        scope.mark(report, "unknown-group", index, bare, "pg_name names a group that comm_group.json does not have")
        for slot in np.unique(graph.slot[mine]).tolist():
            if slot < 0 or not len(ranks):
                continue
            at = mine[graph.slot[mine] == slot]
            text = np.stack([graph.collective[at], graph.comm_bytes[at], graph.dims[at]]).astype(np.int64).tobytes()
            sequence = known.setdefault(text, len(known))
            group = traces.slots[ranks, slot].astype(np.int64)
            known_group = (group >= 0) & (group < len(traces.groups))
            known_group[known_group] = sizes[group[known_group]] > 0  # the reader keeps unknown groups, empty
            missing = ranks[~known_group]
            report.add("unknown-group", [
                (f"rank {rank} {node_text(graph, int(at[0]))}", "its group is not defined in comm_group.json")
                for rank in missing[:CAP].tolist()
            ], len(missing))  # fmt: skip
            fill = np.full(len(ranks), 1, np.int64)
            block = np.stack([group, ranks, fill * index, fill * slot, fill * sequence])
            rows.append(block[:, known_group])
    table = np.concatenate(rows, axis=1) if rows else np.zeros((5, 0), np.int64)
    table = table[:, np.lexsort((table[1], table[0]))]
    group, rank, index_, slot_, sequence_ = table
    return Calls(group, rank, index_, slot_, sequence_, tuple(nodes))


def name_of(groups: Groups, group: int) -> str:
    """``group 3 (dp)``."""
    number, label = int(groups.number[group]), groups.label[group]
    plain = "world" if number == 0 else f"group {number}"
    return plain if not label or label == plain else f"{plain} ({label})"


def _members(scope: Scope, report: Report, used: NDArray[np.int64]) -> None:
    """Members exist once each; groups in use have two of them."""
    groups, ranks = scope.traces.groups, scope.traces.ranks
    sizes = np.diff(groups.ptr)
    row = np.repeat(np.arange(len(groups)), sizes)
    outside = (groups.members < 0) | (groups.members >= ranks)
    code = row * (1 << 32) + groups.members
    order = np.argsort(code, kind="stable")
    twice = np.zeros(len(code), np.bool_)
    twice[order[1:]] = code[order][1:] == code[order][:-1]
    for mask, text in ((outside, f"which does not exist: ranks are 0 to {ranks - 1}"), (twice & ~outside, "twice")):
        at = np.flatnonzero(mask)
        report.add("group-ranks", [
            (name_of(groups, int(row[k])), f"it lists rank {groups.members[k]}, {text}" if mask is outside
             else f"it lists rank {groups.members[k]} {text}") for k in at[:CAP]
        ], len(at))  # fmt: skip
    single = used[sizes[used] == 1]
    report.add("group-of-one", [
        (name_of(groups, int(g)), f"{ranks_text(groups.ranks(int(g)))} runs collectives in a group of its own")
        for g in single[:CAP]
    ], len(single))  # fmt: skip


def _numbers(scope: Scope, report: Report, used: NDArray[np.int64]) -> None:
    """Numbers as ASTRA-sim needs them."""
    groups = scope.traces.groups
    number, sizes = groups.number, np.diff(groups.ptr)
    zero = [int(g) for g in used if number[g] == 0 and sizes[g] != scope.traces.ranks]
    report.add("group-zero", [
        ("group 0", f"it lists {sizes[g]} of {scope.traces.ranks} ranks, but 0 means all: number it from 1")
        for g in zero
    ])  # fmt: skip
    large = used[number[used] > LARGEST_NUMBER]
    report.add("group-number", [
        (name_of(groups, int(g)), f"{number[g]} is above {LARGEST_NUMBER}: number groups from 1") for g in large[:CAP]
    ], len(large))  # fmt: skip
    if scope.execution != "astra":
        return
    named = used[number[used] > 0]
    rest = number[named] % TAG_GROUPS
    order = np.argsort(rest, kind="stable")
    buckets = np.split(named[order], np.flatnonzero(np.diff(rest[order])) + 1)
    clashes: list[tuple[str, str]] = []
    for bucket in buckets:
        for a, b in combinations(bucket.tolist(), 2):
            shared = np.intersect1d(groups.ranks(a), groups.ranks(b))
            if len(shared) > 1:
                clashes.append((name_of(groups, a), f"equal to {name_of(groups, b)} modulo {TAG_GROUPS}, and both hold "
                                f"{ranks_text(shared)}"))  # fmt: skip
    report.add("group-modulo", clashes)


def _agreement(scope: Scope, report: Report, calls: Calls) -> None:
    """All members call the same collectives in the same order; find the groups where they do not, then say how."""
    groups = scope.traces.groups
    count = len(groups)
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(low, calls.group, calls.sequence)
    np.maximum.at(high, calls.group, calls.sequence)
    row = np.repeat(np.arange(count), np.diff(groups.ptr))
    listed = row * (1 << 32) + groups.members
    called = calls.group * (1 << 32) + calls.rank
    strange = np.flatnonzero(~np.isin(called, listed))
    report.add("not-a-member", [
        (f"rank {calls.rank[k]}", f"it runs collectives on {name_of(groups, int(calls.group[k]))}, which lists "
         f"{ranks_text(groups.ranks(int(calls.group[k])))}") for k in strange[:CAP]
    ], len(strange))  # fmt: skip
    absent = np.flatnonzero(~np.isin(listed, called) & (high[row] >= 0))
    unlike = set(np.flatnonzero((high >= 0) & (low != high)).tolist()) | set(row[absent].tolist())
    for group in sorted(unlike):
        mine = np.flatnonzero(calls.group == group)
        if len(mine):
            _differences(scope, report, calls, group, mine)


def _differences(scope: Scope, report: Report, calls: Calls, group: int, rows: NDArray[np.int64]) -> None:
    """Name the first place where each odd member of a group departs from what most members do."""
    groups = scope.traces.groups
    name = name_of(groups, group)
    sequences, first, counts = np.unique(calls.sequence[rows], return_index=True, return_counts=True)
    most = int(np.argmax(counts * len(rows) * 2 - first))  # ties: the sequence of the lowest rank
    usual = int(rows[first[most]])
    theirs = calls.positions(scope, usual)
    for rank in sorted(set(groups.ranks(group).tolist()) - set(calls.rank[rows].tolist())):
        report.add("collective-count", [(f"rank {rank}", f"position 0 of {name}: rank {rank} takes part in none of its "
                                         f"collectives, rank {calls.rank[usual]} in {len(theirs)}")])  # fmt: skip
    for sequence in sequences.tolist():
        if sequence == calls.sequence[usual]:
            continue
        odd = int(rows[np.flatnonzero(calls.sequence[rows] == sequence)[0]])
        rule, message = _departure(scope, calls, odd, usual)
        report.add(rule, [(f"rank {calls.rank[odd]}", message.replace("{group}", name))])


def _departure(scope: Scope, calls: Calls, odd: int, usual: int) -> tuple[str, str]:
    """The rule and sentence for the first difference of two members' sequences; the lower rank is named first."""
    rows = sorted((odd, usual), key=lambda row: int(calls.rank[row]))
    graphs = [scope.traces.graphs[int(calls.index[row])] for row in rows]
    positions = [calls.positions(scope, row) for row in rows]
    ranks = [int(calls.rank[row]) for row in rows]
    both = min(len(positions[0]), len(positions[1]))
    for rule, columns in (("collective-order", ("collective",)), ("collective-size", ("comm_bytes",)),
                          ("collective-dims", ("dims",))):  # fmt: skip
        differs = np.zeros(both, np.bool_)
        for column in columns:
            a, b = (getattr(g, column)[p[:both]] for g, p in zip(graphs, positions, strict=True))
            differs |= a != b
        if not differs.any():
            continue
        k = int(np.argmax(differs))
        said = [
            f"rank {rank} {collective_text(int(g.collective[p[k]]), int(g.comm_bytes[p[k]]))}"
            + (f" dims {int(g.dims[p[k]]):b}" if rule == "collective-dims" else "")
            + f" ({node_text(g, int(p[k]))})"
            for rank, g, p in zip(ranks, graphs, positions, strict=True)
        ]
        return rule, f"position {k} of {{group}}: {', '.join(said)}"
    short, long = (0, 1) if len(positions[0]) < len(positions[1]) else (1, 0)
    extra = int(positions[long][both])
    told = collective_text(int(graphs[long].collective[extra]), int(graphs[long].comm_bytes[extra]))
    return "collective-count", (
        f"position {both} of {{group}}: rank {ranks[short]} has only {both} of its collectives, rank {ranks[long]} "
        f"{len(positions[long])}: {told} ({node_text(graphs[long], extra)})"
    )


def _algorithms(scope: Scope, report: Report, calls: Calls) -> None:
    """Halving-doubling and double binary trees need powers of two, per dimension or for a flat group."""
    assert scope.fabric is not None
    fabric, groups = scope.fabric, scope.traces.groups
    sizes = np.diff(groups.ptr)
    seen: set[tuple[str, int]] = set()
    classes = {(int(i), int(s)): row for row, (i, s) in enumerate(zip(calls.index, calls.slot, strict=True))}
    for (index, slot), row in classes.items():
        graph = scope.traces.graphs[index]
        mine = calls.nodes[index]
        group = int(calls.group[row])
        whole = sizes[group] == scope.traces.ranks
        for kind in np.unique(graph.collective[mine[graph.slot[mine] == slot]]).tolist():
            if kind not in Collective._value2member_map_:
                continue
            for dim, algorithm in enumerate(fabric.algorithm(kind)):
                flat = scope.execution == "astra" and (algorithm.flat or not whole)
                if flat and not algorithm.flat and fabric.dimensions > 1:
                    continue  # ASTRA-sim forces a ring on smaller groups of a network with several dimensions
                n = int(sizes[group]) if flat else fabric.size[dim]
                if algorithm.name in ("halving_doubling", "double_binary_tree") and n & (n - 1):
                    seen.add((f"{algorithm.name} of {Collective(kind).name}", n))
    report.add("power-of-two", [
        ("network", f"{what} runs over {n} ranks, which is no power of two: use ring or direct")
        for what, n in sorted(seen)
    ])  # fmt: skip


def chunks_of(sizes: NDArray[np.int64], gathers: NDArray[np.bool_], splits: int, ranks: int) -> NDArray[np.int64]:
    """How many chunks ASTRA-sim makes of each collective (astra_sim_semantics 5)."""
    chunk = sizes // splits
    small = ~gathers & (chunk < ranks)
    total = np.where(small, splits * ranks, sizes)
    chunk = np.where(small, ranks, np.maximum(chunk, 1))
    return -(-total // chunk)


def _chunks(scope: Scope, report: Report, calls: Calls, splits: int) -> None:
    """Before every collective of all ranks, ranks must have created equally many chunks in groups."""
    traces = scope.traces
    # A group that lists all ranks runs as all ranks do (astra_sim_semantics 7).
    whole = (traces.groups.number == 0) | (np.diff(traces.groups.ptr) == traces.ranks)
    before: list[tuple[int, NDArray[np.int64]]] = []
    for index, graph in enumerate(traces.graphs):
        mine = calls.nodes[index]
        rows = np.flatnonzero(calls.index == index)
        if not len(rows):
            continue
        world = np.unique(calls.slot[rows[whole[calls.group[rows]]]])
        made = chunks_of(graph.comm_bytes[mine], graph.collective[mine] == Collective.ALL_GATHER, splits, traces.ranks)
        made = np.where(graph.collective[mine] == Collective.BROADCAST, 0, made)
        is_world = np.isin(graph.slot[mine], world)
        in_groups = np.cumsum(np.where(is_world, 0, made))
        before.append((index, in_groups[is_world]))
        for slot in np.unique(graph.slot[mine[~is_world]]).tolist():
            count = int(made[graph.slot[mine] == slot].sum())
            if count > CHUNKS_PER_GROUP:
                report.add("group-streams", [(scope.where(index), f"{count} chunks in one group: use fewer splits")])
    _same_chunks(scope, report, before)


def _same_chunks(scope: Scope, report: Report, before: list[tuple[int, NDArray[np.int64]]]) -> None:
    usual: tuple[int, NDArray[np.int64]] | None = None
    for index, counts in before:
        if not len(counts):
            continue
        if usual is None:
            usual = (index, counts)
            continue
        both = min(len(counts), len(usual[1]))
        differs = np.flatnonzero(counts[:both] != usual[1][:both])
        if len(differs):
            k = int(differs[0])
            message = (
                f"before collective {k} of all ranks, {ranks_text(scope.ranks_of[usual[0]])} created {usual[1][k]} "
                f"chunks in groups and {ranks_text(scope.ranks_of[index])} {counts[k]}: ASTRA-sim hangs for ever; let "
                "every rank take part in equally many"
            )
            report.add("group-chunks", [(scope.where(index), message)])
