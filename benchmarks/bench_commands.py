"""Whole commands, timed from outside as a user waits for them, beside the bare interpreter on the same machine.

Rows are (name, figure, unit, ratio, against what).
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

Row = tuple[str, float, str, float, str]

TRACEGEN = [sys.executable, "-c", "from tracegen.cli import main; main()"]
BARE = [sys.executable, "-c", "import numpy, numba"]


def wall_s(command: list[str], runs: int = 5) -> float:
    """Median wall seconds of a command after one warm-up."""
    times = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def peak_bytes(command: list[str]) -> int:
    """Largest resident set of a command, asked of the kernel in a process of its own."""
    probe = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    printed = subprocess.run([sys.executable, "-c", probe, *command], check=True, capture_output=True, text=True).stdout
    return int(printed.split()[-1]) * 1024


def rows() -> list[Row]:
    """Every command figure of the project's targets."""
    found: list[Row] = []
    bare = wall_s(BARE)
    for name, arguments in (
        ("tracegen --help", ["--help"]),
        ("tracegen replay --help", ["replay", "--help"]),
        ("replay --spec llama3-70b.yaml, as a command", ["replay", "--spec", "llama3-70b.yaml"]),
    ):
        took = wall_s([*TRACEGEN, *arguments])
        found.append((name, took, "s", took / bare, "python importing numpy and numba"))
    found.append(warm_replay(bare))
    found.extend(emit_memory())
    return found


def warm_replay(bare: float) -> Row:
    """`replay --spec llama3-70b.yaml` in a process that has run it once."""
    from tracegen.cli.load import from_spec
    from tracegen.replay import replay

    times = []
    for _ in range(6):
        began = time.perf_counter()
        loaded = from_spec("llama3-70b.yaml", (), None)
        replay(loaded.traces, loaded.fabric, execution=loaded.execution, facts=loaded.facts).document("replay")
        times.append(time.perf_counter() - began)
    took = statistics.median(times[1:])
    return ("replay --spec llama3-70b.yaml, warm process", took, "s", took / bare, "python importing numpy and numba")


def emit_memory() -> list[Row]:
    """Peak memory of `emit` for 1,024 ranks of llama3-405b at block granularity, and its growth with ranks."""
    peaks = {}
    for ranks in ("0-255", "0-1023"):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            command = [*TRACEGEN, "emit", "--spec", "llama3-405b.yaml", "--set", "workload.granularity=block"]
            began = time.perf_counter()
            peaks[ranks] = peak_bytes([*command, "--out", str(out), "--ranks", ranks])
            took = time.perf_counter() - began
    return [
        ("emit llama3-405b, block, 1,024 ranks: peak memory", peaks["0-1023"] / 2**30, "GiB",
         peaks["0-1023"] / peaks["0-255"], "256 of its ranks"),
        ("emit llama3-405b, block, 1,024 ranks: wall", took, "s", took, "1 s"),
    ]  # fmt: skip


if __name__ == "__main__":
    for row in rows():
        print(row)
    print("peak of this process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30, "GiB")
