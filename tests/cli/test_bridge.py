"""What `replay --backend astra-sim|both` does with options, files and specs, short of the command that calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from commands import Command

from tracegen.cli import bridge, load
from tracegen.cli.bridge import BOTH
from tracegen.proto.errors import InputError, RunError
from tracegen.replay import replay
from tracegen.replay.astra_files import Flags
from tracegen.replay.tables import write_nodes

STAND_IN = Path(__file__).parents[1] / "replay" / "astra_stand_in.py"
SPEC = "gpt3-22b"
OVERRIDES = ("model.layers=2", "parallelism.tp=2", "parallelism.pp=2", "gpus=4", "workload.global_batch=8")


@pytest.fixture
def binary(tmp_path: Path) -> str:
    path = tmp_path / "AstraSim_Analytical_Congestion_Unaware"
    path.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(STAND_IN)!r}, run_name='__main__')\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def job(tracegen: Command, tmp_path: Path) -> Path:
    out = tmp_path / "job"
    answer = tracegen("emit", "--spec", SPEC, *[part for one in OVERRIDES for part in ("--set", one)], "--out", out)
    assert answer.code == 0, answer.err
    return out


def wanted(backend: str, binary: str) -> bridge.Request:
    asked = bridge.request(backend, binary, 60, None, None)
    assert asked is not None
    return asked


def both(asked: bridge.Request, **source: Any) -> tuple[load.Loaded, Any, Any]:
    """Loaded, the simulator's answer and ours, as the command makes them."""
    if source.get("spec"):
        loaded = load.from_spec(source["spec"], source["overrides"], "astra")
    else:
        loaded = load.from_traces(source["traces"], source["files"], "astra")
    assert loaded.traces is not None
    theirs = bridge.play(
        asked, loaded, loaded.traces,
        **{"spec": None, "overrides": (), "traces": None, "files": load.AstraFiles(), "flags": Flags(),
           "unchecked": False, **source},
    )  # fmt: skip
    return loaded, theirs, replay(loaded.traces, loaded.fabric, execution="astra", facts=loaded.facts)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("builtin", "BIN", None, None, None), "--astra-sim goes with"),
        (("builtin", None, 5.0, None, None), "--time-limit goes with"),
        (("astra-sim", None, None, None, None), "--astra-sim BIN"),
        (("both", "BIN", None, "streams", None), "plays execution astra"),
        (("both", "x_Congestion_Aware", None, None, "analytical"), "simulates congestion"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: Any, said: str) -> None:
    with pytest.raises(click.UsageError, match=said):
        bridge.request(*given)


def test_the_network_model_is_asked_for_or_told_by_the_binary() -> None:
    assert bridge.request("builtin", None, None, None, None) is None
    for binary, asked, model in (
        ("x_Aware", None, "congestion"), ("sim", None, "analytical"), ("sim", "congestion", "congestion"),
    ):  # fmt: skip
        found = bridge.request("both", binary, None, None, asked)
        assert found is not None
        assert found.network_model == model
        assert found.assumed == (binary == "sim" and asked is None)


def test_a_spec_is_emitted_and_the_simulator_agrees(binary: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = wanted(BOTH, binary)
    loaded, theirs, ours = both(asked, spec=SPEC, overrides=OVERRIDES)
    document = bridge.document(asked, theirs, ours)
    json.dumps(document, allow_nan=False)
    assert document["backend"] == "both"
    assert document["comparison"]["equal"]
    assert document["comparison"]["nodes"] == loaded.traces.nodes  # type: ignore[union-attr]
    assert document["astra_sim"]["throughput"] == document["throughput"]
    bridge.print_answer(asked, loaded, theirs, ours)
    printed = capsys.readouterr().out
    assert "difference 0" in printed
    assert max(map(len, printed.splitlines()[2:])) <= 120


def test_a_folder_brings_its_own_files(binary: str, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = wanted("astra-sim", binary)
    loaded, theirs, ours = both(asked, traces=str(job), files=load.AstraFiles())
    assert theirs.finish_ns.tolist() == ours.finish_ns.tolist()
    document = bridge.document(asked, theirs, None)
    assert document["backend"] == "astra-sim"
    assert all(row["astra_exposed_ns"] == row["finish_ns"] - row["compute_ns"] for row in document["ranks"])
    bridge.print_answer(asked, loaded, theirs, None)
    printed = capsys.readouterr().out
    assert "execution astra (by AstraSim_Analytical_Congestion_Unaware" in printed
    assert "ASTRA-sim's exposed communication" in printed


def test_a_difference_is_printed_with_its_first_node(
    binary: str, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MODE", "late")
    asked = wanted(BOTH, binary)
    loaded, theirs, ours = both(asked, traces=str(job), files=load.AstraFiles())
    bridge.print_answer(asked, loaded, theirs, ours)
    printed = capsys.readouterr().out
    assert "4 of 4 ranks differ" in printed
    assert "-7" in printed
    assert "first at rank 0 node" in printed


def test_foreign_traces_need_their_network(binary: str, job: Path) -> None:
    files = load.AstraFiles(network=str(job / "network.yml"), system=str(job / "system.json"),
                            comm_group=str(job / "comm_group.json"))  # fmt: skip
    asked = wanted("astra-sim", binary)
    loaded, theirs, ours = both(asked, traces=str(job / SPEC), files=files)
    assert theirs.finish_ns.tolist() == ours.finish_ns.tolist()
    assert loaded.traces is not None
    with pytest.raises(InputError, match="needs --network and --system"):
        bridge.play(
            asked, loaded, loaded.traces, spec=None, overrides=(), traces=str(job / SPEC), files=load.AstraFiles(),
            flags=Flags(), unchecked=False,
        )  # fmt: skip


def asked_of(
    backend: str, binary: str, job: Path, *, unchecked: bool = False, as_json: bool = False
) -> tuple[Any, str]:
    """As the command calls it."""
    loaded = load.from_traces(str(job), load.AstraFiles(), "astra")
    traces = loaded.traces
    assert traces is not None
    handed: list[Any] = []
    failure = bridge.answer(
        wanted(backend, binary), loaded, traces, ours=lambda: replay(traces, loaded.fabric, execution="astra"),
        write=handed.append, spec=None, overrides=(), traces=str(job), files=load.AstraFiles(), flags=Flags(),
        unchecked=unchecked, as_json=as_json,
    )  # fmt: skip
    return handed[0], failure


def test_the_answer_is_printed_and_handed_on(
    binary: str, job: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    capsys.readouterr()
    timeline, failure = asked_of("astra-sim", binary, job, as_json=True)
    assert failure == ""
    assert json.loads(capsys.readouterr().out)["backend"] == "astra-sim"
    rows = write_nodes(timeline, tmp_path / "nodes.csv")
    assert rows == timeline.run.traces.nodes
    timeline, _ = asked_of(BOTH, binary, job, as_json=True)
    assert json.loads(capsys.readouterr().out)["comparison"]["equal"]


def test_an_unfinished_run_fails_and_unchecked_prints_what_there_is(
    binary: str, job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MODE", "partial")
    capsys.readouterr()
    with pytest.raises(RunError, match="rank 3 did not finish"):
        asked_of("astra-sim", binary, job)
    assert capsys.readouterr().out == ""
    _, failure = asked_of("astra-sim", binary, job, unchecked=True, as_json=True)
    assert "rank 3 did not finish" in failure
    assert json.loads(capsys.readouterr().out)["ranks"][3]["finish_ns"] is None
    asked_of(BOTH, binary, job, unchecked=True)
    assert "never" in capsys.readouterr().out
