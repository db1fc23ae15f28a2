"""What holds for every trace, over small jobs of any split: the rules of DESIGN and of ASTRA-sim's feeder."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import deps, stuck_with_one_slot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracegen.build import build
from tracegen.flops import executed_flops
from tracegen.proto.graph import Kind
from tracegen.spec import Job

SPLITS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "pp": st.integers(1, 4),
        "dp": st.integers(1, 3),
        "sp": st.booleans(),
        "layers": st.integers(4, 6),
        "zero": st.sampled_from([0, 1]),
        "recompute": st.sampled_from(["none", "full"]),
        "schedule": st.sampled_from(["gpipe", "1f1b"]),
        "attention_kernel": st.sampled_from(["flash", "unfused"]),
        "granularity": st.sampled_from(["operator", "block"]),
        "micro_batch": st.integers(1, 2),
        "microbatches": st.integers(1, 5),
        "bucket": st.sampled_from([3_000, 20_000, 10**7]),
        "gated": st.booleans(),
        "bias": st.booleans(),
        "parallel_residual": st.booleans(),
        "tied_embeddings": st.booleans(),
        "norm": st.sampled_from(["rms", "layer"]),
        "vocab": st.sampled_from([1000, 1003]),
        "order": st.sampled_from(
            [["tp", "cp", "ep", "dp", "pp"], ["dp", "tp", "cp", "ep", "pp"], ["pp", "tp", "cp", "ep", "dp"]]
        ),
    }
)
EVERY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EVERY
@given(SPLITS)
def test_flops_over_all_ranks_are_the_closed_form(tiny, keys):
    job = tiny(**keys)
    traces = build(job).traces
    each = [int(graph.flops.sum()) for graph in traces.graphs]
    assert sum(each[c] for c in traces.class_of) == executed_flops(job)


@EVERY
@given(SPLITS)
def test_order_is_in_the_edges(tiny, keys):
    for graph in build(tiny(**keys)).traces.graphs:
        before = None
        for node in range(len(graph)):
            data, order = deps(graph, node)
            assert all(source < node for source in data | order)  # acyclic, ids ascend along the schedule
            if graph.kind[node] == Kind.RECV:
                assert not data | order
                continue
            if before is not None:
                assert before in data | order
            if graph.kind[node] == Kind.COMP:
                before = node


@EVERY
@given(SPLITS)
def test_nothing_that_a_simulator_trips_over(tiny, keys):
    traces = build(tiny(**keys)).traces
    assert all(len(traces.groups.ranks(group)) > 1 for group in range(len(traces.groups)))
    assert (traces.groups.number > 0).all()
    used = set()
    for rank in range(traces.ranks):
        graph = traces.graph(rank)
        compute, collective = graph.kind == Kind.COMP, graph.kind == Kind.COLL
        assert (graph.id == np.arange(len(graph))).all()
        assert (graph.comm_bytes[~compute] > 0).all()
        assert (graph.mem_bytes[compute] > 0).all()
        assert (graph.duration_ns[compute] > 0).all()
        assert (graph.tag < 2**31).all()
        slots = np.unique(graph.slot[collective])
        assert (traces.slots[rank, slots] >= 0).all()
        for group in traces.slots[rank, slots]:
            used.add(int(group))
            assert rank in traces.groups.ranks(int(group))
    assert used == set(range(len(traces.groups)))  # only groups that are used are listed


@EVERY
@given(SPLITS)
def test_sends_and_receives_pair_up(tiny, keys):
    traces = build(tiny(**keys)).traces
    ends: dict[Kind, dict[tuple[int, int, int], int]] = {Kind.SEND: {}, Kind.RECV: {}}
    for rank in range(traces.ranks):
        graph = traces.graph(rank)
        for node in np.flatnonzero((graph.kind == Kind.SEND) | (graph.kind == Kind.RECV)):
            kind, peer = Kind(int(graph.kind[node])), int(traces.slots[rank, graph.slot[node]])
            way = (rank, peer) if kind == Kind.SEND else (peer, rank)
            key = (*way, int(graph.tag[node]))
            assert key not in ends[kind]  # K41: a tag means one message between two ranks
            ends[kind][key] = int(graph.comm_bytes[node])
    assert ends[Kind.SEND] == ends[Kind.RECV]


@EVERY
@given(SPLITS)
def test_members_of_a_group_call_the_same_collectives_in_the_same_order(tiny, keys):
    traces = build(tiny(**keys)).traces
    for group in range(len(traces.groups)):
        calls = set()
        for rank in traces.groups.ranks(group).tolist():
            graph = traces.graph(rank)
            collective = np.flatnonzero(graph.kind == Kind.COLL)
            mine = collective[traces.slots[rank, graph.slot[collective]] == group]
            calls.add(tuple(zip(graph.collective[mine].tolist(), graph.comm_bytes[mine].tolist(), strict=True)))
        assert len(calls) == 1


def shaken(traces, seed: int) -> list[list[int]]:
    """Lengths of all nodes: each compute duration times its own factor in 0.5-2, communications from short to long."""
    random = np.random.default_rng(seed)
    lengths = []
    for rank in range(traces.ranks):
        graph = traces.graph(rank)
        factor = random.uniform(0.5, 2, len(graph))
        messages = random.integers(1, 40_000, len(graph))
        lengths.append(np.where(graph.kind == Kind.COMP, graph.duration_ns * factor, messages).astype(int).tolist())
    return lengths


SHAKEN: list[dict[str, object]] = [
    {"tp": 2, "pp": 2, "dp": 2, "sp": True, "bucket": 3_000},
    {"tp": 2, "pp": 2, "dp": 2, "zero": 0, "bucket": 3_000, "tied_embeddings": True},
    {"tp": 8, "dp": 2, "bucket": 3_000, "sp": True, "granularity": "block"},
    {"pp": 4, "dp": 2, "bucket": 3_000, "tied_embeddings": True, "granularity": "block", "recompute": "full"},
]


@pytest.mark.parametrize("keys", SHAKEN, ids=str)
def test_one_communication_slot_never_dead_locks_however_compute_is_shaken(tiny, keys):
    job: Job = tiny(layers=4, microbatches=4, **keys)
    traces = build(job).traces
    for seed in range(3):
        assert stuck_with_one_slot(traces, shaken(traces, seed)) == []
