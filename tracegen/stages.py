"""How many layers each pipeline stage gets: ``even``, ``balanced`` or the user's own list."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracegen.spec.job import Job


def even(layers: int, stages: int) -> tuple[int, ...]:
    """As equal as can be; extra layers go to the first stages: 30 over 4 is 8, 8, 7, 7."""
    each, extra = divmod(layers, stages)
    return tuple(each + (stage < extra) for stage in range(stages))


def balanced(layers: int, stages: int, layer_ns: int, first_ns: int, last_ns: int) -> tuple[int, ...]:
    """The split whose largest stage time is least, each stage with a layer at least.

    Parameters
    ----------
    layer_ns : time of one layer, forward and backward.
    first_ns, last_ns : what the first stage (embedding) and the last (head and loss) have beside layers.

    Notes
    -----
    Layers are equal, so handing them out one by one to the stage that would then be done first is optimal: every split
    with a lower maximum would have to hold fewer layers in all. Ties go to the earlier stage.
    """
    given = [1] * stages
    beside = [0] * stages
    beside[0] += first_ns
    beside[-1] += last_ns
    for _ in range(layers - stages):
        stage = min(range(stages), key=lambda s: beside[s] + (given[s] + 1) * layer_ns)
        given[stage] += 1
    return tuple(given)


def layers_of_stage(job: Job, layer_ns: int, first_ns: int, last_ns: int) -> tuple[int, ...]:
    """Layers per stage, as ``parallelism.stages`` says; the spec has refused what does not add up.

    Parameters
    ----------
    layer_ns : time of one layer, forward and backward.
    first_ns, last_ns : what the first and the last stage have beside layers.
    """
    layers, stages, wanted = job.model.layers, job.parallelism.pp, job.parallelism.stages
    if wanted == "even":
        return even(layers, stages)
    if wanted == "balanced":
        return balanced(layers, stages, layer_ns, first_ns, last_ns)
    return tuple(wanted)
