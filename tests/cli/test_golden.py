"""ASTRA-sim's results, to the nanosecond, as a user gets them: its input files through the command line.

All rows and graphs of ``../shared/golden`` (made with the real simulator; see the README there). Tolerance: none.
"""

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import Answer, Command
from shared import SHARED, needs_shared

pytestmark = [needs_shared, pytest.mark.verify]
GOLDEN = SHARED / "golden"
MODEL = {"unaware": "analytical", "aware": "congestion"}


@pytest.fixture(scope="module")
def golden_inputs() -> ModuleType:
    """The tool that writes a row's input files."""
    spec = importlib.util.spec_from_file_location("golden_inputs", SHARED / "tools" / "golden_inputs.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def replayed(tracegen: Command, folder: Path, backend: str, *more: object) -> Answer:
    """`tracegen replay` of a folder in ASTRA-sim's form."""
    files: list[object] = ["--network", folder / "network.yml", "--system", folder / "system.json"]
    for flag, name in (("--memory", "memory.json"), ("--comm-group", "comm_group.json")):
        if (folder / name).is_file():
            files += [flag, folder / name]
    return tracegen("replay", "--traces", folder / "trace", *files, "--network-model", MODEL[backend], "--json", *more)


def finishes(answer: Answer) -> dict[int, int | None]:
    """When each rank finished, of a JSON document."""
    return {row["rank"]: row["finish_ns"] for row in json.loads(answer.out)["ranks"]}


def flags_of(case: dict[str, Any]) -> list[object]:
    """Flags of a case as `tracegen replay` spells them."""
    given: list[object] = []
    if case["num_queues_per_dim"] != 1:
        given += ["--num-queues-per-dim", case["num_queues_per_dim"]]
    for flag in case["flags"].split():
        name, _, value = flag.partition("=")
        assert (name, value) == ("--rendezvous-protocol", "true")
        given.append(name)
    return given


def rows(table: str) -> list[dict[str, str]]:
    """A golden table."""
    with (GOLDEN / f"golden_{table}.csv").open() as file:
        return list(csv.DictReader(file))


def test_all_collective_rows(tracegen: Command, golden_inputs: ModuleType, tmp_path: Path) -> None:
    golden_inputs.main("collectives", tmp_path)
    wrong = []
    for row in rows("collectives"):
        folder = tmp_path / row["case_id"]
        case = json.loads((folder / "case.json").read_text())
        answer = replayed(tracegen, folder, case["backend"], *flags_of(case))
        finish = finishes(answer) if answer.code == 0 else {}
        members = [finish.get(rank) or 0 for rank in case["members"]]
        if (max(members), min(members)) != (case["result_ns"], case["result_min_ns"]):
            wrong.append((row["case_id"], max(members), case["result_ns"], answer.err.strip()))
    assert len(rows("collectives")) == 476
    assert wrong == []


def test_all_p2p_rows(tracegen: Command, golden_inputs: ModuleType, tmp_path: Path) -> None:
    golden_inputs.main("p2p", tmp_path)
    wrong = []
    for row in rows("p2p"):
        folder = tmp_path / row["case_id"]
        case = json.loads((folder / "case.json").read_text())
        answer = replayed(tracegen, folder, case["backend"], *flags_of(case))
        if case["rank_finish_ns"] is None:  # the simulator aborted: we finish, or refuse with the reason
            if answer.code != 0 and len(answer.err.splitlines()) != 1:
                wrong.append((row["case_id"], answer.err))
            continue
        finish = finishes(answer) if answer.code == 0 else {}
        expected = {int(rank): end for rank, end in case["rank_finish_ns"].items()}
        if {rank: finish.get(rank) for rank in expected} != expected:
            wrong.append((row["case_id"], finish, expected, answer.err.strip()))
    assert len(rows("p2p")) == 129
    assert wrong == []


GRAPHS = sorted(folder.name for folder in (GOLDEN / "graphs").iterdir()) if GOLDEN.is_dir() else []


@pytest.mark.parametrize("name", GRAPHS)
def test_graph(tracegen: Command, name: str, tmp_path: Path) -> None:
    folder = GOLDEN / "graphs" / name
    truth = json.loads((folder / "expected.json").read_text())
    queues = ("--num-queues-per-dim", truth.get("num_queues_per_dim", 1))
    for backend, expected in truth["backends"].items():
        out = tmp_path / f"{backend}.csv"
        unfinished = name == "g28_unmatched_recv"  # one rank waits for ever: replay refuses it unless told to run on
        more = ("--unchecked",) if unfinished else ()
        answer = replayed(tracegen, folder, backend, *queues, "--nodes", out, *more)
        assert answer.code == (1 if unfinished else 0), answer.err
        finish = {rank: end for rank, end in finishes(answer).items() if end is not None}
        assert finish == {int(rank): end for rank, end in expected["finish_ns"].items()}
        assert json.loads(answer.out)["makespan_ns"] == expected["makespan_ns"]
        with out.open(newline="") as file:
            told = {(row["rank"], row["node"]): (row["start_ns"], row["end_ns"]) for row in csv.DictReader(file)}
        for rank, nodes in expected["node_start_end_ns"].items():
            for node, span in nodes.items():
                assert told[rank, node] == tuple("" if at is None else str(at) for at in span), (rank, node)


def test_the_installed_command_answers_the_same(golden_inputs: ModuleType, tmp_path: Path) -> None:
    first = next(row["case_id"] for row in rows("collectives") if row["backend"] == "unaware")
    golden_inputs.main("collectives", tmp_path, first)
    folder = tmp_path / first
    command = [
        sys.executable, "-c", "from tracegen.cli import main; main()", "replay", "--traces", str(folder / "trace"),
        "--network", str(folder / "network.yml"), "--system", str(folder / "system.json"), "--json",
    ]  # fmt: skip
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed)["makespan_ns"] == json.loads((folder / "case.json").read_text())["result_ns"]
