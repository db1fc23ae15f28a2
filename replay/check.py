"""Checks traces without running them: every rule of `rules.RULES`, all findings at once.

Owns which checks run and in what order; the rules are in the ``rules_*`` modules, their severities in `rules`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tracegen.proto.graph import TraceSet
from tracegen.proto.problems import Problem
from tracegen.replay.astra_mode import Mode
from tracegen.replay.cells.plan import ASTRA
from tracegen.replay.fabric import Fabric
from tracegen.replay.rules.groups import check_groups
from tracegen.replay.rules.messages import check_messages
from tracegen.replay.rules.nodes import check_nodes
from tracegen.replay.rules.order import check_cycles, check_deadlock
from tracegen.replay.rules.table import DECIDED_BY_RUNNING, ERROR, Finding, Report, Scope

__all__ = ["Finding", "check"]


def check(
    traces: TraceSet | None,
    fabric: Fabric | None,
    execution: str,
    *,
    mode: Mode | None = None,
    problems: Iterable[Problem] = (),
    ignore_missing_parents: bool = False,
    play: bool = True,
) -> list[Finding]:
    """Everything that is wrong or suspicious in traces under an execution, errors first.

    Parameters
    ----------
    traces : None where files could not be read; then only ``problems`` are told.
    fabric : the network they would run on; without it the rules that need one are left out.
    execution : ``streams`` or ``astra``; severity is by effect on it.
    mode : ASTRA-sim's backend and flags, under `astra`.
    problems : what the reader found (``proto.files.load_traces``); its findings of a rule stand for ours.
    ignore_missing_parents : dependencies on nodes that do not exist are warned of, not refused.
    play : run the traces to see whether they finish. Without, what only a run can decide is reported as an error that
        is not certain (`rules.DECIDED_BY_RUNNING`).

    Returns
    -------
    list of Finding
        At most `rules.CAP` per rule and one more that counts the rest; empty where nothing was found.
    """
    found = list(problems)
    read = [Finding(ERROR, problem.rule, problem.where, problem.message) for problem in found]
    if traces is None:
        return read
    scope = Scope.of(traces, fabric, execution, mode)
    lenient = frozenset({"missing-parent"} if ignore_missing_parents else ())
    decided = DECIDED_BY_RUNNING if execution == ASTRA and fabric is not None and not read else frozenset()
    report = Report(
        execution, lenient=lenient, told=frozenset(problem.rule for problem in found), open=frozenset(decided)
    )
    if fabric is not None and fabric.ranks != traces.ranks:
        sizes = " x ".join(map(str, fabric.size)) or "1"
        message = f"the traces have {traces.ranks} ranks, the network {sizes} = {fabric.ranks}"
        report.add("rank-count", [("network", message)])
    check_nodes(scope, report)
    check_cycles(scope, report)
    check_groups(scope, report)
    check_messages(scope, report)
    if play and not read and not report.errors:
        check_deadlock(scope, report)
        settled = lenient if report.errors else lenient | decided
        report = replace(report, lenient=settled, open=frozenset())
    elif report.errors:
        report = replace(report, open=frozenset())
    return read + report.findings()
