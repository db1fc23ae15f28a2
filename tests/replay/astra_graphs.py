"""Random networks, systems and graphs for comparing the compiled message engine with its plain twin, node by node.

Owns what is drawn; both sides get the same numbers. Every seed is one case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import handmade
import numpy as np
from astra_inputs import COLL, IMPLEMENTATION, RECV, SEND, Inputs, Node, Refused, make_inputs
from astra_twin import Result, simulate

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective, TraceSet
from tracegen.replay.astra_mode import Mode, RemoteMemory
from tracegen.replay.fabric import Fabric
from tracegen.replay.message import engine as message_engine

KINDS = ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL")
NODE_KINDS = {"COMP": 4, "INVALID": 0, "MEM_LOAD": 2}


@dataclass
class Case:
    """One run, for both sides."""

    traces: TraceSet
    fabric: Fabric
    mode: Mode
    inputs: Inputs


def draw(seed: int) -> Case:
    """The case of a seed: up to 16 ranks, both backends, ordered and free graphs."""
    rng = np.random.default_rng(seed)
    aware = bool(rng.random() < 0.45)
    network = _network(rng, aware)
    system = _system(rng, network)
    count = prod(network["npus_count"])
    groups = {
        number: [int(r) for r in rng.permutation(count)[: int(rng.integers(2, count + 1))]]
        for number in range(1, 1 + int(rng.choice([0, 0, 1, 2, 3])))
    }
    memory = _memory(rng, count)
    nodes = _ordered(rng, count, groups, system) if rng.random() < 0.5 else _free(rng, count, groups, system)
    if memory["memory-type"] == "NO_MEMORY_EXPANSION":
        nodes = [_without_memory(mine) for mine in nodes]
    flags = {"queues": int(rng.choice([1, 1, 1, 2, 3, 4])), "rendezvous": bool(rng.random() < 0.15)}
    replay_only = bool(rng.random() < 0.03)
    return Case(
        handmade.traces(nodes, groups),
        Fabric.from_astra(network, system, queues=flags["queues"]),
        Mode(
            congestion=aware,
            rendezvous=flags["rendezvous"],
            replay_only=replay_only,
            memory=RemoteMemory.from_astra(memory, count),
        ),
        make_inputs(
            [[_twin_node(node) for node in mine] for mine in nodes], network,
            {**system, "replay-only": int(replay_only)}, groups=groups, memory=memory, aware=aware, **flags,
        ),
    )  # fmt: skip


def draw_alike(seed: int) -> tuple[TraceSet, Fabric, Mode]:
    """Ranks that all do the same on one dimension, by ring and direct algorithms: mostly one can stand for all."""
    rng = np.random.default_rng(seed)
    aware = bool(rng.random() < 0.5)
    network = _network(rng, aware, dims=1)
    system = _system(rng, network)
    for key in IMPLEMENTATION.values():
        system[f"{key}-implementation"] = [str(rng.choice(["ring", "ring", "direct", "direct2"]))]
    count = network["npus_count"][0]
    nodes: list[dict[str, Any]] = []
    for id in range(int(rng.integers(1, 14))):
        deps = sorted({int(rng.integers(0, id)) for _ in range(int(rng.integers(0, 3))) if id})
        if rng.random() < 0.5:
            nodes.append({**_local(rng, id, deps), "kind": NODE_KINDS["COMP"]})
        else:
            nodes.append({**_collective(rng, count, {}, system), "id": id, "deps": deps})
    alike = handmade.traces([nodes] * count)
    one_class = replace(alike, graphs=alike.graphs[:1], class_of=np.zeros(count, np.int32))
    fabric = Fabric.from_astra(network, system, queues=int(rng.choice([1, 2, 4])))
    return one_class, fabric, Mode(congestion=aware, rendezvous=bool(rng.random() < 0.2))


def _without_memory(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ids = {node["id"] for node in nodes if node["kind"] != NODE_KINDS["MEM_LOAD"]}
    return [{**node, "deps": [d for d in node["deps"] if d in ids]} for node in nodes if node["id"] in ids]


def _network(rng: np.random.Generator, aware: bool, dims: int = 0) -> dict[str, Any]:
    dims = dims or (1 if aware else int(rng.choice([1, 1, 2, 2, 3])))
    while True:
        size = [int(rng.choice([2, 2, 3, 4, 4, 8, 5, 6])) for _ in range(dims)]
        topology = [str(rng.choice(["Ring", "Switch", "FullyConnected"])) for _ in range(dims)]
        if prod(size) <= 16 and not (aware and size[0] == 2 and topology[0] == "Ring"):
            break
    return {
        "topology": topology,
        "npus_count": size,
        "bandwidth": [float(rng.choice([1, 12.5, 50, 100, 400])) for _ in size],
        "latency": [float(rng.choice([0, 1, 20, 500, 0.7, 33.3])) for _ in size],
    }


def _system(rng: np.random.Generator, network: dict[str, Any]) -> dict[str, Any]:
    system: dict[str, Any] = {
        "endpoint-delay": int(rng.choice([1, 7, 10, 100])),
        "active-chunks-per-dimension": int(rng.choice([1, 1, 2, 3, 4])),
        "preferred-dataset-splits": int(rng.choice([1, 1, 2, 4, 5])),
        "local-mem-bw": float(rng.choice([1, 50, 1600])),
        "collective-optimization": str(rng.choice(["baseline", "localBWAware"])),
        "roofline-enabled": int(rng.random() < 0.2),
        "peak-perf": 0.001,
    }
    for kind, key in IMPLEMENTATION.items():
        system[f"{key}-implementation"] = _implementation(rng, kind, network["npus_count"])
    return system


def _implementation(rng: np.random.Generator, kind: int, size: list[int]) -> list[str]:
    halving = all(n & (n - 1) == 0 for n in size)
    names = ["ring", "direct", "direct2", "direct3"]
    if halving and kind != Collective.ALL_TO_ALL:
        names += ["halvingDoubling"] * 2
    if halving and kind == Collective.ALL_REDUCE:
        names += ["doubleBinaryTree"] * 2
    if rng.random() < 0.1:
        return [str(rng.choice(["oneRing", "oneDirect", "oneDirect2"]))]
    return [str(rng.choice(names)) for _ in size]


def _memory(rng: np.random.Generator, count: int) -> dict[str, Any]:
    kinds = ["NO_MEMORY_EXPANSION", "PER_NPU_MEMORY_EXPANSION", "PER_NODE_MEMORY_EXPANSION", "MEMORY_POOL"]
    sizes = {"remote-mem-latency": 5, "remote-mem-bw": 3.7, "num-nodes": count, "num-npus-per-node": 2}
    return {"memory-type": str(rng.choice(kinds)), **sizes}


def _bytes(rng: np.random.Generator) -> int:
    return int(rng.choice([0, 64, 1000, 4096, 65536, 1 << 20, 1_234_567]))


def _local(rng: np.random.Generator, id: int, deps: list[int]) -> dict[str, Any]:
    """A node that needs no other rank."""
    kind = str(rng.choice(["COMP"] * 12 + ["INVALID", "MEM_LOAD"]))
    node = {
        "id": id, "kind": NODE_KINDS[kind], "us": int(rng.choice([0, 0, 1, 1, 2, 3, 10])), "deps": deps,
        "cpu": bool(rng.random() < 0.2) and kind == "COMP", "flops": int(rng.choice([1, 1000, 123_456])),
        "mem_bytes": int(rng.choice([1, 100, 54_321])),
    }  # fmt: skip
    if kind == "COMP" and rng.random() < 0.03:
        node["mem_bytes"] = 0
    return node


def _collective(
    rng: np.random.Generator, count: int, groups: dict[int, list[int]], system: dict[str, Any]
) -> dict[str, Any]:
    group = int(rng.choice([0, *groups]))
    kind = str(rng.choice(KINDS)) if rng.random() < 0.97 else "BROADCAST"
    size = _bytes(rng)
    if kind == "ALL_GATHER":
        size = max(size // 16, system["preferred-dataset-splits"])
    halving = "halvingDoubling" in system["all-reduce-implementation"]
    if kind == "ALL_REDUCE" and halving:  # smaller ones abort where they are reached
        size = max(size, 2 * count * system["preferred-dataset-splits"])
    if kind in KINDS and group and len(groups[group]) < count:
        names = system[f"{IMPLEMENTATION[Collective[kind]]}-implementation"]
        power = len(groups[group]) & (len(groups[group]) - 1) == 0
        if len(names) == 1 and (names[0] == "doubleBinaryTree" or (names[0] == "halvingDoubling" and not power)):
            group = 0
    node = {"kind": COLL, "group": group, "collective": Collective[kind], "size": size, "us": int(rng.integers(0, 3))}
    if rng.random() < 0.2:
        node["dims"] = int(rng.integers(1, 8))
    return node


def _ordered(
    rng: np.random.Generator, count: int, groups: dict[int, list[int]], system: dict[str, Any]
) -> list[list[dict[str, Any]]]:
    """One order of operations for all ranks; a rank's communications wait for one another, compute may run beside."""
    nodes: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    last: list[list[int]] = [[] for _ in range(count)]

    def add(rank: int, node: dict[str, Any], chained: bool) -> None:
        id = len(nodes[rank])
        deps = list(last[rank])
        if id and rng.random() < 0.3:
            deps.append(int(rng.integers(0, id)))
        nodes[rank].append({**node, "id": id, "deps": sorted(set(deps))})
        if chained:
            last[rank] = [id]

    for _ in range(int(rng.integers(1, 8))):
        for rank in range(count):
            if rng.random() < 0.6:
                add(rank, _local(rng, 0, []), bool(rng.random() < 0.7))
        if rng.random() < 0.6:
            node = _collective(rng, count, groups, system)
            for rank in groups[node["group"]] if node["group"] else range(count):
                add(rank, node, True)
        else:
            src, dst = (int(r) for r in rng.permutation(count)[:2])
            message = {"size": _bytes(rng) or 1, "tag": int(rng.integers(0, 3))}
            add(src, {"kind": SEND, "peer": dst, **message}, bool(rng.random() < 0.8))
            add(dst, {"kind": RECV, "peer": src, **message}, bool(rng.random() < 0.5))
    return _filled(nodes)


def _free(
    rng: np.random.Generator, count: int, groups: dict[int, list[int]], system: dict[str, Any]
) -> list[list[dict[str, Any]]]:
    """Dependencies and ids at random: many of these hang."""
    nodes: list[list[dict[str, Any]]] = [[] for _ in range(count)]

    def add(rank: int, node: dict[str, Any]) -> None:
        id = len(nodes[rank])
        deps = {int(rng.integers(0, id)) for _ in range(int(rng.integers(0, 3))) if id}
        nodes[rank].append({**node, "id": id, "deps": sorted(deps)})

    for _ in range(int(rng.integers(1, 10))):
        choice = rng.random()
        if choice < 0.4:
            for rank in range(count):
                if rng.random() < 0.7:
                    add(rank, _local(rng, 0, []))
        elif choice < 0.7:
            node = _collective(rng, count, groups, system)
            for rank in groups[node["group"]] if node["group"] else range(count):
                if rng.random() < 0.99:
                    add(rank, node)
        else:
            src, dst = (int(r) for r in rng.permutation(count)[:2])
            message = {"size": _bytes(rng) or 1, "tag": int(rng.integers(0, 3))}
            add(src, {"kind": SEND, "peer": dst, **message})
            if rng.random() < 0.95:
                add(dst, {"kind": RECV, "peer": src, **message})
    return _renumbered(rng, _filled(nodes))


def _filled(nodes: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Every rank has a node."""
    return [mine or [{"id": 0, "kind": 4, "us": 1, "deps": [], "flops": 1, "mem_bytes": 1}] for mine in nodes]


def _renumbered(rng: np.random.Generator, nodes: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Ids sparse and in any order, nodes in any order."""
    out = []
    for mine in nodes:
        ids = rng.permutation(3 * len(mine))[: len(mine)].tolist()
        moved = [{**node, "id": ids[node["id"]], "deps": [ids[d] for d in node["deps"]]} for node in mine]
        out.append([moved[i] for i in rng.permutation(len(moved))])
    return out


def _twin_node(node: dict[str, Any]) -> Node:
    mask = node.get("dims", 0)
    return Node(
        id=node["id"], kind=int(node["kind"]), deps=set(node["deps"]), cpu=node.get("cpu", False),
        duration_us=node.get("us", 0), num_ops=node.get("flops", 0), tensor_size=node.get("mem_bytes", 0),
        collective=int(node.get("collective", -1)), size=node.get("size", -1), peer=node.get("peer", -1),
        tag=node.get("tag", 0), group=node.get("group", 0),
        dims=[bool(mask >> d & 1) for d in range(4)] if mask else None,
    )  # fmt: skip


def difference(case: Case) -> str:
    """What the compiled engine and the twin disagree on, "" where nothing: refusals, starts, ends, finishes, counts."""
    twin: Result | str
    try:
        twin = simulate(case.inputs)
    except Refused as why:
        twin = f"refused: {why}"
    try:
        run = message_engine.simulate(case.traces, case.fabric, case.mode)
    except InputError as why:
        return "" if isinstance(twin, str) else f"the engine refuses: {why}"
    if isinstance(twin, str):
        return f"the twin {twin}"
    for rank in range(case.traces.ranks):
        graph, first = case.traces.graph(rank), int(run.node_ptr[rank])
        for position, id in enumerate(graph.id.tolist()):
            ours = (int(run.issue_ns[first + position]), int(run.end_ns[first + position]))
            end = twin.end[rank].get(id)
            theirs = (twin.start[rank].get(id, -1), -1 if end is None else end)
            if ours != theirs:
                return f"rank {rank} node {id}: engine {ours}, twin {theirs}"
        finish = twin.finish[rank]
        if int(run.finish_ns[rank]) != (-1 if finish is None else finish):
            return f"rank {rank}: finish {run.finish_ns[rank]}, twin {finish}"
    return "" if run.messages == twin.messages else f"{run.messages} messages, twin {twin.messages}"
