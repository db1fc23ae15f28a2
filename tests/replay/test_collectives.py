"""Collectives under `streams`: hand-computed times, and no port ever above its bandwidth (DEFINITIONS 3-5, 14)."""

from __future__ import annotations

from dataclasses import replace
from math import floor

import numpy as np
import pytest
from handmade import coll, comp, recv, send, traces
from heap_twin import rings
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.engine import run
from tracegen.replay.fabric import Algorithm, Fabric
from tracegen.replay.prices.collectives import Shape, duration
from tracegen.replay.prices.flow_shop import Visit, flow_shop
from tracegen.replay.traffic import shared_time_ns, traffic

FOUR = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)


def with_algorithm(fabric: Fabric, *names: str) -> Fabric:
    return replace(fabric, algorithms={kind: tuple(Algorithm(name) for name in names) for kind in FOUR})


def took(fabric: Fabric, kind: Collective, nbytes: int, ranks: list[int] | None = None) -> int:
    members = tuple(range(fabric.ranks) if ranks is None else ranks)
    return duration(fabric, Shape.of(fabric.size, members), kind, nbytes).duration_ns


def test_ring_all_reduce_of_a_gibibyte_at_50_gb_per_s() -> None:
    """K53: 8-rank ring, latency 0: 2 (7/8) 2^30 B / 50 GB/s = 37.581 ms; read as GiB/s it is 35.000 ms."""
    ring = rings((8,), ("ring",), bandwidth=(50.0,), latency=(0.0,), endpoint_delay_ns=0)
    assert took(ring, Collective.ALL_REDUCE, 2**30) == 14 * floor(2**27 / 50)
    assert took(ring, Collective.ALL_REDUCE, 2**30) / 1e6 == pytest.approx(37.581, abs=0.001)
    gib = replace(ring, bandwidth=(50 * 2**30 / 1e9,))
    assert took(gib, Collective.ALL_REDUCE, 2**30) / 1e6 == pytest.approx(35.0, abs=0.001)


def test_ring_steps_pay_latency_and_endpoint_delay_once_each() -> None:
    """4 ranks, 4000 B, 50 B/ns, 500 ns: 6 steps of 520 + 10 on a ring, 1020 + 10 on a switch."""
    assert took(rings((4,), ("ring",)), Collective.ALL_REDUCE, 4000) == 6 * 530
    assert took(rings((4,), ("switch",)), Collective.ALL_REDUCE, 4000) == 6 * 1030
    assert took(rings((4,), ("ring",)), Collective.REDUCE_SCATTER, 4000) == 3 * 530
    assert took(rings((4,), ("ring",)), Collective.ALL_GATHER, 1000) == 3 * 530
    assert took(rings((4,), ("ring",)), Collective.ALL_TO_ALL, 4000) == 6 * 530  # n (n - 1) / 2 steps


def test_direct_shares_ports_and_ring_links() -> None:
    """4000 B over 4: a switch port sends 3 messages, a pair's link one, a ring link m (1 + 2 + 1) / 2 = 2."""
    switch = with_algorithm(rings((4,), ("switch",)), "direct")
    assert took(switch, Collective.ALL_TO_ALL, 4000) == floor(1000 + 3000 / 50) + 10
    assert took(switch, Collective.ALL_REDUCE, 4000) == 2 * (floor(1000 + 3000 / 50) + 10)
    full = with_algorithm(rings((4,), ("fully_connected",)), "direct")
    assert took(full, Collective.ALL_TO_ALL, 4000) == floor(500 + 1000 / 50) + 10
    ring = with_algorithm(rings((4,), ("ring",)), "direct")
    assert took(ring, Collective.ALL_TO_ALL, 4000) == floor(2 * 500 + 2000 / 50) + 10


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 64])
def test_ring_link_transit_is_half_the_sum_of_distances(n: int) -> None:
    """DEFINITIONS 5: direct on a ring, each directed link carries m sum_k min(k, n - k) / 2."""
    ring = with_algorithm(rings((n,), ("ring",), bandwidth=(1.0,), latency=(0.0,), endpoint_delay_ns=0), "direct")
    m = 1000
    want = m * sum(min(k, n - k) for k in range(1, n)) / 2
    assert took(ring, Collective.ALL_TO_ALL, m * n) == floor(want)


def test_halving_doubling_halves() -> None:
    """8 ranks on a switch, 8000 B: messages of 4000, 2000, 1000 there and back."""
    fabric = with_algorithm(rings((8,), ("switch",)), "halving_doubling")
    one_way = sum(floor(1000 + m / 50) + 10 for m in (4000, 2000, 1000))
    assert took(fabric, Collective.ALL_REDUCE, 8000) == 2 * one_way
    assert took(fabric, Collective.REDUCE_SCATTER, 8000) == one_way
    assert took(fabric, Collective.ALL_GATHER, 1000) == one_way


@pytest.mark.parametrize("n", [3, 6, 12])
def test_other_sizes_than_powers_of_two_run_or_are_refused_by_name(n: int) -> None:
    """K61."""
    for name in ("ring", "direct"):
        assert took(with_algorithm(rings((n,), ("switch",)), name), Collective.ALL_REDUCE, 12_000) > 0
    with pytest.raises(InputError, match=f"power of two of members; a group spans {n}"):
        took(with_algorithm(rings((n,), ("switch",)), "halving_doubling"), Collective.ALL_REDUCE, 12_000)


def test_hierarchy_carries_what_each_dimension_should() -> None:
    """K60: 1e9 B over (2, 8) puts 1.0e9 and 0.875e9 B on the dimensions, over (8, 2) 1.75e9 and 0.125e9; and with one
    chunk the phases follow each other: 1.875 s at 1 GB/s either way."""
    for size, carried in (((2, 8), (1.0e9, 0.875e9)), ((8, 2), (1.75e9, 0.125e9))):
        fabric = rings(size, ("ring", "ring"), bandwidth=(1.0, 1.0), latency=(0.0, 0.0), endpoint_delay_ns=0)
        cost = duration(fabric, Shape.of(size, tuple(range(16))), Collective.ALL_REDUCE, 10**9)
        assert [use.nbytes for _, use in cost.uses] == pytest.approx(carried)
        assert cost.duration_ns == 1_875_000_000
        chunked = replace(fabric, splits=64)
        piped = took(chunked, Collective.ALL_REDUCE, 10**9)
        assert max(carried) <= piped < 1.875e9  # chunks overlap, bound by the fuller dimension


def test_a_product_group_runs_over_its_own_coordinates() -> None:
    """Ranks {0, 1, 4, 5} of 4 x 2 are {0, 1} x {0, 1}: reduce-scatter of 1/2, all-reduce of 1/4, all-gather."""
    fabric = rings((4, 2), ("switch", "switch"))
    inner = floor(1000 + 2000 / 50) + 10
    outer = 2 * (floor(2000 + 1000 / 25) + 10)
    assert took(fabric, Collective.ALL_REDUCE, 4000, [0, 1, 4, 5]) == inner + outer + inner


def test_any_other_group_is_a_flat_ring_as_slow_as_its_slowest_edge() -> None:
    """Ranks 3, 4, 5 of 4 x 2 are no product: 4 steps; the edge 3 -> 4 crosses both dimensions, 1000 + 2000 ns."""
    fabric = rings((4, 2), ("switch", "switch"))
    assert took(fabric, Collective.ALL_REDUCE, 3000, [3, 4, 5]) == 4 * (floor(3000 + 1000 / 25) + 10)


def test_order_in_the_group_decides_hops_only_where_hops_differ() -> None:
    """K22: [6, 2, 4, 0] equals the sorted group on a switch; on a ring of 8 neighbours are 4 and 2 links apart."""
    assert took(rings((8,), ("switch",)), Collective.ALL_REDUCE, 4000, [6, 2, 4, 0]) == took(
        rings((8,), ("switch",)), Collective.ALL_REDUCE, 4000, [0, 2, 4, 6]
    )
    ring = rings((8,), ("ring",))
    assert took(ring, Collective.ALL_REDUCE, 4000, [0, 2, 4, 6]) == 6 * (floor(2 * 500 + 20) + 10)
    # 6 -> 2 passes 7, 0, 1 and 4 -> 0 passes 5, 6, 7: two messages on the links after 6 and 7.
    assert took(ring, Collective.ALL_REDUCE, 4000, [6, 2, 4, 0]) == 6 * (floor(4 * 500 + 40) + 10)


def test_no_bytes_cost_latency_only_and_one_member_nothing() -> None:
    """K47: zero bytes are legal; a group of one has nothing to do."""
    fabric = rings((8,), ("ring",), splits=4)
    assert took(fabric, Collective.ALL_REDUCE, 0) == 14 * 510
    assert took(fabric, Collective.BARRIER, 12345) == 14 * 510
    assert took(fabric, Collective.ALL_REDUCE, 10**6, [3]) == 0


def test_rooted_collectives() -> None:
    """DEFINITIONS 14: broadcast and reduce are a pipelined ring; gather and scatter use the root's port."""
    fabric = rings((4,), ("switch",))
    for kind in (Collective.BROADCAST, Collective.REDUCE):
        assert took(fabric, kind, 50_000) == 3 * 1000 + 1000 + 3 * 10
    assert took(fabric, Collective.GATHER, 1000) == 1000 + 60 + 10  # 3 messages of a shard of 1000
    assert took(fabric, Collective.SCATTER, 4000) == 1000 + 60 + 10


def test_large_sizes_do_not_wrap() -> None:
    """K49: reduce-scatter of 12,935,233,536 B and all-gather of a quarter take the same; no size wraps."""
    fabric = rings((4,), ("ring",), latency=(0.0,), endpoint_delay_ns=0)
    whole = took(fabric, Collective.REDUCE_SCATTER, 12_935_233_536)
    assert whole == took(fabric, Collective.ALL_GATHER, 12_935_233_536 // 4)
    assert whole == pytest.approx(0.75 * 12_935_233_536 / 50, abs=3)
    for size in (2**31, 2**32, 3 * 2**30):
        assert took(fabric, Collective.ALL_REDUCE, size) == pytest.approx(1.5 * size / 50, abs=6)


def test_flow_shop_by_hand() -> None:
    """Two chunks, A (3 ns) then B (5 ns), one server each: 3 + 5 + 5. Two servers: no waiting. One station: rounds."""
    visits = [Visit(0, 3, 3), Visit(1, 5, 5)]
    assert flow_shop([visits] * 2, 1) == 13
    assert flow_shop([visits] * 2, 2) == 8
    assert flow_shop([[Visit(0, 7, 7)]] * 5, 2) == 21
    back = [Visit(0, 3, 3), Visit(1, 5, 5), Visit(0, 2, 2)]  # the first chunk returns while the second waits at B
    assert flow_shop([back] * 2, 1) == 15


TOPOLOGIES = st.sampled_from(["ring", "switch", "fully_connected"])


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    size = tuple(draw(st.lists(st.integers(2, 5), min_size=1, max_size=3)))
    topology = tuple(draw(TOPOLOGIES) for _ in size)
    bandwidth = tuple(draw(st.sampled_from([0.5, 3.0, 50.0, 450.0])) for _ in size)
    latency = tuple(draw(st.sampled_from([0.0, 1.0, 700.0])) for _ in size)
    splits = draw(st.integers(1, 6))
    fabric = rings(size, topology, bandwidth=bandwidth, latency=latency, splits=splits)
    names = tuple(draw(st.sampled_from(["ring", "direct"])) for _ in size)
    return replace(
        with_algorithm(fabric, *names), active=draw(st.integers(1, splits)), endpoint_delay_ns=draw(st.integers(0, 20))
    )


@settings(max_examples=150, deadline=None)
@given(fabric=fabrics(), kind=st.sampled_from(FOUR), nbytes=st.integers(0, 10**7), data=st.data())
def test_no_port_carries_more_than_its_bandwidth(
    fabric: Fabric, kind: Collective, nbytes: int, data: st.DataObject
) -> None:
    """K58: on every dimension, bytes injected <= links used x bandwidth x time, for any group, to the nanosecond that
    each message's floor may take off."""
    ranks = data.draw(st.lists(st.integers(0, fabric.ranks - 1), min_size=2, max_size=8, unique=True))
    cost = duration(fabric, Shape.of(fabric.size, tuple(ranks)), kind, nbytes)
    chunks = max(1, min(fabric.splits, nbytes))
    slack = chunks * 2 * len(ranks) ** 2
    for d, use in cost.uses:
        assert use.nbytes <= use.links * fabric.bandwidth[d] * (cost.duration_ns + slack) * (1 + 1e-9)
    if cost.edge_messages:
        injected = cost.edge_messages * cost.edge_bytes
        slowest = max(fabric.bandwidth)
        assert injected <= slowest * (cost.duration_ns + slack) * (1 + 1e-9)


def test_bytes_per_dimension_of_a_run_are_those_of_its_collectives() -> None:
    """DEFINITIONS 12 on 2 x 8, all-reduce of 1 GB: 16 ranks inject 1.0e9 and 0.875e9 B; busy sums floor(m/B)."""
    fabric = rings((2, 8), ("ring", "ring"), bandwidth=(1.0, 1.0), latency=(0.0, 0.0), endpoint_delay_ns=0)
    done = run(traces([[coll(0, 0, "ALL_REDUCE", 10**9)] for _ in range(16)]), fabric, execution="streams")
    found = traffic(done)
    assert found.nbytes.tolist() == [16 * 10**9, 14 * 10**9]
    assert found.busy_ns.tolist() == [10**9, 875_000_000]
    assert found.utilisation(done, int(done.end_ns.max())) == pytest.approx(np.array([1.0, 0.875]) / 1.875)


@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_messages_and_flat_rings_count_where_they_cross(execution: str) -> None:
    """Ranks 3, 4, 5 of 4 x 2 in a flat ring, and a message 0 -> 7: on every dimension crossed, or the lowest (`astra`).

    The all-reduce of 3000 B sends 4 messages of 1000 B per member; 3 -> 4 and 5 -> 3 cross both dimensions.
    """
    fabric = rings((4, 2), ("switch", "switch"))
    nodes = [[coll(0, 1, "ALL_REDUCE", 3000)] if rank in (3, 4, 5) else [comp(0)] for rank in range(8)]
    nodes[0], nodes[7] = [send(0, 7, 500)], [recv(0, 0, 500)]
    found = traffic(run(traces(nodes, {1: [3, 4, 5]}), fabric, execution=execution))
    if execution == "streams":
        assert found.nbytes.tolist() == [3 * 4000 + 500, 2 * 4000 + 500]
        assert found.busy_ns.tolist() == [4 * 20, 4 * 40]
    else:
        assert found.nbytes.tolist() == [3 * 4000 + 500, 0]
        assert found.busy_ns.tolist() == [4 * 20, 0]


def test_time_with_two_operations_on_one_dimension() -> None:
    """Rank 0 sends 50,000 B (2000 ns) to 1, and to 2 1000 ns later: 1000 ns shared (DEFINITIONS 6)."""
    nodes = [
        [comp(0, 1000), send(1, 1, 50_000), send(2, 2, 50_000, deps=[0])],
        [recv(0, 0, 50_000)],
        [recv(0, 0, 50_000)],
    ]
    done = run(traces(nodes), rings((3,), ("switch",)), execution="streams")
    assert shared_time_ns(done).tolist() == [1000]
    assert shared_time_ns(run(traces(nodes), rings((3,), ("switch",)), execution="astra")).tolist() == [0]
