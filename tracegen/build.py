"""From a job to its traces: the one place where placement, layers, timing, schedule and patterns meet.

Owns the order of the work and what is said about the result (manifest, notes). Every formula is in the module it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from tracegen import __version__
from tracegen.blocks import merge_blocks
from tracegen.flops import executed_flops, model_flops
from tracegen.groups import PEERS, group_table, slot_table
from tracegen.layers import Communication, Layers, Message, Step, Steps
from tracegen.memory import Fit, fits
from tracegen.operators import Operator
from tracegen.parameters import distinct_parameters, stage_parameters
from tracegen.passes import Pieces, Stage, messages, stage_trace
from tracegen.patterns import Pattern, finish, pattern
from tracegen.placement import Placement
from tracegen.proto.errors import InputError
from tracegen.proto.graph import Kind, RankGraph, TraceSet
from tracegen.schedule import schedule
from tracegen.spec import Job, supported
from tracegen.stages import layers_of_stage
from tracegen.timing import LONGEST_NS, NS_PER_S, nanoseconds, seconds
from tracegen.update import Update, update

GROUP_KINDS = ("tp", "dp", "tp/kv_copies", "embedding")  # the order in which groups are numbered
MESSAGE_LABEL = "pp"
LARGEST = 2**63 - 1  # FLOPs or bytes of one node: int64
UNNAMED_DIMENSIONS = 4  # ASTRA-sim takes no more without `involved_dim`, whatever the network
MOST_NODES = 50_000_000  # of a rank, before blocks are merged: 10 GB of columns


@dataclass(frozen=True, eq=False)
class Build:
    """A job's traces and what is to be said of them.

    Parameters
    ----------
    manifest : what `emit` writes as ``manifest.json``.
    layers_of_stage : layers each stage got.
    notes : lines to show: the job's own, the stages, parameters, and the states where they fit. Where they do not,
        `tracegen.memory.memory_warning` makes a warning of the manifest.
    """

    job: Job
    traces: TraceSet
    manifest: dict[str, Any]
    layers_of_stage: tuple[int, ...]
    notes: tuple[str, ...]


def build(job: Job) -> Build:
    """The traces of one optimizer step.

    Raises
    ------
    InputError
        The job uses keys that do not work yet, or makes more than a trace can hold.
    """
    supported(job)
    layers = Layers.of(job)
    duration = _clock(job)
    layer_ns = _time(duration, layers.forward, layers.backward)
    first_ns = _time(duration, layers.embedding, layers.embedding_backward)
    last_ns = _time(duration, layers.head, layers.head_backward)
    split = layers_of_stage(job, layer_ns, first_ns, last_ns)
    updates = [update(job, stage, count) for stage, count in enumerate(split)]
    _refuse_too_long(job, layers, split, updates, duration)
    placement = Placement.of(job.parallelism, job.world, job.model.kv_heads)
    used = _used_steps(layers, updates, job.parallelism.pp)
    _refuse_too_large(job, layers, split, used)
    slots = _slots(used)
    graphs = _graphs(job, layers, split, updates, used, slots, duration)
    groups, first = group_table(placement, [kind for kind in slots if kind not in PEERS])
    traces = TraceSet(
        graphs=graphs,
        class_of=placement.stage_of.astype(np.int32),
        groups=groups,
        slots=slot_table(placement, list(slots), first),
        message_label=MESSAGE_LABEL,
    )
    traces = _name_dimensions(traces, len(job.network.dimensions))
    fit = fits(job, stage_parameters(job, split))
    return Build(job, traces, _manifest(job, traces, fit), split, _notes(job, split, fit))


def _name_dimensions(traces: TraceSet, dimensions: int) -> TraceSet:
    """Collectives of all ranks name every dimension, where there are more than ASTRA-sim takes without being told."""
    if dimensions <= UNNAMED_DIMENSIONS:
        return traces
    whole = np.diff(traces.groups.ptr) == traces.ranks
    graphs = []
    for number, graph in enumerate(traces.graphs):
        slots = traces.slots[np.flatnonzero(traces.class_of == number)[0]]
        joins = graph.kind == Kind.COLL
        dims = graph.dims.copy()
        dims[joins] = np.where(whole[slots[graph.slot[joins]]], (1 << dimensions) - 1, dims[joins])
        graphs.append(replace(graph, dims=dims))
    return replace(traces, graphs=tuple(graphs))


def _clock(job: Job) -> Callable[[Operator], int]:
    """Nanoseconds of an operator, asked once per distinct operator."""

    @cache
    def duration(work: Operator) -> int:
        took = _seconds(job, work)
        if took * NS_PER_S > LONGEST_NS:
            raise InputError(
                f"{job.place(_bound(job, work))}: {work.name} takes {took:.3g} s, a trace holds at most "
                f"{LONGEST_NS / NS_PER_S:.3g} s; raise {_bound(job, work)}"
            )
        return nanoseconds(took)

    return duration


def _seconds(job: Job, work: Operator) -> float:
    return seconds(work.flops, work.mem_bytes, work.kind, job.workload.precision.compute, job.device)


def _bound(job: Job, work: Operator) -> str:
    """The key of the figure of the device that bounds an operator."""
    compute = job.workload.precision.compute
    moving = seconds(0, work.mem_bytes, work.kind, compute, job.device)
    return "device.memory_bandwidth" if _seconds(job, work) == moving else f"device.peak_flops.{compute}"


def _time(duration: Callable[[Operator], int], *lists: Steps) -> int:
    """Compute time of lists of steps, ns."""
    return sum(duration(step.work) for steps in lists for step in steps if isinstance(step.work, Operator))


def _used_steps(layers: Layers, updates: Sequence[Update], stages: int) -> Steps:
    """Every step that some stage has, for the tables of names and slots."""
    lists: list[Steps] = [
        layers.embedding, layers.forward, layers.head, layers.head_backward, layers.backward, layers.embedding_backward,
        messages(layers) if stages > 1 else [],
    ]  # fmt: skip
    lists += [each for update in updates for each in (update.reductions, update.after)]
    return [step for steps in lists for step in steps]


def _refuse_too_long(
    job: Job,
    layers: Layers,
    split: Sequence[int],
    updates: Sequence[Update],
    duration: Callable[[Operator], int],
) -> None:
    """Refuse a step whose compute, summed over all ranks, the integers of a timeline cannot hold."""
    passes = layers.forward, layers.backward
    ends = layers.embedding, layers.embedding_backward, layers.head, layers.head_backward
    a_microbatch = job.model.layers * _time(duration, *passes) + _time(duration, *ends)
    a_step = job.microbatches * a_microbatch + sum(_time(duration, each.after) for each in updates)
    total = a_step * (job.world // len(split))
    if total > LONGEST_NS:
        afters = [each.after for each in updates]
        works = [step.work for steps in (*passes, *ends, *afters) for step in steps if isinstance(step.work, Operator)]
        longest = max(works, key=duration)
        raise InputError(
            f"{job.place(_bound(job, longest))}: a step computes {total / NS_PER_S:.3g} s on its {job.world} ranks "
            f"together, at most {LONGEST_NS / NS_PER_S:.3g} s are held; {longest.name} alone takes "
            f"{duration(longest) / NS_PER_S:.3g} s: raise {_bound(job, longest)}"
        )


def _refuse_too_large(job: Job, layers: Layers, split: Sequence[int], steps: Steps) -> None:
    """Refuse what the integers of a trace cannot hold, before arrays are made."""
    for step in steps:
        work = step.work
        largest = max(work.flops, work.mem_bytes) if isinstance(work, Operator) else work.size
        if largest > LARGEST:
            raise InputError(
                f"{job.place('workload')}: {work.name} of one microbatch has {largest} FLOPs or bytes, a trace holds "
                f"at most {LARGEST}; lower micro_batch {job.workload.micro_batch} or sequence_length "
                f"{job.workload.sequence_length}"
            )
    per_microbatch = max(split) * (len(layers.forward) + len(layers.backward))
    if per_microbatch * job.microbatches > MOST_NODES:
        raise InputError(
            f"{job.place('workload.global_batch')}: {job.workload.global_batch} makes {job.microbatches} microbatches "
            f"of {per_microbatch} nodes, a rank's trace holds at most {MOST_NODES}; "
            f"at most {MOST_NODES // per_microbatch} microbatches"
        )


def _slots(steps: Iterable[Step]) -> dict[str, int]:
    """A slot for every group kind and neighbour that a step names."""
    used = {
        work.group if isinstance(work, Communication) else work.peer
        for work in (step.work for step in steps)
        if isinstance(work, Communication | Message)
    }
    return {name: i for i, name in enumerate(name for name in (*GROUP_KINDS, *PEERS) if name in used)}


def _graphs(
    job: Job,
    layers: Layers,
    split: Sequence[int],
    updates: Sequence[Update],
    used: Steps,
    slots: dict[str, int],
    duration: Callable[[Operator], int],
) -> tuple[RankGraph, ...]:
    """A graph per stage: no two are equal, since layers are numbered through."""
    operators = list(dict.fromkeys(step.work.name for step in used))
    names = {name: i for i, name in enumerate(operators)}
    make: Callable[..., Pattern] = partial(pattern, names=names, slots=slots, duration=duration)
    pieces = Pieces.of(layers, make, len(split))
    ends = np.cumsum(split).tolist()
    graphs = []
    for number, (end, count) in enumerate(zip(ends, split, strict=True)):
        stage = Stage(number, len(split), range(end - count, end))
        order = schedule(job.workload.schedule, len(split), job.microbatches, number)
        whole, texts = stage_trace(pieces, stage, order, updates[number], make), operators
        if job.workload.granularity == "block":
            whole, texts = merge_blocks(whole, operators)
        graphs.append(finish(whole, texts))
    return tuple(graphs)


def _manifest(job: Job, traces: TraceSet, fit: Fit) -> dict[str, Any]:
    groups = traces.groups
    return {
        "tracegen": __version__,
        "name": job.name,
        "execution": "streams",
        "network_model": "analytical",
        "ranks": traces.ranks,
        "partial": False,
        "groups": {str(number): label for number, label in zip(groups.number.tolist(), groups.label, strict=True)},
        "message_label": traces.message_label,
        "stage_of": traces.class_of.tolist(),
        "tokens_per_step": job.tokens_per_step,
        "model_flops_per_step": model_flops(job),
        "executed_flops_per_step": executed_flops(job),
        "peak_flops_per_gpu": job.device.peak(job.workload.precision.compute),
        "state_bytes_per_gpu": fit.needed,
        "memory_bytes_per_gpu": fit.usable,
        "device": job.device.name,
        "model": job.model.name,
        "parallelism": _summary(job),
        "schedule": f"{job.workload.schedule} with {job.microbatches} microbatch{'es' if job.microbatches > 1 else ''}",
    }


def _summary(job: Job) -> str:
    """The split in words."""
    split = job.parallelism
    words = [f"{axis.upper()} {getattr(split, axis)}" for axis in ("tp", "pp", "dp")]
    return ", ".join([*words, *(["sequence parallel"] if split.sp and split.tp > 1 else [])])


def _notes(job: Job, split: Sequence[int], fit: Fit) -> tuple[str, ...]:
    """The job's notes, and what only the generator knows."""
    notes = list(job.notes)
    if len(split) > 1:
        notes.append(f"layers per stage: {', '.join(map(str, split))}")
    original, held = job.model.parameters(), distinct_parameters(job, split)
    padding = f", {held:,} with the vocabulary padded" if held != original else ""
    notes.append(f"parameters: {original:,}{padding}")
    if fit.fits:
        notes.append(fit.line)
    return tuple(notes)
