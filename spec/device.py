"""One accelerator: its data sheet, and how much of it real kernels reach."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tracegen.proto.errors import InputError
from tracegen.spec.units import (
    Amount,
    Bandwidth,
    Bytes,
    Count,
    Frequency,
    Frozen,
    Label,
    MemoryBandwidth,
    MemoryBytes,
    Rate,
    Share,
    Watts,
)

PeakType = Literal["fp64", "fp64_tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"]


class Efficiency(Frozen):
    """Shares of the data sheet that kernels reach.

    Parameters
    ----------
    compute : of the dense peak, by matrix products.
    memory : of the memory bandwidth, by everything else.
    source : where the two come from.
    assumed : True where they were taken from another device.
    """

    compute: Share
    memory: Share
    source: str = ""
    assumed: bool = False


class Device(Frozen):
    """A device as its data sheet has it; None where the sheet is silent. YAML keys in brackets where they differ.

    Parameters
    ----------
    peak_flops : dense FLOP/s by number format; vendors' "sparse" figures halved.
    clock_hz [clock], base_clock_hz [base_clock] : Hz; boost (or the clock of the peaks) and base.
    sms : streaming multiprocessors, or compute units.
    memory_bytes [memory], memory_bandwidth : HBM bytes and bytes/s.
    l2_bytes [l2], l2_bandwidth, shared_bandwidth : whole device.
    shared_bytes [shared], register_bytes [registers] : per SM.
    link_bandwidth : bytes/s per direction, all scale-up links of the device together.
    power_w [power] : W, the limit.
    """

    name: Label = "inline"
    source: str = ""
    peak_flops: dict[PeakType, Rate]
    clock_hz: Frequency | None = Field(None, alias="clock")
    base_clock_hz: Frequency | None = Field(None, alias="base_clock")
    sms: Count
    memory_bytes: MemoryBytes = Field(alias="memory")
    memory_bandwidth: MemoryBandwidth
    l2_bytes: Bytes | None = Field(None, alias="l2")
    l2_bandwidth: Bandwidth | None = None
    shared_bytes: Bytes | None = Field(None, alias="shared")
    shared_bandwidth: Bandwidth | None = None
    register_bytes: Bytes | None = Field(None, alias="registers")
    link_bandwidth: Bandwidth | None = None
    pcie: Annotated[Amount, Field(le=9)] = 0
    power_w: Watts | None = Field(None, alias="power")
    efficiency: Efficiency

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s of matrix products in ``dtype``.

        Raises
        ------
        InputError
            The sheet has no peak for it; the line lists those it has.
        """
        for known, rate in self.peak_flops.items():
            if known == dtype:
                return rate
        raise InputError(f"device {self.name} has no {dtype} peak; it has {', '.join(self.peak_flops)}")
