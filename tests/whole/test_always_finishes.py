"""What emit writes never hangs: it passes `check` and finishes under both executions, also when every compute node is
slower or faster by its own random factor, as on a real machine."""

import numpy as np
import pytest
from jobs import EXECUTIONS, SMALL, WHOLE, built, fabric_of

from tracegen.build import Build
from tracegen.replay import Jitter, check, replay


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", SMALL)
def test_emitted_traces_have_no_findings(name: str, execution: str) -> None:
    job = built(name, *SMALL[name])
    assert check(job.traces, fabric_of(job, execution), execution) == []


def finishes(job: Build, execution: str, seeds: range) -> None:
    fabric = fabric_of(job, execution)
    spans = set()
    for seed in seeds:
        run = replay(job.traces, fabric, execution=execution, jitter=Jitter(0.5, 2.0, seed)).run
        assert not len(run.unfinished()), f"seed {seed}"
        spans.add(int(run.end_ns.max()))
    assert len(spans) > 1  # the factors are really drawn anew


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", SMALL)
def test_three_seeds(name: str, execution: str) -> None:
    finishes(built(name, *SMALL[name]), execution, range(3))


@pytest.mark.verify
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", SMALL)
def test_two_hundred_seeds_of_the_catalogues_own_specs(name: str, execution: str) -> None:
    finishes(built(name), execution, range(200))


@pytest.mark.verify
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_jobs_have_no_findings(name: str, execution: str) -> None:
    job = built(name, *WHOLE[name])
    assert check(job.traces, fabric_of(job, execution), execution) == []


@pytest.mark.verify
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_ten_seeds_of_1024_ranks(execution: str) -> None:
    finishes(built("llama3-405b", *WHOLE["llama3-405b"]), execution, range(10))


def test_factors_lie_where_they_should_and_are_each_nodes_own() -> None:
    job = built("gpt3-22b")
    fabric = fabric_of(job, "streams")
    plain = replay(job.traces, fabric, execution="streams", fold=False).run
    shaken = replay(job.traces, fabric, execution="streams", jitter=Jitter(0.5, 2.0, 7)).run
    compute = np.concatenate([job.traces.graph(rank).kind for rank in range(job.traces.ranks)]) == 4
    factor = shaken.duration_ns[compute] / plain.duration_ns[compute]
    assert factor.min() >= 0.49
    assert factor.max() <= 2.01
    assert len(np.unique(np.round(factor, 4))) > 1000
