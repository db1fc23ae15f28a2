"""Algorithms of collectives under `streams`, each against a time computed by hand, and from a spec to both executions.

Where nothing else is said a switch port and a link carry 50 bytes per ns (dimension 1: 25), a link takes 500 ns
(dimension 1: 1000), a switch crossing two links, a step 10 ns of endpoint delay.
"""

from __future__ import annotations

from dataclasses import replace
from math import floor

import numpy as np
import pytest
from handmade import coll, traces
from heap_twin import merged, rings

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.engine import run
from tracegen.replay.fabric import Algorithm, Fabric
from tracegen.replay.prices.collectives import Shape, duration
from tracegen.replay.traffic import traffic
from tracegen.spec import load_job
from tracegen.spec.network import astra_inputs

C = Collective
FOUR = (C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER, C.ALL_TO_ALL)


def by(fabric: Fabric, *algorithms: Algorithm) -> Fabric:
    return replace(fabric, algorithms=dict.fromkeys(FOUR, algorithms))


def named(fabric: Fabric, *names: str) -> Fabric:
    return by(fabric, *(Algorithm(name) for name in names))


def took(fabric: Fabric, kind: Collective, nbytes: int, ranks: list[int] | None = None) -> int:
    members = tuple(range(fabric.ranks) if ranks is None else ranks)
    return duration(fabric, Shape.of(fabric.size, members), kind, nbytes).duration_ns


def test_double_binary_trees_stream_half_of_the_chunk_each() -> None:
    """4 ranks, 8000 B: leaf, inner, root and back are 4 steps; inner ranks send 4 halves, 2 x 8000 B, through a port.

    Trees 3-1-(0, 2) and 0-2-(1, 3): fully connected, only the link between 1 and 2 carries two halves each way.
    """
    switch = named(rings((4,), ("switch",)), "double_binary_tree")
    assert took(switch, C.ALL_REDUCE, 8000) == floor(4 * 1000 + 2 * 8000 / 50) + 4 * 10
    full = named(rings((4,), ("fully_connected",)), "double_binary_tree")
    assert took(full, C.ALL_REDUCE, 8000) == floor(4 * 500 + 8000 / 50) + 4 * 10
    # On a ring of links 0-1-2-3-0 both trees' edges are links but 1-3 and 0-2: two hops, towards higher numbers.
    # The link 1 -> 2 carries the halves of 1 -> 2 twice, 0 -> 2 (tree two, down) and 1 -> 3 (tree one, up): 4 halves.
    ring = named(rings((4,), ("ring",)), "double_binary_tree")
    assert took(ring, C.ALL_REDUCE, 8000) == floor(2 * (500 + 1000) + 4 * 4000 / 50) + 4 * 10


def test_double_binary_trees_keep_half_of_the_bandwidth_of_any_number_of_ranks() -> None:
    """Sanders, Speck, Träff 2009: at full bandwidth an all-reduce takes 2 m / B, as a ring does in the limit (K61)."""
    for n in (6, 8, 12, 64):
        fabric = named(rings((n,), ("switch",), latency=(0.0,), endpoint_delay_ns=0), "double_binary_tree")
        assert took(fabric, C.ALL_REDUCE, 10**9) == 2 * 10**9 // 50
    with pytest.raises(InputError, match="only all-reduces, it has no ALL_GATHER; use ring or direct"):
        took(fabric, C.ALL_GATHER, 10**9)


def test_a_dimension_of_trees_all_reduces_on_the_way_out_only() -> None:
    """(4 trees, 2 ring), 8000 B: all-reduce of 8000 inside, then all-reduce of 8000 outside; no way back."""
    fabric = named(rings((4, 2), ("switch", "switch")), "double_binary_tree", "ring")
    inside = floor(4 * 1000 + 2 * 8000 / 50) + 4 * 10
    outside = 2 * (floor(2000 + 4000 / 25) + 10)
    assert took(fabric, C.ALL_REDUCE, 8000) == inside + outside
    # Trees outside: reduce-scatter inside, all-reduce of 2000 by two trees of two ranks, all-gather inside.
    fabric = named(rings((4, 2), ("switch", "switch")), "ring", "double_binary_tree")
    inside = 6 * (floor(1000 + 2000 / 50) + 10)
    assert took(fabric, C.ALL_REDUCE, 8000) == inside + floor(2 * 2000 + 2000 / 25) + 2 * 10


def test_a_window_sends_direct_messages_in_rounds() -> None:
    """8 ranks on a switch, 8000 B, window 3: rounds of 3, 3 and 1 messages of 1000 B through a port."""
    fabric = by(rings((8,), ("switch",)), Algorithm("direct", 3))
    rounds = [floor(1000 + k * 1000 / 50) + 10 for k in (3, 3, 1)]
    assert took(fabric, C.REDUCE_SCATTER, 8000) == took(fabric, C.ALL_TO_ALL, 8000) == sum(rounds)
    assert took(fabric, C.ALL_GATHER, 1000) == sum(rounds)
    assert took(fabric, C.ALL_REDUCE, 8000) == 2 * sum(rounds)
    for window in (0, 7, 100):  # all at once
        whole = took(by(fabric, Algorithm("direct", window)), C.ALL_TO_ALL, 8000)
        assert whole == floor(1000 + 7 * 1000 / 50) + 10
    # On a ring of 4, round by round to the member 1, 2 and 3 on: one link, two (half of it each way), one back.
    ring = by(rings((4,), ("ring",)), Algorithm("direct", 1))
    assert took(ring, C.ALL_TO_ALL, 4000) == 2 * (500 + 20 + 10) + (2 * 500 + 20 + 10)


def test_flat_algorithms_ignore_dimensions_but_not_their_ports() -> None:
    """2 x 2 switches, 4000 B. Rank 0 sends to 1 (dimension 0), 2 (dimension 1) and 3 (both)."""
    fabric = rings((2, 2), ("switch", "switch"))
    direct = by(fabric, Algorithm("direct", 0, flat=True))
    # Two messages of 1000 B through each port; the slowest is the one that crosses both, 1000 + 2000 ns of links.
    assert took(direct, C.ALL_TO_ALL, 4000) == 3000 + 2 * 1000 // 25 + 10
    # List order: 0 -> 1 and 2 -> 3 cross dimension 0, 1 -> 2 and 3 -> 0 both.
    assert took(by(fabric, Algorithm("ring", 0, flat=True)), C.REDUCE_SCATTER, 4000) == 3 * (3000 + 1000 // 25 + 10)
    halving = by(fabric, Algorithm("halving_doubling", 0, flat=True))
    assert took(halving, C.REDUCE_SCATTER, 4000) == (1000 + 2000 // 50 + 10) + (2000 + 1000 // 25 + 10)
    with pytest.raises(InputError, match="power of two of members; a group spans 3"):
        took(halving, C.REDUCE_SCATTER, 3000, [0, 1, 2])


def test_one_algorithm_alone_is_that_of_every_dimension() -> None:
    fabric = rings((4, 2), ("switch", "ring"))
    for kind in FOUR:
        assert took(named(fabric, "direct"), kind, 8000) == took(named(fabric, "direct", "direct"), kind, 8000)
    with pytest.raises(InputError, match="ALL_REDUCE has 3 algorithms for 2 dimensions; give 2"):
        took(named(fabric, "ring", "ring", "ring"), C.ALL_REDUCE, 8000)


def test_a_pipeline_is_as_slow_as_its_busiest_link() -> None:
    """Broadcast 0 -> 4 -> 1 -> 5 on a ring of 8: hops of 4, 3 and 4 links; those from 1 to 4 carry it twice."""
    fabric = rings((8,), ("ring",))
    assert took(fabric, C.BROADCAST, 50_000, [0, 4, 1, 5]) == 11 * 500 + 2 * 1000 + 3 * 10
    assert took(fabric, C.BROADCAST, 50_000, [0, 1, 2, 3]) == 3 * 500 + 1000 + 3 * 10


@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling", "double_binary_tree"])
def test_no_bytes_cost_latency_and_endpoint_delays_only(name: str) -> None:
    """K47, on 8 ranks of a switch: 14, 2, 6 steps, or 6 hops up and down trees of depth 3."""
    fabric = named(rings((8,), ("switch",), splits=4), name)
    steps = {"ring": 14, "direct": 2, "halving_doubling": 6, "double_binary_tree": 6}[name]
    assert took(fabric, C.ALL_REDUCE, 0) == took(fabric, C.BARRIER, 999) == steps * 1010


@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling", "double_binary_tree"])
def test_time_is_linear_in_bytes_beyond_32_bits(name: str) -> None:
    """K49: reduce-scatter of 12,935,233,536 B takes 2.000 times an all-gather of 6,467,616,768 B in all; 2^31, 2^32
    and 3 x 2^30 take 2048, 4096 and 3072 times 2^20. Latency 0; each step floors less than 1 ns off."""
    fabric = named(rings((4,), ("switch",), latency=(0.0,), endpoint_delay_ns=0), name)
    if name != "double_binary_tree":
        gather = took(fabric, C.ALL_GATHER, 6_467_616_768 // 4)
        assert took(fabric, C.REDUCE_SCATTER, 12_935_233_536) / gather == pytest.approx(2.0, abs=1e-7)
        assert gather == pytest.approx(0.75 * 6_467_616_768 / 50, abs=4)
    unit = took(replace(fabric, bandwidth=(50.0 / 1024,)), C.ALL_REDUCE, 2**20)
    for size in (2**31, 2**32, 3 * 2**30):
        assert took(fabric, C.ALL_REDUCE, size) == pytest.approx(unit * size / 2**30, rel=1e-6)


def test_collectives_without_an_algorithm_of_their_own_run() -> None:
    """DEFINITIONS 14, through the engine: 4 ranks on a switch; all members end together."""
    fabric = rings((4,), ("switch",))
    expected = {
        "BROADCAST": 3 * 1000 + 1000 + 30,
        "REDUCE": 3 * 1000 + 1000 + 30,
        "GATHER": 1000 + 3 * 1000 + 10,
        "SCATTER": 1000 + 3 * 250 + 10,
        "BARRIER": 6 * 1010,
        "REDUCE_SCATTER_BLOCK": 3 * (1000 + 250 + 10),
    }
    sent = {"BROADCAST": 3, "REDUCE": 3, "GATHER": 3, "SCATTER": 0.75, "BARRIER": 0, "REDUCE_SCATTER_BLOCK": 3}
    for kind, want in expected.items():
        done = run(traces([[coll(0, 0, kind, 50_000)] for _ in range(4)]), fabric, execution="streams")
        assert done.finish_ns()[done.cell_of].tolist() == [want] * 4, kind
        assert traffic(done).nbytes.tolist() == [sent[kind] * 50_000], kind


@pytest.mark.parametrize("kind", ["ALL_REDUCE", "BROADCAST"])
def test_bytes_of_a_flat_ring_are_counted_rank_by_rank_folded_or_not(kind: str) -> None:
    """4 x 2 in one flat list: all 8 edges cross dimension 0, 3 -> 4 and 7 -> 0 also dimension 1; a broadcast has 7."""
    fabric = by(rings((4, 2), ("switch", "switch")), Algorithm("ring", 0, flat=True))
    alike = merged(traces([[coll(0, 0, kind, 8000)] for _ in range(8)]))
    messages, nbytes, edges = (14, 1000, (8, 2)) if kind == "ALL_REDUCE" else (1, 8000, (7, 1))
    for fold, cells in ((True, 1), (False, 8)):
        done = run(alike, fabric, execution="streams", fold=fold)
        assert done.cells == cells
        found = traffic(done)
        assert found.nbytes.tolist() == [messages * nbytes * count for count in edges]
        assert found.busy_ns.tolist() == [messages * floor(nbytes / 50), messages * floor(nbytes / 25)]


@pytest.mark.parametrize("algorithm", ["halving_doubling", "double_binary_tree", "direct", "[ring, halving_doubling]"])
def test_a_spec_names_an_algorithm_and_both_executions_run_it(algorithm: str) -> None:
    """`network.collectives.all_reduce` of a spec is the algorithm of both executions, by ASTRA-sim's name in its files.

    8 x 8 H100s, all-reduce of 64 MB in one chunk, reductions free. Where a port sends one message at a time `astra`
    differs by an endpoint delay at the start of each of the three phases; direct shares ports under `streams` only; and
    trees stream there.
    """
    job = load_job("llama3-70b.yaml", [f"network.collectives.all_reduce={algorithm}", "network.collectives.splits=1"])
    names = job.network.collectives.all_reduce
    given = astra_inputs(job.network, None)
    spelt = {"halving_doubling": "halvingDoubling", "double_binary_tree": "doubleBinaryTree"}
    assert given.system["all-reduce-implementation"] == [spelt.get(name, name) for name in names]
    ours, theirs = Fabric.from_network(job.network), Fabric.from_astra(given.network, given.system)
    assert ours.algorithms == theirs.algorithms
    one = traces([[coll(0, 0, "ALL_REDUCE", 64_000_000)] for _ in range(job.world)])
    ends = {}
    for execution, fabric in (("streams", ours), ("astra", theirs)):
        done = run(merged(one), fabric, execution=execution)
        ends[execution] = int(np.max(done.finish_ns()))
        assert len(done.unfinished()) == 0
    if algorithm == "direct":
        assert ends["astra"] < ends["streams"]
    elif algorithm == "double_binary_tree":
        assert ends["astra"] > ends["streams"]
    else:
        assert ends["astra"] == ends["streams"] + 3 * ours.endpoint_delay_ns
