"""A number with a unit means exactly what it says, or is refused with what to write instead."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracegen.spec.network import Dimension, Network, astra_inputs
from tracegen.spec.units import BANDWIDTH, FREQUENCY, POWER, RATE, SIZE, TIME, Quantity, dtype_bytes, parse, show

QUANTITIES = [BANDWIDTH, FREQUENCY, POWER, RATE, SIZE, TIME]


@pytest.mark.parametrize(
    ("text", "quantity", "value"),
    [
        ("450 GB/s", BANDWIDTH, 450e9),
        ("50 GiB/s", BANDWIDTH, 50 * 2**30),
        ("400 Gb/s", BANDWIDTH, 50e9),
        ("400Gbps", BANDWIDTH, 50e9),
        ("400GB/s", BANDWIDTH, 400e9),
        ("3.35 TB/s", BANDWIDTH, 3.35e12),
        ("0.5 us", TIME, 5e-7),
        ("0.5 µs", TIME, 5e-7),
        ("10 ns", TIME, 1e-8),
        ("2 ms", TIME, 2e-3),
        ("1.83 GHz", FREQUENCY, 1.83e9),
        ("1410 MHz", FREQUENCY, 1.41e9),
        ("989.4 TFLOP/s", RATE, 989.4e12),
        ("1e15 FLOP/s", RATE, 1e15),
        ("80 GB", SIZE, 80e9),
        ("80 GiB", SIZE, 80 * 2**30),
        ("1_000 kB", SIZE, 1e6),
        ("0.7 kW", POWER, 700),
    ],
)
def test_a_unit_multiplies_the_decimal_as_written(text: str, quantity: Quantity, value: float) -> None:
    assert parse(text, quantity) == value  # exactly: one rounding, from the decimal's own value


def test_k54_bits_and_bytes_are_eight_apart() -> None:
    assert parse("400 GB/s", BANDWIDTH) == 8 * parse("400 Gb/s", BANDWIDTH)


@pytest.mark.parametrize(
    ("text", "quantity", "said"),
    [
        ("400", BANDWIDTH, "400 GB/s or 400 Gb/s"),
        ("2", TIME, "2 us or 2 ns"),
        ("80", SIZE, "80 GB or 80 GiB"),
        ("400 gbit", BANDWIDTH, "unknown unit 'gbit'"),
        ("400 gb/s", BANDWIDTH, "case matters: 400 GB/s or 400 Gb/s"),
        ("80 gb", SIZE, "case matters: 80 GB"),
        ("80 Gb", SIZE, "case matters: 80 GB"),
        ("1 US", TIME, "case matters: 1 us"),
        ("312 TFLOPS", RATE, "312 TFLOP/s"),
        ("fast", BANDWIDTH, "no bandwidth"),
        ("", BANDWIDTH, "no bandwidth"),
        ("nan GB/s", BANDWIDTH, "no bandwidth"),
        ("1e999 GB/s", BANDWIDTH, "too large"),
        ("100 GBps", BANDWIDTH, "bandwidth; case matters: 100 GB/s?"),
        ("100 GB", BANDWIDTH, "bandwidth; 100 GB/s?"),
        ("3 TB", BANDWIDTH, "bandwidth; 3 TB/s?"),
        ("3 Tb", BANDWIDTH, "bandwidth; 3 Tb/s?"),
        ("100 gbps", BANDWIDTH, "100 GB/s or 100 Gb/s?"),
        ("100 KB/s", BANDWIDTH, "case matters: 100 kB/s?"),
        ("100 gbit/s", BANDWIDTH, "case matters: 100 Gb/s?"),
        ("100 Gbytes/s", BANDWIDTH, "bandwidth; 100 GB/s?"),
        ("100 GB/sec", BANDWIDTH, "bandwidth; 100 GB/s?"),
        ("2 usec", TIME, "time; 2 us?"),
        ("2 seconds", TIME, "time; 2 s?"),
        ("3 tflops", RATE, "3 TFLOP/s?"),
        ("80 GB/s", SIZE, "size; 80 GB?"),
        ("5 mW", POWER, "5 W or 5 kW?"),  # milli is not mega
        ("1٠٠ GB/s", BANDWIDTH, "unknown unit"),
        ("١٠٠ GB/s", BANDWIDTH, "no bandwidth"),
    ],
)
def test_k54_anything_else_is_refused_with_what_to_write(text: str, quantity: Quantity, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text, quantity)
    assert said in str(caught.value)


@given(st.floats(min_value=0, allow_infinity=False, allow_nan=False), st.sampled_from(QUANTITIES))
@example(5e-324, TIME)
@example(1.7976931348623157e308, BANDWIDTH)
def test_a_value_shown_reads_back_to_the_last_bit(value: float, quantity: Quantity) -> None:
    assert parse(show(value, quantity), quantity) == value


@given(
    st.integers(0, 10**9),
    st.integers(0, 999),
    st.sampled_from([(quantity, unit) for quantity in QUANTITIES for unit in quantity.units]),
)
def test_every_unit_of_every_quantity_is_read_to_the_nearest_double(
    whole: int, thousandths: int, unit: tuple[Quantity, str]
) -> None:
    quantity, name = unit
    exact = (whole * 1000 + thousandths) * quantity.units[name] / 1000
    assert parse(f"{whole}.{thousandths:03d} {name}", quantity) == float(exact)
    assert parse(f"{whole}.{thousandths:03d}{name}", quantity) == float(exact)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_never_crashes(text: str) -> None:
    try:
        value = parse(text, BANDWIDTH)
    except ValueError:
        value = 0.0
    assert math.isfinite(value)


def test_k53_export_writes_gib_with_every_digit() -> None:
    dim = Dimension(name="ring", topology="ring", size=8, bandwidth=parse("50 GB/s", BANDWIDTH), latency=0.0)
    written = astra_inputs(Network(dimensions=(dim,)), None).network["bandwidth"]
    assert repr(written[0]) == "46.566128730773926"  # 50e9 / 2^30


def test_k53_a_ring_all_reduce_of_a_gib() -> None:
    # cases.md K53: 2·7/8·2^30 bytes over each link; decimal 37.581 ms, the 2^30 reading 35.000 ms
    moved = 2 * 7 / 8 * 2**30
    assert moved / parse("50 GB/s", BANDWIDTH) == pytest.approx(37.581e-3, rel=1e-4)
    assert moved / parse("50 GiB/s", BANDWIDTH) == pytest.approx(35.0e-3, rel=1e-12)


@pytest.mark.parametrize(("dtype", "size"), [("fp64", 8), ("fp32", 4), ("bf16", 2), ("fp16", 2), ("fp8", 1)])
def test_bytes_per_element(dtype: str, size: int) -> None:
    assert dtype_bytes(dtype) == size
