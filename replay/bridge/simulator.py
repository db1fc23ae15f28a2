"""The bridge: the external ASTRA-sim analytical binary, if the user has one, run on the same files.

Owns the run as a whole: which arguments, how long, and whether its answer is one, since its exit code lies both ways
(a dead-lock exits 0; a finished run may die while it cleans up). What it prints is read by `bridge_log`, the folder it
runs in made by `bridge_inputs`, the process kept by `bridge_process`; what the times mean is `bridge_timeline`'s.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError, RunError
from tracegen.proto.files import find_ranks
from tracegen.replay.bridge.inputs import LOGS, Inputs, prepare
from tracegen.replay.bridge.log import Follower, NodeLog, Output
from tracegen.replay.bridge.process import run_bounded

CONGESTION, ANALYTICAL = "congestion", "analytical"
UNTOLD = np.iinfo(np.int64).min  # an exposed time that nobody told
_LATEST_NS = 1 << 62  # a tick beyond is no time: ASTRA-sim turns a NaN duration into 2^63


@dataclass(frozen=True, eq=False)
class BridgeResult:
    """What ASTRA-sim said.

    Parameters
    ----------
    finish_ns : i64[ranks], tick of the event that completed the last node; -1 without a finished line.
    astra_exposed_ns : i64[ranks], finish minus GPU compute issued (ASTRA-sim's "exposed communication",
        DEFINITIONS 10); `UNTOLD` without a finished line.
    log : every node's start and end; None where it was not asked for.
    exit_code : as a shell shows it (128 + signal); None where it was stopped at the time limit.
    failure : why this is no whole answer, one line; "" where every rank finished.
    notes : what to tell beside the answer.
    wall_s : how long the simulator ran.
    """

    finish_ns: NDArray[np.int64]
    astra_exposed_ns: NDArray[np.int64]
    log: NodeLog | None
    exit_code: int | None
    failure: str
    notes: tuple[str, ...]
    wall_s: float

    @property
    def ranks(self) -> int:
        """How many ranks the network has."""
        return len(self.finish_ns)

    @property
    def makespan_ns(self) -> int:
        """The largest finish."""
        return max(0, int(self.finish_ns.max()))


def run_astra_sim(
    binary: str | Path,
    traces_prefix: str | Path,
    network: str | Path,
    system: str | Path,
    memory: str | Path | None,
    comm_group: str | Path | None,
    *,
    ranks: int,
    flags: Mapping[str, str | int | float | bool] | None = None,
    time_limit_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    node_log: bool = True,
    nodes: NDArray[np.int64] | None = None,
    unchecked: bool = False,
) -> BridgeResult:
    """Run the external simulator and read its answer.

    Parameters
    ----------
    binary : ``AstraSim_Analytical_Congestion_Unaware`` or ``..._Aware``, a path or a name on the PATH.
    traces_prefix : a folder with the traces of one job, or the prefix of ``PREFIX.<rank>.et``.
    network, system, memory, comm_group : ASTRA-sim's input files; no memory file means none.
    ranks : product of the network's sizes.
    flags : further arguments by name, such as ``{"num-queues-per-dim": 2, "rendezvous-protocol": True}``.
    time_limit_s : it is stopped after this long; None waits for ever.
    progress : called with (ranks finished, ranks) as their lines appear.
    node_log : have every node's start and end logged and read them.
    nodes : i64[ranks], how many nodes each trace has, to tell from the log a rank that finished without its line (lost
        in a crash) and one that says so with nodes left (a cycle beside a valid root).
    unchecked : hand back a run that did not finish, with its ``failure``, instead of raising it.

    Raises
    ------
    InputError
        A binary that is missing or cannot be run, files missing, or one rank only.
    RunError
        Not every rank finished; names which.
    """
    program = _program(binary)
    if ranks < 2:
        raise InputError(f"ASTRA-sim needs two ranks or more, and this job has {ranks}: use --backend builtin")
    files = find_ranks(traces_prefix, ranks)
    inputs = Inputs(
        Path(network), Path(system), Path(memory) if memory else None, Path(comm_group) if comm_group else None
    )
    output = Output(ranks)
    with tempfile.TemporaryDirectory(prefix="tracegen-astra-sim-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        arguments, notes = prepare(folder, files, inputs, node_log=node_log)
        arguments += [f"--{name}={_as_text(value)}" for name, value in (flags or {}).items()]
        follower = Follower(folder / LOGS, output)

        def look() -> None:
            follower.look()
            if progress is not None:
                progress(len(output.finish), ranks)

        began = time.monotonic()
        deadline = None if time_limit_s is None else began + time_limit_s
        try:
            code = run_bounded([program, *arguments], folder, deadline=deadline, heard=output.feed, looked=look)
            output.close()
            look()
        finally:
            log = follower.close()
        wall_s = time.monotonic() - began
    ending = Ending(code, time_limit_s, wall_s)
    result = _judged(output, log if node_log else None, ending, ranks, nodes, notes)
    if result.failure and not unchecked:
        raise RunError(result.failure)
    return result


def network_model_of(binary: str | Path) -> str | None:
    """Which network the binary simulates, told by the name that ASTRA-sim's build gives it; None for another name."""
    name = Path(binary).name.lower()
    if "unaware" in name:
        return ANALYTICAL
    return CONGESTION if "aware" in name else None


def _program(binary: str | Path) -> str:
    """The program's absolute path.

    Raises
    ------
    InputError
        There is none, or it is not executable.
    """
    found = shutil.which(str(binary))
    if found is not None:
        return os.path.abspath(found)
    path = Path(binary)
    if path.is_dir():
        raise InputError(f"--astra-sim {binary}: this is a folder; name the binary in it")
    if path.exists():
        raise InputError(f"--astra-sim {binary}: not executable (chmod +x {binary})")
    raise InputError(f"--astra-sim {binary}: there is no such file, and no such program on the PATH")


def _as_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Ending(NamedTuple):
    """How the process ended: its return code (None: stopped at the limit), the limit, and how long it ran."""

    code: int | None
    time_limit_s: float | None
    wall_s: float

    def words(self) -> str:
        """As the verb of a sentence about it."""
        if self.code is None:
            return f"was stopped after {self.time_limit_s:g} s, the --time-limit"
        if self.code >= 0:
            return f"exited with {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"died of {name} (exit code {self.shown})"

    @property
    def shown(self) -> int | None:
        """The exit code as a shell shows it."""
        return self.code if self.code is None or self.code >= 0 else 128 - self.code


def _judged(
    output: Output,
    log: NodeLog | None,
    ending: Ending,
    ranks: int,
    nodes: NDArray[np.int64] | None,
    notes: list[str],
) -> BridgeResult:
    """The answer, judged by its finished lines and its node log, never by the exit code alone."""
    finish, exposed = np.full(ranks, -1, np.int64), np.full(ranks, UNTOLD, np.int64)
    for rank, (tick, apart) in output.finish.items():
        finish[rank], exposed[rank] = tick, apart
    endless = np.flatnonzero(finish >= _LATEST_NS)
    finish[endless], exposed[endless] = -1, UNTOLD
    ended = _ended_nodes(log, ranks) if nodes is not None else None
    if ended is not None and ending.code != 0:
        lost = np.flatnonzero((finish < 0) & (ended.number == nodes) & (ended.number > 0))
        finish[lost] = ended.last_ns[lost]
        if len(lost):
            notes.append(f"the finished lines of {_ranks(lost)} were lost; their ends are those of their last nodes")
    missing = np.flatnonzero(finish < 0)
    failure = ""
    if len(endless):
        failure = (
            f"ASTRA-sim ended {_ranks(endless)} beyond 2^62 ns: under its roofline a node with num_ops 0 has no time"
        )
    elif len(missing):
        failure = _unfinished(missing, ranks, ending, output.last_words()) + _hung_nodes(log, missing)
    elif len(short := _short(ended, nodes, ending)):
        failure = (
            f"ASTRA-sim says that {_ranks(short)} finished, but not all of their nodes ran: look for a cycle "
            "(tracegen check)"
        )
    elif ending.code != 0:
        notes.append(f"ASTRA-sim finished every rank and then {ending.words()}, while cleaning up: the times stand")
    if output.strange:
        told = in_words(sorted(output.strange))
        notes.append(f"ASTRA-sim printed finished lines of rank {told}, which the network does not have: ignored")
    return BridgeResult(finish, exposed, log, ending.shown, failure, tuple(notes), ending.wall_s)


class _Ended(NamedTuple):
    """Per rank, how many nodes ended (i64) and when the last did (i64, ns); whether events may be missing."""

    number: NDArray[np.int64]
    last_ns: NDArray[np.int64]
    lost: bool


def _ended_nodes(log: NodeLog | None, ranks: int) -> _Ended | None:
    """What the node log says of ends; None where there is none."""
    if log is None or not len(log):
        return None
    on = log.ended & (log.rank < ranks)
    order = np.lexsort((log.node[on], log.rank[on]))
    rank, node = log.rank[on][order], log.node[on][order]
    first = np.ones(len(rank), np.bool_)
    first[1:] = (rank[1:] != rank[:-1]) | (node[1:] != node[:-1])
    last = np.zeros(ranks, np.int64)
    np.maximum.at(last, log.rank[on], log.tick[on])
    return _Ended(np.bincount(rank[first], minlength=ranks), last, log.lost)


def _short(ended: _Ended | None, nodes: NDArray[np.int64] | None, ending: Ending) -> NDArray[np.int64]:
    """Ranks with fewer nodes ended than their traces have, where the log is sure to be whole."""
    if ended is None or nodes is None or ended.lost or ending.code != 0:
        return np.zeros(0, np.int64)
    return np.flatnonzero(ended.number < nodes)


def _unfinished(missing: NDArray[np.int64], ranks: int, ending: Ending, words: str) -> str:
    """Which ranks did not finish, and how the run ended."""
    which = f"{_ranks(missing)} did not finish ({ranks - len(missing)} of {ranks} did)"
    if ending.code == 0:
        return (
            f"ASTRA-sim exited with 0 although {which}: its exit code does not tell; --backend builtin says who waits "
            "for whom"
        )
    said = f'; it said: "{words}"' if words and ending.code is not None else ""
    return f"ASTRA-sim {ending.words()}: {which}{said}"


def _hung_nodes(log: NodeLog | None, missing: NDArray[np.int64]) -> str:
    """For the first unfinished ranks, the nodes that started and never ended."""
    if log is None or not len(log):
        return ""
    told = []
    for rank in missing[:4].tolist():
        mine = log.rank == rank
        hung = np.setdiff1d(log.node[mine & ~log.ended], log.node[mine & log.ended])
        if len(hung):
            more = f" and {len(hung) - 3} more" if len(hung) > 3 else ""
            told.append(f"rank {rank} in node {', '.join(map(str, hung[:3].tolist()))}{more}")
    return f"; stuck: {', '.join(told)}" if told else ""


def _ranks(ranks: NDArray[np.int64]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {in_words(ranks.tolist())}"


def in_words(ranks: list[int]) -> str:
    """Ranks as runs, at most eight of them: ``0, 3-5``."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(ranks), lambda at: at[1] - at[0])]
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(parts[:8]) + (f" and {len(ranks) - sum(map(len, runs[:8]))} more" if len(parts) > 8 else "")
