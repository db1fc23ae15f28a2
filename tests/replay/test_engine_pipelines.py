"""Pipelines on a free network take what the closed forms say (issue check 3, K12)."""

from __future__ import annotations

import pytest
from handmade import Node, comp, recv, send, traces
from heap_twin import rings

from tracegen.proto.graph import TraceSet
from tracegen.replay.engine import run
from tracegen.replay.fabric import Fabric

FORWARD_US, BACKWARD_US = 1, 2


def free(stages: int) -> Fabric:
    """Messages of one byte take no time."""
    size, topology = ((stages,), ("switch",)) if stages > 1 else ((), ())
    return rings(size, topology, bandwidth=(1e12,) * len(size), latency=(0.0,) * len(size))


def order(kind: str, stages: int, stage: int, microbatches: int) -> list[tuple[str, int]]:
    """The schedule of one stage, written out by its definition."""
    if kind == "gpipe":
        return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]
    warm = min(microbatches, stages - 1 - stage)
    out = [("F", m) for m in range(warm)]
    for m in range(microbatches - warm):
        out += [("F", warm + m), ("B", m)]
    return out + [("B", m) for m in range(microbatches - warm, microbatches)]


def pipeline(kind: str, stages: int, microbatches: int) -> TraceSet:
    """One rank per stage: receive, compute, send; every compute node after the one before it."""
    ranks: list[list[Node]] = []
    for stage in range(stages):
        nodes: list[Node] = []
        last: list[int] = []
        for phase, m in order(kind, stages, stage, microbatches):
            ahead, behind = (stage - 1, stage + 1) if phase == "F" else (stage + 1, stage - 1)
            tag = 2 * m + (phase == "B")
            deps = list(last)
            if 0 <= ahead < stages:
                nodes.append(recv(len(nodes), ahead, 1, tag))
                deps.append(len(nodes) - 1)
            us = FORWARD_US if phase == "F" else BACKWARD_US
            nodes.append(comp(len(nodes), 1000 * us, deps=deps, name=f"{phase}{m}"))
            last = [len(nodes) - 1]
            if 0 <= behind < stages:
                nodes.append(send(len(nodes), behind, 1, tag, deps=list(last)))
        ranks.append(nodes)
    return traces(ranks)


@pytest.mark.parametrize("execution", ["streams", "astra"])
@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", range(1, 9))
def test_makespan_is_m_plus_p_minus_1_times_both_ways(kind: str, stages: int, execution: str) -> None:
    for m in (*range(1, 12), 16, 31, 32):
        done = run(pipeline(kind, stages, m), free(stages), execution=execution)
        assert int(done.end_ns.min()) >= 0
        assert int(done.end_ns.max()) == (m + stages - 1) * (FORWARD_US + BACKWARD_US) * 1000, m


@pytest.mark.parametrize(("m", "makespan", "bubble"), [(8, 33, 27.3), (2, 15, 60.0), (1, 12, 75.0)])
def test_fewer_microbatches_than_stages(m: int, makespan: int, bubble: float) -> None:
    """K12: 4 stages, 1 us forward, 2 us backward."""
    done = run(pipeline("1f1b", 4, m), free(4), execution="streams")
    assert int(done.end_ns.max()) == makespan * 1000
    assert 100 * (1 - 3 * m / makespan) == pytest.approx(bubble, abs=0.05)


@pytest.mark.parametrize("execution", ["streams", "astra"])
@pytest.mark.parametrize("m", [2, 8])
def test_microbatches_in_flight(execution: str, m: int) -> None:
    """Forward done, backward not begun, at most: min(m, p - s) for 1F1B, m for GPipe (K67)."""
    for kind in ("1f1b", "gpipe"):
        made = pipeline(kind, 4, m)
        done = run(made, free(4), execution=execution)
        for stage in range(4):
            graph, at = made.graph(stage), done.nodes_of(stage)
            begin, end = done.issue_ns[at], done.end_ns[at]
            changes = []
            for i in range(len(graph)):
                name = graph.name_of(i)
                if name[0] in "FB" and graph.kind[i] == 4:
                    changes.append((int(begin[i]), 1) if name[0] == "F" else (int(end[i]), -1))
            held = most = 0
            for _, step in sorted(changes):
                held += step
                most = max(most, held)
            assert most == (min(m, 4 - stage) if kind == "1f1b" else m), (kind, stage)
