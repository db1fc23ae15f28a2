"""Orders of passes: complete, what each schedule is known for, and the makespan they give on a free network."""

from __future__ import annotations

import pytest

from tracegen.schedule import schedule

KINDS = ("gpipe", "1f1b")


def makespan(kind, stages, microbatches, forward, backward):
    """Finish time of the last stage to finish, and each stage's busy time: passes wait for their neighbours only."""
    orders = [schedule(kind, stages, microbatches, stage) for stage in range(stages)]
    done, clock, at = {}, [0] * stages, [0] * stages
    while any(at[s] < len(orders[s]) for s in range(stages)):
        moved = False
        for s in range(stages):
            if at[s] == len(orders[s]):
                continue
            way, i = orders[s][at[s]]
            needs = (way, i, s - 1) if way == "F" else ((way, i, s + 1) if s < stages - 1 else ("F", i, s))
            if needs[2] >= 0 and needs not in done:
                continue
            clock[s] = max(clock[s], done.get(needs, 0)) + (forward if way == "F" else backward)
            done[way, i, s] = clock[s]
            at[s] += 1
            moved = True
        assert moved, "the orders of the stages wait for one another"
    return max(clock)


def in_flight(order):
    """Most microbatches whose forward has run and whose backward has not."""
    now = most = 0
    for way, _ in order:
        now += 1 if way == "F" else -1
        most = max(most, now)
    return most


def test_1f1b_of_four_stages_by_hand():
    def text(stage):
        return " ".join(f"{way}{i}" for way, i in schedule("1f1b", 4, 5, stage))

    assert text(0) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert text(2) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"
    assert text(3) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"


@pytest.mark.parametrize("kind", KINDS)
def test_every_microbatch_goes_forward_then_backward_once(kind):
    for stages in range(1, 6):
        for microbatches in range(1, 9):
            for stage in range(stages):
                order = schedule(kind, stages, microbatches, stage)
                assert sorted(order) == sorted([(way, i) for way in "FB" for i in range(microbatches)])
                assert all(order.index(("F", i)) < order.index(("B", i)) for i in range(microbatches))


@pytest.mark.parametrize("kind", KINDS)
def test_makespan_on_a_free_network(kind):
    # (m + p - 1)(tf + tb), Narayanan et al., SC 2021, section 2.2.1.
    for stages in range(1, 9):
        for microbatches in range(1, 33):
            assert makespan(kind, stages, microbatches, 1, 2) == (microbatches + stages - 1) * 3


def test_few_microbatches_are_legal():
    # K12: p 4, tf 1, tb 2: 33, 15 and 12; each stage is busy 3m of it.
    for microbatches, whole, bubble in ((8, 33, 27.3), (2, 15, 60.0), (1, 12, 75.0)):
        assert makespan("1f1b", 4, microbatches, 1, 2) == whole
        assert round(100 * (1 - 3 * microbatches / whole), 1) == bubble


def test_microbatches_in_flight():
    # K67, and gpipe keeps all.
    assert [in_flight(schedule("1f1b", 4, 8, stage)) for stage in range(4)] == [4, 3, 2, 1]
    assert [in_flight(schedule("1f1b", 4, 2, stage)) for stage in range(4)] == [2, 2, 2, 1]
    assert [in_flight(schedule("gpipe", 4, 8, stage)) for stage in range(4)] == [8, 8, 8, 8]
