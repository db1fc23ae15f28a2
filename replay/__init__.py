"""From traces and a network to a timeline. Knows no LLM and no parallelism."""

from __future__ import annotations

from tracegen.proto.graph import TraceSet
from tracegen.replay.check import Finding, check
from tracegen.replay.engine import Jitter, run
from tracegen.replay.fabric import Fabric
from tracegen.replay.facts import Facts
from tracegen.replay.timeline import Timeline

__all__ = ["Fabric", "Facts", "Finding", "Jitter", "Timeline", "check", "replay"]


def replay(
    traces: TraceSet,
    fabric: Fabric,
    *,
    execution: str,
    facts: Facts | None = None,
    fold: bool = True,
    jitter: Jitter | None = None,
) -> Timeline:
    """Run traces over a network; checks nothing beforehand (see `check`).

    Parameters
    ----------
    execution : ``streams`` or ``astra`` (DEFINITIONS 6).
    facts : the job's figures, for throughput and bubbles.
    fold : whether ranks that must behave alike are run as one; the answer is the same.
    jitter : random factors on compute times; every rank then runs by itself.

    Returns
    -------
    Timeline
        Also where ranks never finish: ask ``timeline.finished``; ``replay.engine.explain(timeline.run)`` says why.
    """
    return Timeline(run(traces, fabric, execution=execution, fold=fold, jitter=jitter), facts or Facts())
