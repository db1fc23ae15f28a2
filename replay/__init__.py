"""From traces and a network to a timeline. Knows no LLM and no parallelism."""

from __future__ import annotations

import numpy as np

from tracegen.proto.errors import InputError
from tracegen.proto.graph import TraceSet
from tracegen.replay.astra_mode import Mode
from tracegen.replay.check import Finding, check
from tracegen.replay.engine import Jitter, run
from tracegen.replay.fabric import Fabric
from tracegen.replay.facts import Facts
from tracegen.replay.message.run import Progress
from tracegen.replay.timeline import Timeline

__all__ = ["Fabric", "Facts", "Finding", "Jitter", "Mode", "Timeline", "check", "replay"]


def replay(
    traces: TraceSet,
    fabric: Fabric,
    *,
    execution: str,
    facts: Facts | None = None,
    fold: bool = True,
    jitter: Jitter | None = None,
    mode: Mode | None = None,
    path: str | None = None,
    progress: Progress | None = None,
) -> Timeline:
    """Run traces over a network; checks nothing beforehand (see `check`).

    Parameters
    ----------
    execution : ``streams`` or ``astra`` (DEFINITIONS 6).
    facts : the job's figures, for throughput and bubbles.
    fold : whether ranks that must behave alike are run as one; the answer is the same.
    jitter : random factors on compute times; every rank then runs by itself.
    mode : ASTRA-sim's backend and flags, under `astra` (`astra_files.astra_system` reads them).
    path : `paths.MESSAGES` to simulate every message under `astra`; by default only where nothing else is exact.
    progress : called now and then with (messages sent, ns reached) where messages are simulated.

    Returns
    -------
    Timeline
        Also where ranks never finish: ask ``timeline.finished``; ``replay.engine.explain(timeline.run)`` says why.

    Raises
    ------
    InputError
        What the engine cannot run, or stages of another number of ranks.
    """
    told = facts or Facts()
    if told.stage_of is not None and len(told.stage_of) != traces.ranks:
        raise InputError(
            f"stages of {len(told.stage_of)} ranks are given (stage_of), the traces have {traces.ranks} ranks"
        )
    # Ranks of unlike stage are cut unlike (DEFINITIONS 9), so they are not folded together.
    colours = None if told.stage_of is None else told.stage_of.astype(np.int64)
    played = run(
        traces, fabric, execution=execution, fold=fold, jitter=jitter, colours=colours, mode=mode, path=path,
        progress=progress,
    )  # fmt: skip
    return Timeline(played, told)
