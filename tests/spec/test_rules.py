"""Every rule refuses with both numbers and the nearest legal value (cases.md), and lets the legal neighbour pass."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegen.proto.errors import InputError
from tracegen.spec import Job, supported
from tracegen.spec.model import Model
from tracegen.spec.network import fill

Load = Callable[..., Job]
Refused = Callable[..., str]


def test_k01_30_layers_over_4_stages_are_legal(load: Load) -> None:
    job = load("model.layers=30", "parallelism.tp=2", "parallelism.pp=4", "parallelism.stages=even")
    assert job.model.layers == 30
    assert job.parallelism.stages == "even"


def test_k01_a_list_of_stages_must_sum_to_the_layers(load: Load, refused: Refused) -> None:
    split = ("model.layers=30", "parallelism.tp=2", "parallelism.pp=4")
    assert load(*split, "parallelism.stages=[8, 8, 7, 7]").parallelism.stages == (8, 8, 7, 7)
    line = refused(*split, "parallelism.stages=[7, 7, 7, 7]")
    assert "7+7+7+7 = 28 layers, the model has 30; nearest: last stage 9" in line
    assert "lists 3 stages, pp is 4" in refused(*split, "parallelism.stages=[10, 10, 10]")


def test_more_stages_than_layers(refused: Refused) -> None:
    line = refused("model.layers=3", "parallelism.tp=2", "parallelism.pp=4")
    assert "4 stages for 3 layers; at most 3" in line


def test_k02_layers_over_pp_and_vpp(load: Load, refused: Refused) -> None:
    split = ("parallelism.tp=1", "parallelism.pp=16", "gpus=16", "workload.schedule=interleaved")
    line = refused(*split, "model.layers=80", "parallelism.vpp=2")
    assert "layers 80 do not divide by pp 16 · vpp 2 = 32; nearest vpp 1, or layers 64 or 96" in line
    assert load(*split, "model.layers=96", "parallelism.vpp=3").parallelism.vpp == 3


def test_vpp_that_does_nothing_is_refused(refused: Refused) -> None:
    assert "vpp 2 does nothing under schedule 1f1b; nearest vpp 1" in refused("parallelism.vpp=2")
    assert "needs vpp of 2 or more, vpp is 1; nearest schedule 1f1b" in refused("workload.schedule=interleaved")


def test_interleaving_needs_microbatches_in_rounds_of_pp(refused: Refused) -> None:
    split = ("parallelism.tp=1", "parallelism.pp=8", "parallelism.vpp=2", "workload.schedule=interleaved")
    assert "12 microbatches; interleaved needs a multiple of pp 8; nearest 8 or 16" in refused(
        *split, "workload.global_batch=12"
    )


def test_k05_hidden_over_heads(load: Load, refused: Refused) -> None:
    split = ("model.hidden=2048", "model.heads=24", "parallelism.tp=1")
    line = refused(*split)
    assert "--set model.heads=24: hidden 2048 does not divide by heads 24; give head_dim" in line
    job = load(*split, "model.head_dim=128")
    assert job.model.heads * job.model.head_dim == 3072  # q-proj is 2048 x 3072


@pytest.mark.parametrize(("heads", "tp", "legal"), [(40, 3, "2 or 4"), (52, 8, "4 or 13"), (12, 8, "6 or 12")])
def test_k06_heads_over_tp(refused: Refused, heads: int, tp: int, legal: str) -> None:
    line = refused(f"model.heads={heads}", "model.head_dim=64", f"parallelism.tp={tp}", f"gpus={tp}")
    assert f"heads {heads} do not divide by tp {tp}; nearest {legal} (legal: 1, 2" in line


def test_k07_kv_heads_are_copied_where_tp_is_a_multiple(load: Load) -> None:
    job = load("model.kv_heads=2")
    assert job.model.kv_copies(8) == 4
    assert any("kv_heads 2 under tp 8: each rank holds 1, 4 copies of each" in note for note in job.notes)
    assert job.model.kv_copies(2) == 1
    assert job.model.kv_copies(1) == 1


def test_k07_kv_heads_and_tp_that_do_not_divide(refused: Refused) -> None:
    line = refused("model.heads=6", "model.head_dim=128", "model.kv_heads=2", "parallelism.tp=3", "gpus=3")
    assert "kv_heads 2 and tp 3: neither divides the other" in line
    assert "nearest 2 or 6" in line


@pytest.mark.parametrize(
    ("vocab", "tp", "megatron", "plain"),
    [
        (50257, 8, 51200, 50264),
        (151669, 4, 152064, 151672),
        (32001, 2, 32256, 32002),
        (129280, 24, 132096, 129288),
        (151552, 6, 152064, 151554),
        (32000, 8, 32768, 32000),
    ],
)
def test_k09_vocab_padding(vocab: int, tp: int, megatron: int, plain: int) -> None:
    shape = {"layers": 1, "hidden": 64, "ffn": 64, "heads": 1, "vocab": vocab}
    assert Model.model_validate(shape | {"vocab_pad_to": 128}).padded_vocab(tp) == megatron
    assert Model.model_validate(shape).padded_vocab(tp) == plain
    assert Model.model_validate(shape).parameters() == Model.model_validate(shape | {"vocab_pad_to": 128}).parameters()


def test_k09_both_figures_are_said(load: Load) -> None:
    notes = load("model.vocab=50257", "model.vocab_pad_to=128").notes
    assert any("vocab 50257 padded to 51200" in note for note in notes)


def test_k10_global_batch_over_dp(refused: Refused) -> None:
    text = """
model: {layers: 32, hidden: 4096, ffn: 12288, heads: 32, vocab: 32000}
network: dgx-h100
gpus: 1472
parallelism: {tp: 8, pp: 8}
workload:
  sequence_length: 4096
  global_batch: 32
"""
    line = refused(text=text)
    assert (
        "job.yaml:8 workload.global_batch: 32 does not divide by micro_batch 1 · dp 23 = 23; nearest 23 or 46" in line
    )


def test_k11_world_and_product(load: Load, refused: Refused) -> None:
    degrees = ("gpus=128", "parallelism.tp=4")
    line = refused(*degrees, "parallelism.dp=2")
    assert "--set gpus=128: tp 4 · cp 1 · dp 2 · pp 1 = 8, but gpus is 128; nearest dp 32" in line
    job = load(*degrees)
    assert job.parallelism.dp == 32
    assert "dp 32 inferred: gpus 128 / (tp 4 · cp 1 · pp 1)" in job.notes
    assert "gpus 100 does not divide by tp 8 · cp 1 · pp 1 = 8; nearest 96 or 104" in refused("gpus=100")


def test_k12_fewer_microbatches_than_stages_is_legal_and_said(load: Load) -> None:
    job = load("parallelism.tp=2", "parallelism.pp=4", "workload.global_batch=2")
    assert job.microbatches == 2
    assert any("2 microbatches for 4 stages" in note for note in job.notes)


@pytest.mark.parametrize(("cp", "tp", "unit"), [(4, 8, 32), (4, 3, 24), (2, 4, 8)])
def test_k14_sequence_over_cp_and_tp(load: Load, refused: Refused, cp: int, tp: int, unit: int) -> None:
    split = (
        "model.heads=24",
        "model.head_dim=128",
        f"parallelism.tp={tp}",
        f"parallelism.cp={cp}",
        "parallelism.sp=true",
        f"gpus={cp * tp}",
        "model.ffn=12288",
    )
    low, high = 1001 // unit * unit, (1001 // unit + 1) * unit
    line = refused(*split, "workload.sequence_length=1001")
    assert f"= {unit}; nearest {low} or {high}" in line
    assert load(*split, f"workload.sequence_length={high}").workload.sequence_length == high


def test_k14_a_thousand_tokens_over_cp_4_and_tp_8(refused: Refused) -> None:
    line = refused("parallelism.cp=4", "parallelism.sp=true", "gpus=32", "workload.sequence_length=1000")
    assert "1000 does not divide by cp 4 · lcm(2, tp 8) = 32; nearest 992 or 1024" in line


def test_k14_with_sp_alone_the_sequence_divides_by_tp(load: Load, refused: Refused) -> None:
    assert "1001 does not divide by tp 8" in refused("parallelism.sp=true", "workload.sequence_length=1001")
    assert load("parallelism.sp=true", "workload.sequence_length=1000").microbatches == 64
    assert load("workload.sequence_length=1001").microbatches == 64  # without sp any length


MOE = """
model: {layers: 4, hidden: 1024, heads: 16, vocab: 32000, experts: 8, top_k: 2, expert_ffn: 4096}
network: dgx-h100
gpus: 4
parallelism: {}
workload: {sequence_length: 1024, global_batch: 64}
"""


def test_k15_ep_is_no_factor_of_the_world(load: Load, refused: Refused) -> None:
    job = load("parallelism.tp=4", "parallelism.ep=4", text=MOE)
    assert (job.world, job.parallelism.dp) == (4, 1)
    job = load("parallelism.pp=2", "parallelism.ep=2", text=MOE)
    assert (job.world, job.parallelism.dp) == (4, 2)
    assert "experts 8 do not divide by ep 3; nearest 2 or 4" in refused("parallelism.ep=3", "gpus=6", text=MOE)
    assert "ep 8 · pp 1 = 8 does not divide the world 4; nearest 4" in refused("parallelism.ep=8", text=MOE)
    assert "ep 2, but the model has no experts" in refused("parallelism.ep=2")


def test_grids_that_disagree_on_stages_are_refused(load: Load, refused: Refused) -> None:
    split = ("gpus=8", "parallelism.tp=2", "parallelism.pp=2", "parallelism.ep=2")
    line = refused(*split, "parallelism.order=[tp, pp, cp, ep, dp]", text=MOE)
    assert "stages every 2 ranks for dense layers and every 1 for experts; put pp last" in line
    assert load(*split, text=MOE).parallelism.order[-1] == "pp"
    first = "parallelism.order=[pp, tp, cp, ep, dp]"
    assert load(*split, first, text=MOE).parallelism.order[0] == "pp"
    assert load("parallelism.tp=2", "parallelism.pp=2", "parallelism.order=[tp, pp, cp, ep, dp]")  # dense: one grid


@pytest.mark.parametrize("order", ["[tp, dp, pp]", "[tp, tp, cp, ep, dp, pp]", "[tp, cp, ep, dp, dp]"])
def test_order_names_every_axis_once(refused: Refused, order: str) -> None:
    assert "name each of tp, cp, ep, dp, pp once" in refused(f"parallelism.order={order}")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0", "0 is too small; nearest legal value 1"),
        ("-1", "-1 is too small; nearest legal value 1"),
        ('"8"', 'must be a whole number, not "8"; write 8 without quotes'),
        ("true", "must be a whole number, not true"),
        ("8.5", "must be a whole number, not 8.5; nearest 8 or 9"),
        ("null", "must be a whole number, not null"),
        ("010", "010 has leading zeros; write 10"),
        ("no", 'must be a whole number, not "no"'),
    ],
)
def test_k16_only_whole_numbers_become_degrees(refused: Refused, value: str, said: str) -> None:
    line = refused(f"parallelism.tp={value}")
    assert line.startswith(f"--set parallelism.tp={value}: ")
    assert said in line


def test_k16_a_whole_fraction_is_read_and_said(load: Load) -> None:
    job = load("parallelism.tp=8.0")
    assert job.parallelism.tp == 8
    assert "--set parallelism.tp=8.0: 8.0 read as 8" in job.notes
    assert load("parallelism.tp=8").notes == tuple(note for note in job.notes if "8.0" not in note)


@pytest.mark.parametrize("text", ["1e9", "1.0e9", "1.0e+9", "1_000_000_000"])
def test_k17_all_forms_of_a_number(load: Load, text: str) -> None:
    assert load(f"workload.bucket={text}").workload.bucket == 10**9
    assert load(f"device.peak_flops.bf16={text} FLOP/s").device.peak("bf16") == 1e9


def test_k17_a_bare_peak_is_asked_for_its_unit(refused: Refused) -> None:
    line = refused("device.peak_flops.bf16=989.4")
    assert "989.4 needs a unit: 989.4 TFLOP/s or 989.4 FLOP/s?" in line


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("pipline=4", "unknown key; nearest: parallelism.pp"),
        ("tp=4", "unknown key; write parallelism.tp"),
        ("epoch_num=5", "unknown key; known: name, model"),
        ("model.hidden_size=5", "unknown key; nearest: hidden"),
        ("workload.globl_batch=5", "unknown key; nearest: global_batch"),
        ("parallelism.TP=5", "unknown key; nearest: tp"),
        ("network.dimensions.0.bandwith=1 GB/s", "unknown key; nearest: bandwidth"),
        ("workload.precision.weight=fp8", "unknown key; nearest: weights"),
        ("device.clock_hz2=1 GHz", "unknown key; nearest: clock"),
        ("model.kvheads=8", "unknown key; nearest: kv_heads"),
    ],
)
def test_k19_unknown_keys_are_refused_with_the_nearest(refused: Refused, override: str, said: str) -> None:
    line = refused(override)
    assert line.startswith(f"--set {override}: ")
    assert said in line


def test_every_problem_is_kept_and_the_first_is_the_line(load: Load) -> None:
    with pytest.raises(InputError) as caught:
        load("parallelism.tp=0", "workload.micro_batch=true", "epoch=1")
    assert len(caught.value.problems) == 3  # type: ignore[attr-defined]
    assert "(and 2 more" in str(caught.value)


def test_places_are_file_and_line(load: Load, refused: Refused) -> None:
    text = """\
model: llama3-8b
network: dgx-h100
gpus: 8
workload:
  sequence_length: 8192
  global_batch: 8
  zero: 7
"""
    assert "job.yaml:7 workload.zero: 7 is too large; nearest legal value 3" in refused(text=text)
    job = load(text=text.replace("7", "1"))
    assert job.place("workload.zero").endswith("job.yaml:7 workload.zero")
    assert job.place("workload.schedule").endswith("job.yaml:4 workload.schedule")
    assert job.place("model.kv_heads").startswith("catalogue/models/llama3-8b.yaml:")
    assert load("workload.zero=0", text=text).place("workload.zero") == "--set workload.zero=0"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("parallelism.cp=2", "cp 2: context parallelism is not built yet; only cp 1"),
        ("workload.schedule=zero-bubble", "zero-bubble is not built yet; only gpipe and 1f1b"),
        ("workload.recompute=selective", "selective is not built yet"),
        ("workload.zero=2", "2 is not built yet; only 0 and 1"),
        ("workload.kind=decode", "decode is not built yet; only training"),
        ("model=mixtral-8x7b", "mixture of experts is not built yet"),
        ("model=deepseek-v3", "not built yet"),
        ("model=mistral-7b", "4096 is below sequence_length 8192, and windows are not built yet"),
        ("model.qk_norm=true", "not built yet"),
        ("model.attention_sinks=true", "not built yet"),
    ],
)
def test_keys_of_later_issues_are_legal_and_refused_by_supported(load: Load, override: str, said: str) -> None:
    job = load("gpus=16", "workload.sequence_length=8192", override)
    with pytest.raises(InputError) as caught:
        supported(job)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_works_today_is_supported(load: Load) -> None:
    supported(load())
    supported(load("model=mistral-7b", "workload.sequence_length=4096"))  # the window covers the whole sequence


def test_network_sizes_must_make_the_world(load: Load, refused: Refused) -> None:
    assert "sizes 4 = 4 ranks, the world is 8; nearest: nvlink size 8" in refused("network.dimensions.0.size=4")
    assert load("network.dimensions.0.size=8").network.ranks == 8


def test_without_gpus_the_sizes_decide(load: Load, spec_text: str) -> None:
    text = spec_text.replace("gpus: 8\n", "")
    job = load("network.dimensions.0.size=16", text=text)
    assert (job.world, job.parallelism.dp) == (16, 2)
    assert "dp 2 inferred: the network's ranks 16 / (tp 8 · cp 1 · pp 1)" in job.notes
    assert load("parallelism.dp=4", text=text).network.dimensions[0].size == 32  # the outer size is inferred
    assert load(text=text).world == 8


def test_one_rank_needs_no_network_and_more_do(load: Load, refused: Refused) -> None:
    text = """
model: llama2-7b
device: h200-sxm-141gb
workload: {sequence_length: 4096, global_batch: 8}
"""
    job = load(text=text)
    assert (job.world, job.network.dimensions) == (1, ())
    assert "network: is missing; a job of 8 ranks needs one" in refused("gpus=8", text=text)


def test_a_cluster_fills_from_the_inside(load: Load, refused: Refused) -> None:
    text = """
model: llama3-8b
network: dgx-h100
workload: {sequence_length: 4096, global_batch: 960}
"""
    shapes = {1: [], 4: [4], 6: [6], 8: [8], 16: [8, 2], 96: [8, 12]}
    for gpus, sizes in shapes.items():
        assert [dim.size for dim in load(f"gpus={gpus}", text=text).network.dimensions] == sizes
    line = refused("gpus=12", text=text)
    assert "a world of 12 does not divide by dgx-h100's inner sizes 8; nearest 8 or 16" in line
    pod = ("network=h100-superpod", "workload.global_batch=1024")
    assert [dim.size for dim in load("gpus=512", *pod, text=text).network.dimensions] == [8, 32, 2]
    assert [dim.size for dim in load("gpus=128", *pod, text=text).network.dimensions] == [8, 16]


@given(st.lists(st.integers(1, 12), max_size=3), st.integers(1, 400))
def test_a_filled_cluster_has_the_world_or_names_neighbours_that_fill(inner: list[int], world: int) -> None:
    sizes = fill(inner, world)
    if isinstance(sizes, list):
        assert prod(sizes) == world
        assert all(size <= most for size, most in zip(sizes, inner, strict=False))
    else:
        low, high = sizes
        assert low < world < high
        assert low == 0 or isinstance(fill(inner, low), list)
        assert isinstance(fill(inner, high), list)
        assert not any(isinstance(fill(inner, between), list) for between in range(low + 1, high))


def test_a_cluster_names_its_device_and_another_is_a_what_if(load: Load) -> None:
    text = "model: llama3-8b\nnetwork: dgx-a100\ngpus: 8\nworkload: {sequence_length: 4096, global_batch: 8}\n"
    assert load(text=text).device.name == "a100-sxm4-80gb"
    assert not any("what-if" in note for note in load(text=text).notes)
    job = load("device=h100-sxm5-80gb", text=text)
    assert job.device.name == "h100-sxm5-80gb"
    assert any("device h100-sxm5-80gb in network dgx-a100, which has a100-sxm4-80gb: a what-if" in n for n in job.notes)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("network.collectives.all_reduce=[ring, ring]", "lists 2 algorithms for 1 dimensions"),
        ("network.collectives.all_to_all=halving_doubling", "has no all_to_all; legal: auto, ring, direct"),
        ("network.collectives.all_gather=double_binary_tree", "all-reduces only; legal: auto, ring, direct, halving_d"),
        ("network.collectives.reduce_scatter=double_binary_tree", "all-reduces only; legal: auto, ring, direct, ha"),
        ("network.collectives.all_to_all=[double_binary_tree]", "all-reduces only; legal: auto, ring, direct"),
        ("network.collectives.endpoint_delay=0.5 ns", "0.5 ns is no whole number of ns; nearest 0 or 1 ns"),
        ("network.collectives.splits=0", "0 is too small"),
        ("network.dimensions.0.topology=torus", '"torus" is not one of ring, switch, fully_connected'),
        ("network.dimensions.0.bandwidth=400", "400 GB/s or 400 Gb/s"),
        ("network.dimensions.0.bandwidth=0 GB/s", "0 GB/s is too small; nearest legal value 1 kB/s"),
        ("network.dimensions.0.bandwidth=0", "0 is too small; nearest legal value 1 kB/s"),
        ("network.dimensions.0.bandwidth=-3", "-3 is too small; nearest legal value 1 kB/s"),
        ("network.dimensions.0.bandwidth=1e-300 GB/s", "1e-300 GB/s is too small; nearest legal value 1 kB/s"),
        ("network.dimensions.0.bandwidth=0.001 B/s", "0.001 B/s is too small; nearest legal value 1 kB/s"),
        ("network.dimensions.0.bandwidth=2 PB/s", "2 PB/s is too large; nearest legal value 1 PB/s"),
        ("network.dimensions.0.bandwidth=100 GBps", "case matters: 100 GB/s?"),
        ("network.dimensions.0.name=a b", '"a b" must be letters, digits and . _ + -'),
        ("network.dimensions.0.latency=-1 us", "too small"),
        ("network.dimensions.0.latency=2 s", "2 s is too large; nearest legal value 1 s"),
        ("network.collectives.endpoint_delay=-1 ns", "-1 ns is too small; nearest legal value 0 s"),
    ],
)
def test_networks_that_cannot_be(refused: Refused, override: str, said: str) -> None:
    line = refused(override)
    assert line.startswith(f"--set {override}: ")
    assert said in line
    assert "names files" not in line


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("device.peak_flops.bf16=1 FLOP/s", "1 MFLOP/s"),
        ("device.peak_flops.bf16=1e9 PFLOP/s", "100000 PFLOP/s"),
        ("device.memory_bandwidth=1 kB/s", "1 MB/s"),
        ("device.l2_bandwidth=1 B/s", "1 kB/s"),
        ("device.memory=1 kB", "1 MB"),
        ("device.memory=0", "1 MB"),
        ("device.memory=2 PB", "1024 TiB"),
        ("device.l2=0.0 B", "1 B"),
        ("device.clock=1 Hz", "1 MHz"),
        ("device.clock=1e6 GHz", "100 GHz"),
        ("device.power=0 W", "1 W"),
        ("device.power=2 MW", "1 MW"),
        ("device.efficiency.compute=0", "0.001"),
        ("device.efficiency.memory=1.5", "1"),
        ("model.vocab_pad_to=0", "1"),
        ("model.vocab_pad_to=9999999", "1048576"),
        ("model.hidden=-5", "1"),
        ("model.heads=0", "1"),
    ],
)
def test_bounds_are_said_with_the_nearest_legal_value_which_is_legal(
    load: Load, refused: Refused, override: str, nearest: str
) -> None:
    line = refused(override)
    key = override.partition("=")[0]
    written = override.partition("=")[2]
    side = "small" if nearest in line and f"{written} is too small" in line else "large"
    assert line == f"--set {override}: {written} is too {side}; nearest legal value {nearest}"
    advised = f"{key}={nearest}"
    again = ""
    try:
        load(advised, "parallelism.tp=1")
    except InputError as why:
        again = str(why)
    assert "nearest legal value" not in again  # a rule that joins it with other keys may still refuse it, no bound


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("paralelism.tp=2", "paralelism: unknown key; nearest: parallelism"),
        ("a.b.c.d=1", "a: unknown key; known: name, model"),
        ("model.foo.bar=1", "model.foo: unknown key"),
        ("workload.precision2.compute=bf16", "workload.precision2: unknown key; nearest: precision"),
        ("faults={}", "faults come later: not built yet; leave it out"),
        ("faults.0=x", "faults come later: not built yet; leave it out"),
        ("network.faults=[]", "faults come later: not built yet; leave it out"),
    ],
)
def test_a_key_made_by_set_is_placed_there(refused: Refused, override: str, said: str) -> None:
    line = refused(override)
    assert line.startswith(f"--set {override}")
    assert said in line


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ("[32, 0]", "stage 1 (of 0 to 1) has 0 layers; at least 1"),
        ("[33, -1]", "stage 1 (of 0 to 1) has -1 layers; at least 1"),
        ("[x, 3]", 'stage 0 (of 0 to 1): layers must be a whole number, not "x"'),
        ("[16, true]", "stage 1 (of 0 to 1): layers must be a whole number, not true"),
        ("[16, 16.5]", "stage 1 (of 0 to 1): layers must be a whole number, not 16.5"),
        ("odd", '"odd" is none of balanced, even, or a list'),
        ("null", "null is none of balanced, even, or a list"),
    ],
)
def test_a_stage_without_layers_is_named(refused: Refused, stages: str, said: str) -> None:
    split = ("parallelism.tp=4", "parallelism.pp=2")
    assert refused(*split, f"parallelism.stages={stages}") == f"--set parallelism.stages={stages}: {said}" + (
        " of layers per stage like [20, 20, 20, 20]" if said.endswith("a list") else ""
    )


def test_whole_fractions_are_layers(load: Load) -> None:
    split = ("parallelism.tp=4", "parallelism.pp=2", "parallelism.stages=[20.0, 12]")
    assert load(*split).parallelism.stages == (20, 12)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("name=" + "x" * 300, "is 300 letters long; at most 100"),
        ('name=""', "is empty; write at least one letter"),
        ("model.name=" + "x" * 101, "is 101 letters long; at most 100"),
        ('model.name="a\\nb"', '"a\\x0ab" must be one line of printable text'),
        ('model.name="a\\u2028b"', "must be one line of printable text"),
        ("model.name=a\nb", "text without quotes is one line; this has 2"),
        ("model.name=3", "must be text, not 3"),
        ("name=-a", "and begin with a letter or digit, since it names files"),
        ('parallelism.tp="²"', 'must be a whole number, not "²"'),
        ('parallelism.tp="٨"', 'must be a whole number, not "٨"'),
    ],
)
def test_names_are_short_and_printable(refused: Refused, override: str, said: str) -> None:
    assert refused(override).endswith(said)


@pytest.mark.parametrize(
    ("overrides", "first"),
    [
        (("parallelism.vpp=2",), "interleaving is not built yet; only vpp 1; besides: vpp 2 does nothing"),
        (("workload.schedule=interleaved",), "schedule interleaved is not built yet; only gpipe and 1f1b; besides: in"),
        (("model.attention=mla",), "latent attention (mla) is not built yet, only mha and gqa (and 4 more"),
        (("model.experts=8",), "mixture of experts is not built yet, only dense models (and 2 more"),
        (("parallelism.ep=2",), "expert parallelism is not built yet; only ep 1; besides: ep 2, but the model has no"),
        (("gpus=32", "workload.sequence_length=1001", "parallelism.cp=4"), "context parallelism is not built yet"),
    ],
)
def test_a_rule_of_a_feature_that_is_not_built_says_that_first(
    refused: Refused, overrides: tuple[str, ...], first: str
) -> None:
    line = refused(*overrides)
    asked = "workload.sequence_length=1001" if len(overrides) > 1 else overrides[0]
    assert line.startswith(f"--set {asked}: {first}")


def test_what_a_feature_s_rules_say_is_still_listed(load: Load) -> None:
    with pytest.raises(InputError) as caught:
        load("model.experts=8")
    problems = caught.value.problems  # type: ignore[attr-defined]
    assert any("model.top_k: 0 of experts 8; legal: 1 to 8" in problem for problem in problems)
    assert any("model.expert_ffn: is missing: the width of one of the 8 experts" in problem for problem in problems)


def test_a_number_format_that_the_device_lacks(load: Load, refused: Refused, spec_text: str) -> None:
    line = refused("device=v100-sxm2-32gb")
    assert "job.yaml:9 workload.precision.compute: device v100-sxm2-32gb has no bf16 peak; it has fp64, fp32, f" in line
    line = refused("workload.precision.compute=int8")
    assert line.startswith("--set workload.precision.compute=int8: device h100-sxm5-80gb has no int8 peak; it has fp64")
    assert load("device=v100-sxm2-32gb", "workload.precision.compute=fp16").device.peak("fp16") == 125e12


def test_fp64_may_use_the_tensor_cores(load: Load, refused: Refused) -> None:
    # H100 SXM5 data sheet: 33.5 TFLOP/s vector, 66.9 on the tensor cores
    job = load("workload.precision.compute=fp64_tensor")
    assert job.device.peak(job.workload.precision.compute) == 66.9e12
    assert load("workload.precision.compute=fp64").device.peak("fp64") < 34e12
    assert "is not one of fp64, fp32" in refused("workload.precision.weights=fp64_tensor")  # a type in memory is fp64


def test_one_microbatch_is_one(load: Load) -> None:
    notes = load("parallelism.tp=2", "parallelism.pp=4", "workload.global_batch=1").notes
    assert any(note.startswith("1 microbatch for 4 stages") for note in notes)


def test_k61_halving_doubling_wants_a_power_of_two(load: Load, refused: Refused) -> None:
    chosen = "network.collectives.all_reduce=halving_doubling"
    assert load(chosen).network.collectives.all_reduce == ("halving_doubling",)
    line = refused(chosen, "gpus=6", "parallelism.tp=1", "workload.global_batch=6")
    assert "needs a power of two, dimension nvlink has size 6; nearest 4 and 8" in line


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.positions=learned", "model.max_positions: is missing"),
        ("model.ffn=0", "model.ffn=0: 0 is too small: 32 of 32 layers have a dense MLP; give its width"),
        ("model.top_k=2", "2 but experts is 0"),
        ("model.kv_heads=5", "heads 32 do not divide by kv_heads 5; nearest 4 or 8"),
        ("model.rotary_fraction=1.5", "1.5 is too large; nearest legal value 1"),
        ("model.vocab_pad_to=foo", "neither tp"),
    ],
)
def test_models_that_cannot_be(refused: Refused, override: str, said: str) -> None:
    assert said in refused(override)


def test_learned_positions_bound_the_sequence(refused: Refused) -> None:
    line = refused("model.positions=learned", "model.max_positions=2048")
    assert "4096 is over the 2048 learned positions; at most 2048" in line


def test_missing_keys_are_named(refused: Refused) -> None:
    assert "workload.global_batch: is missing" in refused(
        text="model: llama3-8b\ndevice: h100-sxm5-80gb\nworkload: {sequence_length: 8}\n"
    )
    assert "model is missing" in refused(text="device: h100-sxm5-80gb\nworkload: {}\n")
    assert "device is missing" in refused(text="model: llama3-8b\nworkload: {sequence_length: 8, global_batch: 8}\n")
