"""K58: under `streams` no port and no directed link ever carries more than its bandwidth.

The witness is a list of every message of a collective, written anew from DEFINITIONS 3-5 and 14, and carried over the
links one by one. Every step costs an endpoint delay of 1 ns or more, which covers the part of a nanosecond that its
floor takes off: so the bound holds without any allowance.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from handmade import coll, comp, graph
from heap_twin import rings
from hypothesis import given, settings
from hypothesis import strategies as st
from shared import SHARED, needs_shared

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective, Groups, TraceSet
from tracegen.replay.engine import run
from tracegen.replay.fabric import Algorithm, Fabric, coordinates
from tracegen.replay.prices.algorithms import double_tree
from tracegen.replay.traffic import traffic

C = Collective
Message = tuple[int, int, float]


def one_collective(
    fabric: Fabric, kind: Collective, size: int, group: list[int] | None = None, dims: int = 0
) -> TraceSet:
    """Every member runs the collective once; the others compute for 1 ns."""
    ranks = fabric.ranks
    members = list(range(ranks)) if group is None else group
    number = 0 if group is None else 1
    node = coll(0, number, kind.name, size, **({"dims": dims} if dims else {}))
    joined = np.isin(np.arange(ranks), members)
    return TraceSet(
        (graph([node], {("group", number): 0}), graph([comp(0, 1)], {})),
        np.where(joined, 0, 1).astype(np.int32),
        Groups.of([members], ["all"], [number]),
        np.where(joined, 0, -1).astype(np.int32)[:, None],
    )


# --- the witness: all messages of a collective among places 0..n-1 ------------------------------------------------


def in_order(low: int, high: int, above: int) -> Iterator[tuple[int, int]]:
    """(child, parent) of the in-order tree over low..high: a perfect tree on the left of its top, the rest right."""
    if low > high:
        return
    top = low + (1 << ((high - low + 1).bit_length() - 1)) - 1
    yield top, above
    yield from in_order(low, top - 1, top)
    yield from in_order(top + 1, high, top)


def line_messages(name: str, n: int, part: Collective, size: float) -> Iterator[Message]:
    """What places send to places; ``size`` is the buffer, or a member's part for all-gather."""
    piece = size if part == C.ALL_GATHER else size / n
    twice = 2 if part == C.ALL_REDUCE else 1
    if name == "ring":
        times = n * (n - 1) // 2 if part == C.ALL_TO_ALL else twice * (n - 1)
        yield from ((i, (i + 1) % n, times * piece) for i in range(n))
    elif name == "direct":
        yield from ((i, j, twice * piece) for i in range(n) for j in range(n) if i != j)
    elif name == "halving_doubling":
        left, far = piece * n, 1
        while far < n:
            left /= 2
            yield from ((i, i ^ far, twice * left) for i in range(n))
            far *= 2
    else:
        for child, parent in [*in_order(0, n - 2, n - 1), *in_order(1, n - 1, 0)]:
            yield child, parent, size / 2
            yield parent, child, size / 2


def messages(fabric: Fabric, kind: Collective, size: float, members: list[int]) -> Iterator[tuple[Message, bool]]:
    """All messages of a collective between ranks, and whether those to the opposite point of a ring go both ways."""
    own = {C.REDUCE_SCATTER_BLOCK: C.REDUCE_SCATTER, C.BARRIER: C.ALL_REDUCE}.get(kind, kind)
    if kind == C.BARRIER:
        size = 0
    if kind in (C.BROADCAST, C.REDUCE):
        for a, b in pairwise(members):
            yield ((a, b, size) if kind == C.BROADCAST else (b, a, size)), False
        return
    if kind in (C.GATHER, C.SCATTER):
        for other in members[1:]:
            yield ((other, members[0], size) if kind == C.GATHER else (members[0], other, size / len(members))), False
        return
    at = coordinates(fabric.size)[members]
    spans = [list(dict.fromkeys(at[:, d].tolist())) for d in range(fabric.dimensions)]
    algorithms = fabric.algorithm(kind)
    if algorithms[0].flat or np.prod([len(span) for span in spans]) != len(members):
        name = algorithms[0].name if algorithms[0].flat else "ring"
        for i, j, nbytes in line_messages(name, len(members), own, size):
            yield (members[i], members[j], nbytes), name == "direct"
        return
    if len(algorithms) == 1:
        algorithms *= fabric.dimensions
    for d, part, carried in phases(own, spans, algorithms, size):
        lines: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank, where in zip(members, at.tolist(), strict=True):
            lines[tuple(where[:d] + where[d + 1 :])].append(rank)
        for line in lines.values():
            line.sort(key=lambda rank: spans[d].index(int(coordinates(fabric.size)[rank, d])))
            for i, j, nbytes in line_messages(algorithms[d].name, len(line), part, carried):
                yield (line[i], line[j], nbytes), algorithms[d].name == "direct"


def phases(
    kind: Collective, spans: list[list[int]], algorithms: tuple[Algorithm, ...], size: float
) -> list[tuple[int, Collective, float]]:
    """Dimensions, what is done there, and bytes (DEFINITIONS 5)."""
    dims = [d for d, span in enumerate(spans) if len(span) > 1]
    out = []
    if kind == C.ALL_GATHER:
        for d in reversed(dims):
            out.append((d, kind, size))
            size *= len(spans[d])
        return out
    if kind == C.ALL_TO_ALL:
        return [(d, kind, size) for d in dims]
    gathers = []
    for d in dims:
        if kind == C.ALL_REDUCE and (d == dims[-1] or algorithms[d].name == "double_binary_tree"):
            out.append((d, kind, size))
            continue
        out.append((d, C.REDUCE_SCATTER, size))
        size /= len(spans[d])
        gathers.append((d, C.ALL_GATHER, size))
    return [*out, *reversed(gathers)] if kind == C.ALL_REDUCE else out


def carried(
    fabric: Fabric, sent: Iterator[tuple[Message, bool]]
) -> tuple[dict[tuple[Any, ...], float], dict[tuple[int, int], float]]:
    """Bytes on every port and directed link, by (dimension, ...), and injected by every (dimension, rank)."""
    links: dict[tuple[Any, ...], float] = defaultdict(float)
    injected: dict[tuple[int, int], float] = defaultdict(float)
    for (src, dst, nbytes), both_ways in sent:
        here, stride = src, 1
        for d, n in enumerate(fabric.size):
            a, b = here // stride % n, dst // stride % n
            line = here - a * stride
            here, stride_now, stride = here + (b - a) * stride, stride, stride * n
            if a == b:
                continue
            injected[d, src] += nbytes
            if fabric.topology[d] == "switch":
                links[d, "up", src] += nbytes
                links[d, "down", dst] += nbytes
            elif fabric.topology[d] == "fully_connected":
                links[d, line, a, b] += nbytes
            else:
                ahead = (b - a) % n
                ways = [(1, ahead), (-1, n - ahead)]
                if 2 * ahead == n:
                    ways, part = (ways, nbytes / 2) if both_ways else (ways[:1], nbytes)
                else:
                    ways, part = [min(ways, key=lambda way: way[1])], nbytes
                for turn, hops in ways:
                    for k in range(hops):
                        links[d, stride_now, line, turn, (a + turn * k) % n] += part
    return links, injected


def assert_bound(
    fabric: Fabric, kind: Collective, size: int, group: list[int] | None = None, dims: int = 0
) -> tuple[int, dict[tuple[int, int], float]]:
    """Runs the collective and holds it to the witness; gives its time and what each (dimension, rank) injected."""
    traces = one_collective(fabric, kind, size, group, dims)
    done = run(traces, fabric, execution="streams")
    members = list(range(fabric.ranks)) if group is None else group
    took = int(done.finish_ns()[done.cell_of][members].max())
    lines = [members]
    if dims and group is None:
        outside = [d for d in range(fabric.dimensions) if not dims >> d & 1]
        of_line: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank, where in enumerate(coordinates(fabric.size)[:, outside].tolist()):
            of_line[tuple(where)].append(rank)
        lines = list(of_line.values())
    found = traffic(done)
    everything: Counter[tuple[int, int]] = Counter()
    for line in lines:
        if len(line) == 1:
            continue
        links, injected = carried(fabric, messages(fabric, kind, float(size), line))
        for (d, *link), nbytes in links.items():
            assert nbytes <= fabric.bandwidth[d] * took * (1 + 1e-9), (d, link)
        for (d, rank), nbytes in injected.items():
            assert nbytes <= found.links[d] * fabric.bandwidth[d] * took * (1 + 1e-9), (d, rank)
            everything[d, rank] += nbytes
    for d in range(fabric.dimensions):
        total = sum(nbytes for (dim, _), nbytes in everything.items() if dim == d)
        assert found.nbytes[d] == pytest.approx(total, rel=1e-9, abs=1), d
    return took, everything


# --- the recorded rows --------------------------------------------------------------------------------------------


def golden_rows() -> list[dict[str, str]]:
    if not SHARED.is_dir():
        return []
    with (SHARED / "golden" / "golden_collectives.csv").open() as file:
        return list(csv.DictReader(file))


def items(text: str) -> list[str]:
    return [item.strip() for item in text.strip("[] ").split(",") if item.strip()]


def fabric_of(row: dict[str, str]) -> Fabric:
    """The network and system of a recorded row, as ASTRA-sim reads them."""
    names = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    system: dict[str, Any] = {f"{name}-implementation": items(row["implementation"]) for name in names}
    system |= {
        "preferred-dataset-splits": int(row["preferred_dataset_splits"]),
        "active-chunks-per-dimension": int(row["active_chunks_per_dimension"]),
        "endpoint-delay": int(row["endpoint_delay"]),
        "collective-optimization": row["collective_optimization"],
        "local-mem-bw": float(row["local_mem_bw_GBps"]),
    }
    network = {
        "topology": items(row["topology"]),
        "npus_count": [int(n) for n in items(row["npus_count"])],
        "bandwidth": [float(b) for b in items(row["bandwidth_GBps"])],
        "latency": [float(x) for x in items(row["latency_ns"])],
    }
    return Fabric.from_astra(network, system)


@needs_shared
def test_every_recorded_collective_keeps_every_port_within_its_bandwidth() -> None:
    """All 476 rows of ``golden_collectives.csv`` under `streams`; none is refused."""
    rows = golden_rows()
    assert len(rows) >= 476
    for row in rows:
        fabric, kind, size = fabric_of(row), Collective[row["collective"]], int(row["size_bytes"])
        group = None if row["group"] == "all" else [int(rank) for rank in items(row["group"])]
        dims = sum((flag in ("1", "True", "true")) << d for d, flag in enumerate(items(row["involved_dim"])))
        took, _ = assert_bound(fabric, kind, size, group, dims)
        n = fabric.ranks
        if fabric.dimensions == 1 and row["implementation"] == "[ring]" and kind == C.ALL_REDUCE and group is None:
            assert size / took * 2 * (n - 1) / n <= fabric.bandwidth[0]


# --- random fabrics -----------------------------------------------------------------------------------------------

FOUR = (C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER, C.ALL_TO_ALL)
ALL = (*FOUR, C.REDUCE_SCATTER_BLOCK, C.BARRIER, C.BROADCAST, C.REDUCE, C.GATHER, C.SCATTER)
TOPOLOGIES = ("ring", "switch", "fully_connected")


def legal(kind: Collective) -> list[str]:
    halving = [] if kind == C.ALL_TO_ALL else ["halving_doubling"]
    trees = ["double_binary_tree"] if kind in (C.ALL_REDUCE, C.BARRIER) else []
    return ["ring", "direct", *halving, *trees]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Fabric, Collective, list[int], int]:
    """A fabric, a collective on it, its members and bytes."""
    kind = draw(st.sampled_from(ALL))
    size = tuple(draw(st.lists(st.sampled_from([2, 3, 4, 5, 8]), min_size=1, max_size=3)))
    fabric = rings(
        size,
        tuple(draw(st.sampled_from(TOPOLOGIES)) for _ in size),
        bandwidth=tuple(draw(st.sampled_from([0.5, 3.0, 50.0, 450.0])) for _ in size),
        latency=tuple(draw(st.sampled_from([0.0, 0.7, 700.0])) for _ in size),
        splits=draw(st.integers(1, 6)),
        active=draw(st.integers(1, 6)),
        endpoint_delay_ns=draw(st.integers(1, 20)),
    )
    flat = draw(st.booleans())
    names = [draw(st.sampled_from(legal(kind))) for _ in (size[:1] if flat else size)]
    chosen = tuple(Algorithm(name, draw(st.integers(0, 9)) if name == "direct" else 0, flat) for name in names)
    fabric = replace(fabric, algorithms=dict.fromkeys(FOUR, chosen))
    most = min(fabric.ranks, 12)
    some = st.lists(st.integers(0, fabric.ranks - 1), min_size=2, max_size=most, unique=True)
    members = draw(st.one_of(some, st.permutations(range(fabric.ranks)), st.just(list(range(fabric.ranks)))))
    return fabric, kind, list(members), draw(st.integers(0, 10**7))


def hold(fabric: Fabric, kind: Collective, members: list[int], nbytes: int) -> None:
    try:
        assert_bound(fabric, kind, nbytes, members)
    except InputError as why:
        if "power of two" not in str(why):
            raise


@settings(max_examples=250, deadline=None)
@given(case=cases())
def test_any_collective_on_any_fabric_keeps_every_port_within_its_bandwidth(
    case: tuple[Fabric, Collective, list[int], int],
) -> None:
    """Every collective, algorithm, window and group; only halving-doubling among a non-power of two is refused."""
    hold(*case)


@pytest.mark.verify
@settings(max_examples=5000, deadline=None)
@given(case=cases())
def test_five_thousand_collectives_keep_every_port_within_its_bandwidth(
    case: tuple[Fabric, Collective, list[int], int],
) -> None:
    hold(*case)


def test_the_witness_can_fail() -> None:
    """ASTRA-sim lets a port send its n - 1 direct messages at once at full rate (c421's kind): the witness sees it."""
    fabric = rings((4,), ("switch",), algorithms=dict.fromkeys(FOUR, (Algorithm("direct"),)), latency=(0.0,))
    took = run(one_collective(fabric, C.ALL_TO_ALL, 4_000_000), fabric, execution="astra").finish_ns()[0]
    links, _ = carried(fabric, messages(fabric, C.ALL_TO_ALL, 4e6, [0, 1, 2, 3]))
    assert max(links.values()) > 2.9 * fabric.bandwidth[0] * took


@pytest.mark.parametrize("n", [*range(2, 20), 64, 100])
def test_double_trees_are_trees_and_no_place_is_an_inner_node_twice(n: int) -> None:
    """Sanders, Speck, Träff 2009: at most two children each, roots 0 and n - 1, depth about log2 n."""
    inner = []
    for tree, root, edges in zip(
        double_tree(n), (n - 1, 0), ([*in_order(0, n - 2, n - 1)], [*in_order(1, n - 1, 0)]), strict=True
    ):
        assert sorted(edges) == [(i, int(p)) for i, p in enumerate(tree.parent) if p >= 0]
        assert np.flatnonzero(tree.parent < 0).tolist() == [root]
        children = np.bincount(tree.parent[tree.parent >= 0], minlength=n)
        assert children.max() <= 2
        assert tree.depth <= n.bit_length()
        for place in range(n):  # every place leads to the root
            steps = 0
            while place != root:
                place, steps = int(tree.parent[place]), steps + 1
            assert steps <= tree.depth
        inner.append({int(i) for i in np.flatnonzero(children)} - {root})
    assert not inner[0] & inner[1]
