"""The answer and its JSON contract (DESIGN, "What --json prints"; DEFINITIONS 6, 9-12)."""

import json
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from handmade import coll, comp, recv, send, traces

from tracegen.build import build
from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.replay import Facts, replay
from tracegen.replay.fabric import Algorithm, Fabric
from tracegen.replay.perfetto import write_perfetto
from tracegen.spec import load_job


def switch(ranks, bandwidth=1.0, latency=0.0, **more):
    """One switch dimension of this many bytes per ns."""
    rings = {kind: (Algorithm("ring"),) for kind in Collective}
    return Fabric(("nvlink",), ("switch",), (ranks,), (bandwidth,), (latency,), rings, **more)


PIPELINE = traces(
    [[comp(1, 100), send(2, peer=1, size=20, deps=[1])], [recv(1, peer=0, size=20), comp(2, 50, [1])]],
    message_label="pp",
)
FACTS = Facts(np.array([0, 1], np.int32), tokens_per_step=17, model_flops=1000, executed_flops=1500, peak_flops=2e9)


def played(trace=PIPELINE, execution="streams", facts=FACTS, fabric=None, **more):
    return replay(trace, fabric or switch(trace.ranks), execution=execution, facts=facts, **more)


def test_the_document_has_what_is_promised():
    document = played().document("replay --traces x")
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert set(document) == {
        "tracegen", "command", "step_time_s", "makespan_ns", "execution", "network_model", "ranks", "dimensions",
        "throughput", "warnings",
    }  # fmt: skip
    assert document["command"] == "replay --traces x"
    assert document["makespan_ns"] == 170
    assert document["step_time_s"] == 170e-9
    assert (document["execution"], document["network_model"]) == ("streams", "analytical")
    assert document["ranks"] == [
        {"rank": 0, "finish_ns": 120, "compute_ns": 100, "exposed_ns": {"pp": 20}, "bubble_ns": 50, "idle_ns": 0},
        {"rank": 1, "finish_ns": 170, "compute_ns": 50, "exposed_ns": {"pp": 20}, "bubble_ns": 100, "idle_ns": 0},
    ]
    assert [set(dimension) for dimension in document["dimensions"]] == [{"name", "bytes", "busy_ns", "utilisation"}]
    assert set(document["throughput"]) == {"tokens_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "hfu"}


def test_throughput_is_work_over_step_time():
    # 170 ns, 2 ranks, 17 tokens, 1000 model FLOPs, 1500 executed, a peak of 2e9 FLOP/s: 170e-9 · 2 · 2e9 = 680 FLOPs.
    rates = played().throughput
    assert rates.tokens_per_s == pytest.approx(17 / 170e-9, rel=1e-12)
    assert rates.tokens_per_s_per_gpu == pytest.approx(17 / 170e-9 / 2, rel=1e-12)
    assert rates.tflops_per_gpu == pytest.approx(1000 / (170e-9 * 2) / 1e12, rel=1e-12)
    assert rates.mfu == pytest.approx(1000 / 680, rel=1e-12)
    assert rates.hfu == pytest.approx(1500 / 680, rel=1e-12)


def test_what_nobody_said_is_null_and_warned_of():
    timeline = played(facts=None)
    assert set(timeline.throughput.document().values()) == {None}
    assert any("manifest.json" in line and "peak FLOP/s" in line for line in timeline.warnings)
    assert not any("manifest.json" in line for line in played().warnings)


def test_stages_are_means_over_their_ranks():
    trace = traces([[comp(1, 10)], [comp(1, 30)], [comp(1, 50)]])
    timeline = played(trace, facts=Facts(np.array([4, 4, 9], np.int32)))
    first, second = timeline.stages
    assert (first.stage, first.ranks, first.compute_ns, first.bubble_ns, first.idle_ns) == (4, 2, 20.0, 30.0, 0.0)
    assert (second.stage, second.ranks, second.compute_ns) == (9, 1, 50.0)
    (everyone,) = played(trace, facts=None).stages
    assert everyone.stage is None
    assert everyone.ranks == 3
    assert everyone.idle_ns == 20.0


def test_bubble_share_is_bubble_over_makespan():
    assert played().bubble_share.tolist() == [50 / 170, 100 / 170]


def test_k102_what_did_not_finish_is_not_finished():
    stuck = played(traces([[comp(1, 30), recv(2, peer=1)], [comp(1, 50)]]))
    assert not stuck.finished
    assert [rank["finish_ns"] for rank in stuck.document("x")["ranks"]] == [None, 50]
    assert set(stuck.throughput.document().values()) == {None}, "no rate for a step that never ends"
    assert any("1 of 2 ranks never finish" in line for line in stuck.warnings)
    assert not played(traces([[comp(1, 0)]]), facts=None).finished, "a step of no time is no step"
    assert played().finished


def test_compute_without_durations_is_warned_of():
    timeline = played(traces([[comp(1, -1), comp(2, 5)]]), facts=None)
    assert any("1 compute nodes give no duration" in line for line in timeline.warnings)


def test_stages_of_another_number_of_ranks_are_refused():
    with pytest.raises(InputError, match=r"stages of 2 ranks are given .*, the traces have 1 ranks"):
        played(traces([[comp(1)]]))


def test_facts_come_from_the_manifest():
    facts = Facts.from_manifest({
        "stage_of": [0, 1], "tokens_per_step": 5, "model_flops_per_step": 6, "executed_flops_per_step": 7,
        "peak_flops_per_gpu": 989.4e12, "name": "x",
    })  # fmt: skip
    assert facts.stage_of.tolist() == [0, 1]
    assert (facts.tokens_per_step, facts.model_flops, facts.executed_flops) == (5, 6, 7)
    assert facts.peak_flops == 989.4e12
    assert Facts.from_manifest({}).stage_of is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("stage_of", "01"), ("stage_of", [0, 1.5]), ("tokens_per_step", -3), ("tokens_per_step", 1.5),
     ("tokens_per_step", True),
     ("model_flops_per_step", "7"), ("peak_flops_per_gpu", 0), ("peak_flops_per_gpu", [1])],
)  # fmt: skip
def test_a_manifest_that_says_nonsense_is_refused(key, value):
    with pytest.raises(InputError, match=f"^manifest.json {key}: "):
        Facts.from_manifest({key: value})


@pytest.fixture(scope="module")
def job():
    """Llama-3-70B on 64 ranks, 4 stages, with few microbatches so that it takes little time."""
    return load_job("llama3-70b", ["workload.global_batch=8"])


def assert_tracks_are_disjoint(timeline, path):
    write_perfetto(timeline, path)
    spans, arrows = {}, 0
    for event in json.loads(path.read_text(), parse_float=Decimal)["traceEvents"]:
        arrows += event["ph"] == "s"
        if event["ph"] == "X":
            spans.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for span in spans.values():
        span.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(span))
    assert arrows == 2 * 3 * 4, "forward and backward over three boundaries for four microbatches"


@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_a_real_job_folded_and_not_gives_one_document_and_parts_that_sum(job, execution, tmp_path):
    made = build(job)
    fabric, facts = Fabric.from_network(job.network), Facts.from_manifest(made.manifest)
    folded = replay(made.traces, fabric, execution=execution, facts=facts)
    plain = replay(made.traces, fabric, execution=execution, facts=facts, fold=False)
    assert folded.run.cells < plain.run.cells == 64
    assert folded.document("x") == plain.document("x")
    cut = plain.parts
    assert (cut.compute_ns + cut.bubble_ns + cut.idle_ns + cut.exposed_ns.sum(axis=1) == cut.makespan_ns).all()
    assert set(cut.labels) == {"tp", "pp", "dp"}
    assert_tracks_are_disjoint(folded, tmp_path / "timeline.json")
    assert 0 < folded.throughput.mfu < 1


def test_a_dimension_carries_what_was_injected_on_it():
    # One message of 20 B at 1 B/ns on a switch of two ranks, in a step of 170 ns.
    (dimension,) = played().dimensions
    assert (dimension.name, dimension.bytes, dimension.busy_ns) == ("nvlink", 20, 20)
    assert dimension.utilisation == pytest.approx(20 / (2 * 1 * 1.0 * 170), rel=1e-12)


def test_operations_that_share_a_dimension_are_warned_of_with_their_time():
    # Two all-reduces of different groups over the same two ranks run side by side for 200 ns on each rank.
    nodes = [coll(1, 1, size=200), coll(2, 2, size=200)]
    trace = traces([nodes, nodes], {1: [0, 1], 2: [1, 0]})
    timeline = played(trace, facts=None, fabric=switch(2, endpoint_delay_ns=0))
    assert timeline.makespan_ns == 200  # two steps of 100 B at 1 B/ns
    (line,) = [line for line in timeline.warnings if "in transfer at once" in line]
    assert "4e-07 s on nvlink" in line
    assert "100 % of their time" in line
    in_turn = traces([[nodes[0], {**nodes[1], "deps": [1]}]] * 2, {1: [0, 1], 2: [1, 0]})
    assert not any("in transfer at once" in line for line in played(in_turn, facts=None).warnings)


def test_k33_the_order_of_nodes_in_a_file_changes_nothing():
    sorted_file = traces([[comp(1, 30), comp(2, 40, [1])]])
    child_first = traces([[comp(2, 40, [1]), comp(1, 30)]])
    documents = [played(trace, facts=None).document("x") for trace in (sorted_file, child_first)]
    assert documents[0] == documents[1]
    assert documents[0]["makespan_ns"] == 70


@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_k34_a_chain_of_100000_nodes_of_1_us_takes_100_ms(execution):
    timeline = played(traces([[comp(i, 1000, [i - 1] if i else []) for i in range(100_000)]]), execution, facts=None)
    assert timeline.makespan_ns == 100_000_000
    assert timeline.parts.compute_ns.tolist() == [100_000_000]


@pytest.mark.parametrize("execution", ["streams", "astra"])
def test_bytes_above_64_bits_are_counted(execution):
    """Eight messages of 2^61 B are 2^64 B, and six all-reduces of 2^61 B over four ranks put 9 times 2^63 B on the
    switch: above what int64 holds. Powers of two, so that the sums are exact."""
    nodes = (
        [send(k, peer=1, size=2**61, tag=k) for k in range(8)],
        [recv(k, peer=0, size=2**61, tag=k) for k in range(8)],
    )
    fast = switch(2, bandwidth=2.0**40)
    (dimension,) = played(traces(list(nodes)), execution, facts=None, fabric=fast).dimensions
    assert (dimension.bytes, dimension.busy_ns) == (2**64, 2**24)
    joins = [coll(k, 0, size=2**61, deps=[k - 1] if k else []) for k in range(6)]
    fabric = switch(4, bandwidth=2.0**40, splits=1)
    (dimension,) = played(traces([joins] * 4), execution, facts=None, fabric=fabric).dimensions
    assert dimension.bytes == 4 * 6 * 2 * 3 * 2**59
    assert 0 < dimension.utilisation <= 1
