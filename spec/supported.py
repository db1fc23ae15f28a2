"""A legal job that asks for more than the generator can build today is refused here, in one line, before any work."""

from __future__ import annotations

from tracegen.proto.errors import InputError
from tracegen.spec.job import Job
from tracegen.spec.later import features


def supported(job: Job) -> None:
    """Refuse a job that uses keys which do not work yet.

    Raises
    ------
    InputError
        One line with the place of the first such key.
    """
    for feature in features(job.model, job.parallelism, job.workload):
        raise InputError(f"{job.place(feature.key)}: {feature.value}{feature.said}")
