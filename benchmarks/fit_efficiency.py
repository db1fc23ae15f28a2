"""Fit one compute and one memory efficiency per device to measured kernel times, and print how far each kernel is off.

    python benchmarks/fit_efficiency.py FOLDER [--device a100|h100]

FOLDER holds Vidur's profiling data as ``gemm__<gpu>__<model>__mlp.csv`` (MIT licence; median times in ms of a
transformer layer's kernels over token counts and tensor-parallel degrees). The rule, stated once and used for both
devices:

* every row with 1,024 tokens or more, since below that the launch of a kernel shows;
* matrix kernels (QKV, output projection, MLP up with the gate where there is one, MLP down) give the compute
  efficiency, pointwise kernels (two norms, activation, residual add, rotary embedding) the memory efficiency;
* the efficiency is the value at which the geometric mean of predicted over measured time is 1, every kernel of every
  row counting once. The memory efficiency comes first, as a small matrix product may be bound by memory.

Nothing here looks at the time of a training step.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean, quantiles

from tracegen.operators import (
    Operator,
    Sizes,
    activation,
    attention_out,
    mlp_down,
    mlp_up,
    norm,
    qkv,
    residual,
    rope,
)
from tracegen.parameters import Shard
from tracegen.proto.graph import Phase
from tracegen.spec import Device, Efficiency, catalog
from tracegen.spec.units import WRITTEN
from tracegen.timing import seconds

DEVICES = {"a100": "a100-sxm4-80gb", "h100": "h100-sxm5-80gb"}  # Vidur profiled DGX nodes of both
DTYPE, WIDTH = "fp16", 2  # what Vidur ran, bytes per element
FEWEST_TOKENS = 1024


@dataclass(frozen=True)
class Sample:
    """One kernel of one row: the operator it is and how long it took."""

    kernel: str
    operator: Operator
    measured_s: float


def samples(folder: Path, gpu: str) -> list[Sample]:
    """Every kernel of every row that the rule takes.

    Raises
    ------
    FileNotFoundError
        The folder has no file of this GPU.
    """
    files = sorted(folder.glob(f"gemm__{gpu}__*__mlp.csv"))
    if not files:
        raise FileNotFoundError(f"no gemm__{gpu}__*__mlp.csv in {folder}")
    found = []
    for file in files:
        with open(file, newline="", encoding="utf-8") as text:
            for row in csv.DictReader(text):
                if int(row["num_tokens"]) >= FEWEST_TOKENS:
                    found += list(_kernels(row))
    return found


def _kernels(row: dict[str, str]) -> Iterator[Sample]:
    """The kernels of a row, with the FLOPs and bytes that the generator's own operators have."""
    sizes = _sizes(row)
    work = {
        "attn_pre_proj": qkv(sizes, Phase.F),
        "attn_post_proj": attention_out(sizes, Phase.F),
        "mlp_up_proj": mlp_up(sizes, Phase.F),
        "mlp_down_proj": mlp_down(sizes, Phase.F),
        "input_layernorm": norm(sizes, "norm", Phase.F),
        "post_attention_layernorm": norm(sizes, "norm", Phase.F),
        "attn_rope": rope(sizes),
        "mlp_act": activation(sizes, Phase.F),
        "add": residual(sizes, "add", Phase.F),
    }
    for kernel, operator in work.items():
        if measured := row.get(f"time_stats.{kernel}.median"):
            yield Sample(kernel, operator, float(measured) / 1e3)


def _sizes(row: dict[str, str]) -> Sizes:
    """The shapes of a row as the operators' formulas take them."""
    tokens, hidden, tp = int(row["num_tokens"]), int(row["n_embd"]), int(row["num_tensor_parallel_workers"])
    heads, kv_heads, ffn = int(row["n_head"]), int(row["n_kv_head"]), int(row["n_expanded_embd"])
    gated = row["use_gated_mlp"] == "True"
    shard = Shard(
        tp=tp,
        heads=heads // tp,
        kv_heads=max(1, kv_heads // tp),
        kv_copies=max(1, tp // kv_heads),
        ffn=ffn // tp,
        vocab=int(row["vocab_size"]) // tp,
    )
    return Sizes(
        shard=shard,
        sequence=tokens,
        batch=1,
        tokens=tokens,
        tokens_held=tokens,
        hidden=hidden,
        head_dim=hidden // heads,
        rotary_dim=hidden // heads,
        up=shard.ffn * (2 if gated else 1),
        norm=hidden,
        qkv_bias=False,
        bias=False,
        sp=False,
        flash=True,
        activation=WIDTH,
        weight=WIDTH,
        gradient=WIDTH,
    )


def ratios(found: list[Sample], device: Device, compute: float, memory: float) -> list[float]:
    """Predicted over measured time of each sample under these efficiencies."""
    trial = device.model_copy(update={"efficiency": Efficiency(compute=compute, memory=memory, source="trial")})
    return [
        seconds(each.operator.flops, each.operator.mem_bytes, each.operator.kind, DTYPE, trial) / each.measured_s
        for each in found
    ]


def geometric_mean(values: list[float]) -> float:
    """The geometric mean."""
    return exp(fmean(map(log, values)))


def fit(found: list[Sample], device: Device) -> tuple[float, float]:
    """Compute and memory efficiency at which the geometric mean ratio of both kinds of kernel is 1."""
    pointwise = [sample for sample in found if sample.operator.kind == "memory"]
    matrices = [sample for sample in found if sample.operator.kind == "matrix"]
    memory = geometric_mean(ratios(pointwise, device, 1.0, 1.0))
    low, high = 0.01, 1.0
    while high - low > 1e-4:  # the mean ratio falls as the efficiency rises
        middle = (low + high) / 2
        if geometric_mean(ratios(matrices, device, middle, memory)) > 1:
            low = middle
        else:
            high = middle
    return (low + high) / 2, memory


def report(found: list[Sample], device: Device, compute: float, memory: float) -> Iterator[str]:
    """A table of residuals by kernel."""
    yield f"{'kernel':26}{'samples':>8}{'mean ratio':>12}{'p5':>8}{'p95':>8}"
    by_kernel = defaultdict(list)
    for sample, ratio in zip(found, ratios(found, device, compute, memory), strict=True):
        by_kernel[sample.kernel].append(ratio)
    for kernel, values in by_kernel.items():
        ends = quantiles(values, n=20)
        yield f"{kernel:26}{len(values):8}{geometric_mean(values):12.3f}{ends[0]:8.3f}{ends[-1]:8.3f}"


def main() -> int:
    """Fit and print; 2 where the folder has no such data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="the folder of the kernel files")
    parser.add_argument("--device", choices=sorted(DEVICES), action="append")
    arguments = parser.parse_args()
    for gpu in arguments.device or sorted(DEVICES):
        device = Device.model_validate(catalog.load("devices", DEVICES[gpu]).data, context=WRITTEN)
        try:
            found = samples(arguments.folder, gpu)
        except FileNotFoundError as why:
            print(f"fit_efficiency: {why}", file=sys.stderr)
            return 2
        compute, memory = fit(found, device)
        print(f"{device.name}: compute {compute:.3f}, memory {memory:.3f} from {len(found)} kernel times")
        print(f"  in the catalogue: compute {device.efficiency.compute}, memory {device.efficiency.memory}")
        for line in report(found, device, compute, memory):
            print("  " + line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
