"""Where time goes (DEFINITIONS 9-10): four traces whose parts a person can work out, and sums that always hold."""

import numpy as np
import pytest
from handmade import coll, comp, programs, recv, replayed, send, traces
from hypothesis import given, settings

from tracegen.proto.graph import Kind
from tracegen.replay.parts import is_message, node_labels, on_compute_stream, parts, used_labels

STAGES = np.array([0, 1], np.int32)


def cut(trace, stage_of=None):
    found = parts(replayed(trace), stage_of)
    total = found.compute_ns + found.bubble_ns + found.idle_ns + found.exposed_ns.sum(axis=1)
    assert (total == found.makespan_ns).all()
    return found


def of_rank(found, rank):
    exposed = {label: int(ns) for label, ns in zip(found.labels, found.exposed_ns[rank], strict=True) if ns}
    return int(found.compute_ns[rank]), exposed, int(found.bubble_ns[rank]), int(found.idle_ns[rank])


LATE_SENDER = traces(
    [[comp(1, 100), send(2, peer=1, size=20, deps=[1])], [comp(1, 30), recv(2, peer=0, size=20), comp(3, 50, [2])]],
    message_label="pp",
)


def test_a_late_sender_is_bubble_and_its_message_is_exposed():
    # Rank 1: works to 30, waits for the sender to 100, for the message to 120, works to 170. Rank 0 sends to 120.
    found = cut(LATE_SENDER, STAGES)
    assert found.makespan_ns == 170
    assert of_rank(found, 1) == (80, {"pp": 20}, 70, 0)
    assert of_rank(found, 0) == (100, {"pp": 20}, 50, 0), "after its send it waits for the other stage's end"


def test_without_stages_only_a_receive_waits_in_bubbles():
    found = cut(LATE_SENDER)
    assert of_rank(found, 1) == (80, {"pp": 20}, 70, 0)
    assert of_rank(found, 0) == (100, {"pp": 20}, 0, 50)


def test_a_sender_of_the_same_stage_makes_idle_not_bubble():
    assert of_rank(cut(LATE_SENDER, np.array([3, 3], np.int32)), 1) == (80, {"pp": 20}, 0, 70)


LATE_MEMBER = traces(
    [
        [comp(1, 10), coll(2, 1, size=40, deps=[1]), comp(3, 5, [2])],
        [comp(1, 70), coll(2, 1, size=40, deps=[1]), comp(3, 5, [2])],
    ],
    groups={1: [0, 1]},
    labels={1: "tp"},
)


@pytest.mark.parametrize(("stages", "bubble", "idle"), [([0, 0], 0, 60), ([0, 1], 60, 0), (None, 0, 60)])
def test_a_late_group_member_is_idle_within_a_stage_and_bubble_across(stages, bubble, idle):
    found = cut(LATE_MEMBER, None if stages is None else np.array(stages, np.int32))
    assert found.makespan_ns == 115
    assert of_rank(found, 0) == (15, {"tp": 40}, bubble, idle)
    assert of_rank(found, 1) == (75, {"tp": 40}, 0, 0)


def test_a_collective_half_hidden_under_compute_is_half_exposed():
    # The all-reduce runs 10..50, an independent kernel 10..30: 20 ns of it are exposed.
    nodes = [comp(1, 10), coll(2, 1, size=40, deps=[1]), comp(3, 20, [1]), comp(4, 5, [2, 3])]
    found = cut(traces([nodes, nodes], groups={1: [0, 1]}, labels={1: "dp"}))
    assert found.makespan_ns == 55
    assert of_rank(found, 0) == of_rank(found, 1) == (35, {"dp": 20}, 0, 0)


@pytest.mark.parametrize(("stages", "bubble", "idle"), [([0, 1], 60, 0), ([1, 1], 0, 60), (None, 0, 60)])
def test_a_rank_that_ends_early_waits_for_the_last_one(stages, bubble, idle):
    found = cut(traces([[comp(1, 40)], [comp(1, 100)]]), None if stages is None else np.array(stages, np.int32))
    assert of_rank(found, 0) == (40, {}, bubble, idle)
    assert of_rank(found, 1) == (100, {}, 0, 0)


def test_queued_time_belongs_to_the_operation_ahead():
    # Two all-reduces of one group: the second, ready at 10, queues behind the first until 50 and ends at 60. The
    # compute node after it sees 50 ns of that group and nothing idle, though it waits for the second only.
    nodes = [comp(1, 10), coll(2, 1, size=40, deps=[1]), coll(3, 1, size=10, deps=[1]), comp(4, 5, [3])]
    assert of_rank(cut(traces([nodes, nodes], groups={1: [0, 1]})), 0) == (15, {"group 1": 50}, 0, 0)


def test_the_predecessor_that_finished_last_is_charged_and_ties_go_to_the_lowest_id():
    def trace(first, second):
        nodes = [coll(7, 1, size=first), coll(3, 2, size=second), comp(9, 5, [7, 3])]
        return traces([nodes, nodes], groups={1: [0, 1], 2: [0, 1]}, labels={1: "tp", 2: "dp"})

    assert of_rank(cut(trace(30, 20)), 0) == (5, {"tp": 30}, 0, 0)
    assert of_rank(cut(trace(20, 30)), 0) == (5, {"dp": 30}, 0, 0)
    assert of_rank(cut(trace(30, 30)), 0) == (5, {"dp": 30}, 0, 0), "node 3 has the lower id"


def test_a_receive_in_transfer_before_it_is_ready_is_exposed_from_the_sends_start():
    # The receive waits for the all-reduce (10..50); its message, 60 ns from 20 on, decides when compute goes on.
    first = [comp(1, 20), send(2, peer=1, size=60, deps=[1])]
    second = [comp(1, 10), coll(2, 1, size=40, deps=[1]), recv(3, peer=0, size=60, deps=[2]), comp(4, 5, [3])]
    third = [comp(1, 10), coll(2, 1, size=40, deps=[1])]
    found = cut(traces([first, second, third], groups={1: [1, 2]}, labels={1: "tp"}))
    assert of_rank(found, 1) == (15, {"p2p": 60, "tp": 10}, 0, 0)


def test_a_rank_without_compute_is_cut_from_zero():
    found = cut(traces([[recv(1, peer=1, size=10)], [comp(1, 30), send(2, peer=0, size=10, deps=[1])]]), STAGES)
    assert of_rank(found, 0) == (0, {"p2p": 10}, 30, 0)


def test_host_work_is_no_compute_and_no_communication():
    found = cut(traces([[comp(1, 30, cpu=True), comp(2, 10, [1])]]))
    assert of_rank(found, 0) == (10, {}, 0, 30)


def test_a_rank_that_never_finishes_has_no_finish_and_parts_that_sum():
    found = cut(traces([[comp(1, 30), recv(2, peer=1)], [comp(1, 50)]]))
    assert found.finish_ns.tolist() == [-1, 50]
    assert of_rank(found, 0) == (30, {}, 0, 20)


# --- any graph ---------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(programs())
def test_parts_sum_to_the_makespan_and_equal_the_walk_nanosecond_by_nanosecond(program):
    nodes, groups, stages = program
    trace, stage_of = traces(nodes, groups), None if stages is None else np.array(stages, np.int32)
    run = replayed(trace)
    found = cut(trace, stage_of)
    for rank in range(trace.ranks):
        slow = _nanosecond_by_nanosecond(run, rank, stage_of, found)
        compute, exposed, bubble, idle = of_rank(found, rank)
        assert {"compute": compute, "bubble": bubble, "idle": idle, **exposed} == {
            "compute": 0, "bubble": 0, "idle": 0, **slow
        }  # fmt: skip


def _nanosecond_by_nanosecond(run, rank, stage_of, found):
    """What each single nanosecond of a rank's time is, asking the definition anew for every one."""
    graph = run.traces.graph(rank)
    nodes = slice(int(run.node_ptr[rank]), int(run.node_ptr[rank + 1]))
    ready, issue, transfer, end = (c[nodes] for c in (run.ready_ns, run.issue_ns, run.transfer_ns, run.end_ns))
    code = node_labels(run.traces, rank, used_labels(run.traces))
    stop = int(end.max(initial=0))
    other_stage = stage_of is not None and stage_of[np.argmax(found.finish_ns)] != stage_of[rank]
    compute = [i for i in np.flatnonzero(on_compute_stream(graph)) if end[i] > issue[i]]
    every = list(np.flatnonzero(on_compute_stream(graph)))

    def back(node):
        if issue[node] > ready[node] and run.ahead[nodes][node] >= 0:
            return int(run.ahead[nodes][node])
        deps = [*graph.data_deps[graph.data_ptr[node] : graph.data_ptr[node + 1]]]
        return min(deps, key=lambda dep: (-end[dep], graph.id[dep]), default=None)

    def what(now):
        if any(issue[i] <= now < end[i] for i in compute):
            return "compute"
        if now >= stop:
            return "bubble" if other_stage else "idle"
        later = [i for i in every if issue[i] > now]
        if later:
            node = back(min(later, key=lambda i: (issue[i], end[i])))
        else:
            node = min(np.flatnonzero(end == stop), key=lambda i: graph.id[i])
        while node is not None:
            if end[node] <= now:
                return "idle"
            if code[node] >= 0 and transfer[node] <= now:
                return found.labels[code[node]]
            if issue[node] <= now:
                late = run.late_rank[nodes][node]
                across = graph.kind[node] == Kind.RECV if stage_of is None else stage_of[late] != stage_of[rank]
                return "bubble" if code[node] >= 0 and late >= 0 and across else "idle"
            node = back(node)
        return "idle"

    total: dict[str, int] = {}
    for now in range(found.makespan_ns):
        total[what(now)] = total.get(what(now), 0) + 1
    return total


def test_messages_are_sends_and_receives():
    assert is_message(LATE_SENDER.graph(1)).tolist() == [False, True, False]
