"""What one value in a spec may look like: numbers with units, whole numbers, names, and their bounds.

Owns the unit tables and the annotated types that the sections' classes are built of. Knows no section and no file.

Units follow the field: ``GB`` is 10^9 bytes, ``GiB`` 2^30 bytes, ``Gb`` 10^9 bits, and case matters. A number is
taken as the exact decimal it is written as, multiplied, and rounded once to a double. Written in a file, a bare number
where a unit is needed is refused; in Python a float is already in the base unit (bytes, bytes/s, s, Hz, FLOP/s, W).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo
from pydantic_core import PydanticCustomError

WRITTEN: dict[str, bool] = {"written": True}
"""Validation context of values that a person wrote: bare numbers are refused where a unit is needed."""

DTYPE_BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
"""Bytes per element as stored (tf32 is stored as fp32)."""


class Frozen(BaseModel):
    """Base of every section: strict, frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", populate_by_name=True)


def wrong(key: str, message: str) -> PydanticCustomError:
    """The error to raise in a section's own validator, about the key (dotted, below the section) that is wrong."""
    return PydanticCustomError("wrong_key", "{message}", {"key": key, "message": message})


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of ``dtype``; KeyError for a type that is not in `DTYPE_BYTES`."""
    return DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class Quantity:
    """A physical quantity: its base unit, the units it may be written in, and two of them to suggest."""

    name: str
    base: str
    units: Mapping[str, Fraction]
    candidates: tuple[str, str]


_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}


def _bytes(suffix: str) -> dict[str, Fraction]:
    table = {f"{prefix}B{suffix}": Fraction(10) ** power for prefix, power in _DECIMAL.items()}
    return table | {f"{prefix}B{suffix}": Fraction(2) ** power for prefix, power in _BINARY.items()}


def _bits(*suffixes: str) -> dict[str, Fraction]:
    return {f"{prefix}{suffix}": Fraction(10) ** power / 8 for prefix, power in _DECIMAL.items() for suffix in suffixes}


def _scaled(unit: str, prefixes: str) -> dict[str, Fraction]:
    return {unit: Fraction(1)} | {f"{prefix}{unit}": Fraction(10) ** _DECIMAL[prefix] for prefix in prefixes}


_TIME = {"s": 0, "ms": -3, "us": -6, "µs": -6, "μs": -6, "ns": -9, "ps": -12}

BANDWIDTH = Quantity("bandwidth", "B/s", _bytes("/s") | _bits("b/s", "bps", "bit/s"), ("GB/s", "Gb/s"))
SIZE = Quantity("size", "B", _bytes(""), ("GB", "GiB"))
TIME = Quantity("time", "s", {unit: Fraction(10) ** power for unit, power in _TIME.items()}, ("us", "ns"))
FREQUENCY = Quantity("frequency", "Hz", _scaled("Hz", "kMG"), ("MHz", "GHz"))
RATE = Quantity("compute rate", "FLOP/s", _scaled("FLOP/s", "MGTP"), ("TFLOP/s", "FLOP/s"))
POWER = Quantity("power", "W", _scaled("W", "kM"), ("W", "kW"))

_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*(\S.*?)?\s*")


def parse(text: str, quantity: Quantity) -> float:
    """The value of ``text`` in the quantity's base unit.

    Raises
    ------
    ValueError
        No number, no unit, or an unknown unit; the message says what to write.
    """
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > 80:
        raise ValueError(f"{text[:40]!r} is no {quantity.name}; write a number and a unit, like 2 {_first(quantity)}")
    number, unit = match.groups()
    if unit is None:
        raise ValueError(_bare(number, quantity))
    if unit not in quantity.units:
        raise ValueError(f"unknown unit {unit!r} of {quantity.name}; {_suggestion(number, unit, quantity)}")
    try:
        return float(Fraction(number.replace("_", "")) * quantity.units[unit])
    except OverflowError:
        raise ValueError(f"{text!r} is too large") from None


def _first(quantity: Quantity) -> str:
    return quantity.candidates[0]


def _bare(number: object, quantity: Quantity) -> str:
    one, other = quantity.candidates
    return f"{number} needs a unit: {number} {one} or {number} {other}?"


def _suggestion(number: str, unit: str, quantity: Quantity) -> str:
    same = [known for known in quantity.units if known.lower() == unit.lower()]
    near = " or ".join(f"{number} {known}" for known in same or quantity.candidates)
    return f"case matters: {near}?" if same else f"{near}?"


def show(value: float, quantity: Quantity) -> str:
    """``value`` in the base unit with every digit, so that `parse` gives the same double back."""
    return f"{value!r} {quantity.base}"


def _measured(quantity: Quantity, low: float, high: float, *, open_low: bool) -> tuple[Any, ...]:
    """Annotations of a float field of this quantity, between two bounds in its base unit."""

    def read(value: object, info: ValidationInfo) -> object:
        if isinstance(value, str):
            return parse(value, quantity)
        if info.context is WRITTEN and isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(_bare(value, quantity))
        return value

    bound = Field(gt=low, le=high, allow_inf_nan=False) if open_low else Field(ge=low, le=high, allow_inf_nan=False)
    return bound, BeforeValidator(read), PlainSerializer(lambda v: show(v, quantity), return_type=str, when_used="json")


def _whole(value: object) -> object:
    """8.0 becomes 8; everything else is left for pydantic's strict integer to judge."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole_bytes(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str):
        return _whole(parse(value, SIZE))
    if info.context is WRITTEN and isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(_bare(value, SIZE))
    return _whole(value)


def _name(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", value):
        raise ValueError(f"{value!r} must be letters, digits and . _ + -, since it names files")
    return value


_bandwidth = _measured(BANDWIDTH, 0, 1e15, open_low=True)
_seconds = _measured(TIME, 0, 1, open_low=False)
_frequency = _measured(FREQUENCY, 0, 1e11, open_low=True)
_rate = _measured(RATE, 0, 1e20, open_low=True)
_watts = _measured(POWER, 0, 1e6, open_low=True)

Bandwidth = Annotated[float, *_bandwidth]
"""Bytes per second, above 0 and at most 10^15."""
Seconds = Annotated[float, *_seconds]
"""Seconds, 0 to 1."""
Frequency = Annotated[float, *_frequency]
"""Hz, above 0 and at most 10^11."""
Rate = Annotated[float, *_rate]
"""FLOP/s, above 0 and at most 10^20."""
Watts = Annotated[float, *_watts]
"""W, above 0 and at most 10^6."""
Bytes = Annotated[
    int,
    Field(ge=1, le=2**50),
    BeforeValidator(_whole_bytes),
    PlainSerializer(lambda v: f"{v} B", return_type=str, when_used="json"),
]
"""Whole bytes, 1 to 2^50."""
Count = Annotated[int, Field(ge=1, le=2**40), BeforeValidator(_whole)]
"""A whole number of 1 or more."""
Amount = Annotated[int, Field(ge=0, le=2**40), BeforeValidator(_whole)]
"""A whole number of 0 or more; 0 means "has none"."""
Degree = Annotated[int, Field(ge=1, le=2**20), BeforeValidator(_whole)]
"""A degree of parallelism or number of ranks, 1 to 2^20."""
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""A fraction above 0 and at most 1."""
FileName = Annotated[str, Field(min_length=1, max_length=100), BeforeValidator(_name)]
"""Text that may stand in a file name."""
