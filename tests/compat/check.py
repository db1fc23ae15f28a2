"""One process of `make compat`: another copy of the schema beside ours, imported first or last, each reads the other.

Usage: python check.py first|last
"""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path
from typing import Any


def both(order: str) -> tuple[Any, Any]:
    """mlcommons' module and ours, imported in this order."""
    sys.path.insert(0, str(Path(__file__).parent))
    names = ["et_def_pb2", "tracegen.proto.schema"]
    loaded = {name: importlib.import_module(name) for name in (names if order == "first" else names[::-1])}
    return loaded[names[0]], loaded[names[1]]


def node(schema: Any, id: int) -> Any:
    """A collective with every sort of field that our traces have."""
    made = schema.Node(id=id, name="all-reduce", type=7, data_deps=[1, 2**63], ctrl_deps=[3], duration_micros=5)
    made.attr.add(name="is_cpu_op", bool_val=False)
    made.attr.add(name="comm_size", int64_val=2**33)
    made.attr.add(name="pg_name", string_val="1")
    made.attr.add(name="involved_dim").bool_list.values.extend([True, False])
    return made


def check_messages(theirs: Any, ours: Any) -> None:
    """Either class writes what the other reads."""
    for writer, reader in ((theirs, ours), (ours, theirs)):
        data = node(writer, 2**64 - 1).SerializeToString()
        back = reader.Node.FromString(data)
        assert back.SerializeToString() == data
        assert (back.id, back.name, list(back.data_deps)) == (2**64 - 1, "all-reduce", [1, 2**63])
        assert back.attr[1].int64_val == 2**33


def check_kernels(theirs: Any) -> None:
    """Our decoder reads their file, and their classes what our encoder makes of it."""
    import numpy as np

    from tracegen.proto.decode import decode
    from tracegen.proto.encode import write_rank
    from tracegen.proto.graph import Groups, TraceSet

    def delimited(message: Any) -> bytes:
        body: bytes = message.SerializeToString()
        assert len(body) < 128
        return bytes([len(body)]) + body

    data = delimited(theirs.GlobalMetadata(version="0.0.4")) + delimited(node(theirs, 9))
    graph = decode(data, where="check").graph
    assert (graph.id.tolist(), graph.comm_bytes.tolist(), graph.dangling_id.tolist()) == ([9], [2**33], [1, 2**63, 3])
    file = io.BytesIO()
    traces = TraceSet((graph,), np.zeros(1, np.int32), Groups.of([], [], []), np.zeros((1, 0), np.int32))
    write_rank(file, traces, 0)
    written = file.getvalue()
    head = 1 + written[0]
    back = theirs.Node.FromString(written[head + 1 :])
    assert written[head] == len(written) - head - 1
    assert (back.name, back.attr[1].int64_val, back.type) == ("all-reduce", 2**33, 7)


if __name__ == "__main__":
    import google.protobuf

    mlcommons, schema = both(sys.argv[1])
    check_messages(mlcommons, schema)
    check_kernels(mlcommons)
    print(f"protobuf {google.protobuf.__version__}: et_def_pb2 imported {sys.argv[1]}: fine")
