"""What a built trace looks like: where things are, what waits for what, and what is said about it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from graphs import deps, names

from tracegen.build import build
from tracegen.proto.errors import InputError
from tracegen.proto.graph import Kind, Phase
from tracegen.schedule import schedule
from tracegen.spec import load_job


def at(graph, name):
    """The position of the one node of this name."""
    [found] = [i for i, text in enumerate(names(graph)) if text == name]
    return found


def test_embedding_is_on_the_first_stage_and_the_head_on_the_last(tiny):
    # K04: layers 30 over 4 is 8, 8, 7, 7; a peer puts the head on stage 29 mod 4 = 1.
    for layers, stages, split in ((30, 4, (8, 8, 7, 7)), (32, 5, (7, 7, 6, 6, 6))):
        made = build(tiny(pp=stages, layers=layers, stages="even", microbatches=1))
        assert made.layers_of_stage == split
        operators = [{text.split()[0] for text in names(g) if text[0] != "L"} for g in made.traces.graphs]
        assert [stage for stage, found in enumerate(operators) if "embedding" in found] == [0]
        assert [stage for stage, found in enumerate(operators) if {"head", "loss"} & found] == [stages - 1]
        held = [sorted({int(layer) for layer in g.layer if layer >= 0}) for g in made.traces.graphs]
        assert [layer for each in held for layer in each] == list(range(layers))


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_passes_follow_the_schedule(tiny, kind):
    traces = build(tiny(pp=3, schedule=kind, microbatches=5)).traces
    for stage, graph in enumerate(traces.graphs):
        here = (graph.kind == Kind.COMP) & (graph.microbatch >= 0)
        way = np.where(graph.phase[here] == Phase.F, "F", "B")
        runs = [(w, m) for w, m in zip(way.tolist(), graph.microbatch[here].tolist(), strict=True)]
        assert [run for i, run in enumerate(runs) if i == 0 or runs[i - 1] != run] == schedule(kind, 3, 5, stage)


def test_an_input_gradients_reduction_runs_beside_the_weight_gradient(tiny):
    [graph] = build(tiny(tp=2)).traces.graphs
    for column, after in (("mlp_up", "mlp_norm"), ("qkv", "attention_norm")):
        inputs, reduced, weights, norm = (
            at(graph, f"L2 {name} mb1")
            for name in (f"{column} B", f"{column}_all_reduce B", f"{column} W", f"{after} B")
        )
        assert inputs < reduced < weights < norm
        assert deps(graph, reduced) == ({inputs}, set())
        assert reduced not in set().union(*deps(graph, weights))
        assert deps(graph, norm) == ({reduced}, {weights})


def test_a_saved_inputs_gather_runs_beside_the_input_gradient(tiny):
    [graph] = build(tiny(tp=2, sp=True)).traces.graphs
    activation, gather, inputs, scatter, weights = (
        at(graph, f"L2 {name} mb1")
        for name in ("activation B", "mlp_up_saved_all_gather B", "mlp_up B", "mlp_up_reduce_scatter B", "mlp_up W")
    )
    assert deps(graph, gather) == (set(), {activation})  # it takes nothing new, it only must not come sooner
    assert deps(graph, inputs) == ({activation}, set())
    assert deps(graph, scatter) == ({inputs}, set())
    assert deps(graph, weights) == ({gather, activation}, {inputs})


def test_a_received_activation_feeds_the_first_layer(tiny):
    graph = build(tiny(pp=2, stages=[2, 2])).traces.graphs[1]
    received, first = at(graph, "receive_activation F mb1"), at(graph, "L2 attention_norm F mb1")
    before = at(graph, "L2 attention_residual B mb0")  # the pass before it on the last stage
    assert deps(graph, received) == (set(), set())
    assert deps(graph, first) == ({received}, {before})


def test_a_received_gradient_feeds_both_products_of_the_last_mlp(tiny):
    graph = build(tiny(pp=2, stages=[2, 2])).traces.graphs[0]
    received, inputs, weights = (
        at(graph, name) for name in ("receive_gradient B mb0", "L1 mlp_down B mb0", "L1 mlp_down W mb0")
    )
    assert deps(graph, inputs)[0] == {received}
    assert deps(graph, weights) == ({received}, {inputs})


def test_recompute_waits_for_the_gradient_but_does_not_use_it(tiny):
    graph = build(tiny(pp=2, stages=[2, 2], recompute="full")).traces.graphs[0]
    received, again, last, inputs = (
        at(graph, name)
        for name in ("receive_gradient B mb0", "L1 attention_norm R mb0", "L1 mlp_residual R mb0", "L1 mlp_down B mb0")
    )
    assert deps(graph, again)[0] == set()
    assert received in deps(graph, again)[1]
    assert deps(graph, inputs) == ({received}, {last})
    # The next layer's recompute only comes after; its backward takes the gradient from above it.
    above, again, inputs = (
        at(graph, name) for name in ("L1 attention_residual B mb0", "L0 attention_norm R mb0", "L0 mlp_down B mb0")
    )
    assert deps(graph, again) == (set(), {above})
    assert above in deps(graph, inputs)[0]


def test_gradient_buckets_follow_the_node_that_completes_them(tiny):
    # 4 layers of 30,848 parameters, tables of 64,000: from the end 64,000 + 64, then 30,848 a layer, then 64,000.
    [graph] = build(tiny(dp=2, bucket=50_000, zero=0)).traces.graphs
    reductions = np.flatnonzero(graph.kind == Kind.COLL).tolist()
    producers = [graph.name_of(next(iter(deps(graph, node)[0]))) for node in reductions]
    layer = {"mlp_down": 64 * 96, "mlp_up": 64 * 192, "mlp_norm": 64, "attention_out": 64 * 64, "qkv": 64 * 128,
             "attention_norm": 64}  # fmt: skip
    completed, total = [("head W mb1", 64_000), ("final_norm B mb1", 64_064)], 64_064
    for number in (3, 2, 1, 0):
        for name, size in layer.items():
            total += size
            completed.append((f"L{number} {name} {'B' if 'norm' in name else 'W'} mb1", total))
    completed.append(("embedding W mb1", total + 64_000))
    assert total == 64_064 + 4 * 30_848
    for bucket, producer in enumerate(producers):
        end = min((bucket + 1) * 50_000, total + 64_000)
        assert producer == next(name for name, done in completed if done >= end)
    assert len(reductions) == 6  # of 251,456


def test_the_last_message_does_not_wait_behind_the_last_bucket(tiny):
    graph = build(tiny(pp=2, dp=2, stages=[2, 2], zero=0)).traces.graphs[1]
    last_send = int(np.flatnonzero(graph.kind == Kind.SEND)[-1])
    reductions = np.flatnonzero(graph.kind == Kind.COLL)
    assert (reductions < last_send).sum() == len(reductions) - 1
    assert deps(graph, last_send) == ({at(graph, "L2 attention_residual B mb1")}, set())


def test_the_step_ends_with_sums_then_the_optimizer_then_gathers(tiny):
    graph = build(tiny(tp=8, pp=2, dp=2, sp=True, tied_embeddings=True)).traces.graphs[0]
    text = names(graph)
    end = text[text.index("shared_gradients_all_reduce") :]
    assert end[:4] == [
        "shared_gradients_all_reduce", "kv_gradients_all_reduce", "embedding_gradients_all_reduce", "optimizer"
    ]  # fmt: skip
    gathers = end[4:]
    assert set(gathers) == {"weights_all_gather"}
    assert len(gathers) == text.count("gradients_reduce_scatter")
    reduced = {i for i, name in enumerate(text) if name == "gradients_reduce_scatter"}
    adam = text.index("optimizer")
    assert deps(graph, adam)[0] == reduced | {adam - 1, adam - 2, adam - 3}
    assert all(deps(graph, adam + 1 + i) == ({adam}, set()) for i in range(len(gathers)))


def test_optimizer_works_on_its_shard_under_zero_1(tiny):
    whole, shard = (build(tiny(dp=2, zero=zero)).traces.graphs[0] for zero in (0, 1))
    assert whole.mem_bytes[at(whole, "optimizer")] == 2 * shard.mem_bytes[at(shard, "optimizer")]


def test_tags_never_repeat_between_two_ranks(tiny):
    # K41, with one neighbour in both directions.
    traces = build(tiny(pp=2, microbatches=4)).traces
    for graph in traces.graphs:
        for kind in (Kind.SEND, Kind.RECV):
            tags = graph.tag[graph.kind == kind]
            assert len(set(tags.tolist())) == len(tags) == 4


def test_file_durations_never_drift(tiny):
    # DEFINITIONS 7: the running sum of duration_micros stays within half a microsecond.
    [graph] = build(tiny(microbatches=8)).traces.graphs
    compute = graph.kind == Kind.COMP
    drift = np.cumsum(graph.duration_us[compute]) * 1000 - np.cumsum(graph.duration_ns[compute])
    assert np.abs(drift).max() <= 500
    assert np.abs(graph.duration_us[compute] * 1000 - graph.duration_ns[compute]).max() < 1000
    assert (graph.duration_ns[~compute] == -1).all()


def test_manifest(tiny):
    job = tiny(tp=2, pp=2, dp=2, sp=True, microbatches=3)
    manifest = build(job).manifest
    assert manifest["ranks"] == 8
    assert manifest["stage_of"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert manifest["tokens_per_step"] == 3 * 2 * 32
    assert manifest["groups"] == {str(i): "tp" if i <= 4 else "dp" for i in range(1, 9)}
    assert (manifest["execution"], manifest["network_model"], manifest["message_label"]) == (
        "streams",
        "analytical",
        "pp",
    )
    assert manifest["peak_flops_per_gpu"] == job.device.peak("bf16")
    assert manifest["parallelism"] == "TP 2, PP 2, DP 2, sequence parallel"


def test_notes_say_original_and_padded_parameters(tiny):
    notes = build(tiny(tp=2, vocab=999)).notes
    assert any("251,328" in note and "251,456 with the vocabulary padded" in note for note in notes)
    assert any("optimizer states" in note for note in notes)


def test_a_key_of_a_later_version_is_refused(tiny):
    with pytest.raises(InputError, match="recompute"):
        build(tiny(recompute="selective"))


def test_buckets_too_small_to_be_meant_are_refused(tiny):
    with pytest.raises(InputError, match=r"workload.bucket: 1 makes 251456 buckets .* nearest 26"):
        build(tiny(dp=2, bucket=1))


def test_more_nodes_than_a_trace_holds_are_refused(tiny):
    with pytest.raises(InputError, match=r"workload.global_batch: 1000000 makes 1000000 microbatches"):
        build(tiny(microbatches=1_000_000))


def test_operators_beyond_64_bits_are_refused(tiny):
    with pytest.raises(InputError, match="sequence_length 100000000"):
        build(tiny(sequence_length=100_000_000, hidden=65536))


@pytest.mark.parametrize(("name", "limit_s"), [("llama3-70b", 0.5), ("llama3-405b", 1.5)])
def test_building_is_fast(name, limit_s):
    job = load_job(name, ["workload.granularity=block"])
    best = min(_seconds(job) for _ in range(3))
    assert best < limit_s


def _seconds(job):
    start = time.perf_counter()
    build(job)
    return time.perf_counter() - start
