"""Encoder, decoder and reading of many files, on the nodes of Llama-3-70B, against protobuf-python doing the same.

Run alone (`python benchmarks/bench_proto.py`) or by `make bench`. The baselines are plain protobuf code without
needless work: columns as Python lists, one message per node, and the results are compared, so both sides do the same.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.proto.decode import decode
from tracegen.proto.encode import ATTRIBUTES, head, write_rank
from tracegen.proto.files import read_traces
from tracegen.proto.graph import CHUNK, LAYER, MICROBATCH, OPERATOR, PHASE, Kind, Phase, RankGraph, TraceSet
from tracegen.proto.schema import GlobalMetadata, Node

Row = tuple[str, float, str, float, str]  # name, figure, unit, ratio, what the ratio is to


def best(call: Callable[[], Any], times: int = 15) -> float:
    """Seconds of the fastest of a few runs: the others were disturbed."""
    found = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        call()
        found = min(found, time.perf_counter() - start)
    return found


def varint(value: int) -> bytes:
    """A message's length."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def filled_names(graph: RankGraph) -> list[str]:
    """Every node's name, templates split once."""
    marks = f"([{LAYER}{MICROBATCH}{PHASE}{OPERATOR}{CHUNK}])"
    parts = [re.split(marks, graph.names.entry(i)) for i in range(len(graph.names.ptr) - 1)]
    names = []
    columns = (graph.name, graph.layer, graph.microbatch, graph.phase, graph.operator, graph.chunk)
    for name, layer, microbatch, phase, operator, chunk in zip(*(column.tolist() for column in columns), strict=True):
        fill = {LAYER: str(layer), MICROBATCH: str(microbatch), CHUNK: str(chunk)}
        fill |= {PHASE: Phase(phase).name if phase >= 0 else "", OPERATOR: graph.operators[operator]}
        names.append("".join(fill.get(part, part) for part in parts[name]))
    return names


def protobuf_encode(path: Path, traces: TraceSet, rank: int) -> None:
    """Write a rank's trace with protobuf, message by message."""
    graph = traces.graph(rank)
    names, ids = filled_names(graph), graph.id.tolist()
    kinds = dict(ATTRIBUTES[:9] + ATTRIBUTES[10:])
    slots, numbers = traces.slots[rank].tolist(), traces.groups.number.tolist()
    columns = {
        "num_ops": graph.flops, "tensor_size": graph.mem_bytes, "duration_ns": graph.duration_ns,
        "comm_type": graph.collective, "comm_size": graph.comm_bytes, "comm_tag": graph.tag, "layer": graph.layer,
        "microbatch": graph.microbatch, "chunk": graph.chunk,
    }  # fmt: skip
    lists = {name: column.tolist() for name, column in columns.items()}
    cpu, kind, slot, duration = (c.tolist() for c in (graph.cpu, graph.kind, graph.slot, graph.duration_us))
    operator, phase = graph.operator.tolist(), graph.phase.tolist()
    waits = [
        (ptr.tolist(), deps.tolist())
        for ptr, deps in ((graph.ctrl_ptr, graph.ctrl_deps), (graph.data_ptr, graph.data_deps))
    ]
    with path.open("wb") as file:
        file.write(head())
        for i, name in enumerate(names):
            node = Node(id=ids[i], name=name, type=kind[i], duration_micros=duration[i])
            for target, (ptr, deps) in zip((node.ctrl_deps, node.data_deps), waits, strict=True):
                target.extend([ids[d] for d in deps[ptr[i] : ptr[i + 1]]])
            add = node.attr.add
            add(name="is_cpu_op", bool_val=cpu[i])
            if kind[i] == Kind.COMP:
                add(name="num_ops", int64_val=max(lists["num_ops"][i], 1))
                add(name="tensor_size", uint64_val=max(lists["tensor_size"][i], 1))
                add(name="duration_ns", int64_val=lists["duration_ns"][i])
            else:
                values = {name: lists[name][i] for name in ("comm_type", "comm_size", "comm_tag")}
                if kind[i] == Kind.SEND:
                    values |= {"comm_src": rank, "comm_dst": slots[slot[i]]}
                elif kind[i] == Kind.RECV:
                    values |= {"comm_src": slots[slot[i]], "comm_dst": rank}
                for key in ("comm_type", "comm_src", "comm_dst", "comm_size", "comm_tag"):
                    if values.get(key, -1) >= 0:
                        add(name=key, **{kinds[key]: values[key]})
                if kind[i] == Kind.COLL and numbers[slots[slot[i]]]:
                    add(name="pg_name", string_val=str(numbers[slots[slot[i]]]))
            add(name="operator", string_val=graph.operators[operator[i]])
            if lists["layer"][i] >= 0:
                add(name="layer", int32_val=lists["layer"][i])
            if phase[i] >= 0:
                add(name="phase", string_val="FBWR"[phase[i]])
            for key in ("microbatch", "chunk"):
                if lists[key][i] >= 0:
                    add(name=key, int32_val=lists[key][i])
            body = node.SerializeToString()
            file.write(varint(len(body)) + body)


def protobuf_decode(data: bytes) -> dict[str, Any]:
    """Fill the decoder's columns with protobuf, message by message."""
    absent = {"is_cpu_op": 0, "num_ops": 0, "tensor_size": 0, "comm_priority": 0}
    values: dict[str, list[int]] = {name: [] for name, _ in ATTRIBUTES if name != "involved_dim"}
    ids, kinds, durations, names = [], [], [], []
    texts: dict[str, int] = {}
    waits: tuple[list[int], list[int]] = ([], [])
    counts: tuple[list[int], list[int]] = ([0], [0])
    at, first = 0, True
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        body = data[at : at + size]
        at += size
        if first:
            GlobalMetadata.FromString(body)
            first = False
            continue
        node = Node.FromString(body)
        ids.append(node.id)
        kinds.append(node.type)
        durations.append(node.duration_micros)
        names.append(texts.setdefault(node.name, len(texts)))
        for wait, count, deps in zip(waits, counts, (node.data_deps, node.ctrl_deps), strict=True):
            wait.extend(deps)
            count.append(len(wait))
        for column in values.values():
            column.append(-1)
        for attribute in node.attr:
            name = attribute.name
            if name in values:
                value = getattr(attribute, attribute.WhichOneof("value"))
                if name == "operator":
                    value = texts.setdefault(value, len(texts))
                elif name == "phase":
                    value = "FBWR".index(value)
                elif name == "pg_name":
                    value = int(value)
                values[name][-1] = value
    position = {id: i for i, id in enumerate(ids)}
    columns: dict[str, Any] = {name: np.array(column, np.int64) for name, column in values.items()}
    for name, fill in absent.items():
        columns[name][columns[name] == -1] = fill
    columns |= {"id": np.array(ids, np.uint64), "kind": np.array(kinds, np.uint8), "name": np.array(names, np.int32)}
    for name, wait, count in zip(("data", "ctrl"), waits, counts, strict=True):
        columns[f"{name}_deps"] = np.array([position[id] for id in wait], np.int32)
        columns[f"{name}_ptr"] = np.array(count, np.int64)
    return columns


def encode_to(path: Path, traces: TraceSet, rank: int) -> None:
    """Write a rank's trace as the product does."""
    with path.open("wb") as file:
        write_rank(file, traces, rank)


def encoder_and_decoder(traces: TraceSet, folder: Path) -> list[Row]:
    """Both, on one rank of the second stage (it sends and receives), against protobuf on the same rank."""
    rank = traces.ranks // 2
    ours, theirs = folder / "ours", folder / "theirs"
    nodes = len(traces.graph(rank))
    fast, slow = best(lambda: encode_to(ours, traces, rank)), best(lambda: protobuf_encode(theirs, traces, rank), 3)
    data = ours.read_bytes()
    if data != theirs.read_bytes():
        raise SystemExit("the encoder and protobuf wrote different bytes")
    rows: list[Row] = [
        ("encoder, bytes on disk", nodes / fast / 1e6, "million nodes/s", slow / fast, "protobuf-python")
    ]
    fast, slow = best(lambda: decode(data, where="bench")), best(lambda: protobuf_decode(data), 3)
    mine, other = decode(data, where="bench").graph, protobuf_decode(data)
    for name, column in (("id", mine.id), ("num_ops", mine.flops), ("comm_size", mine.comm_bytes), ("kind", mine.kind)):
        if not np.array_equal(other[name], column):
            raise SystemExit(f"the decoder and protobuf read a different {name}")
    if not np.array_equal(other["data_deps"], mine.data_deps):
        raise SystemExit("the decoder and protobuf read different dependencies")
    rows.append(("decoder, bytes to columns", nodes / fast / 1e6, "million nodes/s", slow / fast, "protobuf-python"))
    return rows


def many_files(traces: TraceSet, folder: Path) -> list[Row]:
    """Read ranks of few classes: speed against decoding alone, memory against holding every rank's graph."""
    once = {}
    for rank in range(traces.ranks):
        encode_to(folder / f"x.{rank}.et", traces, rank)
        once[rank] = (folder / f"x.{rank}.et").read_bytes()
    groups = {int(n): traces.groups.ranks(i).tolist() for i, n in enumerate(traces.groups.number) if n}
    alone = best(lambda: [decode(data, where="bench") for data in once.values()], 2)
    whole = best(lambda: read_traces(folder, groups=groups), 2)
    tracemalloc.start()
    back = read_traces(folder, groups=groups)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = sum(back.graph(rank).nbytes for rank in range(back.ranks))
    rate = back.nodes / whole / 1e6
    return [
        (f"reading and merging {back.ranks} files", rate, "million nodes/s", alone / whole, "decoding alone"),
        (f"the same, peak memory of {len(back.graphs)} classes", peak / 2**20, "MiB", peak / held, "a graph per rank"),
    ]


def rows() -> list[Row]:
    """Every figure of this file."""
    from tracegen.build import build
    from tracegen.spec import load_job

    traces = build(load_job("llama3-70b.yaml")).traces
    with tempfile.TemporaryDirectory() as folder:
        return encoder_and_decoder(traces, Path(folder)) + many_files(traces, Path(folder))


if __name__ == "__main__":
    for name, value, unit, ratio, against in rows():
        sys.stdout.write(f"{name:45} {value:8.3g} {unit:16} {ratio:6.3g} x {against}\n")
