"""Execution `astra` equals ASTRA-sim's congestion-unaware backend to the nanosecond, on results recorded from it.

``../shared/golden`` holds the rows (its README says what produced them). What this engine does not model yet (double
binary trees, windowed direct all-reduce, remote memory) must be refused by name, never answered wrongly.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from shared import SHARED, needs_shared

from tracegen.proto.errors import InputError
from tracegen.proto.files import read_groups, read_traces
from tracegen.proto.graph import TraceSet
from tracegen.replay.engine import run
from tracegen.replay.fabric import Fabric, read_network, read_system
from tracegen.replay.run import Run

pytestmark = needs_shared
GOLDEN = SHARED / "golden"

NOT_YET = re.compile("not modelled under execution astra yet|needs a remote memory|implementations for 2 dimensions")


def rows(table: str) -> list[dict[str, str]]:
    if not SHARED.is_dir():
        return []
    with (GOLDEN / f"golden_{table}.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["backend"] == "unaware"]


@pytest.fixture(scope="module")
def inputs() -> ModuleType:
    """The tool that writes a row's input files, an independent witness of the format."""
    spec = importlib.util.spec_from_file_location("golden_inputs", SHARED / "tools" / "golden_inputs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(folder: Path, queues: int = 1) -> tuple[TraceSet, Fabric]:
    fabric = Fabric.from_astra(read_network(folder / "network.yml"), read_system(folder / "system.json"), queues=queues)
    groups = folder / "comm_group.json"
    return read_traces(folder / "trace", groups=read_groups(groups) if groups.exists() else None), fabric


def finish(done: Run) -> Any:
    return done.finish_ns()[done.cell_of]


def collective_rows(inputs: ModuleType, tmp_path: Path, every: int) -> tuple[int, list[str]]:
    """How many rows are equal (folded and not), and those refused; anything else fails."""
    equal, refused = 0, []
    for row in rows("collectives")[::every]:
        folder = tmp_path / row["case_id"]
        folder.mkdir()
        case = inputs.collective_case(row, folder)
        try:
            traces, fabric = load(folder, int(row["num_queues_per_dim"]))
            for fold in (True, False):
                ends = finish(run(traces, fabric, execution="astra", fold=fold))[case["members"]]
                got = (int(ends.max()), int(ends.min()))
                assert got == (case["result_ns"], case["result_min_ns"]), (row["case_id"], fold)
            equal += 1
        except InputError as why:
            if not NOT_YET.search(str(why)):
                raise
            refused.append(row["case_id"])
    return equal, refused


def test_every_fifth_collective_row_is_equal(inputs: ModuleType, tmp_path: Path) -> None:
    equal, refused = collective_rows(inputs, tmp_path, 5)
    assert equal >= 55
    assert len(refused) <= 8


@pytest.mark.verify
def test_all_collective_rows_but_those_not_modelled_are_equal(inputs: ModuleType, tmp_path: Path) -> None:
    """301 of 326; the 25 others are double binary trees, windows on all-reduce or rings, one implementation list."""
    equal, refused = collective_rows(inputs, tmp_path, 1)
    assert (equal, len(refused)) == (301, 25)


@pytest.mark.parametrize(
    ("topology", "group", "algorithm"),
    [
        ("[Ring]", False, "[ring]"),
        ("[Ring]", False, "[direct]"),
        ("[Switch]", False, "[ring]"),
        ("[Switch]", False, "[direct]"),
        ("[FullyConnected]", False, "[direct]"),
        ("[FullyConnected]", False, "[halvingDoubling]"),
        ("[Ring,Switch]", False, "[ring,ring]"),
        ("[Ring,Switch]", False, "[ring,direct]"),
        ("[Ring]", True, "[ring]"),
        ("[Ring,FullyConnected]", True, "[ring,ring]"),
        ("[Ring,Ring,Ring]", True, "[ring,ring,ring]"),
    ],
)
def test_a_row_of_each_kind_is_equal(
    inputs: ModuleType, tmp_path: Path, topology: str, group: bool, algorithm: str
) -> None:
    of_kind = [
        row
        for row in rows("collectives")
        if (row["topology"], row["group"] != "all", row["implementation"]) == (topology, group, algorithm)
    ]
    assert of_kind, "no such row"
    for row in of_kind[:3]:
        folder = tmp_path / row["case_id"]
        folder.mkdir()
        case = inputs.collective_case(row, folder)
        traces, fabric = load(folder, int(row["num_queues_per_dim"]))
        ends = finish(run(traces, fabric, execution="astra"))[case["members"]]
        assert (int(ends.max()), int(ends.min())) == (case["result_ns"], case["result_min_ns"])


def test_all_message_rows_are_equal(inputs: ModuleType, tmp_path: Path) -> None:
    """60 rows without flags that did not abort, the finish of every rank."""
    equal = 0
    for row in rows("p2p"):
        folder = tmp_path / row["case_id"]
        folder.mkdir()
        case = inputs.p2p_case(row, folder)
        if case["result_ns"] is None or row["extra_flags"]:
            continue
        ends = finish(run(*load(folder), execution="astra"))
        assert {rank: int(ends[rank]) for rank in case["rank_finish_ns"]} == case["rank_finish_ns"], row["case_id"]
        equal += 1
    assert equal == 60


# Graphs whose every rule this engine covers; the others need the message-level engine or remote memory.
EXACT = (
    "f02", "f04", "f07", "g01", "g02", "g03", "g04", "g05", "g06", "g08", "g09", "g10",
    "g11", "g15", "g16", "g17", "g18", "g19", "g21", "g22", "g23", "g25", "g26", "g28",
    "o1", "o2", "o3",
)  # fmt: skip
APPROXIMATE = ("f08", "f10")  # members of one collective over two dimensions, or of a direct all-reduce, enter apart


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("fold", [True, False])
def test_every_node_of_a_graph_starts_and_ends_when_astra_sim_says(name: str, fold: bool) -> None:
    (folder,) = GOLDEN.glob(f"graphs/{name}_*")
    wanted = json.loads((folder / "expected.json").read_text())["backends"]["unaware"]
    traces, fabric = load(folder)
    done = run(traces, fabric, execution="astra", fold=fold)
    assert done.notes == ()
    for rank in range(traces.ranks):
        columns = done.nodes_of(rank)
        times = wanted["node_start_end_ns"].get(str(rank), {})
        for node, start, end in zip(
            traces.graph(rank).id.tolist(), done.issue_ns[columns].tolist(), done.end_ns[columns].tolist(), strict=True
        ):
            assert [start, end if end >= 0 else None] == times.get(str(node), [-1, None]), (rank, node)
    ends = finish(done)
    assert {str(r): int(ends[r]) for r in np.flatnonzero(ends >= 0)} == wanted["finish_ns"]


@pytest.mark.parametrize("name", APPROXIMATE)
def test_an_approximation_is_said(name: str) -> None:
    (folder,) = GOLDEN.glob(f"graphs/{name}_*")
    assert run(*load(folder), execution="astra").notes
