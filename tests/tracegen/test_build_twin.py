"""The one-slot simulation that the deadlock test trusts does find a deadlock where there is one."""

from __future__ import annotations

from graphs import stuck_with_one_slot
from handmade import coll, comp, recv, send, traces


def stuck(nodes, groups):
    return stuck_with_one_slot(traces(nodes, groups), [[10] * len(rank) for rank in nodes])


def test_two_groups_entered_in_opposite_order_hang():
    groups = {1: [0, 1], 2: [0, 1]}
    assert stuck([[coll(0, 1), coll(1, 2)], [coll(0, 1), coll(1, 2)]], groups) == []
    assert stuck([[coll(0, 1), coll(1, 2)], [coll(0, 2), coll(1, 1)]], groups) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_send_behind_a_collective_that_its_receiver_joins_later_hangs():
    late = [recv(0, 0), coll(1, 1, deps=[0])]
    assert stuck([[send(0, 1), coll(1, 1)], late], {1: [0, 1]}) == []
    assert stuck([[coll(0, 1), send(1, 1)], late], {1: [0, 1]}) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_compute_and_communication_run_side_by_side():
    assert stuck([[comp(0), comp(1), coll(2, 1, deps=[0])], [coll(0, 1)]], {1: [0, 1]}) == []
