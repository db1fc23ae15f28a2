"""The encoder writes, byte for byte, what protobuf would."""

import io

from hypothesis import given, settings
from twins import chain, encoded, jobs, messages, protobuf_encoded

from tracegen.proto import encode
from tracegen.proto.graph import TraceSet
from tracegen.proto.schema import GlobalMetadata, Node


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_the_bytes_are_protobufs(traces: TraceSet) -> None:
    for rank in range(2):
        assert encoded(traces, rank) == protobuf_encoded(traces, rank)


@settings(max_examples=10, deadline=None)
@given(jobs())
def test_blocks_too_small_for_a_node_change_nothing(traces: TraceSet) -> None:
    whole, block = encoded(traces), encode.BLOCK
    encode.BLOCK = 1
    try:
        assert encoded(traces) == whole
    finally:
        encode.BLOCK = block


@settings(max_examples=10, deadline=None)
@given(jobs())
def test_every_message_parses_alone(traces: TraceSet) -> None:
    head, *nodes = messages(encoded(traces))
    assert GlobalMetadata.FromString(head).version == "0.0.4"
    assert [Node.FromString(message).id for message in nodes] == traces.graph(0).id.tolist()


def test_memory_is_bounded_by_the_block_not_by_the_trace() -> None:
    """Each write is at most a block: the file is never held whole."""
    sizes: list[int] = []

    class File(io.RawIOBase):
        def write(self, data: memoryview) -> int:  # type: ignore[override]
            sizes.append(len(data))
            return len(data)

    traces = chain(100_000)
    total = encode.write_rank(File(), traces, 0)  # type: ignore[arg-type]
    assert total == sum(sizes) > 4 * encode.BLOCK
    assert max(sizes) <= encode.BLOCK
