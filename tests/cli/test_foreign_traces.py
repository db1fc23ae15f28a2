"""Other people's traces through the command line: trials of ``facts/cases.md``, each a result or a named refusal.

ASTRA-sim's own times are asserted where it has one; what it hangs or aborts on is refused, or runs under `streams`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import Answer, Command

from tracegen.proto.schema import GlobalMetadata, Node

METADATA, MEM_LOAD, COMP, SEND, RECV, COLL = 1, 2, 4, 5, 6, 7
ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER, BROADCAST, REDUCE_SCATTER, BARRIER = 0, 1, 2, 3, 4, 5, 7, 9
KINDS = {bool: "bool_val", int: "int64_val", str: "string_val"}
MIB = 1 << 20


def node(id: int, kind: int, deps: Sequence[int] = (), us: int = 0, **attributes: bool | int | str) -> Any:
    """A node as Chakra's tools write it; GPU's unless it says otherwise."""
    made = Node(id=id, type=kind, name=str(attributes.pop("name", f"n{id}")), data_deps=deps, duration_micros=us)
    for name, value in {"is_cpu_op": False, **attributes}.items():
        made.attr.add(name=name, **{KINDS[type(value)]: value})
    return made


def coll(id: int, kind: int, size: int, deps: Sequence[int] = (), **more: Any) -> Any:
    return node(id, COLL, deps, comm_type=kind, comm_size=size, **more)


def message(id: int, kind: int, src: int, dst: int, deps: Sequence[int] = ()) -> Any:
    return node(id, kind, deps, comm_src=src, comm_dst=dst, comm_tag=1, comm_size=1024)


class Job:
    """A folder of traces and ASTRA-sim's files: one switch of 100 GiB/s and 500 ns, ring algorithms."""

    def __init__(self, folder: Path, tracegen: Command) -> None:
        self.folder, self.tracegen = folder, tracegen
        self.network = {"topology": ["Switch"], "bandwidth": [100.0], "latency": [500.0]}
        lists = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
        self.system: dict[str, Any] = {
            "endpoint-delay": 10, "preferred-dataset-splits": 1, "collective-optimization": "localBWAware",
            "local-mem-bw": 1600, **{f"{name}-implementation": ["ring"] for name in lists},
        }  # fmt: skip
        self.memory: dict[str, Any] = {"memory-type": "NO_MEMORY_EXPANSION"}
        self.groups: dict[str, list[int]] = {}

    def write(self, ranks: Sequence[Sequence[Any]]) -> Job:
        self.network.setdefault("npus_count", [len(ranks)])
        for rank, nodes in enumerate(ranks):
            bodies = [GlobalMetadata(version="0.0.4").SerializeToString(), *(n.SerializeToString() for n in nodes)]
            (self.folder / f"x.{rank}.et").write_bytes(b"".join(_varint(len(body)) + body for body in bodies))
        (self.folder / "network.yml").write_text(json.dumps(self.network))
        for name in ("system", "memory", "groups"):
            (self.folder / f"{name}.json").write_text(json.dumps(getattr(self, name)))
        return self

    def run(self, *more: object, command: str = "replay") -> Answer:
        files = ["--network", self.folder / "network.yml", "--system", self.folder / "system.json", "--memory",
                 self.folder / "memory.json", "--comm-group", self.folder / "groups.json"]  # fmt: skip
        return self.tracegen(command, "--traces", self.folder / "x", *files, *more)

    def replay(self, *more: object) -> dict[str, Any]:
        answer = self.run(*more, "--json")
        assert answer.code == 0, answer.err
        found: dict[str, Any] = json.loads(answer.out)
        return found

    def refused(self, *more: object) -> str:
        answer = self.run(*more)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.count("\n") == 1
        return answer.err


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.fixture
def job(tmp_path: Path, tracegen: Command) -> Job:
    return Job(tmp_path, tracegen)


def test_the_unit_trap_and_keys_without_effect_are_told_once(job: Job) -> None:
    job.system["boost-mode"] = 0
    job.write([[coll(0, ALL_REDUCE, MIB)]] * 2)
    answer = job.run()
    assert answer.out.count("2^30 bytes per second") == 1
    assert answer.out.count("boost-mode has no effect") == 1
    assert len(job.replay()["notes"]) == 2


def test_flags_are_spelled_as_in_astra_sim(job: Job) -> None:
    job.write([[message(0, SEND, 0, 1)], [message(0, RECV, 0, 1)]])
    plain, asked = job.replay(), job.replay("--rendezvous-protocol=true")
    assert plain["makespan_ns"] == 1009  # floor(2 · 500 + 1024 / 107.374)
    assert asked["makespan_ns"] == 1009 + 1076  # and 8,192 bytes back before it
    assert job.replay("--rendezvous-protocol")["makespan_ns"] == asked["makespan_ns"]
    assert job.replay("--rendezvous-protocol=false")["makespan_ns"] == 1009
    aware = job.replay("--network-model", "congestion")
    assert (aware["makespan_ns"], aware["network_model"]) == (2 * 509, "congestion")
    job.write([[coll(0, ALL_REDUCE, MIB)]] * 2)
    once, thrice = (job.replay("--injection-scale", scale)["makespan_ns"] for scale in (1, 3))
    assert thrice - once == 20 * 3  # 1 + 2 (n - 1) steps of 20 ns more
    assert "ASTRA-sim's: execution streams has none" in job.refused("--execution", "streams", "--num-queues-per-dim=2")


def test_k27_ranks_that_made_unequal_numbers_of_group_chunks(job: Job) -> None:
    job.groups = {"1": [4, 5, 6, 7]}
    first, last = coll(0, ALL_REDUCE, 1024, pg_name="1"), coll(1, ALL_GATHER, 1024)
    job.write([[last]] * 4 + [[first, coll(1, ALL_GATHER, 1024, [0])]] * 4)
    assert "group-chunks" in job.refused()
    group, gather = 6 * 1012, 7 * 1019  # streams: steps of 2 · 500 + m / B + 10
    assert abs(job.replay("--execution", "streams")["makespan_ns"] - group - gather) < 10


def test_k32_a_chain_of_control_dependencies(job: Job) -> None:
    second = node(1, COMP, us=5)
    second.ctrl_deps.append(0)
    job.write([[node(0, COMP, us=5), second]] * 2)
    assert job.replay()["makespan_ns"] == job.replay("--execution", "streams")["makespan_ns"] == 10_000


@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_k38_a_rank_without_nodes(job: Job, execution: str) -> None:
    job.write([[node(0, COMP, us=1)], []])
    assert "empty-trace: rank 1: the trace has no nodes" in job.refused("--execution", execution)
    job.write([[node(0, COMP, us=1)], [node(0, METADATA)]])
    assert "rank 1" in job.refused("--execution", execution)


def test_k42_head_to_head_sends(job: Job) -> None:
    job.write([[message(0, SEND, r, 1 - r), message(1, RECV, 1 - r, r, [0])] for r in range(2)])
    assert job.replay()["makespan_ns"] == 1009
    stuck = job.run("--rendezvous-protocol")
    assert (stuck.code, stuck.out) == (1, "")
    assert "cycle: 0 -> 1 -> 0" in stuck.err
    assert "waits for dst 1 to receive tag 1 1024 B (rendezvous)" in stuck.err


@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_k49_sizes_above_32_bits(job: Job, execution: str) -> None:
    """Time is linear in bytes; an all-gather of n times less per rank moves what a reduce-scatter does."""
    job.network["latency"] = [0.0]
    job.system["local-mem-bw"] = 1e15

    def took(kind: int, size: int) -> int:
        job.write([[coll(0, kind, size)]] * 4)
        found: int = job.replay("--execution", execution)["makespan_ns"]
        return found

    gather = took(ALL_GATHER, 6_467_616_768)
    assert gather == pytest.approx(3 * 6_467_616_768 / 107.3741824, abs=50)
    assert gather / took(REDUCE_SCATTER, 12_935_233_536) == pytest.approx(2.0, abs=1e-6)
    steps = [took(REDUCE_SCATTER, size) for size in (2**31, 2**32, 3 * 2**30)]
    assert [step / steps[0] for step in steps] == pytest.approx([1, 2, 1.5], abs=1e-5)


def test_k50_types_that_are_missing_or_not_simulated(job: Job) -> None:
    job.write([[node(0, COLL, comm_size=1024)]] * 4)
    assert "collective-no-type" in job.refused()
    assert "collective-no-type" in job.refused("--execution", "streams")
    for kind in (REDUCE, GATHER, SCATTER, BARRIER):
        job.write([[coll(0, kind, MIB)]] * 4)
        assert "collective-unsupported" in job.refused()
        assert job.replay("--execution", "streams")["makespan_ns"] > 1000
    job.write([[node(0, COLL, us=4, comm_type=BROADCAST, comm_size=MIB)]] * 4)
    assert job.replay()["makespan_ns"] == 4000  # it lasts its duration there
    assert any("collective-broadcast" in line for line in job.replay()["warnings"])
    moved = job.replay("--execution", "streams")
    assert moved["makespan_ns"] > MIB / 107.3741824


def test_k51_an_all_gather_names_what_each_rank_contributes(job: Job) -> None:
    """FSDP: 1.6 GB of weights on 256 ranks are shards of 6.25 MB, of which each rank receives 255."""
    job.write([[coll(0, ALL_GATHER, 6_250_000)]] * 256)
    for execution in ("streams", "astra"):
        (dimension,) = job.replay("--execution", execution)["dimensions"]
        assert dimension["bytes"] == 256 * 1_593_750_000


def test_k56_operations_without_bytes(job: Job) -> None:
    """`streams`: 10 ms at 100 TFLOP/s; `astra` with the roofline on skips the node, and its child stalls."""
    job.system.update({"peak-perf": 100, "roofline-enabled": 1})
    job.write([[node(0, COMP, num_ops=10**12, tensor_size=0), node(1, COMP, [0], num_ops=10**9, tensor_size=1)]] * 2)
    stuck = job.run()
    assert stuck.code == 1
    assert "no event of its rank is left to start it" in stuck.err
    assert job.replay("--execution", "streams")["makespan_ns"] == 10_010_000
    checked = job.run(command="check").out
    assert "roofline-bytes" in checked
    del job.system["peak-perf"], job.system["roofline-enabled"]
    job.write([[node(0, COMP, num_ops=10**12), node(1, COMP, us=1)]] * 2)
    assert any("give no duration" in line for line in job.replay("--execution", "streams")["warnings"])


def test_k59_lists_that_do_not_fit_the_network(job: Job) -> None:
    job.network = {"topology": ["Ring", "Switch"], "npus_count": [4, 2], "bandwidth": [100, 50], "latency": [500, 500]}
    job.write([[coll(0, ALL_REDUCE, MIB)]] * 8)
    assert any("leaves the others out; give 2" in line for line in job.replay()["warnings"])
    job.network["bandwidth"] = [100, 50, 25]
    job.write([[coll(0, ALL_REDUCE, MIB)]] * 8)
    assert "bandwidth has 3 entries, npus_count has 2" in job.refused()
    job.network.update(bandwidth=[100, 50])
    job.write([[coll(0, ALL_REDUCE, MIB)]] * 16)
    assert "8" in job.refused()
    assert "16" in job.refused()


@pytest.mark.parametrize("ranks", [3, 6, 12])
@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_k61_numbers_of_ranks_that_are_no_power_of_two(job: Job, ranks: int, execution: str) -> None:
    for name, runs in (("ring", True), ("direct", True), ("halvingDoubling", False), ("doubleBinaryTree", False)):
        job.system["all-reduce-implementation"] = [name]
        job.write([[coll(0, ALL_REDUCE, MIB)]] * ranks)
        if runs:
            assert job.replay("--execution", execution)["makespan_ns"] > 0
        else:
            assert f"{ranks} ranks, which is no power of two" in job.refused("--execution", execution)


def test_memory_nodes_need_a_remote_memory(job: Job) -> None:
    """2.4 of astra_sim_semantics: latency + floor(size / bandwidth); a pool serves one rank at a time."""
    job.write([[node(0, MEM_LOAD, tensor_size=1_000_000)]] * 4)
    assert "memory-node" in job.refused()
    assert "memory-node" in job.refused("--execution", "streams")
    for kind, ends in (("PER_NPU_MEMORY_EXPANSION", [20_250] * 4), ("MEMORY_POOL", [20_250 * k for k in range(1, 5)])):
        job.memory = {"memory-type": kind, "remote-mem-latency": 250, "remote-mem-bw": 50}
        job.write([[node(0, MEM_LOAD, tensor_size=1_000_000)]] * 4)
        assert [rank["finish_ns"] for rank in job.replay()["ranks"]] == ends


def test_k89_a_trace_linked_from_host_and_device(job: Job) -> None:
    """Lanes overlap; communication that waits for no GPU work, and host operators named after it, are told."""
    nodes = [
        node(0, COMP, us=10, is_cpu_op=True, name="nccl:broadcast"), node(1, COMP, us=50),
        coll(2, ALL_REDUCE, 1024, [0], name="ncclDevKernel_AllReduce"),
    ]  # fmt: skip
    job.write([nodes] * 2)
    for execution in ("streams", "astra"):
        answer = job.replay("--execution", execution)
        assert answer["makespan_ns"] == 50_000
        assert {line.split(":")[0] for line in answer["warnings"]} >= {"host-communication", "early-communication"}
    job.write([[coll(0, ALL_REDUCE, 1024, is_cpu_op=True)]] * 2)
    assert "comm-on-cpu" in job.refused()
    assert "comm-on-cpu" in job.refused("--execution", "streams")


def test_metadata_nodes_abort_astra_sim_and_are_skipped_under_streams(job: Job) -> None:
    described = node(0, METADATA)
    described.inputs.values = '[\'[{"pg_name":"3","ranks":[],"group_size":2}]\']'
    job.write([[described, coll(1, ALL_REDUCE, 1024, [0], pg_name="3")]] * 2)
    assert "metadata-node" in job.refused()
    answer = job.replay("--execution", "streams")
    assert answer["makespan_ns"] > 2000
    assert any("metadata-node" in line for line in answer["warnings"])


def test_what_never_finishes_is_printed_as_far_as_it_ran_with_unchecked(job: Job, tmp_path: Path) -> None:
    """As g28: a receive that nobody sends; exit 1, null for the rank that hangs, its node without an end."""
    job.write([[node(0, COMP, us=2)], [node(0, COMP, us=1), message(1, RECV, 0, 1)]])
    assert "waits for src 0 tag 1 1024 B: no send exists" in job.refused()
    forced = job.run("--unchecked", "--json", "--nodes", tmp_path / "nodes.csv")
    assert forced.code == 1
    assert [rank["finish_ns"] for rank in json.loads(forced.out)["ranks"]] == [2000, None]
    with (tmp_path / "nodes.csv").open() as file:
        assert [(row["start_ns"], row["end_ns"]) for row in csv.DictReader(file)] == [
            ("0", "2000"), ("0", "1000"), ("0", ""),
        ]  # fmt: skip


def test_a_comm_group_path_with_empty_in_it_is_not_read(job: Job, tmp_path: Path) -> None:
    job.groups = {"1": [1, 0]}
    job.write([[coll(0, ALL_REDUCE, 1024, pg_name="1")]] * 2)
    path = tmp_path / "not_empty.json"
    path.write_text(json.dumps(job.groups))
    assert job.run().code == 0
    assert "no groups are given" in job.run("--comm-group", path).err
