"""The measured runs that `validate` compares with, and the specs that describe them. Runs nothing.

Published figures are quoted here with their source. The nanotron sweep is read from the data folder, whose rows are
not part of this project.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation_terms import calls, step_s, usual

Spec = Mapping[str, Any]

NANOTRON_ROWS = 40


@dataclass(frozen=True)
class Row:
    """One measurement.

    Parameters
    ----------
    id : what docs/accuracy.md calls it.
    source : who measured it, and where it is printed.
    spec : the job, as a spec file would say it, or ``{"catalogue": NAME}``.
    measured : the value, in ``unit``.
    quantity : ``step`` (seconds of one optimizer step) or ``forward``, ``backward``, ``combined`` (ms of one layer).
    links : bytes/s by network dimension as measured on the nodes of that run, where known.
    calls : layers times microbatches that a stage works through one after the other, 0 off the sweep's usual nodes.
    """

    id: str
    source: str
    spec: Spec
    measured: float
    quantity: str = "step"
    links: Mapping[str, float] = field(default_factory=dict)
    calls: int = 0

    @property
    def unit(self) -> str:
        """Seconds for a step, ms for a layer."""
        return "s" if self.quantity == "step" else "ms"


def published() -> Iterator[Row]:
    """The 22B step, Table 4 of Korthikanti et al. and the 1F1B rows of Zero Bubble."""
    korthikanti = "Korthikanti et al. 2022, arXiv 2205.05198"
    yield Row("gpt3-22b", f"{korthikanti}, table 5, full recompute", {"catalogue": "gpt3-22b"}, 1.42)
    for mode, sp, recompute, forward, backward, combined in (
        ("baseline", False, "none", 7.7, 11.9, 19.6),
        ("sequence parallel", True, "none", 7.2, 11.8, 19.0),
        ("full recompute", False, "full", 7.7, 19.5, 27.2),
    ):
        changes = {"parallelism.sp": sp, "workload.recompute": recompute}
        spec = {"catalogue": "gpt3-22b", "set": changes}
        for quantity, measured in (("forward", forward), ("backward", backward), ("combined", combined)):
            yield Row(f"table 4 {mode}, {quantity}", f"{korthikanti}, table 4", spec, measured, quantity)
    for name, (layers, hidden, heads), stages, micro_batch, microbatches, rate in (
        ("6.2B m=24", (30, 4096, 32), 8, 3, 24, 3.50),
        ("6.2B m=32", (30, 4096, 32), 8, 3, 32, 3.70),
        ("6.2B m=64", (30, 4096, 32), 8, 3, 64, 4.03),
        ("14.6B m=64", (46, 5120, 40), 16, 1, 64, 1.49),
        ("28.3B m=96", (62, 6144, 48), 32, 1, 96, 0.76),
        ("28.3B m=256", (62, 6144, 48), 32, 1, 256, 0.88),
    ):
        batch = micro_batch * microbatches
        yield Row(
            f"zero bubble {name}",
            "Qi et al., ICLR 2024, arXiv 2401.10241, table 4, 1F1B, samples per second and GPU",
            _zero_bubble(layers, hidden, heads, stages, micro_batch, batch),
            batch / (rate * stages),
        )


def _zero_bubble(layers: int, hidden: int, heads: int, stages: int, micro_batch: int, batch: int) -> Spec:
    """A Zero Bubble job.

    Not stated by the paper, and taken alike for all six: 32,000 words, tied (with which 12 layers hidden^2 + 13 layers
    hidden + words hidden gives all four published sizes, 1.5, 6.2, 14.6 and 28.3 billion; 50,257 words give 14.7 and
    28.4); fp16 with fp32 gradients; no recompute and no flash attention (the stated 39 GB of the 6.2B run hold the
    attention matrices; without them it would be about 24 GB).
    """
    inner = (layers + 2) // stages
    return {
        "model": {
            "name": f"gpt-{hidden}", "layers": layers, "hidden": hidden, "ffn": 4 * hidden, "heads": heads,
            "vocab": 32000, "gated": False, "norm": "layer", "bias": True, "positions": "learned",
            "max_positions": 1024, "tied_embeddings": True,
        },
        "device": "a100-sxm4-80gb",
        "network": "dgx-a100",
        "gpus": stages,
        "parallelism": {"pp": stages, "stages": [inner - 1, *[inner] * (stages - 2), inner - 1]},
        "workload": {
            "sequence_length": 1024, "global_batch": batch, "micro_batch": micro_batch, "schedule": "1f1b", "zero": 0,
            "attention_kernel": "unfused", "granularity": "block",
            "precision": {"compute": "fp16", "weights": "fp16", "gradients": "fp32"},
        },
    }  # fmt: skip


def nanotron(file: Path) -> Iterator[Row]:
    """Forty successful nanotron runs whose layers divide by their stages: sorted by name, every n-th from the first."""
    with open(file, newline="", encoding="utf-8") as text:
        runs = [row for row in csv.DictReader(text) if row["status"] == "Success"]
    runs = [run for run in runs if int(run["num_layers"]) % int(run["pp"]) == 0]
    runs.sort(key=lambda run: run["name"])
    for run in runs[:: len(runs) // NANOTRON_ROWS][:NANOTRON_ROWS]:
        gpus = int(run["dp"]) * int(run["tp"]) * int(run["pp"])
        short = run["name"].replace("_seq4096", "").replace("_tpmodeRED_vocab131k", "")
        yield Row(
            f"nanotron {short}",
            "nanotron H100 sweep, Hugging Face, as carried in RAPID-LLM's repository (Apache-2.0), tokens/s/GPU",
            _nanotron(run, gpus),
            step_s(run),
            links={
                "nvlink": float(run["AG Intra-node (GB/s)"]) * 1e9,
                "rail": float(run["AllGather (GB/s)"]) * 1e9,
            },
            calls=calls(run) if usual(run) else 0,
        )


def _nanotron(run: Mapping[str, str], gpus: int) -> Spec:
    """A nanotron job: Llama layers, flash attention, bf16 with fp32 gradients, tp with reduce-scatter."""
    tp = int(run["tp"])
    return {
        "model": {
            "name": "nanotron", "layers": int(run["num_layers"]), "hidden": int(run["hidden_size"]),
            "ffn": int(run["interm_dim"]), "heads": int(run["num_heads"]),
            "kv_heads": int(float(run["num_kv_heads"])), "vocab": int(run["vocab_size"]),
            "tied_embeddings": run["tie_word_embeddings"] == "True",
        },
        "device": "h100-sxm5-80gb",
        "network": "dgx-h100",
        "gpus": gpus,
        "parallelism": {"tp": tp, "pp": int(run["pp"]), "dp": int(run["dp"]), "sp": tp > 1, "stages": "even"},
        "workload": {
            "sequence_length": int(run["seq_len"]), "global_batch": int(float(run["gbs"])),
            "micro_batch": int(run["mbs"]), "schedule": "1f1b", "zero": int(run["zero_stage"]), "granularity": "block",
        },
    }  # fmt: skip
