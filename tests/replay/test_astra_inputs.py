"""ASTRA-sim's input files, key by key: what counts, what has no effect (and is said), what is refused.

Sections are of astra_sim_semantics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay.astra_files import UNITS, Flags, astra_system, groups_path
from tracegen.replay.astra_mode import RemoteMemory
from tracegen.replay.fabric import Algorithm

NETWORK = {"topology": ["Ring", "Switch"], "npus_count": [4, 2], "bandwidth": [100.0, 50.0], "latency": [500, 0.7]}
SYSTEM: dict[str, Any] = {
    "endpoint-delay": 10, "active-chunks-per-dimension": 1, "preferred-dataset-splits": 4, "local-mem-bw": 1600,
    "collective-optimization": "localBWAware",
    "all-reduce-implementation": ["ring", "ring"], "all-gather-implementation": ["ring", "ring"],
    "reduce-scatter-implementation": ["ring", "ring"], "all-to-all-implementation": ["ring", "ring"],
}  # fmt: skip


def read(memory: dict[str, Any] | None = None, flags: Flags | None = None, **changed: Any) -> Any:
    """The system with keys changed; None takes a key out."""
    system = {**SYSTEM, **{key.replace("_", "-"): value for key, value in changed.items()}}
    return astra_system(NETWORK, {key: value for key, value in system.items() if value is not None}, memory, flags)


def test_what_is_said_of_a_complete_system_is_nothing() -> None:
    assert read().notes == ()


def test_units_are_explained_in_one_line() -> None:
    """1: 100 in network.yml is 107.37 B/ns, local-mem-bw 1600 is 1600 B/ns."""
    described = read()
    assert described.fabric.bandwidth[0] == 107.3741824
    assert described.fabric.memory_bandwidth == 1600.0
    assert "\n" not in UNITS
    assert "2^30" in UNITS


def test_defaults_where_keys_are_missing() -> None:
    """2.3: endpoint-delay 10, active chunks 1, no splits, no reduction cost; the optimization is undefined there."""
    described = astra_system({**NETWORK, "topology": ["Ring", "Ring"]}, {})
    fabric = described.fabric
    assert (fabric.endpoint_delay_ns, fabric.active, fabric.splits, fabric.memory_bandwidth) == (10, 1, 0, 0.0)
    assert (fabric.queues, fabric.peak_flops, fabric.algorithms) == (1, 0.0, {})
    assert (described.mode.congestion, described.mode.rendezvous, described.mode.replay_only) == (False, False, False)
    assert described.mode.memory is None
    assert len(described.notes) == 2
    assert "collective-optimization is missing, which ASTRA-sim leaves undefined" in described.notes[0]
    assert "local-mem-bw is missing or 0: reductions cost no time" in described.notes[1]


def test_keys_without_effect_get_one_line_a_file() -> None:
    ignored = {"boost-mode": 0, "scheduling-policy": "LIFO", "intra-dimension-scheduling": "RG", "trace-enabled": 1}
    described = astra_system(
        {**NETWORK, "dimensions-count": 2}, {**SYSTEM, **ignored}, {"memory-type": "NO_MEMORY_EXPANSION"}
    )
    assert described.notes == (
        "network.yml: dimensions-count has no effect on times in ASTRA-sim's analytical backends, nor here",
        "system.json: boost-mode, intra-dimension-scheduling, scheduling-policy, trace-enabled have no effect on times "
        "in ASTRA-sim's analytical backends, nor here",
    )
    assert described.fabric == read().fabric


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"scheduling_policy": "RANDOM"}, "'RANDOM' is unknown; use one of LIFO, FIFO, EXPLICIT"),  # exits 1 there
        ({"model_shared_bus": 1}, "model-shared-bus: 1 (the LogGP bus) is not modelled"),
        ({"all_reduce_implementation_custom": ["x"]}, "collectives given as traces are not modelled"),
        ({"per_node_custom_implementation": 1}, "per-node-custom-implementation: collectives given as traces"),
        ({"roofline_enabled": 1}, "roofline-enabled needs peak-perf"),
        ({"roofline_enabled": 1, "peak_perf": 100, "local_mem_bw": None}, "roofline-enabled needs local-mem-bw"),
        ({"roofline_enabled": "yes"}, "roofline-enabled: 'yes' is not a number"),
        ({"replay_only": 2}, "replay-only: 2 must be 0 or 1"),
        ({"all_reduce_implementation": ["ring"] * 3}, "has 3 entries, the network 2 dimensions"),  # K59: aborts there
        ({"endpoint_delay": -1}, "endpoint-delay: -1 must be a number from 0 to 1e+15"),
    ],
)
def test_what_cannot_be_run_as_astra_sim_would_is_refused(changed: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        read(**changed)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_flags() -> None:
    """2.1: --num-queues-per-dim, --rendezvous-protocol, --injection-scale (truncated, where the key is present)."""
    described = read(flags=Flags(congestion=True, queues=3, rendezvous=True, injection_scale=2.57))
    assert (described.fabric.queues, described.fabric.endpoint_delay_ns) == (3, 25)
    assert (described.mode.congestion, described.mode.rendezvous) == (True, True)
    assert read(flags=Flags(injection_scale=3), endpoint_delay=None).fabric.endpoint_delay_ns == 10


def test_the_roofline_and_its_peak() -> None:
    """1: peak-perf is in 10^12 FLOP/s; without roofline-enabled it times nothing under astra."""
    on, off = read(roofline_enabled=1, peak_perf=312), read(roofline_enabled=0, peak_perf=312)
    assert (on.fabric.peak_flops, off.fabric.peak_flops) == (312e12, 0.0)
    assert on.fabric.rated_flops == off.fabric.rated_flops == 312e12


def test_replay_only_is_a_mode() -> None:
    assert read(replay_only=1).mode.replay_only


def test_every_name_of_an_implementation() -> None:
    names = [["direct", "direct3"], ["halvingDoubling", "doubleBinaryTree"], ["oneDirect2"], ["oneHalvingDoubling"]]
    kinds = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
    keys = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    found = read(**{f"{key}_implementation": one for key, one in zip(keys, names, strict=True)}).fabric.algorithms
    assert [found[kind] for kind in kinds] == [
        (Algorithm("direct"), Algorithm("direct", 3)),
        (Algorithm("halving_doubling"), Algorithm("double_binary_tree")),
        (Algorithm("direct", 2, True),),
        (Algorithm("halving_doubling", flat=True),),
    ]


@pytest.mark.parametrize(
    ("content", "memory"),
    [
        ({}, None),
        ({"memory-type": "NO_MEMORY_EXPANSION"}, None),
        ({"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": 250.9, "remote-mem-bw": 50.9}, (0, 250, 50)),
        ({"memory-type": "MEMORY_POOL", "remote-mem-latency": 0, "remote-mem-bw": 1}, (8, 0, 1)),
        (
            {"memory-type": "PER_NODE_MEMORY_EXPANSION", "num-npus-per-node": 4, "num-nodes": 2,
             "remote-mem-latency": 1, "remote-mem-bw": 2},
            (4, 1, 2),
        ),
    ],
)  # fmt: skip
def test_the_four_remote_memories(content: dict[str, Any], memory: tuple[int, int, int] | None) -> None:
    """2.4: bandwidth in bytes/ns and latency in ns are cut to integers."""
    assert read(content).mode.memory == (None if memory is None else RemoteMemory(*memory))


def test_a_path_with_empty_in_it_means_no_groups(tmp_path: Path) -> None:
    """2.1: "Any path that contains the text empty"; the flag's default is that very word."""
    there = tmp_path / "empty_groups.json"
    there.write_text("{}")
    assert groups_path("empty", "astra") == (None, ())
    assert groups_path(None, "astra") == (None, ())
    assert groups_path("groups.json", "astra") == ("groups.json", ())
    path, told = groups_path(str(there), "astra")
    assert path is None
    assert "means no groups, so it is not read" in told[0]
    path, told = groups_path(str(there), "streams")
    assert path == str(there)
    assert "ASTRA-sim would not read it" in told[0]
