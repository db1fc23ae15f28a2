"""The answer of a replay: step time, parts per rank, dimension figures, throughput, warnings, the JSON document.

Owns what is printed and its definition (DEFINITIONS 9-12); cutting time is `parts`' work, counting bytes `traffic`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.graph import Kind
from tracegen.replay.cells.plan import STREAMS
from tracegen.replay.facts import Facts
from tracegen.replay.parts import Parts, parts
from tracegen.replay.run import Run
from tracegen.replay.traffic import shared_time_ns, traffic

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Throughput:
    """Rates of a step; None where the facts they need are not known (DEFINITIONS 11).

    Parameters
    ----------
    tokens_per_s, tokens_per_s_per_gpu : tokens per step / step time, for the job and per rank.
    tflops_per_gpu : model FLOPs / (step time · ranks), in 10^12 FLOP/s.
    mfu : model FLOPs / (step time · ranks · dense peak).
    hfu : executed FLOPs / (step time · ranks · dense peak).
    """

    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    tflops_per_gpu: float | None
    mfu: float | None
    hfu: float | None

    def document(self) -> dict[str, float | None]:
        """As `--json` prints it."""
        return dict(vars(self))


@dataclass(frozen=True)
class Dimension:
    """Figures of one network dimension (DEFINITIONS 12).

    Parameters
    ----------
    name : of the dimension.
    bytes : injected on it by all ranks.
    busy_ns : the largest over ranks of their sum of floor(m / B).
    utilisation : bytes / (ranks · links used · B · makespan).
    """

    name: str
    bytes: int
    busy_ns: int
    utilisation: float

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return dict(vars(self))


@dataclass(frozen=True)
class StageSummary:
    """Where the time of a stage's ranks went, mean over its ranks, in ns; ``stage`` is None without stages."""

    stage: int | None
    ranks: int
    compute_ns: float
    exposed_ns: dict[str, float]
    bubble_ns: float
    idle_ns: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """A replayed run and what it means.

    Parameters
    ----------
    run : what the engine did.
    facts : the job's figures.
    """

    run: Run
    facts: Facts

    @cached_property
    def parts(self) -> Parts:
        """The parts of every rank's time."""
        return parts(self.run, self.facts.stage_of)

    @property
    def makespan_ns(self) -> int:
        """End of the last node of all ranks."""
        return self.parts.makespan_ns

    @property
    def step_time_s(self) -> float:
        """The makespan in seconds."""
        return self.makespan_ns / NS_PER_S

    @property
    def finish_ns(self) -> NDArray[np.int64]:
        """i64[ranks]: end of each rank's last node, -1 where one never ended."""
        return self.parts.finish_ns

    @property
    def finished(self) -> bool:
        """Whether every node of every rank ended, and there was one."""
        return bool((self.finish_ns >= 0).all()) and self.makespan_ns > 0

    @property
    def bubble_share(self) -> NDArray[np.float64]:
        """f64[ranks]: bubble / makespan (DEFINITIONS 10)."""
        return self.parts.bubble_ns / max(self.makespan_ns, 1)

    @cached_property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Traffic of each network dimension."""
        carried = traffic(self.run)
        columns = zip(
            self.run.fabric.names,
            carried.nbytes.tolist(),
            carried.busy_ns.tolist(),
            carried.utilisation(self.run, self.makespan_ns).tolist(),
            strict=True,
        )
        return tuple(Dimension(*row) for row in columns)

    @cached_property
    def throughput(self) -> Throughput:
        """Rates of the step."""
        facts, seconds, ranks = self.facts, self.step_time_s, self.run.traces.ranks

        def rate(amount: float | None, divisor: float | None) -> float | None:
            return amount / divisor if amount is not None and divisor and self.finished else None

        gpu_seconds = seconds * ranks
        at_peak = gpu_seconds * facts.peak_flops if facts.peak_flops is not None else None
        return Throughput(
            tokens_per_s=rate(facts.tokens_per_step, seconds),
            tokens_per_s_per_gpu=rate(facts.tokens_per_step, gpu_seconds),
            tflops_per_gpu=rate(facts.model_flops, gpu_seconds * 1e12),
            mfu=rate(facts.model_flops, at_peak),
            hfu=rate(facts.executed_flops, at_peak),
        )

    @cached_property
    def stages(self) -> tuple[StageSummary, ...]:
        """Means over the ranks of each stage; one row for all ranks where stages are not known."""
        stage_of = self.facts.stage_of
        if stage_of is None:
            return (self._summary(None, np.arange(self.run.traces.ranks)),)
        return tuple(self._summary(stage, np.flatnonzero(stage_of == stage)) for stage in np.unique(stage_of).tolist())

    def _summary(self, stage: int | None, ranks: NDArray[np.intp]) -> StageSummary:
        cut = self.parts
        return StageSummary(
            stage=stage,
            ranks=len(ranks),
            compute_ns=float(cut.compute_ns[ranks].mean()),
            exposed_ns={label: float(cut.exposed_ns[ranks, column].mean()) for column, label in enumerate(cut.labels)},
            bubble_ns=float(cut.bubble_ns[ranks].mean()),
            idle_ns=float(cut.idle_ns[ranks].mean()),
        )

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What is defined but may mislead, each with what to do."""
        found = [
            _unfinished(self),
            *self.run.notes,
            _unknown_durations(self.run),
            _shared_dimensions(self),
            _unknown_facts(self.facts),
        ]
        return tuple(line for line in found if line)

    def document(self, command: str) -> dict[str, Any]:
        """The JSON document of `replay` (DESIGN, "What --json prints")."""
        cut = self.parts
        columns = zip(
            cut.finish_ns.tolist(), cut.compute_ns.tolist(), cut.exposed_ns.tolist(), cut.bubble_ns.tolist(),
            cut.idle_ns.tolist(), strict=True,
        )  # fmt: skip
        return {
            "tracegen": version("chakra-tracegen"),
            "command": command,
            "step_time_s": self.step_time_s,
            "makespan_ns": self.makespan_ns,
            "execution": self.run.execution,
            "network_model": self.run.network_model,
            "ranks": [
                {
                    "rank": rank,
                    "finish_ns": finish if finish >= 0 else None,
                    "compute_ns": compute,
                    "exposed_ns": dict(zip(cut.labels, exposed, strict=True)),
                    "bubble_ns": bubble,
                    "idle_ns": idle,
                }
                for rank, (finish, compute, exposed, bubble, idle) in enumerate(columns)
            ],
            "dimensions": [dimension.document() for dimension in self.dimensions],
            "throughput": self.throughput.document(),
            "warnings": list(self.warnings),
        }


def _unfinished(timeline: Timeline) -> str:
    stuck = int((timeline.finish_ns < 0).sum())
    if not stuck:
        return ""
    return (
        f"{stuck} of {len(timeline.finish_ns)} ranks never finish: figures cover what ran until everything stopped; "
        "run `tracegen check` on the traces for the reason"
    )


def _unknown_durations(run: Run) -> str:
    """Compute nodes for which the traces give no time, over all ranks."""
    sizes = np.bincount(run.traces.class_of, minlength=len(run.traces.graphs))
    unknown = 0
    for graph, ranks in zip(run.traces.graphs, sizes.tolist(), strict=True):
        timeless = (graph.kind == Kind.COMP) & (graph.duration_ns < 0) & (graph.duration_us <= 0)
        if run.fabric.rated_flops and (run.execution == STREAMS or run.fabric.peak_flops):
            timeless &= graph.cpu | (graph.flops < 1)  # the others are timed by their operations
        unknown += ranks * int(timeless.sum())
    if not unknown:
        return ""
    return f"{unknown} compute nodes give no duration and count next to nothing: write duration_micros in the traces"


def _shared_dimensions(timeline: Timeline) -> str:
    """DEFINITIONS 6: time in which a rank has two operations in transfer on one dimension, summed over ranks."""
    shared = shared_time_ns(timeline.run)
    names = timeline.run.fabric.names
    told = [f"{ns / NS_PER_S:.3g} s on {name}" for name, ns in zip(names, shared.tolist(), strict=True) if ns]
    if not told:
        return ""
    whole = timeline.makespan_ns * timeline.run.traces.ranks
    return (
        f"two operations of a rank were in transfer at once for {', '.join(told)} (summed over ranks, up to "
        f"{100 * shared.max() / whole:.3g} % of their time): the analytical network does not slow them, so read the "
        "step time as a lower bound"
    )


def _unknown_facts(facts: Facts) -> str:
    missing = [
        name
        for name, value in (
            ("stages (bubbles are told from receives alone)", facts.stage_of),
            ("tokens per step", facts.tokens_per_step),
            ("FLOPs per step", facts.model_flops),
            ("peak FLOP/s", facts.peak_flops),
        )
        if value is None
    ]
    if not missing:
        return ""
    return f"not known without a manifest.json beside the traces: {', '.join(missing)}"
