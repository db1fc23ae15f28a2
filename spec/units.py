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

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo
from pydantic_core import PydanticCustomError

WRITTEN: dict[str, bool] = {"written": True}
"""Validation context of values that a person wrote: bare numbers are refused where a unit is needed."""

DTYPE_BYTES: Mapping[str, int] = {
    "fp64": 8,
    "fp64_tensor": 8,
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "int8": 1,
}
"""Bytes per element as stored (tf32 is stored as fp32; fp64_tensor is fp64, multiplied by the tensor cores)."""


MOST_LETTERS = 100
"""Length of a name."""


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

_NUMBER = re.compile(r"\s*([-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?)\s*(\S.*?)?\s*")


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
    same = _meant(unit, quantity)
    near = " or ".join(f"{number} {known}" for known in same or quantity.candidates)
    other_case = bool(same) and any(known.lower() == unit.lower() for known in quantity.units)
    return f"case matters: {near}?" if other_case else f"{near}?"


def _meant(unit: str, quantity: Quantity) -> list[str]:
    """Known units that an unknown one may stand for, one spelling of each: GBps is GB/s, TB in a bandwidth TB/s.

    Those in the same case first; bits only where they are written as bits, bytes only where as bytes.
    """
    stem = _stem(unit)
    known = {value: name for name, value in reversed(list(quantity.units.items()))}.values()
    exact = [name for name in known if _stem(name) == stem]
    loose = [name for name in known if _stem(name).lower() == stem.lower()]
    if "bit" in unit.lower():
        loose = [name for name in loose if "b" in name]
    elif "B" in unit:
        loose = [name for name in loose if "B" in name]
    if quantity in (POWER, FREQUENCY) and unit.startswith("m"):
        loose = []  # milli is not mega
    return exact or sorted(loose)


def _stem(unit: str) -> str:
    """A unit without what people write in several ways: ``/s`` or ``ps``, bit or b, byte or B, FLOPS."""
    text = re.sub(r"(?i)bytes?", "B", unit)
    text = re.sub(r"(?i)bits?", "b", text)
    text = re.sub(r"(?i)flops?(/s(ec)?)?$", "FLOP", text)
    text = re.sub(r"(?i)(?<=b)ps$|/s(ec(ond)?)?$", "", text)
    return re.sub(r"(?i)(?<!^)sec(ond)?s?$|^sec(ond)?s?$", "s", text)


def show(value: float, quantity: Quantity) -> str:
    """``value`` in the base unit with every digit, so that `parse` gives the same double back."""
    return f"{value!r} {quantity.base}"


def shown(value: object) -> str:
    """A value as a line may quote it: one short line, text in quotes unless it begins like a quantity."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    bare = isinstance(value, str) and value.lstrip("+-.")[:1].isdigit() and " " in value
    text = f'"{value}"' if isinstance(value, str) and not bare else str(value)
    text = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def _past(side: str, nearest: str) -> PydanticCustomError:
    """A value is too small or too large; the reader of the error knows how it was written."""
    context = {"side": side, "nearest": nearest}
    return PydanticCustomError("past_bound", "too {side}; nearest legal value {nearest}", context)


def _measured(quantity: Quantity, low: str, high: str) -> tuple[Any, ...]:
    """Annotations of a float field of this quantity, from ``low`` to ``high`` as they are written."""
    least, most = parse(low, quantity), parse(high, quantity)

    def read(value: object, info: ValidationInfo) -> object:
        if isinstance(value, str):
            return parse(value, quantity)
        if info.context is WRITTEN and isinstance(value, int | float) and not isinstance(value, bool):
            if value < 0 or value == 0 < least:
                raise _past("small", low)
            raise ValueError(_bare(value, quantity))
        return value

    def bounded(value: float) -> float:
        if value < least:
            raise _past("small", low)
        if value > most:
            raise _past("large", high)
        return value

    written = PlainSerializer(lambda v: show(v, quantity), return_type=str, when_used="json")
    return Field(allow_inf_nan=False), BeforeValidator(read), AfterValidator(bounded), written


def _whole(value: object) -> object:
    """8.0 becomes 8; everything else is left for pydantic's strict integer to judge."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _sized(low: str) -> tuple[Any, ...]:
    """Annotations of whole bytes, from ``low`` to 1024 TiB."""
    least, most = parse(low, SIZE), 2**50

    def read(value: object, info: ValidationInfo) -> object:
        if isinstance(value, str):
            return _whole(parse(value, SIZE))
        if info.context is WRITTEN and isinstance(value, int | float) and not isinstance(value, bool):
            if value <= 0:
                raise _past("small", low)
            raise ValueError(_bare(value, SIZE))
        return _whole(value)

    def bounded(value: int) -> int:
        if value < least:
            raise _past("small", low)
        if value > most:
            raise _past("large", "1024 TiB")
        return value

    written = PlainSerializer(lambda v: f"{v} B", return_type=str, when_used="json")
    return BeforeValidator(read), AfterValidator(bounded), written


_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def as_label(text: str) -> str:
    """What a file or folder is called, as the name of a piece: printable, of a legal length."""
    return "".join(letter if letter.isprintable() else "-" for letter in text)[:MOST_LETTERS] or "inline"


def _word(why: str) -> BeforeValidator:
    def read(value: object) -> object:
        if isinstance(value, str) and value and not _WORD.fullmatch(value):
            begin = "" if value[:1].isalnum() else ", and begin with a letter or digit"
            raise ValueError(f"{shown(value)} must be letters, digits and . _ + -{begin}{why}")
        return value

    return BeforeValidator(read)


def _printable(value: object) -> object:
    if isinstance(value, str) and not value.isprintable():
        raise ValueError(f"{shown(value)} must be one line of printable text")
    return value


Bandwidth = Annotated[float, *_measured(BANDWIDTH, "1 kB/s", "1 PB/s")]
"""Bytes per second, 1 kB/s to 1 PB/s."""
MemoryBandwidth = Annotated[float, *_measured(BANDWIDTH, "1 MB/s", "1 PB/s")]
"""Bytes per second, 1 MB/s to 1 PB/s."""
Seconds = Annotated[float, *_measured(TIME, "0 s", "1 s")]
"""Seconds, 0 to 1."""
Frequency = Annotated[float, *_measured(FREQUENCY, "1 MHz", "100 GHz")]
"""Hz, 1 MHz to 100 GHz."""
Rate = Annotated[float, *_measured(RATE, "1 MFLOP/s", "100000 PFLOP/s")]
"""FLOP/s, 1 MFLOP/s to 10^20 FLOP/s."""
Watts = Annotated[float, *_measured(POWER, "1 W", "1 MW")]
"""W, 1 W to 1 MW."""
Bytes = Annotated[int, *_sized("1 B")]
"""Whole bytes, 1 B to 2^50 B."""
MemoryBytes = Annotated[int, *_sized("1 MB")]
"""Whole bytes, 1 MB to 2^50 B."""
Count = Annotated[int, Field(ge=1, le=2**40), BeforeValidator(_whole)]
"""A whole number of 1 or more."""
Amount = Annotated[int, Field(ge=0, le=2**40), BeforeValidator(_whole)]
"""A whole number of 0 or more; 0 means "has none"."""
Degree = Annotated[int, Field(ge=1, le=2**20), BeforeValidator(_whole)]
"""A degree of parallelism or number of ranks, 1 to 2^20."""
Share = Annotated[float, Field(ge=0.001, le=1, allow_inf_nan=False)]
"""A fraction, 0.001 to 1."""
FileName = Annotated[str, Field(min_length=1, max_length=MOST_LETTERS), _word(", since it names files")]
"""Text that may stand in a file name."""
Word = Annotated[str, Field(min_length=1, max_length=MOST_LETTERS), _word("")]
"""Text of one word, in which output and tables name a part."""
Label = Annotated[str, Field(min_length=1, max_length=MOST_LETTERS), BeforeValidator(_printable)]
"""What a piece is called: one printable line."""
