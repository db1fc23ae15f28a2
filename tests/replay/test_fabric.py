"""Reading networks: units as each format means them, routes, and what is refused with both numbers."""

from __future__ import annotations

import json
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heap_twin import rings

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.fabric import Algorithm, Fabric, coordinates, read_network, read_system
from tracegen.replay.prices.routes import message_ns, routes
from tracegen.spec.network import Collectives, Dimension, Network, astra_inputs

NETWORK = {"topology": ["Ring", "Switch"], "npus_count": [4, 2], "bandwidth": [100.0, 50.0], "latency": [500, 0.7]}
SYSTEM = {
    "preferred-dataset-splits": 4,
    "endpoint-delay": 10,
    "local-mem-bw": 1600,
    **{
        f"{kind}-implementation": ["ring", "direct3"]
        for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    },
}


def test_astra_bandwidth_is_gib_and_memory_decimal() -> None:
    """astra_sim_semantics 1: 100 in network.yml is 107.3741824 B/ns; local-mem-bw 1600 is 1600 B/ns."""
    fabric = Fabric.from_astra(NETWORK, SYSTEM)
    assert fabric.bandwidth == (107.3741824, 53.6870912)
    assert fabric.latency == (500.0, 0.7)
    assert fabric.memory_bandwidth == 1600
    assert fabric.topology == ("ring", "switch")
    assert fabric.ranks == 8
    assert fabric.algorithms[Collective.ALL_REDUCE] == (Algorithm("ring"), Algorithm("direct", 3))


def test_defaults_and_flags_of_astra() -> None:
    system = {k: v for k, v in SYSTEM.items() if k != "endpoint-delay"}
    assert Fabric.from_astra(NETWORK, system, injection_scale=3).endpoint_delay_ns == 10  # only where the key is
    assert Fabric.from_astra(NETWORK, SYSTEM, injection_scale=2.55).endpoint_delay_ns == 25
    assert Fabric.from_astra(NETWORK, SYSTEM).peak_flops == 0
    roofline = {**SYSTEM, "roofline-enabled": 1, "peak-perf": 312}
    assert Fabric.from_astra(NETWORK, roofline).peak_flops == 312e12
    flat = {**SYSTEM, "all-reduce-implementation": ["oneDirect4"]}
    assert Fabric.from_astra(NETWORK, flat).algorithms[Collective.ALL_REDUCE] == (Algorithm("direct", 4, True),)


@pytest.mark.parametrize(
    ("network", "system", "line"),
    [
        ({"bandwidth": [1.0, 1.0, 1.0]}, {}, "network.yml: bandwidth has 3 entries, npus_count has 2; give 2"),
        ({"latency": [1.0]}, {}, "network.yml: latency has 1 entries, npus_count has 2; give 2"),
        ({"topology": ["Ring", "Torus"]}, {}, "topology 'Torus' is unknown; use one of Ring, Switch, FullyConnected"),
        ({"npus_count": [4, 1]}, {}, "npus_count: 1 is below 2"),
        ({"bandwidth": [0, 1.0]}, {}, "bandwidth: 0 is below 0 or 0"),
        ({"latency": [-1, 1.0]}, {}, "latency: -1 is below 0"),
        ({"latency": ["x", 1.0]}, {}, "latency: 'x' is not a number"),
        ({}, {"all-reduce-implementation": ["ring"] * 3}, "has 3 entries, the network 2 dimensions; give 2"),
        ({}, {"all-reduce-implementation": ["rings", "ring"]}, "'rings' is unknown; use one of ring, direct"),
        ({}, {"all-reduce-implementation": ["oneRing", "ring"]}, "runs over all ranks and stands alone; 2 are given"),
        ({}, {"active-chunks-per-dimension": 0}, "active-chunks-per-dimension: 0 must be 1 or more"),
        ({}, {"collective-optimization": "best"}, "'best' is unknown; use baseline or localBWAware"),
    ],
)
def test_wrong_inputs_are_refused(network: dict[str, Any], system: dict[str, Any], line: str) -> None:
    """K59 and every list or name that does not fit."""
    with pytest.raises(InputError) as refused:
        Fabric.from_astra({**NETWORK, **network}, {**SYSTEM, **system})
    assert line.replace("below 0 or 0", "below 0") in str(refused.value).replace("below 0 or 0", "below 0")


def test_missing_keys_and_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"network.yml: latency is missing"):
        Fabric.from_astra({k: v for k, v in NETWORK.items() if k != "latency"}, SYSTEM)
    with pytest.raises(InputError, match="No such file"):
        read_network(tmp_path / "network.yml")
    (tmp_path / "network.yml").write_text("a: [1, 2\n")
    with pytest.raises(InputError, match="not YAML"):
        read_network(tmp_path / "network.yml")
    (tmp_path / "system.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_system(tmp_path / "system.json")
    (tmp_path / "system.json").write_text("[]")
    with pytest.raises(InputError, match="found list"):
        read_system(tmp_path / "system.json")


def test_written_inputs_read_back_as_the_spec_meant_them(tmp_path: Path) -> None:
    """K53: 50 GB/s is written 46.566128730773926 and comes back as 50 B/ns, every digit."""
    algorithms = ("ring", "direct")
    network = Network(
        name="two",
        dimensions=(
            Dimension(name="a", topology="ring", size=4, bandwidth=50e9, latency=5e-7),
            Dimension(name="b", topology="switch", size=2, bandwidth=25e9, latency=2e-6),
        ),
        collectives=Collectives(
            all_reduce=algorithms,
            all_gather=algorithms,
            reduce_scatter=algorithms,
            all_to_all=algorithms,
            splits=4,
            active=2,
            endpoint_delay=1e-8,
        ),
    )
    written = astra_inputs(network, 3.35e12)
    assert "46.566128730773926" in json.dumps(written.network)
    ours, theirs = Fabric.from_network(network), Fabric.from_astra(written.network, written.system)
    assert theirs.bandwidth == pytest.approx(ours.bandwidth, rel=1e-15)
    assert (theirs.size, theirs.topology, theirs.splits, theirs.active) == (ours.size, ours.topology, 4, 2)
    assert theirs.latency == ours.latency == (500.0, 2000.0)
    assert theirs.algorithms == ours.algorithms
    assert theirs.endpoint_delay_ns == ours.endpoint_delay_ns == 10


def test_coordinates_count_the_first_dimension_fastest() -> None:
    assert coordinates((2, 3)).tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]


def test_messages_take_every_dimension_that_differs_or_the_lowest() -> None:
    """DEFINITIONS 4 on a 4-ring (500 ns, 50 B/ns) by 2-switch (1000 ns per link, 25 B/ns): rank 0 to 7 = (3, 1)."""
    fabric = rings((4, 2), ("ring", "switch"))
    src, dst = np.array([0, 0, 0, 1]), np.array([7, 2, 4, 1])
    streams = routes(fabric, src, dst, lowest_only=False)
    assert message_ns(streams.latency, streams.bandwidth, np.full(4, 1000)).tolist() == [
        500 + 2000 + 40, 2 * 500 + 20, 2000 + 40, 0,
    ]  # fmt: skip
    assert streams.dims.tolist() == [3, 1, 2, 0]
    astra = routes(fabric, src, dst, lowest_only=True)
    assert message_ns(astra.latency, astra.bandwidth, np.full(4, 1000)).tolist() == [520, 1020, 2040, 0]


def test_the_floor_is_of_the_whole_sum() -> None:
    """astra_sim_semantics 2.2, row p067: 1000 B, latency 0.7 ns: floor(0.7 + 9.31) = 10, not 9."""
    fabric = rings((2,), ("fully_connected",), bandwidth=(107.3741824,), latency=(0.7,))
    way = routes(fabric, np.array([0]), np.array([1]), lowest_only=True)
    assert message_ns(way.latency, way.bandwidth, np.array([1000]))[0] == floor(0.7 + 1000 / 107.3741824) == 10
