"""Operator times against sums done by hand."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from shared import SHARED, needs_shared

from tracegen.spec import Device, catalog
from tracegen.spec.units import WRITTEN
from tracegen.timing import nanoseconds, seconds

FIT = Path(__file__).resolve().parents[2] / "benchmarks" / "fit_efficiency.py"


def device(compute=1.0, memory=1.0):
    """100 TFLOP/s in bf16, half of that in fp32, 1000 GB/s: K55's device."""
    peaks = {"bf16": 100e12, "fp32": 50e12}
    return SimpleNamespace(
        peak=peaks.__getitem__,
        memory_bandwidth=1e12,
        efficiency=SimpleNamespace(compute=compute, memory=memory),
    )


@pytest.mark.parametrize(
    ("flops", "mem_bytes", "expected"),
    [(10**12, 10**9, 10e-3), (10**9, 10**10, 10e-3), (10**11, 10**9, 1e-3)],
    ids=["compute bound", "memory bound", "at the ridge"],
)
def test_k55_roofline(flops, mem_bytes, expected):
    """K55. Exact to float rounding: one division each."""
    assert seconds(flops, mem_bytes, "matrix", "bf16", device()) == pytest.approx(expected, rel=1e-15)


def test_k55_at_the_ridge_both_roofs_meet():
    assert seconds(10**11, 0, "matrix", "bf16", device()) == seconds(0, 10**9, "matrix", "bf16", device())


def test_each_efficiency_lowers_its_own_roof():
    slow = device(compute=0.5, memory=0.25)
    assert seconds(10**12, 1, "matrix", "bf16", slow) == pytest.approx(20e-3)
    assert seconds(1, 10**9, "matrix", "bf16", slow) == pytest.approx(4e-3)


def test_the_dtype_picks_the_peak():
    assert seconds(10**12, 1, "matrix", "fp32", device()) == pytest.approx(20e-3)


def test_pointwise_work_is_bound_by_memory_whatever_its_arithmetic():
    assert seconds(10**15, 10**9, "memory", "bf16", device()) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("value_s", "ns"),
    [(0.0, 1), (0.4e-9, 1), (1.4e-9, 1), (2.5e-9, 2), (3.5e-9, 4), (1e-3, 10**6), (7.0, 7 * 10**9)],
)
def test_nanoseconds_round_half_even_and_never_to_nothing(value_s, ns):
    assert nanoseconds(value_s) == ns


@pytest.mark.parametrize("value_s", [-1e-9, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(value_s):
    with pytest.raises(ValueError, match="a duration of"):
        nanoseconds(value_s)


def catalogued(name):
    return Device.model_validate(catalog.load("devices", name).data, context=WRITTEN)


@needs_shared
@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_the_catalogue_has_what_the_kernel_data_give(gpu):
    """Refitted, the efficiencies are those recorded, to the three digits that they are recorded with."""
    fitting = runpy.run_path(str(FIT))
    known = catalogued(fitting["DEVICES"][gpu])
    compute, memory = fitting["fit"](fitting["samples"](SHARED / "data" / "kernels", gpu), known)
    assert round(compute, 3) == known.efficiency.compute
    assert round(memory, 3) == known.efficiency.memory
    assert not known.efficiency.assumed


@pytest.mark.parametrize("name", catalog.names("devices"))
def test_what_was_not_fitted_says_so_and_takes_a_fitted_pair(name):
    """Devices without kernel data take H100's efficiencies, older ones A100's, and are marked."""
    fitted = {each: catalogued(each).efficiency for each in ("a100-sxm4-80gb", "h100-sxm5-80gb")}
    own = catalogued(name).efficiency
    assert (own.compute, own.memory) in {(each.compute, each.memory) for each in fitted.values()}
    assert own.assumed == (name not in fitted)
    assert ("taken from" in own.source) == own.assumed
