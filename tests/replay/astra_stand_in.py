#!/usr/bin/env python3
"""A program that speaks ASTRA-sim's command line, log folder and output lines, for tests of the bridge.

Its times come from tracegen's own `astra` engine, or from a table, so that both sides can be made equal or not. How it
behaves is told by the environment:

STAND_IN_MODE
    ``good`` (default); ``partial``: exits 0, the last rank never finishes; ``crash``: all finish, then SIGABRT;
    ``lost``: like crash, the last rank's finished line lost; ``silent``: exits 1 with a message; ``hang``: sleeps for
    ever, with a child; ``stubborn``: hangs and ignores SIGTERM; ``garbage``: prints bytes that are no text between
    the lines; ``cycle``: all finish, the last node of rank 0 never ran; ``late``: every time plus 7 ns.
STAND_IN_TIMES : JSON file {"finish": {rank: ns}, "nodes": {rank: {id: [start, end or null]}}} instead of the engine.
STAND_IN_NOISE : bytes of further output lines.
STAND_IN_PADDING : bytes added to each node's name in the log, to make it rotate.
STAND_IN_SEEN : file that receives its arguments, working folder and process ids, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROTATE_BYTES, OLDER = 10 << 20, 10
MODE = os.environ.get("STAND_IN_MODE", "good")
Times = dict[str, Any]


def arguments() -> dict[str, str]:
    """``--key=value`` as ASTRA-sim reads them; unknown ones are ignored there, and here kept."""
    return dict(text.removeprefix("--").split("=", 1) for text in sys.argv[1:])


class Log:
    """``log.log`` and its rotated files, as spdlog's rotating sink writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.written, self.limit = folder, 0, ROTATE_BYTES
        self.file = (folder / "log.log").open("ab")

    def line(self, text: str) -> None:
        data = f"[2026-01-01T00:00:00+0000] [D] <workload>: {text}\n".encode()
        if self.written + len(data) > self.limit:
            self.rotate()
        self.file.write(data)
        self.written += len(data)

    def rotate(self) -> None:
        self.file.close()
        names = ["log.log", *[f"log.{number}.log" for number in range(1, OLDER + 1)]]
        (self.folder / names[-1]).unlink(missing_ok=True)
        for old, new in reversed(list(pairwise(names))):
            if (self.folder / old).exists():
                (self.folder / old).rename(self.folder / new)
        self.file, self.written = (self.folder / "log.log").open("wb"), 0


def engine_times(given: dict[str, str]) -> Times:
    """What tracegen's own engine says of the same files."""
    from tracegen.proto.files import read_groups, read_traces
    from tracegen.replay.engine import run
    from tracegen.replay.fabric import Fabric, read_network, read_system

    fabric = Fabric.from_astra(
        read_network(given["network-configuration"]),
        read_system(given["system-configuration"]),
        queues=int(given.get("num-queues-per-dim", 1)),
    )
    groups = given.get("comm-group-configuration", "empty")
    traces = read_traces(given["workload-configuration"], groups=None if "empty" in groups else read_groups(groups))
    done = run(traces, fabric, execution="astra", fold=False)
    out: Times = {"finish": {}, "nodes": {}, "gpu": {}}
    for rank in range(traces.ranks):
        graph, nodes = traces.graph(rank), done.nodes_of(rank)
        issue, end = done.issue_ns[nodes].tolist(), done.end_ns[nodes].tolist()
        spans = zip(graph.id.tolist(), issue, end, strict=True)
        out["nodes"][str(rank)] = {str(n): [a, b if b >= 0 else None] for n, a, b in spans if a >= 0}
        if all(b >= 0 for b in end):
            out["finish"][str(rank)] = max(end)
        compute = (graph.kind == 4) & ~graph.cpu
        out["gpu"][str(rank)] = int((done.end_ns[nodes] - done.issue_ns[nodes])[compute].sum())
    return out


def main() -> None:
    given = arguments()
    seen = {"arguments": given, "folder": os.getcwd(), "pid": os.getpid()}
    for rank_file in sorted(Path.cwd().glob(f"{given['workload-configuration']}.*.et")):
        rank_file.open("r+b").close()  # ASTRA-sim opens traces for appending: a read-only one is refused
    if MODE in ("hang", "stubborn"):
        if MODE == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        seen["child"] = child.pid
    if "STAND_IN_SEEN" in os.environ:
        target = Path(os.environ["STAND_IN_SEEN"])
        target.with_suffix(".part").write_text(json.dumps(seen))
        target.with_suffix(".part").rename(target)
    if MODE == "silent":
        print("[critical] communicator group 7 not found", flush=True)
        sys.exit(1)
    if MODE in ("hang", "stubborn"):
        print("sys[0] finished, 10 cycles, exposed communication 0 cycles.", flush=True)
        time.sleep(600)
    source = os.environ.get("STAND_IN_TIMES")
    play(json.loads(Path(source).read_text()) if source else engine_times(given), given)


def play(times: Times, given: dict[str, str]) -> None:
    """Log the nodes, print the finished lines, end as told."""
    late = 7 if MODE == "late" else 0
    log = Log(Path(given["logging-folder"]))
    system = json.loads(Path(given["system-configuration"]).read_text())
    if system.get("trace-enabled") == 1:
        write_nodes(log, times["nodes"], late)
    log.file.close()
    noise = b"[2026-01-01T00:00:00+0000] [I] <statistics>: sys[0], Wall time: 1\n"
    for _ in range(int(os.environ.get("STAND_IN_NOISE", 0)) // len(noise)):
        sys.stdout.buffer.write(noise)
    ranks = sorted(times["finish"], key=int)
    for rank in ranks[:-1] if MODE in ("partial", "lost") else ranks:
        if MODE == "garbage":
            sys.stdout.buffer.write(
                b"\xff\x00\xfe sys[x] finished, cycles\nsys[999] finished, 1 cycles, exposed \n" * 50
            )
            sys.stdout.buffer.write(b"sys[999] finished, 5 cycles, exposed communication 5 cycles.\n")
        tick = times["finish"][rank] + late
        exposed = (tick - times.get("gpu", {}).get(rank, 0)) % (1 << 64)
        line = f"[I] <workload>: sys[{rank}] finished, {tick} cycles, exposed communication {exposed} cycles.\n"
        sys.stdout.buffer.write(line.encode())
    sys.stdout.flush()
    if MODE in ("crash", "lost"):
        sys.stdout.buffer.write(b"double free or corruption (!prev)\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGABRT)


def write_nodes(log: Log, nodes: dict[str, dict[str, list[int | None]]], late: int) -> None:
    """A line per start and end; like the real one, a rank's lines come in its own order only."""
    padding = "n" * int(os.environ.get("STAND_IN_PADDING", 0))
    for rank, of_rank in nodes.items():
        for place, (node, (start, end)) in enumerate(of_rank.items()):
            if MODE == "cycle" and rank == "0" and place == len(of_rank) - 1:
                continue
            hung = MODE == "partial" and rank == max(nodes, key=int) and place == len(of_rank) - 1
            rest = f"node->id={node}, node->name=a,b=>: callback,{padding}, node->type=4"
            log.line(f"issue,sys->id={rank}, tick={start + (late if start else 0)}, {rest}")
            if end is not None and not hung:
                log.line(f"callback,sys->id={rank}, tick={end + late}, {rest}")


if __name__ == "__main__":
    main()
