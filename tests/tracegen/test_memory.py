"""Bytes of weights, gradients and optimizer states, against the ZeRO paper's example and sums done by hand."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegen.build import build
from tracegen.memory import fits, memory_warning, states, states_of_stages
from tracegen.spec import load_job


def precision(weights="fp16", gradients="fp16", optimizer="fp32", master="fp32"):
    return SimpleNamespace(weights=weights, gradients=gradients, optimizer=optimizer, master=master)


def job(zero=0, dp=1, cp=1, memory_bytes=80 * 10**9, **types):
    return SimpleNamespace(
        parallelism=SimpleNamespace(dp=dp, cp=cp),
        workload=SimpleNamespace(zero=zero, precision=precision(**types)),
        device=SimpleNamespace(memory_bytes=memory_bytes),
    )


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.40625)])
def test_k69_zero_paper_example(zero, gigabytes):
    """K69: 7.5e9 parameters, 64 replicas, mixed Adam: 120 and 31.41 GB (Rajbhandari 2020, figure 1)."""
    assert states(7_500_000_000, precision(), zero, 64).total == gigabytes * 1e9


@pytest.mark.parametrize("zero", [0, 1])
def test_k69_fp32_gradients_add_two_bytes_a_parameter(zero):
    wide = states(7_500_000_000, precision(gradients="fp32"), zero, 64)
    assert wide.total - states(7_500_000_000, precision(), zero, 64).total == 15_000_000_000


def test_each_part_by_hand():
    """10 parameters over 4 replicas: a shard is 3 of them, with 4 + 4 bytes of moments and 4 of master copy each."""
    parts = states(10, precision("bf16", "fp32"), 1, 4)
    assert (parts.weights, parts.gradients, parts.optimizer) == (20, 40, 36)


def test_weights_of_the_masters_type_need_no_copy():
    assert states(10, precision("fp32", "fp32"), 0, 1).optimizer == 80


def test_later_zero_stages_are_not_guessed():
    with pytest.raises(ValueError, match="ZeRO stage 2"):
        states(10, precision(), 2, 4)


def test_the_fullest_stage_decides():
    """2 GB and 1 GB of parameters at 2 + 4 + 12 bytes: 36 GB is the fullest."""
    fit = fits(job(gradients="fp32"), [2 * 10**9, 10**9])
    assert (fit.needed, fit.usable, fit.fits) == (36 * 10**9, 80 * 10**9, True)
    assert fit.line == (
        "weights, gradients and optimizer states: 36 GB of 80 GB on the fullest stage; activations not counted yet"
    )


def test_what_does_not_fit_says_so():
    fit = fits(job(gradients="fp32"), [7 * 10**9])
    assert not fit.fits
    assert "126 GB of 80 GB on the fullest stage, which does not fit;" in fit.line
    assert "1,800 GB of 80 GB" in fits(job(gradients="fp32"), [100 * 10**9]).line


@pytest.mark.parametrize(("spec", "fit"), [("gpus: 1", False), ("gpus: 8", True)])
def test_a_manifest_says_what_is_needed_and_there(tmp_path, spec, fit):
    """Llama 3 8B with ZeRO 1 needs 145 GB on one GPU of 80 GB, and 60 GB on each of 8 replicas.

    8.03e9 parameters of 2 + 4 + 12 B, or 2 + 4 + 12 / 8 B: a warning where they do not fit, a note where they do.
    """
    network = "network: dgx-h100\n" if fit else ""
    (tmp_path / "s.yaml").write_text(
        f"name: s\nmodel: llama3-8b\ndevice: h100-sxm5-80gb\n{network}{spec}\nparallelism: {{tp: 1}}\n"
        "workload: {sequence_length: 128, global_batch: 8, zero: 1}\n"
    )
    built = build(load_job(str(tmp_path / "s.yaml")))
    parameters = 8_030_261_248
    needed = parameters * 6 + (-(-parameters // 8) if fit else parameters) * 12
    assert built.manifest["state_bytes_per_gpu"] == needed
    assert built.manifest["memory_bytes_per_gpu"] == 80 * 10**9
    warning = memory_warning(built.manifest)
    assert (warning is None) == fit
    assert any("on the fullest stage" in note for note in built.notes) == fit
    if warning is not None:
        assert warning == (
            "weights, gradients and optimizer states: 145 GB of 80 GB on the fullest stage, which does not fit; "
            "activations not counted yet; split over more ranks, or set workload.zero to 1"
        )


@pytest.mark.parametrize("needed", [None, "2", 1, 0.5])
def test_a_manifest_that_does_not_say_or_fits_warns_of_nothing(needed):
    assert memory_warning({"memory_bytes_per_gpu": 1, "state_bytes_per_gpu": needed}) is None
    assert memory_warning({"state_bytes_per_gpu": 2}) is None


def test_context_ranks_hold_the_same_weights_and_share_the_shards():
    assert states_of_stages(job(zero=1, dp=2, cp=2), [100])[0].optimizer == 25 * 12


@given(st.integers(1, 10**12), st.integers(1, 4096))
def test_sharding_loses_no_state(parameters, replicas):
    """All shards together hold every state, and less than one parameter a replica more."""
    whole = states(parameters, precision(), 0, 1).optimizer
    shard = states(parameters, precision(), 1, replicas).optimizer
    assert whole <= shard * replicas < whole + 12 * replicas
