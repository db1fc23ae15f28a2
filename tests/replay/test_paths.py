"""However `paths` lets a run under `astra` be computed, the answer is ASTRA-sim's: paths agree, and with its rows.

Golden rows were recorded from ASTRA-sim (``../shared/golden``); the other figures follow from its closed forms by hand.
Tolerance: none.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from math import floor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from astra_graphs import draw, draw_alike
from handmade import coll, comp, recv, send, traces
from shared import SHARED, needs_shared

from tracegen.proto.errors import InputError
from tracegen.proto.files import read_groups, read_traces
from tracegen.proto.graph import Groups, TraceSet
from tracegen.replay import Facts, Timeline, replay
from tracegen.replay.astra_files import AstraSystem, Flags, astra_system
from tracegen.replay.astra_mode import Mode
from tracegen.replay.engine import explain, run
from tracegen.replay.fabric import Fabric, read_network, read_system
from tracegen.replay.paths import FOLDED, MESSAGES, choose
from tracegen.replay.run import Run
from tracegen.replay.tables import write_links

GOLDEN = SHARED / "golden"
MIB = 1 << 20
COLUMNS = ("ready_ns", "issue_ns", "transfer_ns", "end_ns", "ahead", "late_rank")


def system(
    size: list[int], topology: list[str], algorithm: str = "ring", flags: Flags | None = None, **keys: Any
) -> Any:
    """100 GiB/s, 500 ns, 10 ns endpoint delay, one chunk, unless ``keys`` says otherwise."""
    network = {
        "topology": topology, "npus_count": size, "bandwidth": [100.0] * len(size), "latency": [500.0] * len(size),
    }  # fmt: skip
    content: dict[str, Any] = {
        "endpoint-delay": 10, "preferred-dataset-splits": 1, "local-mem-bw": 1600,
        "collective-optimization": "localBWAware",
    }  # fmt: skip
    for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        content[f"{name}-implementation"] = [algorithm] * len(size)
    return astra_system(
        network, {**content, **{key.replace("_", "-"): value for key, value in keys.items()}}, {}, flags
    )


def one_class(node: dict[str, Any], ranks: int) -> TraceSet:
    """Every rank runs one node, on a group of all."""
    world = Groups.of([list(range(ranks))], ["world"], [0])
    return TraceSet(traces([[node]]).graphs, np.zeros(ranks, np.int32), world, np.zeros((ranks, 1), np.int32))


def play(made: TraceSet, described: AstraSystem, **more: Any) -> Run:
    return run(made, described.fabric, execution="astra", mode=described.mode, **more)


def by_messages(done: Run) -> bool:
    return done.links is not None


# --- agreement ---------------------------------------------------------------------------------------------------


def outcome(made: TraceSet, fabric: Fabric, mode: Mode, **more: Any) -> Run | str:
    try:
        return run(made, fabric, execution="astra", mode=mode, **more)
    except InputError as refused:
        return str(refused)


def assert_paths_agree(made: TraceSet, fabric: Fabric, mode: Mode, seed: int) -> bool:
    """The chosen path equals the unfolded simulation node by node, refusals included; returns whether it was folded."""
    chosen, every = outcome(made, fabric, mode), outcome(made, fabric, mode, path=MESSAGES, fold=False)
    if isinstance(chosen, str) or isinstance(every, str):
        assert type(chosen) is type(every), (seed, chosen, every)
        return False
    for rank in range(made.ranks):
        a, b = chosen.nodes_of(rank), every.nodes_of(rank)
        for name in COLUMNS:
            assert (getattr(chosen, name)[a] == getattr(every, name)[b]).all(), (seed, rank, name)
    for row in Timeline(chosen, Facts()).document("replay")["ranks"]:
        parts = row["compute_ns"] + sum(row["exposed_ns"].values()) + row["bubble_ns"] + row["idle_ns"]
        assert parts == max(int(every.end_ns.max()), 0), (seed, row)
    return not by_messages(chosen)


def test_the_path_chosen_equals_the_simulation_of_every_message() -> None:
    """250 random graphs of up to 16 ranks, and 250 whose ranks do alike, on both backends, hangs included."""
    folded = 0
    for seed in range(250):
        case = draw(seed)
        folded += assert_paths_agree(case.traces, case.fabric, case.mode, seed)
        folded += assert_paths_agree(*draw_alike(seed), seed)
    assert folded > 60  # else little is compared


@pytest.mark.verify
def test_the_path_chosen_equals_the_simulation_on_thousands_of_graphs() -> None:
    for seed in range(250, 5000):
        case = draw(seed)
        assert_paths_agree(case.traces, case.fabric, case.mode, seed)
        assert_paths_agree(*draw_alike(seed), seed)


@pytest.fixture(scope="module")
def inputs() -> ModuleType:
    """The tool that writes a row's input files, an independent witness of the format."""
    spec = importlib.util.spec_from_file_location("golden_inputs", SHARED / "tools" / "golden_inputs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_shared
def test_every_sixth_collective_row_is_equal_on_the_path_chosen(inputs: ModuleType, tmp_path: Path) -> None:
    with (GOLDEN / "golden_collectives.csv").open() as file:
        rows = list(csv.DictReader(file))[::6]
    folded = 0
    for row in rows:
        folder = tmp_path / row["case_id"]
        folder.mkdir()
        case = inputs.collective_case(row, folder)
        flags = Flags(row["backend"] == "aware", int(row["num_queues_per_dim"] or 1))
        described = astra_system(read_network(folder / "network.yml"), read_system(folder / "system.json"), None, flags)
        groups = folder / "comm_group.json"
        made = read_traces(folder / "trace", groups=read_groups(groups) if groups.exists() else None)
        done = play(made, described)
        ends = done.finish_ns()[done.cell_of][case["members"]]
        assert (int(ends.max()), int(ends.min())) == (case["result_ns"], case["result_min_ns"]), row["case_id"]
        folded += not by_messages(done)
    assert folded > len(rows) / 2


@needs_shared
@pytest.mark.parametrize("name", ["f01", "f03", "f06", "f08", "g05", "g12", "g13", "g16", "g28"])
def test_parts_and_tables_of_graphs_by_messages(name: str) -> None:
    """Message-level runs read like any other: every rank's parts sum up to the makespan that ASTRA-sim gives."""
    (folder,) = GOLDEN.glob(f"graphs/{name}_*")
    network, keys = read_network(folder / "network.yml"), read_system(folder / "system.json")
    groups = folder / "comm_group.json"
    for backend, wanted in json.loads((folder / "expected.json").read_text())["backends"].items():
        flags = Flags(congestion=backend == "aware")
        described = astra_system(network, keys, read_system(folder / "memory.json"), flags)
        made = read_traces(folder / "trace", groups=read_groups(groups) if groups.exists() else None)
        answer = replay(made, described.fabric, execution="astra", mode=described.mode, path=MESSAGES).document(
            "replay"
        )
        assert answer["network_model"] == ("congestion" if backend == "aware" else "analytical")
        for row in answer["ranks"]:
            assert row["finish_ns"] == wanted["finish_ns"].get(str(row["rank"]))
            spent = row["compute_ns"] + sum(row["exposed_ns"].values()) + row["bubble_ns"] + row["idle_ns"]
            assert spent == answer["makespan_ns"]


# --- closed forms and what they are not used for ------------------------------------------------------------------


@pytest.mark.parametrize("congestion", [False, True])
@pytest.mark.parametrize("ranks", [8, 1024])
def test_a_ring_all_reduce_of_a_gigabyte_needs_no_messages(congestion: bool, ranks: int) -> None:
    """astra_sim_semantics 10.1: e + 2(n-1)(X(c/n) + e) + (n-1) P(c/n), on a ring in both backends."""
    described = system([ranks], ["Ring"], flags=Flags(congestion))
    done = play(one_class(coll(0, 0, size=10**9), ranks), described)
    part = 10**9 // ranks
    way, reduction = floor(500 + part / 107.3741824), 3 * floor(part / 1600)
    assert done.end_ns.tolist() == [10 + 2 * (ranks - 1) * (way + 10) + (ranks - 1) * reduction]
    assert not by_messages(done)


@pytest.mark.parametrize(
    ("topology", "algorithm", "kind", "ns"),
    [
        # m = 1 MiB / 8 = 131072 B: 1220.7 ns on a link, P = 3 floor(81.92) = 243; 1720 = floor(500 + 1220.7).
        ("Switch", "direct", "ALL_TO_ALL", 2 * 10 + 6 * 1220 + 2 * 1720),
        ("Switch", "direct", "REDUCE_SCATTER", 2 * 10 + 6 * 1220 + 2 * 1720 + 243),
        ("Switch", "direct", "ALL_REDUCE", 3 * 10 + 2 * (6 * 1220 + 2 * 1720) + 243),  # 253 / 1220 saves nothing
        ("FullyConnected", "direct", "ALL_TO_ALL", 2 * 10 + 1720),
        ("FullyConnected", "direct", "ALL_REDUCE", 3 * 10 + 2 * 1720 + 243),
        ("Switch", "ring", "REDUCE_SCATTER", 10 + 7 * (2 * 1720 + 10 + 243)),
    ],
)
def test_closed_forms_with_congestion(topology: str, algorithm: str, kind: str, ns: int) -> None:
    """astra_sim_semantics 10.1 and 10.2, all members entering at 0."""
    described = system([8], [topology], algorithm, Flags(congestion=True))
    done = play(one_class(coll(0, 0, kind, MIB), 8), described)
    assert done.end_ns.tolist() == [ns]
    assert not by_messages(done)


def skewed(ranks: int) -> TraceSet:
    return traces([[comp(0, ns=1000 * rank), coll(1, 0, size=MIB, deps=[0])] for rank in range(ranks)])


def test_members_that_enter_apart_are_simulated_where_no_recursion_is_exact() -> None:
    two = play(skewed(4), system([2, 2], ["Ring", "Switch"]))
    assert by_messages(two)
    assert two.notes == ()
    assert not by_messages(play(skewed(4), system([4], ["Ring"])))  # a ring's own recursion is exact
    assert by_messages(play(skewed(4), system([4], ["Ring"], flags=Flags(congestion=True))))


def test_the_last_member_is_named_and_transfer_counts_from_it() -> None:
    done = play(skewed(4), system([2, 2], ["Ring", "Switch"]))
    join = [done.nodes_of(rank).start + 1 for rank in range(4)]
    assert done.issue_ns[join].tolist() == [1, 1000, 2000, 3000]  # a compute node of 0 us lasts 1 ns
    assert done.transfer_ns[join].tolist() == [3000] * 4
    assert done.late_rank[join].tolist() == [3] * 4


MESSAGE = traces([[send(0, 1)], [recv(0, 0)], [comp(0)], [comp(0)]])


@pytest.mark.parametrize(
    ("made", "flags", "keys", "path"),
    [
        (MESSAGE, Flags(), {}, FOLDED),
        (MESSAGE, Flags(congestion=True), {}, MESSAGES),
        (MESSAGE, Flags(rendezvous=True), {}, MESSAGES),
        (MESSAGE, Flags(), {"replay_only": 1}, MESSAGES),
        (MESSAGE, Flags(), {"endpoint_delay": 0}, MESSAGES),
        (traces([[comp(0)]] * 4), Flags(congestion=True, rendezvous=True), {}, FOLDED),
        (traces([[coll(0, 0, dims=2)]] * 4), Flags(), {}, MESSAGES),  # over no dimension there is
    ],
)
def test_what_the_traces_and_flags_alone_decide(made: TraceSet, flags: Flags, keys: dict[str, Any], path: str) -> None:
    described = system([4], ["Switch"], flags=flags, **keys)
    assert choose(made, described.fabric, described.mode) == path


def test_unequal_chunks_in_groups_hang_the_next_collective_of_all() -> None:
    """astra_sim_semantics 5; K27: under `streams` the same traces end."""
    last = coll(2, 0, "ALL_GATHER", 1024)
    made = traces([*[[last]] * 2, *[[coll(1, 1, size=1024), {**last, "deps": [1]}]] * 2], {1: [2, 3]})
    described = system([4], ["Switch"])
    done = play(made, described)
    assert sorted(set(done.end_ns.tolist())) == [-1, int(done.end_ns.max())]
    assert "unequal numbers of chunks in groups" in explain(done)
    assert (run(made, described.fabric, execution="streams").end_ns >= 0).all()


def test_k42_head_to_head_sends_wait_for_each_other_under_rendezvous() -> None:
    made = traces([[send(0, 1 - rank), recv(1, 1 - rank, deps=[0])] for rank in range(2)])
    assert (play(made, system([2], ["Switch"])).end_ns >= 0).all()
    stuck = play(made, system([2], ["Switch"], flags=Flags(rendezvous=True)))
    assert "cycle: 0 -> 1 -> 0" in explain(stuck)
    assert "rank 0 node 0 (node 0) waits for dst 1 to receive tag 0 1048576 B (rendezvous)" in explain(stuck)


def test_k59_a_short_implementation_list_leaves_out_dimensions_and_says_so() -> None:
    described = system([4, 2], ["Ring", "Switch"], all_reduce_implementation=["ring"])
    done = play(one_class(coll(0, 0, size=MIB), 8), described)
    part = MIB // 4
    ring = 10 + 6 * (floor(500 + part / 107.3741824) + 10) + 3 * 3 * floor(part / 1600)
    assert set(done.end_ns.tolist()) == {ring}  # the first dimension's all-reduce alone
    assert len(done.notes) == 1
    assert "1 implementations of ALL_REDUCE for 2 dimensions" in done.notes[0]


def test_flags_of_astra_sim_are_refused_elsewhere() -> None:
    made = traces([[comp(0)]] * 4)
    for flags in (Flags(congestion=True), Flags(rendezvous=True)):
        described = system([4], ["Switch"], flags=flags)
        with pytest.raises(InputError, match="goes with --execution astra"):
            run(made, described.fabric, execution="streams", mode=described.mode)
    with pytest.raises(InputError, match="one dimension only, not 2"):
        play(made, system([2, 2], ["Ring", "Switch"], flags=Flags(congestion=True)))
    with pytest.raises(InputError, match="no ring of 2"):
        play(traces([[comp(0)]] * 2), system([2], ["Ring"], flags=Flags(congestion=True)))


def test_links_tell_bytes_busy_time_and_queueing(tmp_path: Path) -> None:
    """Two messages of 1 MiB from rank 0 through one port of a switch: the second queues for the first's 9765 ns."""
    made = traces([[comp(0)], [recv(0, 3, tag=1), recv(1, 2, tag=2)], [send(0, 1, tag=2)], [send(0, 1, tag=1)]])
    described = system([4], ["Switch"], flags=Flags(congestion=True))
    answer = replay(made, described.fabric, execution="astra", mode=described.mode)
    assert write_links(answer, tmp_path / "links.csv") == 8
    with (tmp_path / "links.csv").open() as file:
        rows = {row["link"]: row for row in csv.DictReader(file)}
    assert rows["2>switch"]["bytes"] == rows["3>switch"]["bytes"] == str(MIB)
    assert rows["switch>1"] == {
        "link": "switch>1", "source": "switch", "target": "1", "bytes": str(2 * MIB), "busy_ns": str(2 * 9765),
        "queueing_ns": "9765", "messages": "2",
    }  # fmt: skip
    assert rows["switch>0"]["busy_ns"] == "0"
    assert [part.bytes for part in answer.dimensions] == [2 * MIB]
    analytical = replay(made, described.fabric, execution="astra")
    assert write_links(analytical, tmp_path / "dims.csv") == 1
    assert (tmp_path / "dims.csv").read_text().splitlines()[1] == f"dim0,,,{2 * MIB},9765,0,"


@pytest.mark.parametrize("algorithm", ["ring", "direct", "halvingDoubling"])
def test_both_paths_count_the_same_bytes(algorithm: str) -> None:
    described = system([4, 2], ["Switch", "FullyConnected"], algorithm, preferred_dataset_splits=2)
    made = one_class(coll(0, 0, size=MIB), 8)
    few, all_ = (replay(made, described.fabric, execution="astra", path=path).dimensions for path in (FOLDED, MESSAGES))
    assert [(part.bytes, part.busy_ns) for part in few] == [(part.bytes, part.busy_ns) for part in all_]
