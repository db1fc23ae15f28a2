"""Predicted against measured: step times and layer times that others published, none of them used to fit anything.

    python benchmarks/validate.py [--data FOLDER] [--explain] [--only TEXT]

Prints a row per measurement with predicted over measured, and fails where a ratio outside 0.75 to 1.33 has no row in
docs/accuracy.md, which names what the model lacks there. ``--explain`` adds, for the rows outside, two figures that
support the names: the ratio if the links ran at what was measured on the nodes of that run, and the ratio if every
operator cost the host at least a launch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from validation_rows import Row, Spec, nanotron, published

from tracegen.build import build
from tracegen.proto.graph import Kind, Phase
from tracegen.replay import Fabric, Timeline, replay
from tracegen.spec import load_job
from tracegen.spec.job import Job

ROOT = Path(__file__).resolve().parent.parent
LOW, HIGH = 0.75, 1.33
LAUNCH_S = 9e-6  # host time of one operator: the default of RAPID-LLM's specs, per kernel launch
PER_LAYER = ("forward", "backward", "combined")


def job_of(spec: Spec) -> Job:
    """The job a row's spec describes."""
    if "catalogue" in spec:
        changes = [f"{key}={json.dumps(value)}" for key, value in spec.get("set", {}).items()]
        return load_job(spec["catalogue"], changes)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.yaml"
        file.write_text(json.dumps(spec), encoding="utf-8")  # JSON is YAML
        return load_job(str(file))


@cache
def _timeline(spec_text: str, links: tuple[tuple[str, float], ...]) -> Timeline:
    """The replayed job, with some links at another bandwidth."""
    job = job_of(json.loads(spec_text))
    network = job.network
    slower = tuple(
        dim.model_copy(update={"bandwidth": min(dim.bandwidth, dict(links).get(dim.name, dim.bandwidth))})
        for dim in network.dimensions
    )
    fabric = Fabric.from_network(network.model_copy(update={"dimensions": slower}))
    return replay(build(job).traces, fabric, execution="streams")


def timeline(row: Row, *, as_measured: bool = False) -> Timeline:
    """The replayed job of a row; ``as_measured`` lowers its links to what was measured there."""
    return _timeline(json.dumps(row.spec), tuple(sorted(row.links.items())) if as_measured else ())


def predict(row: Row, *, as_measured: bool = False) -> float:
    """The row's quantity, in its unit."""
    run = timeline(row, as_measured=as_measured)
    if row.quantity == "step":
        return run.makespan_ns / 1e9
    forward, backward = layer_times_ms(run)
    return {"forward": forward, "backward": backward, "combined": forward + backward}[row.quantity]


def layer_times_ms(replayed: Timeline) -> tuple[float, float]:
    """Forward and backward time of one layer in the middle of rank 0's timeline, collectives included.

    A layer takes from the last end of the layer before it to its own last end, so that what runs between two layers
    counts. Backward counts recompute, input and weight gradients.
    """
    run = replayed.run
    graph = run.traces.graph(0)
    end = run.end_ns[run.nodes_of(0)]
    forward = graph.phase == Phase.F
    backward = (graph.phase >= 0) & ~forward
    middle = int(graph.layer.max()) // 2

    def last(which: np.ndarray, layer: int) -> int:  # type: ignore[type-arg]
        return int(end[which & (graph.layer == layer)].max())

    one_forward = last(forward, middle) - last(forward, middle - 1)
    one_backward = last(backward, middle) - last(backward, middle + 1)
    return one_forward / 1e6, one_backward / 1e6


def host_floor_s(row: Row) -> float:
    """Time the busiest rank's host needs to launch every operator of a step, one after the other."""
    spec = {**row.spec, "workload": {**row.spec["workload"], "granularity": "operator"}}
    traces = build(job_of(spec)).traces
    launches = max(int(np.isin(graph.kind, (Kind.COMP, Kind.COLL)).sum()) for graph in traces.graphs)
    return launches * LAUNCH_S


def rows(data: Path) -> Iterator[Row]:
    """Every row, those of the data folder where it is there."""
    yield from published()
    sweep = data / "nanotron_h100.csv"
    if sweep.is_file():
        yield from nanotron(sweep)
    else:
        print(f"validate: {sweep} is not there, so the nanotron rows are skipped", file=sys.stderr)


def explained(page: Path) -> str:
    """The text of docs/accuracy.md."""
    return page.read_text(encoding="utf-8") if page.is_file() else ""


def line(row: Row, *, explain: bool) -> tuple[str, bool]:
    """A row's line, and whether its ratio lies inside the bounds."""
    predicted = predict(row)
    ratio = predicted / row.measured
    inside = LOW <= ratio <= HIGH
    text = f"{row.id:52}{predicted:9.3g} {row.unit:2}{row.measured:9.3g} {row.unit:2}{ratio:7.2f}"
    if explain and not inside and row.quantity == "step":
        links = f"{predict(row, as_measured=True) / row.measured:7.2f}" if row.links else " " * 7
        host = f"{host_floor_s(row) / row.measured:7.2f}" if "workload" in row.spec else ""
        text += links + host
    return text, inside


def main() -> int:
    """Compare and print; 1 where a ratio outside the bounds is not explained."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="where measured data lies")
    parser.add_argument("--explain", action="store_true", help="two more figures for the rows outside the bounds")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    page = explained(ROOT / "docs" / "accuracy.md")
    print(f"{'row':52}{'predicted':>12}{'measured':>12}{'ratio':>7}" + "  links   host" * arguments.explain)
    within, total, missing = 0, 0, []
    for row in rows(arguments.data):
        if arguments.only not in row.id:
            continue
        text, inside = line(row, explain=arguments.explain)
        print(text, flush=True)
        within, total = within + inside, total + 1
        if not inside and row.id not in page:
            missing.append(row.id)
    print(f"{within} of {total} ratios lie within {LOW} to {HIGH}; docs/accuracy.md names what the others lack")
    for row_id in missing:
        print(f"validate: {row_id} is not explained in docs/accuracy.md", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
