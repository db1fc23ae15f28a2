"""The catalogue holds what DESIGN promises, with figures that sum to what was published."""

from __future__ import annotations

import pytest

from tracegen.proto.errors import InputError
from tracegen.spec import Device, Model, catalog, load_job, supported
from tracegen.spec.network import Network
from tracegen.spec.units import WRITTEN

# DESIGN.md, "Catalogue names (a contract; add freely)"
NAMES = {
    "models": "gpt3-22b gpt3-175b gpt-neox-20b llama2-7b llama2-13b llama2-70b llama3-8b llama3-70b llama3-405b "
    "mistral-7b mixtral-8x7b mixtral-8x22b deepseek-v2 deepseek-v3 qwen2.5-7b qwen2.5-72b qwen3-30b-a3b "
    "qwen3-235b-a22b llama4-scout llama4-maverick gpt-oss-120b",
    "devices": "v100-sxm2-32gb a100-pcie-80gb a100-sxm4-40gb a100-sxm4-80gb h100-pcie-80gb h100-sxm5-80gb "
    "h200-sxm-141gb gh200-96gb b200-sxm-180gb gb200-186gb mi250x mi300x",
    "clusters": "dgx-a100 dgx-h100 dgx-h200 hgx-b200 gb200-nvl72 perlmutter-a100 vista-gh200 selene h100-superpod",
    "specs": "llama3-70b llama3-8b llama3-405b gpt3-22b gpt3-175b gpt-neox-20b llama2-7b-single-gpu",
}

# facts/hardware_and_models.md, table D, column "sum B" (billions, as many digits as given)
SUMS = {
    "gpt3-175b": "174.60",
    "gpt-neox-20b": "20.555",
    "llama2-7b": "6.738",
    "llama2-13b": "13.016",
    "llama2-70b": "68.977",
    "llama3-8b": "8.030",
    "llama3-70b": "70.554",
    "llama3-405b": "405.853",
    "mistral-7b": "7.242",
    "mixtral-8x7b": "46.703",
    "mixtral-8x22b": "140.62",
    "deepseek-v2": "235.741",
    "deepseek-v3": "671.026",
    "qwen2.5-7b": "7.616",
    "qwen2.5-72b": "72.706",
    "qwen3-30b-a3b": "30.532",
    "qwen3-235b-a22b": "235.094",
    "llama4-scout": "107.77",
    "llama4-maverick": "400.71",
    "gpt-oss-120b": "116.829",
}
ACTIVE = {"deepseek-v2": "21.38", "deepseek-v3": "37.55", "qwen3-30b-a3b": "3.35", "qwen3-235b-a22b": "22.19"}


def model(name: str) -> Model:
    return Model.model_validate(catalog.load("models", name).data, context=WRITTEN)


def device(name: str) -> Device:
    return Device.model_validate(catalog.load("devices", name).data, context=WRITTEN)


@pytest.mark.parametrize("section", NAMES)
def test_every_promised_name_is_there(section: str) -> None:
    assert set(NAMES[section].split()) <= set(catalog.names(section))


@pytest.mark.parametrize(
    ("section", "name"), [(s, n) for s in ("models", "devices", "clusters") for n in NAMES[s].split()]
)
def test_every_piece_names_itself_and_its_source(section: str, name: str) -> None:
    data = catalog.load(section, name).data
    assert data["name"] == name
    assert len(data["source"]) > 10


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="'llama3-7b' is not in the catalogue's models; nearest: llama"):
        catalog.load("models", "llama3-7b")
    with pytest.raises(InputError, match="nearest: h100-pcie-80gb or h100-sxm5-80gb"):
        catalog.load("devices", "h100")
    with pytest.raises(InputError, match="no section 'model'; nearest: models"):
        catalog.names("model")


@pytest.mark.parametrize(("name", "billions"), SUMS.items())
def test_k64_parameters_sum_to_the_published_total(name: str, billions: str) -> None:
    digits = len(billions.split(".")[1])
    assert f"{model(name).parameters() / 1e9:.{digits}f}" == billions


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_active_parameters(name: str, billions: str) -> None:
    assert f"{model(name).active_parameters() / 1e9:.2f}" == billions


def test_gpt_oss_counts_active_parameters_without_the_embedding() -> None:
    oss = model("gpt-oss-120b")
    assert f"{(oss.active_parameters() - oss.vocab * oss.hidden) / 1e9:.2f}" == "5.13"  # as its authors count


def test_k64_exact_counts() -> None:
    assert model("llama2-7b").parameters() == 6_738_415_616
    assert model("llama3-8b").parameters() == 8_030_261_248
    assert model("mixtral-8x7b").parameters() == 46_702_792_704
    assert model("mixtral-8x7b").active_parameters() == 12_879_925_248
    as_mha = model("llama3-8b").model_copy(update={"kv_heads": 32})
    assert as_mha.parameters() == 8_835_567_616


def test_k64_models_written_out() -> None:
    gpt2 = Model.model_validate(
        {
            "layers": 12,
            "hidden": 768,
            "ffn": 3072,
            "heads": 12,
            "vocab": 50257,
            "max_positions": 1024,
            "gated": False,
            "norm": "layer",
            "bias": True,
            "positions": "learned",
            "tied_embeddings": True,
        }
    )
    assert gpt2.parameters() == 124_439_808
    small = {"layers": 16, "hidden": 2048, "ffn": 8192, "heads": 32, "kv_heads": 8, "vocab": 128256}  # Llama-3.2-1B
    assert Model.model_validate(small | {"tied_embeddings": True}).parameters() == 1_235_814_400
    assert Model.model_validate(small).parameters() == 1_498_482_688


def test_k76_peaks_are_dense() -> None:
    assert device("h200-sxm-141gb").peak("bf16") == 989.4e12
    assert (
        round(420e12 / device("h200-sxm-141gb").peak("bf16") * 100, 1) == 42.4
    )  # not 21.2 %: that halves a sparse peak
    assert device("a100-sxm4-80gb").peak("bf16") == 312e12
    assert device("h100-sxm5-80gb").peak("fp8") == 1978.9e12
    assert device("mi300x").peak("bf16") == 1307.4e12


def test_a_peak_that_the_sheet_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="device v100-sxm2-32gb has no bf16 peak; it has fp64, fp32, fp16"):
        device("v100-sxm2-32gb").peak("bf16")


@pytest.mark.parametrize("name", NAMES["devices"].split())
def test_devices_say_whose_efficiency_they_have(name: str) -> None:
    fitted = ("a100-sxm4-80gb", "h100-sxm5-80gb")
    own = device(name).efficiency
    assert own.assumed is (name not in fitted)
    if own.assumed:
        lender = next(other for other in fitted if other in own.source)
        assert (own.compute, own.memory) == (device(lender).efficiency.compute, device(lender).efficiency.memory)


def test_tensor_peaks_halve_with_each_wider_format() -> None:
    # H100's tf32, bf16 and fp8 peaks are one another's doubles to rounding of the sheet
    h100 = device("h100-sxm5-80gb")
    assert h100.peak("bf16") == pytest.approx(2 * h100.peak("tf32"), rel=1e-3)
    assert h100.peak("fp8") == pytest.approx(2 * h100.peak("bf16"), rel=1e-3)


def test_clusters_are_as_their_sheets() -> None:
    inner = {"dgx-h100": (8, 450e9), "dgx-a100": (8, 300e9), "hgx-b200": (8, 900e9), "gb200-nvl72": (72, 900e9)}
    for name, (size, bandwidth) in inner.items():
        first = catalog.load("clusters", name).data["dimensions"][0]
        assert (first["size"], first["bandwidth"]) == (size, f"{bandwidth / 1e9:g} GB/s")
    pairs = catalog.load("clusters", "perlmutter-a100").data["dimensions"][0]
    assert (pairs["topology"], pairs["size"], pairs["bandwidth"]) == ("fully_connected", 4, "100 GB/s")
    assert len(catalog.load("clusters", "vista-gh200").data["dimensions"]) == 1


@pytest.mark.parametrize("name", NAMES["clusters"].split())
def test_every_cluster_makes_a_network_for_its_device(name: str) -> None:
    job = load_job("llama3-70b", [f"network={name}", "gpus=2304", "parallelism.pp=2", "workload.global_batch=144"])
    assert isinstance(job.network, Network)
    assert job.network.ranks == 2304
    assert job.device.name == catalog.load("clusters", name).data["device"]


@pytest.mark.parametrize("name", catalog.names("specs"))
def test_every_example_is_built_today(name: str) -> None:
    job = load_job(name)
    supported(job)
    assert job.name == name
    assert job.microbatches >= 1
    assert job.device.peak(job.workload.precision.compute) > 0


def test_the_examples_are_the_jobs_that_were_asked_for() -> None:
    def split(name: str) -> tuple[int, ...]:
        job = load_job(name)
        p = job.parallelism
        return job.world, p.tp, p.pp, p.dp, job.microbatches, job.workload.sequence_length, job.workload.global_batch

    assert split("llama3-70b") == (64, 8, 4, 2, 32, 8192, 64)
    assert split("llama3-8b")[:4] == (8, 1, 1, 8)
    assert split("llama3-405b")[:5] == (1024, 8, 16, 8, 64)
    assert split("gpt3-22b") == (8, 8, 1, 1, 1, 2048, 4)
    assert split("gpt3-175b") == (64, 8, 8, 1, 64, 2048, 64)
    assert load_job("llama3-8b").workload.zero == 1
    gpt = load_job("gpt3-22b")
    assert (gpt.workload.micro_batch, gpt.workload.recompute, gpt.model.padded_vocab(8)) == (4, "full", 51200)
    assert load_job("gpt3-175b").workload.recompute == "full"
    assert load_job("llama2-7b-single-gpu").world == 1
