"""The folder that emit writes: its files and their text, that it is whole or absent, that its bytes stay the same."""

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ruamel.yaml import YAML

from tracegen import emit as module
from tracegen.build import build
from tracegen.emit import emit, used_groups
from tracegen.proto.errors import InputError, RunError
from tracegen.proto.files import read_groups, read_traces
from tracegen.proto.graph import Groups, Kind, TraceSet
from tracegen.spec import load_job

SPEC = """
name: tiny
model: {name: tiny, layers: 4, hidden: 64, ffn: 128, heads: 4, kv_heads: 4, vocab: 128}
device: h100-sxm5-80gb
network:
  dimensions:
    - {name: nvlink, topology: switch, size: 4, bandwidth: 450 GB/s, latency: 0.5 us}
    - {name: rail, topology: ring, size: 2, bandwidth: 50 GB/s, latency: 2 us}
parallelism: {tp: 2, pp: 2, dp: 2}
workload: {sequence_length: 32, global_batch: 4}
"""
ALONE = """
name: alone
model: {name: tiny, layers: 2, hidden: 64, ffn: 128, heads: 4, kv_heads: 4, vocab: 128}
device: h100-sxm5-80gb
network: dgx-h100
gpus: 1
parallelism: {tp: 1}
workload: {sequence_length: 32, global_batch: 2}
"""


def built(folder, text=SPEC):
    file = folder / "spec.yaml"
    file.write_text(text)
    return build(load_job(str(file)))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A job of 8 ranks."""
    return built(tmp_path_factory.mktemp("tiny"))


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def traces_named(*ranks, name="tiny"):
    return {f"{name}.{rank}.et" for rank in ranks}


def test_the_folder_has_what_astra_sim_and_replay_need(tiny, tmp_path):
    assert emit(tiny, tmp_path / "out") == ()
    beside = {"comm_group.json", "network.yml", "system.json", "memory.json", "job.yaml", "manifest.json"}
    assert set(contents(tmp_path / "out")) == beside | traces_named(*range(8))
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_traces_read_back_as_they_were_built(tiny, tmp_path):
    emit(tiny, tmp_path / "out")
    groups = read_groups(tmp_path / "out" / "comm_group.json")
    back = read_traces(tmp_path / "out", groups=groups, ranks=8)
    for rank in range(8):
        ours, theirs = tiny.traces.graph(rank), back.graph(rank)
        for column in ("id", "kind", "duration_ns", "duration_us", "mem_bytes", "comm_bytes", "data_deps", "layer"):
            assert (getattr(ours, column) == getattr(theirs, column)).all(), column


def test_k23_groups_are_numbered_from_one_and_all_in_use(tiny, tmp_path):
    """K23: no sub-group called 0, decimal names only, and every group of the file is named by some node."""
    emit(tiny, tmp_path / "out")
    groups = json.loads((tmp_path / "out" / "comm_group.json").read_text())
    assert groups
    assert all(str(int(name)) == name and int(name) > 0 for name in groups)
    assert all(len(members) > 1 for members in groups.values())
    used = set(used_groups(tiny.traces))
    assert {int(name) for name in groups} == used


def test_unused_groups_and_the_world_are_left_out():
    """By hand: a class uses slot 0 for a collective and slot 1 for sends; group 2 is the world."""
    graph = SimpleNamespace(kind=np.array([Kind.COMP, Kind.COLL, Kind.SEND], np.uint8), slot=np.array([-1, 0, 1]))
    groups = Groups.of([[0, 1], [2, 3], [0, 1, 2, 3]], ["tp", "tp", "world"], [1, 2, 0])
    slots = np.array([[0, 1], [0, 1], [2, 1], [2, 1]], np.int32)
    traces = TraceSet((graph,), np.zeros(4, np.int32), groups, slots)
    assert used_groups(traces) == {1: [0, 1]}


def test_k53_the_network_file_has_every_digit(tiny, tmp_path):
    """K53: 50 GB/s over 2^30 is 46.566128730773926 of ASTRA-sim's units."""
    emit(tiny, tmp_path / "out")
    text = (tmp_path / "out" / "network.yml").read_text()
    assert "46.566128730773926" in text
    network = YAML(typ="safe", pure=True).load(text)
    assert network["topology"] == ["Switch", "Ring"]
    assert network["npus_count"] == [4, 2]
    assert network["latency"] == [500.0, 2000.0]


def test_the_system_file_lets_our_durations_count(tiny, tmp_path):
    emit(tiny, tmp_path / "out")
    system = json.loads((tmp_path / "out" / "system.json").read_text())
    assert system["roofline-enabled"] == 0
    assert system["local-mem-bw"] == 3350.0
    assert system["all-reduce-implementation"] == ["ring", "ring"]
    assert json.loads((tmp_path / "out" / "memory.json").read_text()) == {"memory-type": "NO_MEMORY_EXPANSION"}


def test_the_job_file_gives_the_same_job(tiny, tmp_path):
    emit(tiny, tmp_path / "out")
    again = load_job(str(tmp_path / "out" / "job.yaml"))
    assert again.document() == tiny.job.document()


@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_the_manifest_says_how_to_replay(tiny, tmp_path, execution):
    emit(tiny, tmp_path / "out", execution=execution)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["execution"] == execution
    assert manifest["partial"] is False
    assert manifest["stage_of"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert set(manifest["groups"]) == {str(number) for number in used_groups(tiny.traces)}


def test_chosen_ranks_make_a_partial_folder(tiny, tmp_path):
    emit(tiny, tmp_path / "all")
    emit(tiny, tmp_path / "some", ranks=[5, 2, 2])
    whole, some = contents(tmp_path / "all"), contents(tmp_path / "some")
    assert {name for name in some if name.endswith(".et")} == traces_named(2, 5)
    assert json.loads(some["manifest.json"])["partial"] is True
    assert all(whole[name] == data for name, data in some.items() if name != "manifest.json")


@pytest.mark.parametrize(("ranks", "line"), [([3, 8], "no rank 8; the job has ranks 0 to 7"), ([], "names no rank")])
def test_ranks_that_are_not_there_are_refused(tiny, tmp_path, ranks, line):
    with pytest.raises(InputError, match=line):
        emit(tiny, tmp_path / "out", ranks=ranks)
    assert not list(tmp_path.iterdir())


def test_one_rank_has_no_network(tmp_path):
    (line,) = emit(built(tmp_path, ALONE), tmp_path / "out")
    assert "ASTRA-sim needs at least two ranks" in line
    beside = {"system.json", "memory.json", "job.yaml", "manifest.json"}
    assert set(contents(tmp_path / "out")) == beside | traces_named(0, name="alone")


def test_k23_a_path_that_makes_astra_sim_ignore_groups_is_remarked(tiny, tmp_path):
    (line,) = emit(tiny, tmp_path / "not-empty")
    assert "ignores every group" in line


def test_our_own_folder_is_replaced_whole(tiny, tmp_path):
    emit(tiny, tmp_path / "out")
    (tmp_path / "out").chmod(0o2750)
    emit(tiny, tmp_path / "out", ranks=[3])
    assert {name for name in contents(tmp_path / "out") if name.endswith(".et")} == traces_named(3)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o2750
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_is_filled(tiny, tmp_path):
    """mkdir first is common."""
    (tmp_path / "out").mkdir()
    emit(tiny, tmp_path / "out")
    assert traces_named(*range(8)) < set(contents(tmp_path / "out"))


@pytest.mark.parametrize(
    "name", ["tiny.8.et", "tiny.03.et", "other.1.et", "nodes.csv", ".hidden", "tiny.0.et/mine", "sub/"]
)
def test_what_the_user_put_into_our_folder_is_kept(tiny, tmp_path, name):
    """The first file that emit would not write for that manifest is named; nothing is removed."""
    out = tmp_path / "out"
    emit(tiny, out)
    top, slash, _ = name.partition("/")
    if slash:
        (out / top).unlink(missing_ok=True)
        (out / top).mkdir()
    else:
        (out / top).write_text("mine")
    before = sorted(out.iterdir())
    with pytest.raises(InputError, match=rf"{re.escape(str(out / top))} is not of the traces there"):
        emit(tiny, out)
    assert sorted(out.iterdir()) == before


def test_a_link_among_our_files_is_not_ours(tiny, tmp_path):
    emit(tiny, tmp_path / "out")
    (tmp_path / "out" / "tiny.2.et").rename(tmp_path / "moved")
    (tmp_path / "out" / "tiny.2.et").symlink_to(tmp_path / "moved")
    with pytest.raises(InputError, match=r"tiny\.2\.et is not of the traces"):
        emit(tiny, tmp_path / "out")


def test_a_file_that_comes_while_emit_writes_is_kept(tiny, tmp_path):
    emit(tiny, tmp_path / "out")
    with pytest.raises(InputError, match=r"mine is not of the traces there"):
        emit(tiny, tmp_path / "out", progress=lambda *_: (tmp_path / "out" / "mine").touch())
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "mine").exists()


@pytest.mark.parametrize("where", ["", ".", "../out", "link"])
def test_where_the_user_stands_is_not_replaced(tiny, tmp_path, monkeypatch, where):
    """An empty --out is Path(''), the current folder too; a shell in a folder that is replaced loses its files."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    monkeypatch.chdir(tmp_path / "out")
    with pytest.raises(InputError, match="where you are"):
        emit(tiny, Path("../link") if where == "link" else Path(where))
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("there", ["traces", "an empty folder", "nothing"])
def test_a_link_stays_and_what_it_names_is_replaced(tiny, tmp_path, there):
    (tmp_path / "real").mkdir()
    if there == "traces":
        emit(tiny, tmp_path / "real" / "out", ranks=[1])
    elif there == "an empty folder":
        (tmp_path / "real" / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "out")
    emit(tiny, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert traces_named(*range(8)) < set(contents(tmp_path / "real" / "out"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "real"]
    assert [file.name for file in (tmp_path / "real").iterdir()] == ["out"]


@pytest.mark.parametrize(
    "manifest",
    [None, "[]", "{}", "no JSON", '{"tracegen', '{"tracegen": "0.1"}', "[" * 100_000,
     '{"tracegen": "0.1", "name": "precious", "ranks": true, "groups": {}}'],
    ids=["none", "list", "empty", "text", "cut", "key only", "deep", "half"],
)  # fmt: skip
def test_a_folder_that_is_not_ours_is_left_alone(tiny, tmp_path, manifest):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("mine")
    if manifest is not None:
        (out / "manifest.json").write_text(manifest)
    before = contents(out)
    with pytest.raises(InputError, match="not a folder that tracegen wrote"):
        emit(tiny, out)
    assert contents(out) == before
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_file_in_the_way_is_refused(tiny, tmp_path):
    (tmp_path / "out").write_text("mine")
    for out in (tmp_path / "out", tmp_path / "out" / "below" / "it"):
        with pytest.raises(InputError, match="out is a file, a folder is needed"):
            emit(tiny, out)
    assert (tmp_path / "out").read_text() == "mine"


def test_a_folder_that_cannot_be_written_in_is_refused(tiny, tmp_path, monkeypatch):
    """As for a user without the right to write (root, who may run this, has it everywhere)."""

    def denied(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(module.Path, "mkdir", denied)
    with pytest.raises(InputError, match=r"--out: cannot write in .*: Permission denied"):
        emit(tiny, tmp_path / "out")


def test_a_full_disk_leaves_nothing(tiny, tmp_path, monkeypatch):
    """The third rank meets a full disk: one line, and neither the folder nor its temporary."""

    def full(file, traces, rank):
        if rank == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "write_rank", full)
    with pytest.raises(RunError, match="failed: No space left on device; nothing was kept"):
        emit(tiny, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_the_old_folder_as_it_was(tiny, tmp_path):
    emit(tiny, tmp_path / "out")
    before = contents(tmp_path / "out")

    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        emit(tiny, tmp_path / "out", execution="astra", progress=interrupt)
    assert contents(tmp_path / "out") == before
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_progress_counts_every_rank_once(tiny, tmp_path):
    seen = []
    emit(tiny, tmp_path / "out", jobs=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 8) for done in range(1, 9)]


def test_k99_bytes_do_not_depend_on_jobs(tiny, tmp_path):
    for jobs in (1, 2, 8):
        emit(tiny, tmp_path / str(jobs), jobs=jobs)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "8")


EMIT = """
import sys, time
from pathlib import Path
from tracegen.build import build
from tracegen.emit import emit
from tracegen.spec import load_job

def progress(done, total):
    print(done, flush=True)
    time.sleep(float(sys.argv[3]))

emit(build(load_job(sys.argv[1])), Path(sys.argv[2]), progress=progress)
"""


def test_k99_bytes_do_not_depend_on_hash_seed_or_folder(tiny, tmp_path):
    """K99: two processes with other hash seeds and other working folders, against this one."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    emit(tiny, tmp_path / "here")
    for seed in ("1", "4242"):
        (tmp_path / f"cwd{seed}").mkdir()
        subprocess.run(
            [sys.executable, "-c", EMIT, "../spec.yaml", f"../out{seed}", "0"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=tmp_path / f"cwd{seed}",
            check=True,
        )
    assert contents(tmp_path / "here") == contents(tmp_path / "out1") == contents(tmp_path / "out4242")


def test_a_killed_emit_leaves_no_folder_and_the_next_run_clears_up(tiny, tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    process = subprocess.Popen(
        [sys.executable, "-c", EMIT, str(tmp_path / "spec.yaml"), str(tmp_path / "out"), "60"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"1"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    left = f".out.tmp-{process.pid}"
    assert sorted(file.name for file in tmp_path.iterdir()) == [left, "spec.yaml"]
    emit(tiny, tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "spec.yaml"]


def test_an_old_folder_that_a_killed_run_moved_aside_is_restored(tiny, tmp_path):
    """Killed between the two renames, only ``.out.tmp-PID-old`` is left: it comes back, also where emit then fails."""
    emit(tiny, tmp_path / "out", ranks=[1])
    before = contents(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / ".out.tmp-999999999-old")
    (tmp_path / ".out.tmp-999999999").mkdir()

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        emit(tiny, tmp_path / "out", progress=interrupt)
    assert contents(tmp_path / "out") == before
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_links_and_files_called_like_dead_temporaries_go_and_what_they_name_stays(tiny, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "mine").touch()
    (tmp_path / ".out.tmp-999999999").symlink_to("precious")
    (tmp_path / ".out.tmp-999999998-old").symlink_to("precious")
    (tmp_path / ".out.tmp-999999997-old").symlink_to("nowhere")
    (tmp_path / ".out.tmp-999999996").touch()
    emit(tiny, tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "precious"]
    assert [file.name for file in (tmp_path / "precious").iterdir()] == ["mine"]


def test_a_dead_temporary_that_cannot_be_removed_does_not_stop_emit(tiny, tmp_path, monkeypatch):
    (tmp_path / ".out.tmp-999999999").touch()

    def denied(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(module.Path, "unlink", denied)
    emit(tiny, tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").exists()


def test_only_dead_temporaries_of_this_folder_are_cleared(tiny, tmp_path):
    """Ours and alive (process 1), another folder's, and one without a number stay."""
    kept = [".out.tmp-1", ".other.tmp-999999999", ".out.tmp-abc", ".outer.tmp-999999999"]
    for name in [*kept, ".out.tmp-999999999", ".out.tmp-999999999-old"]:
        (tmp_path / name).mkdir()
    emit(tiny, tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*kept, "out"])


def test_a_folder_name_with_pattern_letters_clears_its_own_only(tiny, tmp_path):
    (tmp_path / ".o1.tmp-999999999").mkdir()
    (tmp_path / ".o[12].tmp-999999999").mkdir()
    emit(tiny, tmp_path / "o[12]")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".o1.tmp-999999999", "o[12]"]


def test_writing_many_ranks_takes_no_memory_per_rank(tiny, tmp_path):
    """Files are written from the classes: 64 times the ranks need no more memory than a list of ranks."""
    import tracemalloc

    def peak(copies):
        traces = tiny.traces
        many = TraceSet(
            traces.graphs, np.tile(traces.class_of, copies), traces.groups, np.tile(traces.slots, (copies, 1))
        )
        grown = SimpleNamespace(job=tiny.job, traces=many, manifest=tiny.manifest)
        tracemalloc.start()
        emit(grown, tmp_path / str(copies))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(1)  # first use: whatever is made once
    small, large = peak(1), peak(64)
    assert large - small < 504 * 4096  # 63 times 8 more ranks, each a future and a path of well under 4 kB
