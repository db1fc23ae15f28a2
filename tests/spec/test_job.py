"""From a file to a job and back: bases, catalogue, overrides, and a document that gives the same job again."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core.core_schema import ErrorType

from tracegen.proto.errors import InputError
from tracegen.spec import Device, Efficiency, Job, Model, Parallelism, Precision, Workload, catalog, load_job
from tracegen.spec.network import Collectives, Dimension, Network, astra_inputs
from tracegen.spec.problems import _message
from tracegen.spec.source import dump, parse

Load = Callable[..., Job]
Refused = Callable[..., str]


@pytest.mark.parametrize("name", catalog.names("specs"))
def test_the_document_of_a_job_gives_an_equal_job(tmp_path: Path, name: str) -> None:
    job = load_job(name)
    file = tmp_path / "job.yaml"
    file.write_text(dump(job.document()))
    again = load_job(str(file))
    assert again == job
    assert hash(again) == hash(job)
    assert again.document() == job.document()
    assert again != load_job(name, ["workload.bucket=1000"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    bandwidth=st.floats(1e3, 1e15),
    latency=st.floats(0, 1),
    efficiency=st.floats(0.01, 1),
    peak=st.floats(1e12, 1e20),
    delay=st.integers(0, 10**6),
)
def test_every_digit_of_a_float_survives(
    tmp_path: Path, load: Load, bandwidth: float, latency: float, efficiency: float, peak: float, delay: int
) -> None:
    job = load(
        f"network.dimensions.0.bandwidth={bandwidth!r} B/s",
        f"network.dimensions.0.latency={latency!r} s",
        f"device.efficiency.compute={efficiency!r}",
        f"device.peak_flops.bf16={peak!r} FLOP/s",
        f"network.collectives.endpoint_delay={delay} ns",
    )
    assert (job.network.dimensions[0].bandwidth, job.network.dimensions[0].latency) == (bandwidth, latency)
    assert (job.device.efficiency.compute, job.device.peak("bf16")) == (efficiency, peak)
    file = tmp_path / "again.yaml"
    file.write_text(dump(job.document()))
    assert load_job(str(file)).document() == job.document()


def test_the_document_is_plain_and_names_its_pieces() -> None:
    document = load_job("llama3-70b").document()
    assert document["model"]["name"] == "llama3-70b"
    assert document["device"]["name"] == "h100-sxm5-80gb"
    assert document["network"]["name"] == "dgx-h100"
    assert document["network"]["dimensions"][0]["bandwidth"] == "450000000000.0 B/s"
    assert document["parallelism"]["dp"] == 2
    assert "notes" not in document
    assert parse(dump(document), "job.yaml").data == document


def test_defaults_are_the_documented_ones(load: Load) -> None:
    job = load()
    assert job.workload.model_dump(exclude={"sequence_length", "global_batch", "precision"}) == {
        "kind": "training",
        "micro_batch": 1,
        "schedule": "1f1b",
        "recompute": "none",
        "zero": 1,
        "bucket": 40_000_000,
        "attention_kernel": "flash",
        "granularity": "operator",
    }
    assert job.workload.precision.model_dump() == {
        "compute": "bf16",
        "weights": "bf16",
        "gradients": "fp32",
        "optimizer": "fp32",
        "master": "fp32",
    }
    assert job.parallelism.model_dump(exclude={"tp"}) == {
        "cp": 1,
        "ep": 1,
        "dp": 1,
        "pp": 1,
        "etp": 1,
        "vpp": 1,
        "sp": False,
        "order": ("tp", "cp", "ep", "dp", "pp"),
        "stages": "balanced",
    }
    assert (job.model.kv_heads, job.model.head_dim, job.model.attention) == (32, 128, "mha")
    assert job.name == "job"


def test_a_base_is_overridden_key_by_key(load: Load) -> None:
    text = """
model: {base: llama3-8b, layers: 4, vocab_pad_to: 128}
device: {base: h100-sxm5-80gb, efficiency: {compute: 0.5}}
network:
  base: dgx-h100
  collectives: {splits: 2}
gpus: 16
workload: {sequence_length: 4096, global_batch: 64}
"""
    job = load(text=text)
    assert (job.model.layers, job.model.hidden, job.model.vocab_pad_to) == (4, 4096, 128)
    assert job.model.name == "llama3-8b-changed"
    memory = load_job("llama3-8b").device.efficiency.memory
    assert (job.device.efficiency.compute, job.device.efficiency.memory) == (0.5, memory)
    assert (job.network.collectives.splits, job.network.ranks) == (2, 16)
    assert load("network.collectives.splits=8", text=text).network.collectives.splits == 8
    assert load("model.base=llama2-7b", text=text).model.heads == 32


def test_an_override_of_a_catalogued_piece_says_changed() -> None:
    assert load_job("llama3-70b", ["model.layers=4"]).model.name == "llama3-70b-changed"
    assert load_job("llama3-70b", ["model.layers=4", "model.name=tiny"]).model.name == "tiny"
    assert load_job("llama3-70b", ["model=llama3-8b"]).model.name == "llama3-8b"


def test_pieces_by_path_are_taken_from_the_spec_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "specs"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "mine.yaml").write_text("base: ./other.yaml\nlayers: 3\n")
    (folder / "parts" / "other.yaml").write_text("layers: 2\nhidden: 64\nffn: 64\nheads: 2\nvocab: 100\n")
    (folder / "s.yaml").write_text(
        "model: parts/mine.yaml\ndevice: h100-sxm5-80gb\nworkload: {sequence_length: 8, global_batch: 1}\n"
    )
    monkeypatch.chdir(tmp_path)
    job = load_job("specs/s.yaml")
    assert (job.model.layers, job.model.hidden, job.model.name) == (3, 64, "other-changed")
    assert job.place("model.layers") == "parts/mine.yaml:2 model.layers"
    assert job.place("model.hidden") == "./other.yaml:2 model.hidden"
    (folder / "parts" / "other.yaml").write_text("base: ./mine.yaml\n")
    with pytest.raises(InputError, match="base refers to itself"):
        load_job("specs/s.yaml")


def test_a_path_in_set_is_taken_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = "hidden: 64\nffn: 64\nheads: 2\nvocab: 100\n"
    for folder, layers in (("specs", 2), ("here", 3)):
        (tmp_path / folder / "ok").mkdir(parents=True)
        (tmp_path / folder / "ok" / "m.yaml").write_text(f"layers: {layers}\n{shape}")
    (tmp_path / "specs" / "s.yaml").write_text(
        "model: ok/m.yaml\ndevice: h100-sxm5-80gb\nworkload: {sequence_length: 8, global_batch: 1}\n"
    )
    monkeypatch.chdir(tmp_path / "here")
    assert load_job("../specs/s.yaml").model.layers == 2
    assert load_job("../specs/s.yaml", ["model=ok/m.yaml"]).model.layers == 3
    assert load_job("../specs/s.yaml", ["model={base: ok/m.yaml}"]).model.layers == 3
    assert load_job("../specs/s.yaml", ["model.base=ok/m.yaml"]).model.layers == 3
    with pytest.raises(InputError) as caught:
        load_job("../specs/s.yaml", ["model=ok/none.yaml"])
    assert f"--set model=ok/none.yaml: ok/none.yaml: no such file ({tmp_path}/here/ok/none.yaml)" in str(caught.value)


def test_a_key_that_a_named_file_lacks_names_the_file(tmp_path: Path, load: Load, refused: Refused) -> None:
    (tmp_path / "m.yaml").write_text("hidden: 64\nffn: 64\nheads: 2\nvocab: 100\n")
    text = "model: ./m.yaml\ndevice: h100-sxm5-80gb\nworkload: {sequence_length: 8, global_batch: 1}\n"
    assert refused(text=text).endswith("job.yaml:1 model.layers: is missing in ./m.yaml")
    assert refused(f"model={tmp_path}/m.yaml").endswith(f"model.layers: is missing in {tmp_path}/m.yaml")


@pytest.mark.parametrize("piece", ["model", "device", "network"])
def test_a_whole_spec_is_no_piece_of_one(tmp_path: Path, load: Load, refused: Refused, piece: str) -> None:
    load()
    line = refused(f"{piece}={tmp_path}/job.yaml")
    assert f"job.yaml is a whole spec (it has workload, parallelism, model), no {piece}" in line


def test_a_piece_of_a_long_or_odd_file_name_has_a_legal_name(tmp_path: Path, load: Load) -> None:
    file = tmp_path / f"a\u200b{'x' * 200}.yaml"
    file.write_text("layers: 2\nhidden: 64\nffn: 64\nheads: 8\nvocab: 104\n")
    assert load(f"model={file}").model.name == "a-" + "x" * 98
    assert load(f"model={{base: '{file}', layers: 3}}").model.name == "a-" + "x" * 90 + "-changed"


@pytest.mark.parametrize("where", ["llama3-70b", "llama3-70b.yaml", "no/such/folder/llama3-70b.yaml"])
def test_the_catalogue_stands_in_for_a_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    job = load_job(where)
    assert job.world == 64
    assert any("the catalogue's spec llama3-70b is used" in note for note in job.notes) is where.endswith(".yaml")


def test_a_file_that_is_there_wins_over_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("llama3-70b.yaml").write_text(
        "model: llama3-8b\nnetwork: dgx-h100\ngpus: 8\nworkload: {sequence_length: 8, global_batch: 8}\n"
    )
    assert load_job("llama3-70b.yaml").world == 8


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("nothing.yaml", "nothing.yaml: no such file"),
        ("nothing", "'nothing' is not in the catalogue's specs"),
        ("llama3-70", "nearest: llama3-70b"),
        (".", ".: is a folder"),
        ("", "no spec is named"),
        ("/dev/zero", "too large"),
    ],
)
def test_specs_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_job(where)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model=nothing", "'nothing' is not in the catalogue's models"),
        ("model=nothing.yaml", "nothing.yaml: no such file"),
        ("model=3", "must be a mapping (key: value), not 3"),
        ("model={base: 3}", "must be a catalogue name or a path"),
        ("model={base: nothing}", "'nothing' is not in the catalogue's models"),
        ("workload=[1]", "must be a mapping"),
        ("parallelism=null", "must be a mapping (key: value), not null"),
        ("name=a/b", "since it names files"),
        ('name="a\\nb"', "since it names files"),
    ],
)
def test_pieces_that_are_not_there(refused: Refused, override: str, said: str) -> None:
    assert said in refused(override)


def test_a_stem_that_may_not_name_files_is_mended(tmp_path: Path) -> None:
    file = tmp_path / "my spec (2).yaml"
    file.write_text("model: llama3-8b\nnetwork: dgx-h100\ngpus: 8\nworkload: {sequence_length: 8, global_batch: 8}\n")
    assert load_job(str(file)).name == "my-spec--2-"


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    key=st.sampled_from(
        [
            "parallelism.tp",
            "parallelism.stages",
            "parallelism.order",
            "parallelism.sp",
            "workload.global_batch",
            "workload.precision",
            "network",
            "network.dimensions",
            "network.dimensions.0",
            "network.collectives.all_reduce",
            "model",
            "model.heads",
            "model.kv_heads",
            "model.experts",
            "model.vocab_pad_to",
            "model.head_dim",
            "device",
            "device.peak_flops",
            "device.efficiency",
            "gpus",
            "name",
            "model.base",
            "zzz",
        ]
    ),
    value=st.sampled_from(
        [
            "0",
            "-1",
            "1.5",
            "1e99",
            "true",
            "null",
            "x",
            "[]",
            "{}",
            "[1, x]",
            "{a: b}",
            "[[1]]",
            "'8'",
            "8 GB",
            "{0: 1}",
            "{base: {}}",
            "1e5 GB/s",
            "99999999999999999999999",
            "-0.0",
            ".inf",
            "[{}]",
            "{name: [1]}",
        ]
    ),
)
def test_no_value_anywhere_ends_in_a_traceback(load: Load, key: str, value: str) -> None:
    line = "a legal value"
    try:
        load(f"{key}={value}")
    except InputError as why:
        line = str(why)
    assert "\n" not in line
    assert len(line) > 10
    assert not RAW.search(line)


RAW = re.compile("Input should|Value error|should have|Field required|valid (integer|string|number)|NoneType|Fraction")
"""Words of pydantic and Python, which no line may hold."""


def test_no_error_of_pydantic_is_shown_in_its_own_words() -> None:
    context = {"ge": 1, "le": 3, "expected": "'a' or 'b'", "max_length": 3, "error": "ours"}
    for kind in get_args(ErrorType):
        error = {"type": kind, "input": "x", "ctx": context, "msg": "Input should be valid"}
        said = _message(Parallelism, ("tp",), error)
        assert said, kind
        assert not RAW.search(said), kind


def network(*shape: tuple[str, int], **collectives: Any) -> Network:
    dims = tuple(
        Dimension.model_validate({"name": f"d{i}", "topology": kind, "size": size, "bandwidth": 5e10, "latency": 2e-6})
        for i, (kind, size) in enumerate(shape)
    )
    return Network(dimensions=dims, collectives=Collectives(**collectives))


def test_auto_is_ring_on_ring_and_switch_and_direct_when_fully_connected() -> None:
    net = network(("ring", 4), ("switch", 2), ("fully_connected", 3))
    assert net.collectives.all_reduce == ("ring", "ring", "direct")
    mixed = network(("ring", 4), ("switch", 2), all_gather=("auto", "direct"), all_to_all=("direct",))
    assert mixed.collectives.all_gather == ("ring", "direct")
    assert mixed.collectives.all_to_all == ("direct", "direct")


def test_a_dropped_dimension_takes_its_algorithms_with_it() -> None:
    net = network(("ring", 4), ("switch", 1), ("fully_connected", 3), all_gather=("direct", "ring", "ring"))
    small = net.sized([4, 1, 3])
    assert [dim.size for dim in small.dimensions] == [4, 3]
    assert small.collectives.all_gather == ("direct", "ring")
    assert small.collectives.all_reduce == ("ring", "direct")


def test_astra_inputs_are_its_keys_and_units() -> None:
    net = network(("ring", 4), ("fully_connected", 2), all_reduce=("halving_doubling", "double_binary_tree"))
    inputs = astra_inputs(net, 3.35e12)
    assert inputs.network == {
        "topology": ["Ring", "FullyConnected"],
        "npus_count": [4, 2],
        "bandwidth": [5e10 / 2**30] * 2,
        "latency": [2000.0, 2000.0],
    }
    assert inputs.system == {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4,
        "all-reduce-implementation": ["halvingDoubling", "doubleBinaryTree"],
        "all-gather-implementation": ["ring", "direct"],
        "reduce-scatter-implementation": ["ring", "direct"],
        "all-to-all-implementation": ["ring", "direct"],
        "collective-optimization": "localBWAware",
        "local-mem-bw": 3350.0,
        "roofline-enabled": 0,
    }
    assert inputs.memory == {"memory-type": "NO_MEMORY_EXPANSION"}
    assert "local-mem-bw" not in astra_inputs(net, None).system


def test_importing_the_spec_is_quick_and_leaves_yaml_for_later() -> None:
    code = "import sys, tracegen.spec; print([m for m in ('ruamel.yaml', 'numpy', 'numba') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert found.stdout.strip() == "[]"


def test_the_network_needs_nothing_else_of_the_spec() -> None:
    source = Path(sys.modules["tracegen.spec.network"].__file__ or "").read_text()
    lines = [line for line in source.splitlines() if line.startswith(("from tracegen", "import tracegen"))]
    assert all(line.startswith("from tracegen.spec.units ") for line in lines)


DOCS = Path(__file__).resolve().parents[2] / "docs" / "spec.md"


@pytest.mark.parametrize(
    "section", [Model, Device, Parallelism, Workload, Precision, Collectives, Dimension, Efficiency]
)
def test_every_key_is_in_the_manual(section: type[BaseModel]) -> None:
    words = set(re.findall(r"[a-z_0-9]+", DOCS.read_text()))
    missing = {info.alias or name for name, info in section.model_fields.items()} - words
    assert not missing


def test_the_manual_s_shortest_spec_works(load: Load) -> None:
    first, second = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert load(text=first).parallelism.dp == 8
    job = load(
        text=first.replace("network: dgx-h100", "device: h100-sxm5-80gb\n" + second).replace("gpus: 8 ", "gpus: 32 ")
    )
    assert [dim.size for dim in job.network.dimensions] == [8, 4]
