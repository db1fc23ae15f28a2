"""ASTRA-sim's input files as plain Python objects, for the twin only: the folder `golden_inputs.py` writes, or by hand.

Owns units (page, section 1) and defaults of keys (2); reads protobuf through the committed schema.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import floor, prod
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tracegen.proto.schema import Node as NodeMessage

INVALID, METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL = range(8)
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7
IMPLEMENTATION = {
    ALL_REDUCE: "all-reduce", ALL_GATHER: "all-gather", REDUCE_SCATTER: "reduce-scatter", ALL_TO_ALL: "all-to-all",
}  # fmt: skip


class Refused(Exception):  # noqa: N818
    """ASTRA-sim aborts, exits or throws here."""


@dataclass
class Node:
    """A node of a trace as the page describes it."""

    id: int
    kind: int
    deps: set[int] = field(default_factory=set)
    cpu: bool = False
    duration_us: int = 0
    num_ops: int = 0
    tensor_size: int = 0
    collective: int = -1
    size: int = -1
    peer: int = -1
    tag: int = 0
    group: int = 0
    dims: list[bool] | None = None


@dataclass
class Inputs:
    """Everything a run needs, in the simulator's units."""

    ranks: list[list[Node]]
    topology: list[str]
    size: list[int]
    bandwidth: list[float]  # bytes per ns
    latency: list[float]
    implementation: dict[int, list[str]]
    groups: dict[int, list[int]] = field(default_factory=dict)
    endpoint_delay: int = 10
    active: int = 1
    splits: int = 1
    bandwidth_aware: bool = True
    memory_bandwidth: float = 0.0
    peak: float = 0.0
    roofline: bool = False
    replay_only: bool = False
    memory: dict[str, Any] = field(default_factory=dict)
    aware: bool = False
    queues: int = 1
    rendezvous: bool = False

    @property
    def count(self) -> int:
        """How many ranks."""
        return prod(self.size)

    def compute_ns(self, node: Node, replayed: bool) -> int:
        """Duration of a compute or replayed node (4)."""
        if replayed or node.cpu or not self.roofline:
            return node.duration_us * 1000 or 1
        rate = min(self.memory_bandwidth * 1e9 * (node.num_ops / node.tensor_size), self.peak)
        return floor(1e9 * (node.num_ops / rate)) if rate else 2**63

    def chunking(self, node: Node) -> tuple[int, int]:
        """Bytes of a chunk and how many (5); 0 where the collective never ends."""
        size, n = node.size, self.count
        chunk = size // self.splits
        if node.collective != ALL_GATHER and chunk < n:
            chunk, size = n, self.splits * n
        return (chunk, -(-size // chunk)) if chunk else (0, 0)

    def reduce_ns(self, nbytes: int) -> int:
        """P(m) (8)."""
        return 3 * floor(nbytes / self.memory_bandwidth) if self.memory_bandwidth else 0


def read_trace(path: Path) -> list[Node]:
    """Nodes of one rank's file: varint-delimited messages, the first a GlobalMetadata."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        messages.append(data[at : at + size])
        at += size
    nodes = []
    for message in messages[1:]:
        read = NodeMessage.FromString(message)
        values: dict[str, Any] = {}
        for attribute in read.attr:
            values[attribute.name] = getattr(attribute, attribute.WhichOneof("value"))
        dims = values.get("involved_dim")
        nodes.append(
            Node(
                id=read.id,
                kind=read.type,
                deps={*read.data_deps, *read.ctrl_deps},
                cpu=bool(values.get("is_cpu_op", False)),
                duration_us=read.duration_micros,
                num_ops=values.get("num_ops", 0),
                tensor_size=values.get("tensor_size", 0),
                collective=values.get("comm_type", -1),
                size=values.get("comm_size", -1),
                peer=values.get("comm_dst" if read.type == SEND else "comm_src", -1),
                tag=values.get("comm_tag", 0),
                group=int(values.get("pg_name") or 0),
                dims=None if dims is None else list(dims.values),
            )
        )
    return nodes


def make_inputs(
    ranks: list[list[Node]],
    network: dict[str, Any],
    system: dict[str, Any],
    *,
    groups: dict[int, list[int]] | None = None,
    memory: dict[str, Any] | None = None,
    scale: float = 1.0,
    **flags: Any,
) -> Inputs:
    """Inputs from the content of the files, by the defaults of the page (2)."""
    delay = int(system.get("endpoint-delay", 10))
    return Inputs(
        ranks=ranks,
        topology=list(network["topology"]),
        size=list(network["npus_count"]),
        bandwidth=[bandwidth * 2**30 / 1e9 for bandwidth in network["bandwidth"]],
        latency=[float(latency) for latency in network["latency"]],
        implementation={kind: list(system[f"{key}-implementation"]) for kind, key in IMPLEMENTATION.items()},
        groups=groups or {},
        endpoint_delay=int(delay * scale) if "endpoint-delay" in system else delay,
        active=int(system.get("active-chunks-per-dimension", 1)),
        splits=int(system["preferred-dataset-splits"]),
        bandwidth_aware=system.get("collective-optimization") == "localBWAware",
        memory_bandwidth=float(system.get("local-mem-bw", 0)),
        peak=float(system.get("peak-perf", 0)) * 1e12,
        roofline=bool(system.get("roofline-enabled", 0)),
        replay_only=bool(system.get("replay-only", 0)),
        memory=memory or {},
        **flags,
    )


def read_inputs(folder: Path, **flags: Any) -> Inputs:
    """Inputs of a folder: ``trace.<rank>.et``, ``network.yml``, ``system.json``, ``memory.json``, ``comm_group.json``.

    ``flags``: aware, queues, rendezvous, scale.
    """
    network = YAML(typ="safe").load(folder / "network.yml")
    groups = folder / "comm_group.json"
    listed = json.loads(groups.read_text()) if groups.exists() else {}
    return make_inputs(
        [read_trace(folder / f"trace.{rank}.et") for rank in range(prod(network["npus_count"]))],
        network,
        json.loads((folder / "system.json").read_text()),
        groups={int(key): list(value) for key, value in listed.items()},
        memory=json.loads((folder / "memory.json").read_text()),
        **flags,
    )
