"""What happens once a step on a stage: gradients reduced in buckets and summed, the optimizer, weights gathered.

Owns the communications of DEFINITIONS 13 that happen once a step, and their sizes. Does not know when in the backward
pass a bucket is complete (`tracegen.passes` does), nor how long anything takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracegen.layers import INPUT, NOTHING, Communication, Step, Steps
from tracegen.operators import optimizer
from tracegen.parameters import Shard, stage_tensors
from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective
from tracegen.spec.units import dtype_bytes

if TYPE_CHECKING:
    from tracegen.spec.job import Job


MAX_BUCKETS = 10_000  # per stage; a collective each


@dataclass(frozen=True)
class Update:
    """The once-a-step work of one rank of a stage.

    Parameters
    ----------
    ends : for each bucket, how many of the stage's parameters, in the order in which their gradients are completed, it
        and the buckets before it hold.
    reductions : one per bucket, none where there is one replica.
    after : what follows the backward pass: sums over tp, over copies of key/value heads and over copies of the
        embedding, the optimizer, the gathers of weights. The optimizer is number ``sums``.
    sums : how many of them come before the optimizer.
    """

    ends: tuple[int, ...]
    reductions: Steps
    after: Steps
    sums: int


def buckets(parameters: int, bucket: int) -> tuple[int, ...]:
    """Where the buckets of a stage end, in parameters: every ``bucket`` of them, and at the last."""
    return (*range(bucket, parameters, bucket), parameters)


def padded(ends: tuple[int, ...], replicas: int) -> tuple[int, ...]:
    """Elements of each bucket, rounded up to a multiple of the replicas."""
    return tuple(-(-(end - start) // replicas) * replicas for start, end in zip((0, *ends), ends, strict=False))


def update(job: Job, stage: int, layers: int) -> Update:
    """The once-a-step work of a stage with this many layers.

    Raises
    ------
    InputError
        The buckets are so small that there are more than `MAX_BUCKETS`.
    """
    work, dp = job.workload, job.parallelism.dp
    gradient, weight = dtype_bytes(work.precision.gradients), dtype_bytes(work.precision.weights)
    parameters = sum(tensor.size for tensor in stage_tensors(job, stage, layers))
    if dp > 1 and parameters > work.bucket * MAX_BUCKETS:
        raise InputError(
            f"{job.place('workload.bucket')}: {work.bucket} makes {-(-parameters // work.bucket)} buckets of stage "
            f"{stage}'s {parameters} parameters, at most {MAX_BUCKETS}; nearest {-(-parameters // MAX_BUCKETS)}"
        )
    ends = buckets(parameters, work.bucket) if dp > 1 else ()
    sizes = padded(ends, dp)
    shard_only = work.zero == 1 and dp > 1
    collective, name = (
        (Collective.REDUCE_SCATTER, "gradients_reduce_scatter")
        if shard_only
        else (Collective.ALL_REDUCE, "gradients_all_reduce")
    )
    reductions = [Step(Communication(name, "dp", collective, size * gradient), None, NOTHING) for size in sizes]
    sums = _sums(job, stage, layers, gradient, NOTHING if dp > 1 else (INPUT,))
    owned = sum(sizes) // dp if shard_only else parameters
    taken = (*(step.key for step in sums), *((INPUT,) if dp == 1 else ()))
    adam = Step(optimizer(owned, work.precision), None, taken)
    gathers = [
        Step(Communication("weights_all_gather", "dp", Collective.ALL_GATHER, size // dp * weight), None, (adam.key,))
        for size in (sizes if shard_only else ())
    ]
    return Update(ends, reductions, [*sums, adam, *gathers], len(sums))


def _sums(job: Job, stage: int, layers: int, gradient: int, uses: tuple[str, ...]) -> Steps:
    """Sums of gradients that several ranks each hold a part of."""
    split, model = job.parallelism, job.model
    tensors = stage_tensors(job, stage, layers)
    kv_copies = model.kv_copies(split.tp)
    sizes = {}
    if split.sp and split.tp > 1:
        sizes["shared_gradients", "tp"] = sum(
            tensor.size for tensor in tensors if tensor.copies == split.tp and tensor.operator != "qkv"
        )
    if kv_copies > 1:
        sizes["kv_gradients", "tp/kv_copies"] = sum(
            tensor.size for tensor in tensors if tensor.operator == "qkv" and tensor.copies > 1
        )
    if model.tied_embeddings and split.pp > 1 and stage in (0, split.pp - 1):
        sizes["embedding_gradients", "embedding"] = Shard.of(model, split.tp).vocab * model.hidden
    return [
        Step(Communication(f"{name}_all_reduce", group, Collective.ALL_REDUCE, size * gradient), None, uses)
        for (name, group), size in sizes.items()
    ]
