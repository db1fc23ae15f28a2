"""The table of ``docs/executions.md``: every figure in it is computed here, so that the page cannot drift.

A row is a trace on a network, played under both executions; the figure is the latest finish over ranks, ns. To write
the table anew, paste what the failing test prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from handmade import Node, coll, comp, recv, send, traces
from heap_twin import rings

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.engine import run
from tracegen.replay.fabric import Algorithm, Fabric

PAGE = Path(__file__).parents[2] / "docs" / "executions.md"
HEAD = "| case | on | what runs | `streams` | `astra` | why they differ |"
FOUR = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
MB = 1_000_000


class Row(NamedTuple):
    """One line of the table: words, the network, nodes of each rank, groups by number; ``first``: earliest finish."""

    case: str
    on: str
    what: str
    why: str
    fabric: Fabric
    nodes: Sequence[Sequence[Node]]
    groups: dict[int, list[int]] | None = None
    first: bool = False


def network(*dims: tuple[str, int], algorithm: Algorithm | str = "ring", **more: Any) -> Fabric:
    """50 GB/s and 500 ns a link in every dimension, endpoint delay 10 ns, one chunk, unless ``more`` says otherwise."""
    one = Algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    count = 1 if one.flat else len(dims)
    values: dict[str, Any] = {
        "bandwidth": (50.0,) * len(dims),
        "latency": (500.0,) * len(dims),
        "algorithms": dict.fromkeys(FOUR, (one,) * count),
    }
    return rings(tuple(n for _, n in dims), tuple(name for name, _ in dims), **values | more)


def all_ranks(fabric: Fabric, kind: str, size: int = MB) -> list[list[Node]]:
    """All ranks run one collective."""
    return [[coll(0, 0, kind, size)] for _ in range(fabric.ranks)]


def in_group(ranks: int, members: Sequence[int], kind: str, size: int = MB) -> list[list[Node]]:
    """The members run one collective of group 1."""
    return [[coll(0, 1, kind, size)] if rank in members else [comp(0, 1)] for rank in range(ranks)]


RING8, SWITCH8, FULL8 = network(("ring", 8)), network(("switch", 8)), network(("fully_connected", 8))
GRID = network(("switch", 4), ("switch", 2))


def one(case: str, on: str, kind: str, fabric: Fabric, why: str, size: int = MB) -> Row:
    """All ranks of the network run one collective."""
    what = f"{kind.lower().replace('_', '-')}, {size:,} B"
    return Row(case, on, what, why, fabric, all_ranks(fabric, kind, size))


def by(fabric: Fabric, name: str, window: int = 0, flat: bool = False) -> Fabric:
    """The same network with another algorithm."""
    count = 1 if flat else fabric.dimensions
    return replace(fabric, algorithms=dict.fromkeys(FOUR, (Algorithm(name, window, flat),) * count))


def rows() -> list[Row]:
    """All rows of the table, in order."""
    return [*collective_rows(), *group_rows(), *chunk_rows(), *message_rows(), *order_rows()]


def collective_rows() -> list[Row]:
    start = "`astra` pays one endpoint delay more, at the start"
    port = "under `astra` the messages of a port all go at full rate; under `streams` they share it"
    transit = "under `streams` a ring link carries every message that passes it"
    trees = "`streams`: half a chunk in each of two trees, streaming; `astra`: whole chunks, level by level, one tree"
    return [
        one("ring", "ring 8", "ALL_REDUCE", RING8, start),
        one("ring", "switch 8", "ALL_REDUCE", SWITCH8, start),
        one("ring", "ring 8", "ALL_GATHER", RING8, start, MB // 8),
        one("ring", "ring 8", "ALL_TO_ALL", RING8, start),
        one("direct", "fully connected 8", "ALL_REDUCE", by(FULL8, "direct"), start),
        one("direct", "switch 8", "ALL_REDUCE", by(SWITCH8, "direct"), port),
        one("direct", "switch 8", "ALL_TO_ALL", by(SWITCH8, "direct"), port),
        one("direct", "ring 8", "ALL_TO_ALL", by(RING8, "direct"), transit),
        one("direct, window 2", "switch 8", "ALL_TO_ALL", by(SWITCH8, "direct", 2), port),
        one("halving-doubling", "switch 8", "ALL_REDUCE", by(SWITCH8, "halving_doubling"), start),
        one("halving-doubling", "ring 8", "ALL_REDUCE", by(RING8, "halving_doubling"), transit),
        one("double binary tree", "switch 8", "ALL_REDUCE", by(SWITCH8, "double_binary_tree"), trees),
        one(
            "double binary tree", "switch 6", "ALL_REDUCE", network(("switch", 6), algorithm="double_binary_tree"),
            "ASTRA-sim crashes on other sizes than powers of two",
        ),
        one(
            "flat: oneDirect", "switch 4 x switch 2", "ALL_TO_ALL", by(GRID, "direct", 0, True),
            "ports shared, and both latencies where a message crosses two dimensions",
        ),
        one("broadcast", "switch 8", "BROADCAST", SWITCH8, "ASTRA-sim's lasts its written duration; 0 counts 1 ns"),
        one("gather", "switch 8", "GATHER", SWITCH8, "ASTRA-sim throws on reduce, gather, scatter and barrier"),
        one("barrier", "switch 8", "BARRIER", SWITCH8, "the same; under `streams` an all-reduce of no bytes"),
    ]  # fmt: skip


def group_rows() -> list[Row]:
    far = network(("ring", 8), endpoint_delay_ns=1000)
    three = "switch 4 x switch 2"
    return [
        Row("group, product", three, "all-reduce in {0, 1, 4, 5}, 1,000,000 B",
            "`streams` goes dimension by dimension, `astra` around one flat ring in list order",
            GRID, in_group(8, [0, 1, 4, 5], "ALL_REDUCE"), {1: [0, 1, 4, 5]}),
        Row("group, no product", three, "all-reduce in {3, 4, 5}, 1,000,000 B",
            "a flat ring in both; the edge 3 to 4 crosses two dimensions, `astra` counts the lowest",
            GRID, in_group(8, [3, 4, 5], "ALL_REDUCE"), {1: [3, 4, 5]}),
        Row("group, endpoint delay 1 us", "ring 8", "all-reduce in {0, 1, 2, 3}, 1,000,000 B",
            "ASTRA-sim charges groups 10 ns a step whatever the system file says",
            far, in_group(8, [0, 1, 2, 3], "ALL_REDUCE"), {1: [0, 1, 2, 3]}),
        Row("group, list order 0 4 1 5", "ring 8", "all-reduce in {0, 4, 1, 5}, 1,000,000 B",
            "two edges pass the same links; `astra` lets both run at full rate",
            RING8, in_group(8, [0, 4, 1, 5], "ALL_REDUCE"), {1: [0, 4, 1, 5]}),
    ]  # fmt: skip


def chunk_rows() -> list[Row]:
    grid = network(("ring", 4), ("switch", 2), splits=4)
    active = "under `astra` all chunks in service run at full rate; under `streams` they share each port"
    inner = replace(GRID, algorithms=dict.fromkeys(FOUR, (Algorithm("double_binary_tree"), Algorithm("ring"))))
    baseline = replace(GRID, bandwidth_aware=False)
    return [
        one(
            "4 splits", "ring 8", "ALL_REDUCE", network(("ring", 8), splits=4),
            "1,234,567 / 4 is cut off: ASTRA-sim moves 5 chunks of 308,641 B, `streams` 4 equal ones", 1_234_567,
        ),
        one("4 splits, 2 active", "ring 8", "ALL_REDUCE", network(("ring", 8), splits=4, active=2), active),
        one("4 splits, 4 active", "ring 4 x switch 2", "ALL_REDUCE", replace(grid, active=4), active),
        one(
            "4 splits", "ring 4 x switch 2", "ALL_REDUCE", grid,
            "one endpoint delay more for every stay on a dimension; chunks overlap alike",
        ),
        one(
            "4 splits, 2 queues", "ring 8", "ALL_TO_ALL", network(("ring", 8), splits=4, queues=2),
            "`--num-queues-per-dim`: each queue serves chunks of its own at full rate; `streams` has one queue",
        ),
        one(
            "baseline", "switch 4 x switch 2", "ALL_REDUCE", baseline,
            "`collective-optimization: baseline` all-reduces all bytes on every dimension; `streams` never does",
        ),
        one(
            "tree inside", "switch 4 x switch 2", "ALL_REDUCE", inner,
            "ASTRA-sim runs the whole tree on the way out and again on the way back",
        ),
        one(
            "reductions", "ring 8", "ALL_REDUCE", network(("ring", 8), memory_bandwidth=1600.0),
            "`local-mem-bw: 1600`: three memory passes per reduced message; free under `streams`",
        ),
        one(
            "endpoint delay 1 us", "ring 8", "ALL_REDUCE", network(("ring", 8), endpoint_delay_ns=1000),
            "the one endpoint delay more, at the start",
        ),
        one("no bytes", "ring 8", "ALL_REDUCE", RING8, "ASTRA-sim makes it 8 B, one per rank", 0),
        one("no bytes", "ring 8", "ALL_GATHER", RING8, "ASTRA-sim never gets to an end", 0),
    ]  # fmt: skip


def message_rows() -> list[Row]:
    cube = network(("ring", 4), ("ring", 4), ("switch", 2), bandwidth=(50.0, 25.0, 12.5))
    grid: list[list[Node]] = [[comp(0, 1)] for _ in range(32)]
    grid[0], grid[31] = [send(0, 31, MB)], [recv(0, 0, MB)]

    def late(kind: str, size: int = MB) -> list[list[Node]]:
        last = [comp(0, 100_000), coll(1, 0, kind, size, deps=[0])]
        return [last if rank == 3 else [coll(1, 0, kind, size)] for rank in range(8)]

    return [
        Row("message, one dimension", "ring 4", "0 to 1, 1,000,000 B", "the same",
            network(("ring", 4)), [[send(0, 1, MB)], [recv(0, 0, MB)], [comp(0, 1)], [comp(0, 1)]]),
        Row("message, three dimensions", "ring 4 x ring 4 x switch 2", "0 to 31, 1,000,000 B",
            "`streams`: all latencies, the smallest bandwidth; `astra`: the lowest dimension that differs",
            cube, grid),
        Row("late member", "ring 8", "rank 3 enters an all-reduce of 1,000,000 B 100 us late",
            "one endpoint delay; around a ring all steps follow the late member's first in both",
            RING8, late("ALL_REDUCE")),
        Row("late member, first to end", "ring 8", "the same, an all-gather of 125,000 B each: earliest finish",
            "all end together, or each alone: what the others sent the late one is there when it comes",
            RING8, late("ALL_GATHER", MB // 8), first=True),
    ]  # fmt: skip


def order_rows() -> list[Row]:
    four = network(("switch", 4))
    both = [[coll(0, 1 + rank // 2, size=MB), coll(1, 3 + rank % 2, size=MB)] for rank in range(4)]
    pairs = {1: [0, 1], 2: [2, 3], 3: [0, 2], 4: [1, 3]}
    later = [[comp(0, 50_000), coll(1, 1 + rank // 2, size=MB, deps=[0]), coll(2, 3 + rank % 2, size=MB)]
             for rank in range(4)]  # fmt: skip
    apart = [[coll(0, 1, size=MB), coll(1, 0, size=MB)] if rank < 2 else [coll(1, 0, size=MB)] for rank in range(4)]
    crossed = [[coll(0, 1, size=MB), coll(1, 2, size=MB)], [coll(1, 2, size=MB), coll(2, 1, size=MB)],
               [coll(1, 2, size=MB)], [comp(0, 1)]]  # fmt: skip
    return [
        Row("two groups at once", "switch 4", "every rank all-reduces 1,000,000 B in each of two pairs",
            "one stream per group; ASTRA-sim has one communication slot (`streams` warns of the shared port)",
            four, both, pairs),
        Row("two groups, lower ids later", "switch 4", "the same, the first of them after 50 us of compute",
            "an id that is not ready blocks its own stream only, and the slot takes what is ready", four, later, pairs),
        Row("a pair, then all ranks", "switch 4", "all-reduces in {0, 1}, then of all four, 1,000,000 B each",
            "ASTRA-sim tags chunks by how many a rank has made: 0 and 1 wait for other tags than 2 and 3 send",
            four, apart, {1: [0, 1]}),
        Row("unlike order", "switch 4", "rank 0 enters {0, 1} and then {0, 1, 2}, rank 1 the other way round",
            "streams of two groups do not wait for each other; each slot is held by what waits for the other",
            four, crossed, {1: [0, 1], 2: [0, 1, 2]}),
        Row("compute of 1,500 ns", "any", "one compute node", "ASTRA-sim reads whole microseconds",
            network(("switch", 2)), [[comp(0, 1500)], [comp(0, 1500)]]),
        Row("compute of 0 ns", "any", "one compute node", "ASTRA-sim counts 1 ns",
            network(("switch", 2)), [[comp(0, 0)], [comp(0, 0)]]),
    ]  # fmt: skip


def figure(row: Row, execution: str) -> str:
    """The latest (or first) finish, ns; or that there is none."""
    try:
        done = run(traces(row.nodes, row.groups), row.fabric, execution=execution)
    except InputError:
        return "refused"
    ends = done.finish_ns()
    return "never" if len(done.unfinished()) else f"{int(ends.min() if row.first else ends.max()):,}"


def line(row: Row) -> str:
    """A row of the table."""
    cells = (row.case, row.on, row.what, figure(row, "streams"), figure(row, "astra"), row.why)
    return f"| {' | '.join(cells)} |"


@pytest.fixture(scope="module")
def table() -> list[str]:
    """The table as the code computes it now."""
    return [HEAD, "|---|---|---|---:|---:|---|", *map(line, rows())]


def test_every_figure_of_the_page_is_what_the_code_computes(table: list[str]) -> None:
    text = PAGE.read_text()
    found = text[text.index(HEAD) :].split("\n\n")[0].splitlines()
    assert found == table, "docs/executions.md has other figures; its table should be:\n" + "\n".join(table)


def between(words: str) -> tuple[int, int]:
    """The two figures of the row whose cells start with these words."""
    text = PAGE.read_text()
    (found,) = [row for row in text[text.index(HEAD) :].splitlines() if row.startswith(f"| {words}")]
    cells = [cell.strip() for cell in found.strip("|").split("|")]
    return int(cells[3].replace(",", "")), int(cells[4].replace(",", ""))


def test_the_page_says_the_same_as_paper() -> None:
    """Rows computed by hand: 14 steps of 500 + 2500 + 10 (+ 10); direct on a switch: 7 messages share a port or not;
    three dimensions: latencies 500, 500 and 2 x 500 and the smallest bandwidth, or one link of 500 and the first."""
    assert between("ring | ring 8 | all-reduce") == (14 * 3010, 14 * 3010 + 10)
    assert between("direct | switch 8 | all-to-all") == (1000 + 7 * 2500 + 10, 1000 + 2500 + 2 * 10)
    assert between("message, three dimensions") == (500 + 500 + 2 * 500 + 80_000, 500 + 20_000)
