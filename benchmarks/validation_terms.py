"""How far three things the model lacks go towards a measured nanotron step. Explains rows; the product uses none of it.

The three, each on top of those before it:

* **links**: every network dimension at the all-gather bandwidth measured on the nodes of that very run;
* **apart**: no data-parallel collective hidden behind the backward pass;
* **host**: a layer's forward and backward pass of one microbatch takes at least what it took in the fastest tenth of
  all successful runs of the sweep with that tp on the usual nodes. That time does not depend on the layer's size (with
  tp 8, four runs in five lie between 23 and 32 ms while the work varies 30-fold), so it is not the device's.

The sweep has three kinds of nodes, told apart by the all-reduce bandwidth measured inside them: about 425 GB/s (the
usual ones), about 460 (16 runs, without that fixed time) and about 45 (10 runs, NVLink out of use).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracegen.proto.graph import Kind
from tracegen.replay import Timeline

FASTEST = 0.1  # the share of runs taken to show a fixed time, fastest first
USUAL = (400.0, 440.0)  # GB/s of an all-reduce inside the usual nodes


@dataclass(frozen=True)
class Terms:
    """Step times in s with one term after the other."""

    links: float
    apart: float
    host: float


def terms(replayed: Timeline, calls: int, fixed_s: float) -> Terms:
    """The step with what the model lacks.

    Parameters
    ----------
    replayed : the job over links as measured.
    calls : layers times microbatches that a stage works through, one after the other, pipeline fill included.
    fixed_s : what each takes at least.
    """
    links = replayed.makespan_ns / 1e9
    whole, exposed = data_parallel_s(replayed)
    apart = links + whole - exposed
    return Terms(links, apart, max(apart, calls * fixed_s + whole))


def data_parallel_s(replayed: Timeline) -> tuple[float, float]:
    """Time of the data-parallel collectives of a rank, all and exposed, s; the rank with most of them."""
    run, parts = replayed.run, replayed.parts
    if "dp" not in parts.labels:
        return 0.0, 0.0
    whole = []
    for rank in run.representative.tolist():
        graph, slots = run.traces.graph(rank), run.traces.slots[rank]
        joins = np.flatnonzero(graph.kind == Kind.COLL)
        over_dp = np.array(run.traces.groups.label)[slots[graph.slot[joins]]] == "dp"
        whole.append(int(run.duration_ns[run.nodes_of(rank)][joins[over_dp]].sum()))
    most = int(np.argmax(whole))
    exposed = parts.exposed_ns[run.representative[most], parts.labels.index("dp")]
    return whole[most] / 1e9, int(exposed) / 1e9


def calls(run: Mapping[str, str]) -> int:
    """Layers times microbatches on the critical path of a row of the sweep: (m + pp - 1) layers / pp."""
    stages = int(run["pp"])
    return (int(float(run["batch_accum"])) + stages - 1) * int(run["num_layers"]) // stages


def step_s(run: Mapping[str, str]) -> float:
    """Measured step time of a row of the sweep."""
    gpus = int(run["dp"]) * int(run["tp"]) * int(run["pp"])
    return float(run["gbs"]) * float(run["seq_len"]) / (float(run["tok/s/gpu"]) * gpus)


def usual(run: Mapping[str, str]) -> bool:
    """Whether a row of the sweep ran on the usual nodes."""
    return USUAL[0] < float(run["AR Intra-node (GB/s)"] or 0) < USUAL[1]


def fixed_times_s(file: Path) -> dict[int, float]:
    """By tp, the time per layer and microbatch that a tenth of the runs on usual nodes beat; 0 without tp."""
    by_tp: dict[int, list[float]] = defaultdict(list)
    with open(file, newline="", encoding="utf-8") as text:
        for run in csv.DictReader(text):
            if run["status"] == "Success" and usual(run):
                by_tp[int(run["tp"])].append(step_s(run) / calls(run))
    return {tp: float(np.quantile(times, FASTEST)) if tp > 1 else 0.0 for tp, times in by_tp.items()}
