"""`make bench`: every speed and memory figure, each with its ratio to a baseline run beside it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import bench_astra
import bench_commands
import bench_engine
import bench_proto


def main() -> None:
    """Run every benchmark and print one table."""
    from tracegen.cli import show

    found = [row for module in (bench_proto, bench_engine, bench_astra, bench_commands) for row in module.rows()]
    show.table(
        ("what", "figure", "ratio", "to"),
        [
            (name, f"{show.figure(value)} {unit}", f"{show.figure(ratio)} x", against)
            for name, value, unit, ratio, against in found
        ],
    )


if __name__ == "__main__":
    main()
