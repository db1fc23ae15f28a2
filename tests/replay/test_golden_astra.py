"""Every given result of ASTRA-sim's analytical backends, to the nanosecond: the message-level engine and its twin.

Rows and graphs are read from ``../shared/golden`` through the files that ``golden_inputs.py`` writes for them; what
they are is told in the README there. Tolerance: none.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from astra_inputs import Refused, read_inputs
from astra_twin import simulate as twin_simulate
from shared import SHARED, needs_shared

from tracegen.proto.errors import InputError
from tracegen.proto.files import read_groups, read_traces
from tracegen.replay.astra_mode import Mode, RemoteMemory
from tracegen.replay.fabric import Fabric, read_network, read_system
from tracegen.replay.message.engine import simulate

pytestmark = needs_shared
GOLDEN = SHARED / "golden"


class Outcome(NamedTuple):
    """Ends of ranks and [start, end] of nodes that were issued, by rank and id; None where never."""

    finish: dict[int, int | None]
    nodes: dict[int, dict[int, list[int | None]]]


Replayed = Callable[..., Outcome]


def by_engine(folder: Path, *, aware: bool, queues: int, rendezvous: bool = False) -> Outcome:
    """Through the product: files into arrays, compiled engine."""
    system = read_system(folder / "system.json")
    fabric = Fabric.from_astra(read_network(folder / "network.yml"), system, queues=queues)
    groups = folder / "comm_group.json"
    traces = read_traces(folder / "trace", groups=read_groups(groups) if groups.exists() else None, ranks=fabric.ranks)
    memory = RemoteMemory.from_astra(json.loads((folder / "memory.json").read_text()), fabric.ranks)
    run = simulate(traces, fabric, Mode(congestion=aware, rendezvous=rendezvous, memory=memory))
    nodes: dict[int, dict[int, list[int | None]]] = {}
    for rank in range(traces.ranks):
        rows = slice(int(run.node_ptr[rank]), int(run.node_ptr[rank + 1]))
        times = zip(traces.graph(rank).id.tolist(), run.issue_ns[rows].tolist(), run.end_ns[rows].tolist(), strict=True)
        nodes[rank] = {id: [start, end if end >= 0 else None] for id, start, end in times if start >= 0}
    return Outcome({rank: end if end >= 0 else None for rank, end in enumerate(run.finish_ns.tolist())}, nodes)


def by_twin(folder: Path, *, aware: bool, queues: int, rendezvous: bool = False) -> Outcome:
    """Through the plain simulator of this folder."""
    result = twin_simulate(read_inputs(folder, aware=aware, queues=queues, rendezvous=rendezvous))
    starts = result.start.items()
    return Outcome(result.finish, {r: {id: [s, result.end[r][id]] for id, s in mine.items()} for r, mine in starts})


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All rows of both tables as ASTRA-sim's input files, in folders by table and case."""
    spec = importlib.util.spec_from_file_location("golden_inputs", SHARED / "tools" / "golden_inputs.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    out = tmp_path_factory.mktemp("golden")
    for table in ("collectives", "p2p"):
        tool.main(table, out / table)
    return out


def cases(inputs: Path, table: str) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Name, folder and case.json of every row."""
    with (GOLDEN / f"golden_{table}.csv").open() as rows:
        for row in csv.DictReader(rows):
            folder = inputs / table / row["case_id"]
            yield row["case_id"], folder, json.loads((folder / "case.json").read_text())


def wrong_collectives(inputs: Path, replayed: Replayed) -> tuple[int, list[str]]:
    """How many rows there are, and those whose latest or earliest end over the members differs."""
    count, wrong = 0, []
    for name, folder, case in cases(inputs, "collectives"):
        count += 1
        outcome = replayed(folder, aware=case["backend"] == "aware", queues=case["num_queues_per_dim"])
        ends = [outcome.finish[rank] for rank in case["members"]]
        got = (max(ends), min(ends)) if None not in ends else None  # type: ignore[type-var]
        if got != (case["result_ns"], case["result_min_ns"]):
            wrong.append(f"{name}: {got} instead of {case['result_ns']}, {case['result_min_ns']}")
    return count, wrong


def wrong_messages(inputs: Path, replayed: Replayed, refusal: type[Exception]) -> tuple[int, list[str], list[str]]:
    """How many rows there are, those with a rank that ends at another time, and those refused."""
    count, wrong, refused = 0, [], []
    for name, folder, case in cases(inputs, "p2p"):
        count += 1
        rendezvous = case["flags"] == "--rendezvous-protocol=true"
        try:
            outcome = replayed(folder, aware=case["backend"] == "aware", queues=1, rendezvous=rendezvous)
        except refusal:
            refused.append(name)
            continue
        expected = {int(rank): end for rank, end in case["rank_finish_ns"].items()}
        if {rank: outcome.finish[rank] for rank in expected} != expected:
            wrong.append(name)
    return count, wrong, refused


def wrong_graphs(replayed: Replayed) -> tuple[int, list[str]]:
    """How many graphs there are, and those with a rank or node whose start or end differs, by backend."""
    folders = sorted((GOLDEN / "graphs").iterdir())
    wrong = []
    for folder in folders:
        expected = json.loads((folder / "expected.json").read_text())
        for backend, truth in expected["backends"].items():
            outcome = replayed(folder, aware=backend == "aware", queues=expected.get("num_queues_per_dim", 1))
            finish = {str(rank): end for rank, end in outcome.finish.items() if end is not None}
            nodes = {str(r): {str(id): times for id, times in mine.items()} for r, mine in outcome.nodes.items()}
            if (finish, nodes) != (truth["finish_ns"], truth["node_start_end_ns"]):
                wrong.append(f"{folder.name} {backend}")
    return len(folders), wrong


def test_all_collective_rows(inputs: Path) -> None:
    assert wrong_collectives(inputs, by_engine) == (476, [])


def test_all_message_rows_but_the_two_on_which_the_simulator_aborts(inputs: Path) -> None:
    assert wrong_messages(inputs, by_engine, InputError) == (129, [], ["p064", "p065"])


def test_all_graphs_node_by_node() -> None:
    """g28 among them: a receive that never ends has an end of None on both sides."""
    assert wrong_graphs(by_engine) == (40, [])


def test_the_twin_on_graphs_and_message_rows(inputs: Path) -> None:
    assert wrong_graphs(by_twin) == (40, [])
    assert wrong_messages(inputs, by_twin, Refused) == (129, [], ["p064", "p065"])


@pytest.mark.verify
def test_the_twin_on_all_collective_rows(inputs: Path) -> None:
    """About a minute of plain Python."""
    assert wrong_collectives(inputs, by_twin) == (476, [])
