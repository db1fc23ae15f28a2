"""The Chakra messages as protobuf classes, for what is unusual; the bulk of a trace goes through the compiled loops.

The schema comes from the committed descriptor set in a private pool, so that any other ``et_def_pb2`` in the process,
imported before or after, is left alone. Needs protobuf and nothing else of the product.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "ChakraProtoMsg"


def _messages(*names: str) -> list[Any]:
    """Classes of these messages, from the committed descriptor set."""
    described = descriptor_pb2.FileDescriptorSet.FromString(files(__package__).joinpath("et_def.desc").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in described.file:
        pool.AddSerializedFile(file.SerializeToString())
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names]


GlobalMetadata, Node, AttributeProto = _messages("GlobalMetadata", "Node", "AttributeProto")
