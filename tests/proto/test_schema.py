"""The committed descriptor set says what the facts about the wire format say, in a pool of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from tracegen.proto.schema import AttributeProto, GlobalMetadata, Node

SOURCE = Path(__file__).parents[2] / "proto" / "et_def.proto"


def fields(message: type) -> dict[int, str]:
    return {field.number: field.name for field in message.DESCRIPTOR.fields}  # type: ignore[attr-defined]


def test_fields_have_chakras_numbers() -> None:
    assert fields(GlobalMetadata) == {1: "version", 2: "attr"}
    assert list(fields(Node).items())[:7] == [
        (1, "id"), (2, "name"), (3, "type"), (4, "ctrl_deps"), (5, "data_deps"), (6, "start_time_micros"),
        (7, "duration_micros"),
    ]  # fmt: skip
    assert (fields(Node)[8], fields(Node)[9], fields(Node)[10]) == ("inputs", "outputs", "attr")
    kinds = "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string bytes"
    values = [f"{kind}_{suffix}" for kind in kinds.split() for suffix in ("val", "list")]
    assert fields(AttributeProto) == {1: "name", 2: "doc_string"} | dict(enumerate(values, 3))


def test_the_descriptor_set_is_the_source_compiled() -> None:
    """Field for field, without a protobuf compiler: every declaration of the source is in the descriptor."""
    file = Node.DESCRIPTOR.file
    assert file.package == "ChakraProtoMsg"
    declared = 0
    for kind, name, body in re.findall(r"^(message|enum) (\w+) \{\n(.*?)^\}", SOURCE.read_text(), re.M | re.S):
        numbers = {n: int(v) for n, v in re.findall(r"(\w+) = (\d+);", body)}
        if kind == "enum":
            assert numbers == {value.name: value.number for value in file.enum_types_by_name[name].values}
        else:
            assert numbers == {field.name: field.number for field in file.message_types_by_name[name].fields}
        declared += 1
    assert declared == len(file.message_types_by_name) + len(file.enum_types_by_name)


def test_the_default_pool_is_left_alone() -> None:
    """K92: another module may register its own et_def.proto there."""
    assert Node.DESCRIPTOR.file.pool is not descriptor_pool.Default()


def test_the_schema_needs_protobuf_only() -> None:
    script = "import sys, tracegen.proto.schema; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not {"numba", "numpy", "pydantic", "networkx"} & set(re.findall(r"'(\w+)'", loaded))


@pytest.mark.parametrize("order", ["first", "last"])
def test_k92_another_et_def_pb2_may_be_imported_before_or_after(order: str) -> None:
    """With this environment's protobuf; `make compat` does the same under four others."""
    check = Path(__file__).parents[1] / "compat" / "check.py"
    done = subprocess.run([sys.executable, str(check), order], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"et_def_pb2 imported {order}: fine" in done.stdout
