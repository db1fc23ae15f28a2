"""Predicted against measured: step times and layer times that others published, none of them used to fit anything.

    python benchmarks/validate.py [--data FOLDER] [--explain] [--only TEXT]

Prints a row per measurement with predicted over measured, and fails where docs/accuracy.md has other figures, or does
not say of a ratio outside 0.75 to 1.33 what the model lacks. ``--explain`` adds, for the nanotron rows, the ratio with
one term after the other that `validation_terms` adds to the prediction.
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
from numpy.typing import NDArray
from validation_rows import Row, Spec, nanotron, published
from validation_terms import fixed_times_s, terms

from tracegen.build import build
from tracegen.proto.graph import Phase
from tracegen.replay import Fabric, Facts, Timeline, replay
from tracegen.spec import load_job
from tracegen.spec.job import Job

ROOT = Path(__file__).resolve().parent.parent
SWEEP = "nanotron_h100.csv"
LOW, HIGH = 0.75, 1.33


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
    made = build(job)
    return replay(made.traces, fabric, execution="streams", facts=Facts.from_manifest(made.manifest))


def timeline(row: Row, *, as_measured: bool = False) -> Timeline:
    """The replayed job of a row; ``as_measured`` lowers its links to what was measured there."""
    return _timeline(json.dumps(row.spec), tuple(sorted(row.links.items())) if as_measured else ())


def predict(row: Row) -> float:
    """The row's quantity, in its unit."""
    run = timeline(row)
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

    def last(which: NDArray[np.bool_], layer: int) -> int:
        return int(end[which & (graph.layer == layer)].max())

    one_forward = last(forward, middle) - last(forward, middle - 1)
    one_backward = last(backward, middle) - last(backward, middle + 1)
    return one_forward / 1e6, one_backward / 1e6


def rows(data: Path) -> Iterator[Row]:
    """Every row, those of the data folder where it is there."""
    yield from published()
    sweep = data / SWEEP
    if sweep.is_file():
        yield from nanotron(sweep)
    else:
        print(f"validate: {sweep} is not there, so the nanotron rows are skipped", file=sys.stderr)


def explanation(row: Row, fixed_s: dict[int, float]) -> list[str]:
    """The ratios with links as measured, dp apart, and a fixed host time, one added to the other."""
    if not row.links:
        return []
    split = row.spec["parallelism"]
    added = terms(timeline(row, as_measured=True), row.calls, fixed_s[split["tp"]])
    return [f"{value / row.measured:.2f}" for value in (added.links, added.apart, added.host)]


def told(page: str) -> dict[str, tuple[list[str], str]]:
    """What docs/accuracy.md has: by row its figures (predicted, measured, ratio) and its last cell, the reason."""
    found = {}
    for text in page.splitlines():
        cells = [cell.strip() for cell in text.strip("| ").split("|")]
        if text.startswith("|") and len(cells) > 4:
            found[cells[0]] = (cells[1:4], cells[-1])
    return found


def complaint(row: Row, figures: list[str], page: dict[str, tuple[list[str], str]]) -> str:
    """What is wrong with the page's account of a row, or nothing."""
    written, why = page.get(row.id, ([], ""))
    if written != figures:
        return f"{row.id} is {', '.join(figures)}, but docs/accuracy.md has {', '.join(written) or 'nothing'}"
    if not LOW <= float(figures[2]) <= HIGH and len(why.split()) < 2:
        return f"{row.id}: docs/accuracy.md does not say what the model lacks"
    return ""


def main() -> int:
    """Compare and print; 1 where docs/accuracy.md has other figures or leaves a ratio out of bounds unexplained."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="where measured data lies")
    parser.add_argument("--explain", action="store_true", help="add the terms that the model lacks, one by one")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    page = told((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8"))
    fixed_s = fixed_times_s(arguments.data / SWEEP) if arguments.explain else {}
    extra = ["links", "apart", "host"] * arguments.explain
    print_row(["row", "predicted", "measured", "ratio", *extra])
    within, total, wrong = 0, 0, []
    for row in rows(arguments.data):
        if arguments.only not in row.id:
            continue
        predicted = predict(row)
        ratio = f"{predicted / row.measured:.2f}"
        figures = [f"{predicted:#.3g} {row.unit}", f"{row.measured:#.3g} {row.unit}", ratio]
        print_row([row.id, *figures, *(explanation(row, fixed_s) if arguments.explain else [])])
        within, total = within + (LOW <= float(ratio) <= HIGH), total + 1
        wrong.append(complaint(row, figures, page))
    print(f"{within} of {total} ratios lie within {LOW} to {HIGH}; for the others see docs/accuracy.md")
    for text in filter(None, wrong):
        print(f"validate: {text}", file=sys.stderr)
    return 1 if any(wrong) else 0


def print_row(cells: list[str]) -> None:
    """A line that is also a row of a Markdown table."""
    figures = (f"{cell:>9}" for cell in cells[1:])
    print(f"| {cells[0]:46} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
