"""What the command line promises: exit codes, one-line refusals, nothing half-written, the JSON contract."""

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Command

SMALL = ("--spec", "gpt3-22b", "--set", "model.layers=2")
TWO_STAGES = (*SMALL, "--set", "parallelism.tp=4", "--set", "parallelism.pp=2")


def one_line(text: str) -> str:
    """The single line of a refusal."""
    lines = [line for line in text.splitlines() if not line.startswith("tracegen: compiling")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.fixture
def job(tracegen: Command, tmp_path: Path) -> Path:
    """A folder with the traces of a two-stage job."""
    out = tmp_path / "job"
    assert tracegen("emit", *TWO_STAGES, "--out", out).code == 0
    return out


def test_help_names_every_command(tracegen: Command) -> None:
    answer = tracegen("--help")
    assert answer.code == 0
    for command in ("emit", "replay", "inspect", "check", "catalog"):
        assert command in answer.out


def test_help_imports_nothing_heavy() -> None:
    # `--help` must answer in under 0.4 s; numba alone takes longer than that on a slow machine.
    code = (
        "import sys; from tracegen.cli import cli;"
        "print([name for name in ('numba', 'numpy', 'pydantic', 'rich') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_emit_writes_all_that_was_promised(job: Path) -> None:
    names = {file.name for file in job.iterdir()}
    beside = {"comm_group.json", "network.yml", "system.json", "memory.json", "job.yaml", "manifest.json"}
    assert names == {f"gpt3-22b.{rank}.et" for rank in range(8)} | beside


def test_replay_of_files_and_spec_print_one_document(tracegen: Command, job: Path) -> None:
    files = tracegen("replay", "--traces", job, "--json")
    spec = tracegen("replay", *TWO_STAGES, "--json")
    assert files.code == spec.code == 0
    assert files.out == spec.out
    document = json.loads(files.out)
    # DESIGN, "What --json prints": a contract.
    assert {"tracegen", "command", "step_time_s", "makespan_ns", "execution", "network_model", "ranks", "dimensions",
            "throughput", "warnings"} <= document.keys()  # fmt: skip
    assert {"rank", "finish_ns", "compute_ns", "exposed_ns", "bubble_ns", "idle_ns"} <= document["ranks"][0].keys()
    assert {"name", "bytes", "busy_ns", "utilisation"} <= document["dimensions"][0].keys()
    assert {"tokens_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "hfu"} <= document["throughput"].keys()
    assert document["makespan_ns"] == round(document["step_time_s"] * 1e9)
    for rank in document["ranks"]:
        parts = rank["compute_ns"] + sum(rank["exposed_ns"].values()) + rank["bubble_ns"] + rank["idle_ns"]
        assert parts == document["makespan_ns"]


def test_the_first_line_says_which_execution_and_why(tracegen: Command, job: Path) -> None:
    assert "execution streams (the manifest says so)" in tracegen("replay", "--traces", job).out.splitlines()[0]
    asked = tracegen("replay", "--traces", job, "--execution", "astra").out.splitlines()[0]
    assert "execution astra (as asked)" in asked
    prefix = tracegen(
        "replay", "--traces", job / "gpt3-22b", "--network", job / "network.yml", "--system", job / "system.json",
        "--comm-group", job / "comm_group.json",
    )  # fmt: skip
    assert prefix.code == 0
    assert "execution astra (--system is ASTRA-sim's)" in prefix.out.splitlines()[0]


def test_the_emitted_astra_files_named_by_flags_give_the_specs_answer(tracegen: Command, tmp_path: Path) -> None:
    out = tmp_path / "job"
    assert tracegen("emit", *TWO_STAGES, "--out", out, "--execution", "astra").code == 0
    named = ("--network", out / "network.yml", "--system", out / "system.json", "--comm-group", out / "comm_group.json")
    files = tracegen("replay", "--traces", out, *named, "--memory", out / "memory.json", "--json")
    spec = tracegen("replay", *TWO_STAGES, "--execution", "astra", "--json")
    assert files.code == spec.code == 0
    assert files.out == spec.out


def test_every_line_of_the_answer_fits(tracegen: Command, job: Path) -> None:
    answer = tracegen("replay", "--traces", job).out.splitlines()
    tables = [line for line in answer if not line.startswith(("note:", "warning:"))][1:]
    assert max(map(len, tables)) <= 100


def test_nodes_csv_has_every_node_of_every_rank(tracegen: Command, job: Path, tmp_path: Path) -> None:
    out = tmp_path / "nodes.csv"
    assert tracegen("replay", "--traces", job, "--nodes", out).code == 0
    with out.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0][:5] == ["rank", "node", "name", "start_ns", "end_ns"]
    counted = json.loads(tracegen("inspect", *sorted(job.glob("*.et")), "--json").out)["traces"]
    assert len(rows) - 1 == sum(trace["nodes"] for trace in counted)


def test_partial_traces_are_refused_as_a_whole_job(tracegen: Command, tmp_path: Path) -> None:
    out = tmp_path / "some"
    assert tracegen("emit", *SMALL, "--out", out, "--ranks", "0-1,5").code == 0
    assert sorted(file.name for file in out.glob("*.et")) == ["gpt3-22b.0.et", "gpt3-22b.1.et", "gpt3-22b.5.et"]
    for command in ("replay", "check"):
        answer = tracegen(command, "--traces", out)
        assert answer.code == 2
        assert "--ranks" in one_line(answer.err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay",), "--spec"),
        (("replay", "--spec", "no-such-spec.yaml"), "no-such-spec"),
        (("replay", "--traces", "/no/such/folder"), "/no/such/folder"),
        (("emit", "--spec", "gpt3-22b", "--set", "parallelism.tp=5", "--out", "OUT"), "heads 64"),
        (("emit", "--spec", "gpt3-22b", "--set", "pipline=4", "--out", "OUT"), "pipline"),
        (("emit", "--spec", "gpt3-22b", "--ranks", "0-99", "--out", "OUT"), "rank 99 does not exist"),
        (("emit", "--spec", "gpt3-22b", "--ranks", "x", "--out", "OUT"), "'x'"),
        (("emit", "--spec", "mixtral", "--out", "OUT"), "mixtral"),
        (("emit", "--spec", "gpt3-22b", "--set", "model=mixtral-8x7b", "--out", "OUT"), "experts"),
        (("inspect", "/etc/hostname"), "/etc/hostname"),
        (("catalog", "models", "llama9"), "llama9"),
    ],
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(
    tracegen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = tracegen(*(str(tmp_path / "out") if word == "OUT" else word for word in arguments))
    assert answer.code == 2
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert words in answer.err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_k102_a_run_that_cannot_finish_is_no_success(tracegen: Command, job: Path) -> None:
    # A rank's file replaced by another rank's: group members disagree, nothing would finish.
    (job / "gpt3-22b.7.et").write_bytes((job / "gpt3-22b.0.et").read_bytes())
    checked = tracegen("check", "--traces", job)
    assert checked.code == 2
    refused = tracegen("replay", "--traces", job)
    assert refused.code == 2
    assert refused.out == ""
    one_line(refused.err)
    forced = tracegen("replay", "--traces", job, "--unchecked", "--json")
    assert forced.code != 0


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_k99_traces_and_results_are_byte_equal_whatever_the_hash_seed_and_folder(seed: str, tmp_path: Path) -> None:
    def run(cwd: Path, hash_seed: str, out: Path, jobs: str) -> dict[str, bytes]:
        cwd.mkdir(exist_ok=True)
        code = "from tracegen.cli import main; main()"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code, "emit", *TWO_STAGES, "--out", str(out), "--jobs", jobs]
        subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True)
        return {file.name: file.read_bytes() for file in out.iterdir()}

    assert run(tmp_path / "a", "0", tmp_path / "one", "1") == run(tmp_path / "b", seed, tmp_path / "two", "2")


@pytest.mark.parametrize("scale", ["nan", "inf", "1e300"])
def test_an_injection_scale_that_is_no_number_is_refused(tracegen: Command, job: Path, scale: str) -> None:
    answer = tracegen("replay", "--traces", job, "--execution", "astra", "--injection-scale", scale)
    assert answer.code == 2
    assert "injection-scale" in one_line(answer.err)


def test_traces_that_astra_sim_does_not_read_are_told_under_astra(tracegen: Command, job: Path) -> None:
    packed = job / "gpt3-22b.3.et"
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    checked = tracegen("check", "--traces", job, "--execution", "astra")
    assert checked.code == 0
    assert "does not read gzip or JSON: 1 of 8 traces are such, gpt3-22b.3.et" in checked.out
    assert "gzip" not in tracegen("check", "--traces", job, "--execution", "streams").out


def test_an_output_is_never_written_over_the_simulator(tracegen: Command, job: Path, tmp_path: Path) -> None:
    binary = tmp_path / "AstraSim_Analytical_Congestion_Unaware"
    binary.write_text("#!/bin/sh\nexit 1\n")
    binary.chmod(0o755)
    answer = tracegen("replay", "--traces", job, "--backend", "both", "--astra-sim", binary, "--nodes", binary)
    assert answer.code == 2
    one_line(answer.err)
    assert binary.read_text().startswith("#!/bin/sh")


def test_a_bad_value_is_placed_in_the_file_it_is_in(tracegen: Command, job: Path, tmp_path: Path) -> None:
    system = json.loads((job / "system.json").read_text()) | {"all-reduce-implementation": ["rings", "ring"]}
    (tmp_path / "mine.json").write_text(json.dumps(system))
    answer = tracegen("replay", "--traces", job, "--network", job / "network.yml", "--system", tmp_path / "mine.json")
    assert answer.code == 2
    assert f"{tmp_path / 'mine.json'}: all-reduce-implementation: 'rings'" in one_line(answer.err)


def test_catalog_lists_and_shows(tracegen: Command) -> None:
    listed = json.loads(tracegen("catalog", "--json").out)
    assert len(listed["models"]) >= 21
    assert len(listed["devices"]) >= 12
    assert len(listed["clusters"]) >= 9
    shown = tracegen("catalog", "specs", "llama3-70b").out
    assert "parallelism" in shown
    assert "#" in shown  # comments are kept
