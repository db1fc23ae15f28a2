"""What a job computes per step: kind, batch, schedule, recompute, sharding of states, number formats."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from tracegen.spec.units import Amount, Count, Frozen

DType = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
ComputeType = Literal["fp64", "fp64_tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
"""fp64_tensor is fp64 in memory, multiplied by the tensor cores."""
COMPUTE_TYPES: tuple[str, ...] = get_args(ComputeType)


class Precision(Frozen):
    """Number formats: of matrix products and activations, and of each tensor that lives between steps."""

    compute: ComputeType = "bf16"
    weights: DType = "bf16"
    gradients: DType = "fp32"
    optimizer: DType = "fp32"
    master: DType = "fp32"


class Workload(Frozen):
    """One optimizer step (or one request batch).

    Parameters
    ----------
    sequence_length : tokens per sequence.
    global_batch, micro_batch : sequences, over all replicas per step and per replica per microbatch (DEFINITIONS 1).
    bucket : parameters per gradient bucket.
    granularity : nodes in a trace: one per operator, or one per block between two communications.
    """

    kind: Literal["training", "prefill", "decode", "inference"] = "training"
    sequence_length: Annotated[Count, Field(le=2**27)]
    global_batch: Annotated[Count, Field(le=2**24)]
    micro_batch: Annotated[Count, Field(le=2**20)] = 1
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] = "1f1b"
    recompute: Literal["none", "selective", "full"] = "none"
    zero: Annotated[Amount, Field(le=3)] = 1
    bucket: Count = 40_000_000
    attention_kernel: Literal["flash", "unfused"] = "flash"
    granularity: Literal["operator", "block"] = "operator"
    precision: Precision = Precision()
