"""The rules of `check` by name, each with its severity per execution, and how findings are gathered and worded.

Severity is by effect on the chosen execution: **error** hangs, aborts or is silently wrong; **warning** is defined but
suspicious; None has no effect and is not reported. Sources: astra_sim rules for traces (``astra``, measured on the
simulator) and DEFINITIONS 4-7 (``streams``). The rules themselves are in the ``rules_*`` modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import Collective, Kind, RankGraph, TraceSet
from tracegen.replay.astra_mode import Mode
from tracegen.replay.fabric import Fabric

Severity = Literal["error", "warning"]
ERROR: Severity = "error"
WARNING: Severity = "warning"
CAP = 10  # findings of one rule that are listed; the others are counted
_NAME_WIDTH = 60  # characters of a node's name in a finding


class Rule(NamedTuple):
    """A rule's severity under each execution, and what it asks in one line."""

    streams: Severity | None
    astra: Severity | None
    asks: str


RULES: dict[str, Rule] = {
    # Files, as `proto.files` reads them.
    "rank-files": Rule(ERROR, ERROR, "traces are where they are said to be, of one job, one file per rank"),
    "rank-name": Rule(ERROR, ERROR, "files are named PREFIX.RANK.et or PREFIX.RANK.et.gz"),
    "missing-rank": Rule(ERROR, ERROR, "every rank from 0 on has a file"),
    "surplus-rank": Rule(ERROR, ERROR, "no more ranks than the network has"),
    "rank-count": Rule(ERROR, ERROR, "as many ranks as the network has"),
    "not-a-trace": Rule(ERROR, ERROR, "files are Chakra execution traces"),
    "truncated": Rule(ERROR, ERROR, "files are whole"),
    "gzip": Rule(ERROR, ERROR, "gzip streams are whole"),
    "malformed": Rule(ERROR, ERROR, "messages are what the schema says"),
    "too-large": Rule(ERROR, ERROR, "no field is larger than is read"),
    "attribute-kind": Rule(ERROR, ERROR, "attributes have the kinds the format names"),
    "duration": Rule(ERROR, ERROR, "durations fit in 64 bits of nanoseconds"),
    "involved-dim": Rule(ERROR, ERROR, "involved_dim names a dimension: ASTRA-sim hangs on none"),
    "group-file": Rule(ERROR, ERROR, "comm_group.json maps numbers from 1 to lists of ranks"),
    "group-name": Rule(ERROR, ERROR, "pg_name is a decimal number: ASTRA-sim aborts on others"),
    "own-rank": Rule(ERROR, ERROR, "a message's own end is the rank whose trace it is in"),
    # Graphs.
    "empty-trace": Rule(ERROR, ERROR, "a rank has at least one node"),
    "no-root": Rule(ERROR, ERROR, "a rank has a node that waits for nothing"),
    "duplicate-id": Rule(ERROR, ERROR, "ids are unique within a rank"),
    "missing-parent": Rule(ERROR, ERROR, "a dependency names a node of the same rank"),
    "cycle": Rule(ERROR, ERROR, "dependencies form no cycle"),
    "deadlock": Rule(ERROR, ERROR, "dependencies, messages, collectives and streams (astra: slots) form no cycle"),
    "refused": Rule(ERROR, ERROR, "replay can play it"),
    # Nodes.
    "node-type": Rule(ERROR, ERROR, "node types are those of the schema, 0 to 7"),
    "invalid-node": Rule(WARNING, WARNING, "no INVALID nodes: ASTRA-sim skips them and stalls their children"),
    "metadata-node": Rule(WARNING, ERROR, "no METADATA nodes: ASTRA-sim aborts"),
    "memory-node": Rule(ERROR, ERROR, "memory nodes have a remote memory (memory.json), which only astra models"),
    "memory-size": Rule(None, ERROR, "memory nodes have tensor_size: ASTRA-sim aborts without"),
    "comm-on-cpu": Rule(ERROR, ERROR, "communication is not on the CPU: ASTRA-sim refuses it"),
    "host-communication": Rule(WARNING, WARNING, "operators named after communication are not compute nodes"),
    "early-communication": Rule(WARNING, WARNING, "communication of a trace with CPU operators waits for GPU work"),
    "zero-duration": Rule(WARNING, WARNING, "compute nodes give a duration"),
    "roofline-operations": Rule(None, ERROR, "nodes timed by the roofline have num_ops: ASTRA-sim never ends others"),
    "roofline-bytes": Rule(None, WARNING, "nodes timed by the roofline have tensor_size: ASTRA-sim skips others"),
    # Messages.
    "peer": Rule(ERROR, ERROR, "a message names a rank that exists"),
    "self-send": Rule(WARNING, ERROR, "a rank sends itself nothing: ASTRA-sim aborts"),
    "message-no-size": Rule(ERROR, ERROR, "a message has comm_size"),
    "message-zero": Rule(WARNING, ERROR, "a message has at least one byte: ASTRA-sim aborts on 0"),
    "message-no-tag": Rule(WARNING, ERROR, "a message has comm_tag"),
    "tag-range": Rule(None, ERROR, "tags are below 2^31: ASTRA-sim aborts"),
    "tag-collision": Rule(None, WARNING, "tags of a pair of ranks differ modulo 500,000,000, all ASTRA-sim looks at"),
    "recv-without-send": Rule(ERROR, ERROR, "every receive has a send"),
    "send-without-recv": Rule(WARNING, WARNING, "every send has a receive"),
    "size-mismatch": Rule(ERROR, ERROR, "a send and its receive have one size"),
    # Collectives.
    "no-splits": Rule(None, ERROR, "preferred-dataset-splits is 1 or more: ASTRA-sim crashes at a collective"),
    "collective-no-type": Rule(ERROR, ERROR, "a collective has comm_type (absent reads as 0, all-reduce)"),
    "collective-type": Rule(ERROR, ERROR, "collective types are those of the schema, 0 to 9"),
    "collective-unsupported": Rule(
        None, ERROR, "all-reduce, all-gather, reduce-scatter or all-to-all: ASTRA-sim has no other"
    ),
    "collective-broadcast": Rule(None, WARNING, "no broadcast: ASTRA-sim lets its duration pass and moves nothing"),
    "collective-no-size": Rule(ERROR, ERROR, "a collective has comm_size"),
    "collective-zero": Rule(WARNING, WARNING, "a collective has bytes: ASTRA-sim runs 0 as splits x ranks bytes"),
    "gather-zero": Rule(WARNING, ERROR, "an all-gather has bytes: ASTRA-sim hangs on 0"),
    "gather-below-splits": Rule(None, ERROR, "an all-gather has a byte per split: ASTRA-sim loops for ever on less"),
    "collective-order": Rule(ERROR, ERROR, "members of a group call the same collectives in the same order"),
    "collective-size": Rule(ERROR, ERROR, "members of a group give a collective one size"),
    "collective-dims": Rule(None, ERROR, "members of a group name the same dimensions"),
    "collective-count": Rule(ERROR, ERROR, "every member of a group takes part in each of its collectives"),
    "dims-missing": Rule(None, ERROR, "above four dimensions involved_dim is given: ASTRA-sim assumes four"),
    "power-of-two": Rule(ERROR, ERROR, "halving-doubling and double binary trees run on powers of two"),
    # Groups.
    "unknown-group": Rule(ERROR, ERROR, "a collective names a group that exists"),
    "not-a-member": Rule(ERROR, ERROR, "a rank uses groups it is in"),
    "group-ranks": Rule(ERROR, ERROR, "a group lists existing ranks, each once"),
    "group-of-one": Rule(WARNING, ERROR, "no collective on a group of one rank: ASTRA-sim hangs"),
    "group-zero": Rule(WARNING, ERROR, "no sub-group is named 0, which means all ranks"),
    "group-number": Rule(None, ERROR, "group numbers are at most 2147: above, ASTRA-sim's tags overflow"),
    "group-modulo": Rule(None, ERROR, "groups that share two ranks differ modulo 500, or their messages mix"),
    "group-streams": Rule(None, ERROR, "a group makes at most 1,000,000 chunks: more run into the next group's tags"),
    "group-chunks": Rule(None, ERROR, "before a collective of all ranks, all made equally many chunks in groups"),
}

# Under `astra` these are errors where the run does not finish. Playing it tells, to the message.
DECIDED_BY_RUNNING = frozenset({
    "recv-without-send", "size-mismatch", "collective-order", "collective-size", "collective-dims", "collective-count",
    "gather-zero", "gather-below-splits", "dims-missing", "group-of-one", "group-number", "group-modulo",
    "group-streams", "group-chunks",
})  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or suspicious: which rule, where, and what.

    An error that is not ``certain`` is one only if the run does not finish.
    """

    severity: Severity
    rule: str
    where: str
    message: str
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.message}"

    def document(self) -> dict[str, str]:
        """As `--json` prints it."""
        return {"severity": self.severity, "rule": self.rule, "where": self.where, "message": self.message}


@dataclass
class Report:
    """Findings as they are gathered: at most `CAP` per rule, the rest counted."""

    execution: str
    lenient: frozenset[str] = frozenset()  # errors of these rules are warnings
    told: frozenset[str] = frozenset()  # rules that others report
    open: frozenset[str] = frozenset()  # errors of these rules are errors only if the run does not finish
    listed: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    total: dict[str, int] = field(default_factory=dict)

    def severity(self, rule: str) -> Severity | None:
        """How bad this rule is under the execution; None where it is not reported."""
        if rule in self.told:
            return None
        found = RULES[rule].streams if self.execution == "streams" else RULES[rule].astra
        return WARNING if found == ERROR and rule in self.lenient else found

    def add(self, rule: str, found: Iterable[tuple[str, str]], total: int | None = None) -> None:
        """Note findings of a rule as (where, message); ``total`` where more exist than are described."""
        if self.severity(rule) is None:
            return
        described = list(found)
        mine = self.listed.setdefault(rule, [])
        mine.extend(described[: CAP - len(mine)])
        self.total[rule] = self.total.get(rule, 0) + (len(described) if total is None else total)

    @property
    def errors(self) -> bool:
        """Whether an error that is certain is among the findings."""
        return any(
            count and self.severity(rule) == ERROR and rule not in self.open for rule, count in self.total.items()
        )

    def findings(self) -> list[Finding]:
        """All findings, errors first, each kind in the order of `RULES`."""
        out: list[Finding] = []
        for rule in RULES:
            severity = self.severity(rule)
            if severity is None or not self.total.get(rule):
                continue
            certain = rule not in self.open
            out.extend(Finding(severity, rule, where, message, certain) for where, message in self.listed[rule])
            if more := self.total[rule] - len(self.listed[rule]):
                out.append(Finding(severity, rule, "", f"and {more} more like this: {RULES[rule].asks}", certain))
        return sorted(out, key=lambda finding: finding.severity != ERROR)


@dataclass(frozen=True, eq=False)
class Scope:
    """What is checked: traces, network, execution, the ranks of each class, ASTRA-sim's backend and flags."""

    traces: TraceSet
    fabric: Fabric | None
    execution: str
    ranks_of: tuple[NDArray[np.int64], ...]
    mode: Mode

    @classmethod
    def of(cls, traces: TraceSet, fabric: Fabric | None, execution: str, mode: Mode | None = None) -> Scope:
        """The scope of a check."""
        order = np.argsort(traces.class_of, kind="stable")
        counts = np.bincount(traces.class_of, minlength=len(traces.graphs))
        return cls(traces, fabric, execution, tuple(np.split(order, np.cumsum(counts)[:-1])), mode or Mode())

    def where(self, index: int, position: int | None = None) -> str:
        """``rank 3 node 7 "name"`` or ``ranks 0-7 node ...`` for a node of a class."""
        text = ranks_text(self.ranks_of[index])
        return text if position is None else f"{text} {node_text(self.traces.graphs[index], position)}"

    def mark(self, report: Report, rule: str, index: int, positions: NDArray[np.intp], message: str) -> None:
        """Report nodes of a class under a rule, with one message for all."""
        report.add(rule, [(self.where(index, p), message) for p in positions[:CAP].tolist()], len(positions))


def ranks_text(ranks: Sequence[int] | NDArray[np.integer]) -> str:
    """``rank 3``, ``ranks 0-7``, ``ranks 0, 2, 4 and 13 more``."""
    listed = [int(rank) for rank in ranks]
    if len(listed) == 1:
        return f"rank {listed[0]}"
    if listed and listed == list(range(listed[0], listed[0] + len(listed))):
        return f"ranks {listed[0]}-{listed[-1]}"
    if len(listed) <= 4:
        return f"ranks {', '.join(map(str, listed))}"
    return f"ranks {', '.join(map(str, listed[:3]))} and {len(listed) - 3} more"


def node_text(graph: RankGraph, position: int) -> str:
    """``node 7 "name"`` on one line, long names cut."""
    name = graph.name_of(position)
    shown = name if len(name) <= _NAME_WIDTH else name[:_NAME_WIDTH] + "..."
    printable = "".join(char if char.isprintable() else "?" for char in shown)
    return f'node {int(graph.id[position])} "{printable}"'


def bytes_text(count: int) -> str:
    """``2 MiB`` where that is exact, else bytes."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} B"


def collective_text(collective: int, size: int) -> str:
    """``ALL_REDUCE 1 MiB``."""
    known = collective in Collective._value2member_map_
    name = Collective(collective).name if known else f"type {collective}"
    return f"{name} {bytes_text(size) if size >= 0 else 'of no size'}"


def kind_text(kind: int) -> str:
    """``COMP``, or the number where the schema has no such type."""
    return Kind(kind).name if kind in Kind._value2member_map_ else str(kind)
