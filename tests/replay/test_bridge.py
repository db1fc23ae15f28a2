"""The bridge tells what ASTRA-sim says, whatever its exit code says, and leaves nothing of it behind.

The simulator is a stand-in that speaks its command line and lines (`astra_stand_in.py`); its times are our own engine's
or those recorded from the real one in ``../shared/golden``.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToJson
from handmade import coll, comp, recv, send
from handmade import traces as made

from tracegen.proto.encode import write_rank
from tracegen.proto.errors import InputError, RunError
from tracegen.proto.graph import TraceSet
from tracegen.proto.schema import GlobalMetadata, Node
from tracegen.replay import Fabric, Mode, Timeline, replay
from tracegen.replay.bridge.compare import compare
from tracegen.replay.bridge.simulator import BridgeResult, network_model_of, run_astra_sim
from tracegen.replay.bridge.timeline import BridgeTimeline, FinishTimes, bridge_timeline
from tracegen.replay.fabric import read_network, read_system

STAND_IN = Path(__file__).with_name("astra_stand_in.py")
NETWORK = "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 100.0 ]\nlatency: [ 500.0 ]\n"
SYSTEM: dict[str, Any] = {
    "scheduling-policy": "FIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1, "preferred-dataset-splits": 1,
    "all-reduce-implementation": ["ring"], "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"], "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware", "local-mem-bw": 1600, "roofline-enabled": 0,
}  # fmt: skip
NODES = [6, 6, 3, 3]


def job() -> TraceSet:
    """Four ranks: unequal compute, a global all-reduce, a message 0 to 1 and an all-gather of those two."""
    ranks = []
    for rank in range(4):
        nodes = [comp(0, 5000 * (rank + 1)), coll(1, 0, deps=[0]), comp(2, 3000, deps=[1])]
        if rank == 0:
            nodes += [send(3, 1, tag=9, deps=[2]), coll(4, 1, "ALL_GATHER", deps=[3]), comp(5, 1000, deps=[4])]
        if rank == 1:
            nodes += [recv(3, 0, tag=9), coll(4, 1, "ALL_GATHER", deps=[2, 3]), comp(5, 1000, deps=[4])]
        ranks.append(nodes)
    return made(ranks, {1: [0, 1]})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job's traces and ASTRA-sim's inputs, in a folder whose name would switch groups off."""
    folder = tmp_path_factory.mktemp("empty")
    traces = job()
    for rank in range(4):
        with (folder / f"job.{rank}.et").open("wb") as file:
            write_rank(file, traces, rank)
    (folder / "network.yml").write_text(NETWORK)
    (folder / "system.json").write_text(json.dumps(SYSTEM))
    (folder / "comm_group.json").write_text('{"1": [0, 1]}')
    return folder


@pytest.fixture(scope="module")
def fabric(files: Path) -> Fabric:
    return Fabric.from_astra(read_network(files / "network.yml"), read_system(files / "system.json"))


@pytest.fixture(scope="module")
def ours(fabric: Fabric) -> Timeline:
    return replay(job(), fabric, execution="astra", fold=False)


@pytest.fixture(scope="module")
def times(ours: Timeline, files: Path) -> Path:
    """Our answer as the table that the stand-in plays."""
    run, table = ours.run, {"finish": {}, "nodes": {}, "gpu": {}}  # type: ignore[var-annotated]
    for rank in range(4):
        nodes = run.nodes_of(rank)
        spans = zip(run.traces.graph(rank).id.tolist(), run.issue_ns[nodes].tolist(), run.end_ns[nodes].tolist(),
                    strict=True)  # fmt: skip
        table["nodes"][str(rank)] = {str(node): [start, end] for node, start, end in spans}
        table["finish"][str(rank)] = int(ours.finish_ns[rank])
        table["gpu"][str(rank)] = int(ours.parts.compute_ns[rank])
    path = files / "times.json"
    path.write_text(json.dumps(table))
    return path


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """The stand-in as an executable of the name that ASTRA-sim's build gives."""
    path = tmp_path / "AstraSim_Analytical_Congestion_Unaware"
    path.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(STAND_IN)!r}, run_name='__main__')\n")
    path.chmod(0o755)
    return path


Play = Callable[..., BridgeResult]


@pytest.fixture
def play(binary: Path, files: Path, times: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Run the stand-in in a mode; what it saw of itself lies in seen.json."""

    def run(mode: str = "good", *, prefix: Path | None = None, env: dict[str, str] | None = None, **more: Any) -> Any:
        told = {"STAND_IN_MODE": mode, "STAND_IN_TIMES": str(times), "STAND_IN_SEEN": str(tmp_path / "seen.json")}
        for name, value in {**told, **(env or {})}.items():
            monkeypatch.setenv(name, value)
        more = {"ranks": 4, "nodes": np.array(NODES), "time_limit_s": 30, **more}
        return run_astra_sim(
            binary, prefix or files / "job", files / "network.yml", files / "system.json", None,
            files / "comm_group.json", **more,
        )  # fmt: skip

    return run


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, within_s: float = 5) -> bool:
    until = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def one_line(caught: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_simulators_answer_is_a_timeline_of_ours(play: Play, ours: Timeline, fabric: Fabric) -> None:
    steps: list[tuple[int, int]] = []
    theirs = bridge_timeline(play(progress=lambda done, of: steps.append((done, of))), job(), fabric, None)
    assert isinstance(theirs, BridgeTimeline)
    assert steps[-1] == (4, 4)
    found = compare(ours, theirs)
    assert found.equal
    assert found.nodes == sum(NODES)
    told, mine = theirs.document("replay"), ours.document("replay")
    assert told["backend"] == "astra-sim"
    for row in told["ranks"]:
        # DEFINITIONS 10: finish minus compute, for a job without CPU nodes.
        assert row.pop("astra_exposed_ns") == row["finish_ns"] - row["compute_ns"]
    for key in ("makespan_ns", "execution", "ranks", "dimensions"):
        assert told[key] == mine[key], key


def test_what_the_log_does_not_say_follows_from_it(play: Play, ours: Timeline, fabric: Fabric) -> None:
    """Readiness, queueing, first movement and the late rank are those of the engine the log came from."""
    theirs = bridge_timeline(play(), job(), fabric, None)
    assert isinstance(theirs, BridgeTimeline)
    for column in ("ready_ns", "issue_ns", "transfer_ns", "end_ns", "ahead", "late_rank"):
        assert getattr(theirs.run, column).tolist() == getattr(ours.run, column).tolist(), column


def test_an_engine_outside_says_the_same_as_the_one_inside(play: Play, ours: Timeline, fabric: Fabric) -> None:
    """The stand-in reads the very files it was given, group file in a folder called "empty" included."""
    result = play(env={"STAND_IN_TIMES": ""})
    assert compare(ours, bridge_timeline(result, job(), fabric, None)).equal


def test_exit_0_with_a_rank_unfinished_fails_and_names_it(play: Play, fabric: Fabric) -> None:
    with pytest.raises(RunError) as caught:
        play("partial")
    assert "exited with 0 although rank 3 did not finish (3 of 4 did)" in one_line(caught)
    assert "stuck: rank 3 in node 2" in str(caught.value)
    result = play("partial", unchecked=True)
    assert result.finish_ns[3] == -1
    theirs = bridge_timeline(result, job(), fabric, None)
    assert not theirs.finished
    assert theirs.document("replay")["ranks"][3]["finish_ns"] is None


def test_a_crash_behind_the_last_rank_is_no_failure(play: Play) -> None:
    result = play("crash")
    assert result.exit_code == 134
    assert (result.finish_ns > 0).all()
    assert "died of SIGABRT (exit code 134), while cleaning up" in result.notes[0]


def test_a_finished_line_lost_in_a_crash_is_read_from_the_log(play: Play, ours: Timeline, fabric: Fabric) -> None:
    result = play("lost")
    assert result.finish_ns.tolist() == ours.finish_ns.tolist()
    document = bridge_timeline(result, job(), fabric, None).document("replay")
    assert document["ranks"][3]["astra_exposed_ns"] is None
    with pytest.raises(RunError, match="died of SIGABRT"):
        play("lost", nodes=None)


def test_a_rank_that_says_finished_with_nodes_left_fails(play: Play) -> None:
    with pytest.raises(RunError) as caught:
        play("cycle")
    assert "says that rank 0 finished, but not all of their nodes ran" in one_line(caught)


def test_what_it_said_last_is_in_the_message(play: Play) -> None:
    with pytest.raises(RunError) as caught:
        play("silent")
    assert "exited with 1: ranks 0-3 did not finish (0 of 4 did)" in one_line(caught)
    assert "communicator group 7 not found" in str(caught.value)


@pytest.mark.parametrize("mode", ["hang", "stubborn"])
def test_a_hang_ends_at_the_time_limit_and_leaves_no_process(play: Play, tmp_path: Path, mode: str) -> None:
    with pytest.raises(RunError) as caught:
        play(mode, time_limit_s=1)
    assert "stopped after 1 s, the --time-limit: ranks 1-3 did not finish (1 of 4 did)" in one_line(caught)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert gone(seen["pid"])
    assert gone(seen["child"])
    assert not Path(seen["folder"]).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_simulator_dies_with_us(binary: Path, files: Path, tmp_path: Path, number: signal.Signals) -> None:
    seen = tmp_path / "seen.json"
    code = (
        "from tracegen.replay.bridge.simulator import run_astra_sim\n"
        f"run_astra_sim({str(binary)!r}, {str(files / 'job')!r}, {str(files / 'network.yml')!r}, "
        f"{str(files / 'system.json')!r}, None, None, ranks=4)"
    )
    env = {**os.environ, "STAND_IN_MODE": "hang", "STAND_IN_SEEN": str(seen)}
    us = subprocess.Popen([sys.executable, "-c", code], env=env, cwd=tmp_path, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while not seen.exists() and time.monotonic() < until:
        time.sleep(0.02)
    about = json.loads(seen.read_text())
    us.send_signal(number)
    assert us.wait(20) != 0
    assert gone(about["pid"])
    if number == signal.SIGKILL:  # the kernel ends the simulator alone: ASTRA-sim starts nothing of its own
        os.kill(about["child"], signal.SIGKILL)
        shutil.rmtree(about["folder"])
    else:
        assert gone(about["child"])
        assert not Path(about["folder"]).exists()


def test_garbage_between_the_lines_is_passed_over(play: Play, ours: Timeline) -> None:
    result = play("garbage")
    assert result.finish_ns.tolist() == ours.finish_ns.tolist()
    assert "rank 999, which the network does not have" in result.notes[0]


def test_a_flood_of_output_is_read_as_it_comes(play: Play, ours: Timeline) -> None:
    result = play(env={"STAND_IN_NOISE": str(30 << 20)})
    assert result.finish_ns.tolist() == ours.finish_ns.tolist()


def test_a_rotated_log_is_whole(play: Play, ours: Timeline, fabric: Fabric) -> None:
    """36 lines of 700 kB: two rotations at 10 MB."""
    theirs = bridge_timeline(play(env={"STAND_IN_PADDING": "700000"}), job(), fabric, None)
    assert isinstance(theirs, BridgeTimeline)
    assert compare(ours, theirs).equal


def test_without_a_node_log_only_ends_are_told(play: Play, ours: Timeline, fabric: Fabric) -> None:
    theirs = bridge_timeline(play(node_log=False), job(), fabric, None, Mode(congestion=True))
    assert isinstance(theirs, FinishTimes)
    told, mine = theirs.document("replay"), ours.document("replay")
    assert told.keys() - mine.keys() <= {"backend"}
    assert mine.keys() <= told.keys()
    assert told["makespan_ns"] == mine["makespan_ns"]
    assert told["network_model"] == "congestion"
    assert told["ranks"][0]["compute_ns"] is None
    assert told["dimensions"] is None
    found = compare(ours, theirs)
    assert found.equal
    assert found.nodes == 0


def test_a_difference_is_told_by_its_earliest_node(play: Play, ours: Timeline, fabric: Fabric) -> None:
    """The stand-in adds 7 ns to everything but starts at 0: the nodes at 0 differ first, by their ends."""
    found = compare(ours, bridge_timeline(play("late"), job(), fabric, None))
    assert not found.equal
    assert found.makespan.difference_ns == -7
    assert found.makespan.difference_percent == pytest.approx(-700 / (ours.makespan_ns + 7))
    assert [row.difference_ns for row in found.ranks] == [-7] * 4
    assert found.first is not None
    assert (found.first.rank, found.first.node) == (0, 0)
    assert (found.first.builtin_ns, found.first.astra_sim_ns) == ((0, 5000), (0, 5007))
    json.dumps(found.document(), allow_nan=False)


def test_its_command_line_and_a_private_folder(play: Play, files: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in files.iterdir() if path.is_file()}
    play(flags={"num-queues-per-dim": 2, "rendezvous-protocol": True})
    seen = json.loads((tmp_path / "seen.json").read_text())
    given = seen["arguments"]
    assert given["num-queues-per-dim"] == "2"
    assert given["rendezvous-protocol"] == "true"
    # ASTRA-sim takes any path that contains "empty" for "no groups"; the files lie in such a folder.
    assert "empty" in str(files)
    assert "empty" not in given["comm-group-configuration"]
    assert not Path(seen["folder"]).exists()
    assert Path(seen["folder"]).parent == Path(tempfile.gettempdir())
    assert {path: path.read_bytes() for path in files.iterdir() if path.is_file()} == before


def test_traces_that_it_could_not_open_are_copied(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, what: what != os.W_OK and may(path, what))  # root may write anything
    assert "4 traces are read-only and were copied" in play().notes[0]


def test_gzip_traces_and_json_dumps_are_handed_over_plain(
    play: Play, ours: Timeline, files: Path, tmp_path: Path
) -> None:
    for rank in range(4):
        (tmp_path / f"packed.{rank}.et.gz").write_bytes(gzip.compress((files / f"job.{rank}.et").read_bytes()))
        (tmp_path / f"dump.{rank}.json").write_text(as_json((files / f"job.{rank}.et").read_bytes()))
    for prefix in ("packed", "dump"):
        result = play(prefix=tmp_path / prefix, env={"STAND_IN_TIMES": ""})
        assert result.finish_ns.tolist() == ours.finish_ns.tolist()
        assert "4 traces are gzip or JSON" in result.notes[0]


def as_json(trace: bytes) -> str:
    """A trace as Chakra's jsonizer dumps it: the head, then the nodes, one object after the other."""
    out, at, kind = [], 0, GlobalMetadata
    while at < len(trace):
        size = shift = 0
        while True:
            byte = trace[at]
            size, shift, at = size | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                break
        out.append(MessageToJson(kind.FromString(trace[at : at + size])))
        at, kind = at + size, Node
    return "\n".join(out)


def test_what_cannot_be_run_is_refused_in_one_line(files: Path, tmp_path: Path) -> None:
    plain, broken = tmp_path / "plain", tmp_path / "broken"
    plain.write_text("x")
    broken.write_bytes(b"\x7fNOTELF")
    broken.chmod(0o755)
    for binary, why in (
        (tmp_path / "none", "there is no such file"),
        (tmp_path, "this is a folder"),
        (plain, "not executable"),
        (broken, "cannot be run (Exec format error)"),
    ):
        with pytest.raises(InputError) as caught:
            run_astra_sim(binary, files / "job", files / "network.yml", files / "system.json", None, None, ranks=4)
        assert why in one_line(caught)


def test_one_rank_and_missing_files_are_refused(play: Play, binary: Path, files: Path) -> None:
    with pytest.raises(InputError, match="two ranks or more, and this job has 1"):
        play(ranks=1)
    with pytest.raises(InputError, match="missing"):
        play(ranks=8)
    with pytest.raises(InputError, match=r"nowhere\.yml: cannot be read"):
        run_astra_sim(binary, files / "job", files / "nowhere.yml", files / "system.json", None, None, ranks=4)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("AstraSim_Analytical_Congestion_Unaware", "analytical"),
        ("AstraSim_Analytical_Congestion_Aware", "congestion"),
        ("sim", None),
    ],
)
def test_the_binarys_name_tells_its_network(name: str, model: str | None) -> None:
    assert network_model_of(f"/opt/aware/{name}") == model
