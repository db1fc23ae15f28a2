"""`check` on small traces with one fault each (facts/cases.md, facts/astra_sim_rules_for_traces.md)."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handmade import coll, comp, programs, recv, replayed, send, traces
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegen.proto.graph import Collective, Kind
from tracegen.proto.problems import Problem
from tracegen.replay.check import check
from tracegen.replay.engine import run
from tracegen.replay.fabric import Algorithm, Fabric
from tracegen.replay.messages import messages, pair
from tracegen.replay.rules.table import CAP, RULES

BOTH = ("streams", "astra")


def ring(ranks, splits=1, name="ring"):
    """One ring dimension with an algorithm for every collective."""
    return Fabric(
        names=("d",), topology=("ring",), size=(ranks,), bandwidth=(1.0,), latency=(0.0,), splits=splits,
        algorithms={kind: (Algorithm(name),) for kind in Collective},
    )  # fmt: skip


def found(trace, execution="streams", fabric=None, **more):
    return {f.rule: f for f in check(trace, fabric, execution, **more)}


def severities(trace, rule, fabric=None):
    return tuple(f.severity if (f := found(trace, e, fabric).get(rule)) else None for e in BOTH)


GOOD = traces(
    [
        [comp(1), send(2, peer=1, deps=[1]), coll(3, 1, deps=[1])],
        [comp(1), recv(2, peer=0), comp(3, deps=[1, 2]), coll(4, 1, deps=[3])],
    ],
    groups={1: [0, 1]},
)


@pytest.mark.parametrize("execution", BOTH)
def test_good_traces_give_no_findings(execution):
    assert check(GOOD, ring(2), execution) == []


def alone(*nodes):
    return traces([list(nodes)])


# --- graph integrity ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("execution", BOTH)
def test_k28_a_cycle_beside_a_valid_root_is_printed(execution):
    trace = alone(comp(1, name="A"), comp(2, deps=[1, 3], name="B"), comp(3, deps=[2], name="C"))
    finding = found(trace, execution)["cycle"]
    assert finding.severity == "error"
    assert finding.message.startswith(
        '2 -> 3 -> 2: node 2 "B" waits (data_deps) for 3, node 3 "C" waits (data_deps) for 2'
    )
    assert "2 of 3 nodes can never run" in finding.message


def test_a_cycle_through_a_control_edge_says_so():
    trace = alone(comp(1), comp(5, deps=[9]), comp(9, ctrl=[5]))
    assert 'node 9 "node 9" waits (ctrl_deps) for 5' in found(trace)["cycle"].message


def test_nothing_to_start_with_and_nothing_at_all():
    assert severities(alone(comp(1, deps=[2]), comp(2, deps=[1])), "no-root") == ("error", "error")
    assert severities(traces([[comp(1)], []]), "empty-trace") == ("error", "error")


def test_k30_a_missing_parent_is_named_and_can_be_ignored():
    trace = alone(comp(1), comp(2, deps=[99]))
    finding = found(trace)["missing-parent"]
    assert finding.severity == "error"
    assert "2 -> 99" in finding.message
    assert found(trace, ignore_missing_parents=True)["missing-parent"].severity == "warning"


def test_k31_a_duplicate_id_is_named_with_both_positions():
    finding = found(alone(comp(3), comp(7), send(7, peer=0, tag=1)))["duplicate-id"]
    assert finding.severity == "error"
    assert "id 7 is at position 1 (COMP) and at position 2 (SEND)" in finding.message


def test_k33_a_child_before_its_parent_is_fine():
    assert check(alone(comp(2, deps=[1]), comp(1)), None, "streams") == []


def test_k34_a_chain_of_100000_is_checked_without_recursion_in_a_second():
    n = 100_000
    forwards = traces([[comp(i + 1, deps=[i] if i else []) for i in range(n)]])
    (chain,) = forwards.graphs
    backwards = replace(forwards, graphs=(replace(chain, id=chain.id[::-1].copy()),))
    ptr, deps = np.arange(n + 1), np.concatenate([[n - 1], chain.data_deps]).astype(np.int32)
    closed = replace(forwards, graphs=(replace(chain, data_ptr=ptr, data_deps=deps),))
    found(alone(comp(1, deps=[1])))  # compiles
    begin = time.perf_counter()
    assert check(forwards, None, "streams") == []
    assert check(backwards, None, "astra") == []
    assert f"{n} of {n} nodes can never run" in found(closed)["cycle"].message
    assert time.perf_counter() - begin < 3  # measured: 0.5 s


# --- messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("execution", BOTH)
def test_k39_a_receive_without_a_send(execution):
    finding = found(traces([[comp(1)], [recv(4, peer=0, tag=3)]]), execution)["recv-without-send"]
    assert finding.severity == "error"
    assert "rank 1 node 4 waits for src 0 tag 3 1048576 B: no send exists" in finding.message


def test_an_unmatched_send_is_only_a_warning():
    assert severities(traces([[send(1, peer=1)], [comp(1)]]), "send-without-recv") == ("warning", "warning")


@pytest.mark.parametrize("execution", BOTH)
def test_k40_a_size_mismatch_is_named_before_the_run(execution):
    trace = traces([[send(1, peer=1, size=1_048_576)], [recv(1, peer=0, size=1_048_575)]])
    findings = found(trace, execution)
    assert set(findings) == {"size-mismatch"}
    assert findings["size-mismatch"].severity == "error"
    assert "1048575 B" in findings["size-mismatch"].message
    assert "1048576 B" in findings["size-mismatch"].message


MIB = 1 << 20


def test_k41_equal_tags_match_in_order():
    sends = [send(1, peer=1, size=MIB), send(2, peer=1, size=2 * MIB, deps=[1])]
    same = traces([sends, [recv(1, peer=0, size=MIB), recv(2, peer=0, size=2 * MIB)]])
    swapped = traces([sends, [recv(1, peer=0, size=2 * MIB), recv(2, peer=0, size=MIB)]])
    assert [check(same, None, execution) for execution in BOTH] == [[], []]
    finding = found(swapped, "streams")["size-mismatch"]
    assert "1048576 B" in finding.message
    assert "2097152 B" in finding.message
    assert check(swapped, None, "astra") == [], "there the size is part of the key"


def test_k40_under_astra_only_what_stays_unmatched_is_an_error():
    sends = [send(i, peer=1, size=i * MIB) for i in (1, 2, 3)]
    trace = traces([sends, [recv(1, peer=0, size=3 * MIB), recv(2, peer=0, size=MIB), recv(3, peer=0, size=5 * MIB)]])
    findings = [f for f in check(trace, None, "astra") if f.rule == "size-mismatch"]
    assert len(findings) == 1
    assert "5242880 B" in findings[0].message
    assert "2097152 B" in findings[0].message


@pytest.mark.parametrize(
    ("node", "rule", "streams", "astra"),
    [
        (send(1, peer=9), "peer", "error", "error"),
        (send(1, peer=0), "self-send", "warning", "error"),
        (send(1, peer=1, size=-1), "message-no-size", "error", "error"),
        (send(1, peer=1, size=0), "message-zero", "warning", "error"),
        (send(1, peer=1, tag=-1), "message-no-tag", "warning", "error"),
        (send(1, peer=1, tag=2**31), "tag-range", None, "error"),
        (send(1, peer=1, tag=2**31 - 1), "tag-range", None, None),
        (send(1, peer=1, cpu=True), "comm-on-cpu", "error", "error"),
    ],
)
def test_messages_that_cannot_be(node, rule, streams, astra):
    assert severities(traces([[node], [comp(1)]]), rule) == (streams, astra)


def test_tags_that_are_one_to_astra_sim():
    first, second = 1, 500_000_001
    trace = traces([[send(1, peer=1, tag=first), send(2, peer=1, tag=second)],
                    [recv(1, peer=0, tag=first), recv(2, peer=0, tag=second)]])  # fmt: skip
    assert severities(trace, "tag-collision") == (None, "warning")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0, 1, 500_000_001]), st.sampled_from([5, 9])), max_size=10))
@pytest.mark.parametrize("execution", BOTH)
def test_messages_are_matched_as_the_engine_matches_them(execution, some):
    sends = [send(i, 1, size, tag) for i, (sends_it, tag, size) in enumerate(some) if sends_it]
    recvs = [recv(i, 0, size, tag) for i, (sends_it, tag, size) in enumerate(some) if not sends_it]
    trace = traces([[*sends, comp(99)], [*recvs, comp(99)]])
    every = messages(trace)
    pairs = pair(every, execution)
    mine = {(int(every.position[a]), int(every.position[b])) for a, b in zip(pairs.send, pairs.recv, strict=True)}
    engine = run(trace, ring(2), execution=execution, fold=False).assembly
    first, second = engine.node_ptr[:2].tolist()
    mates = engine.mate[second:].tolist()
    assert mine == {(mate - first, at) for at, mate in enumerate(mates) if mate >= 0}
    assert len(pairs.lone_sends) + len(mine) == len(sends)
    assert len(pairs.lone_recvs) + len(mine) == len(recvs)


# --- nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "rule", "streams", "astra"),
    [
        ({"id": 1, "kind": Kind.INVALID}, "invalid-node", "warning", "warning"),
        ({"id": 1, "kind": Kind.METADATA}, "metadata-node", "warning", "error"),
        ({"id": 1, "kind": Kind.MEM_LOAD}, "memory-node", "error", "error"),
        ({"id": 1, "kind": 12}, "node-type", "error", "error"),
        (comp(1, ns=-1), "zero-duration", "warning", "warning"),
        (comp(1, ns=400), "zero-duration", None, None),  # written as 0 us, but our own attribute says how long
        (comp(1, ns=-1, us=3), "zero-duration", None, None),
    ],
)
def test_nodes_that_cannot_be(node, rule, streams, astra):
    assert severities(alone(node), rule) == (streams, astra)


# --- collectives -------------------------------------------------------------------------------------------------


def two_ranks(*rank0, rank1=None, ranks=2, groups=None):
    return traces([list(rank0), list(rank1 or rank0), *[[comp(1)]] * (ranks - 2)], groups or {1: [0, 1]})


@pytest.mark.parametrize(
    ("node", "rule", "streams", "astra"),
    [
        (coll(1, 1, collective=-1), "collective-no-type", "error", "error"),
        (coll(1, 1, collective=77), "collective-type", "error", "error"),
        (coll(1, 1, "BARRIER"), "collective-unsupported", None, "error"),
        (coll(1, 1, "REDUCE"), "collective-unsupported", None, "error"),
        (coll(1, 1, "BROADCAST"), "collective-broadcast", None, "warning"),
        (coll(1, 1, "ALL_REDUCE", 0), "collective-zero", "warning", "warning"),  # K47
        (coll(1, 1, "ALL_GATHER", 0), "gather-zero", "warning", "error"),
        (coll(1, 1, "ALL_GATHER", -1), "collective-no-size", "error", "error"),  # K47
        (coll(1, 1, "ALL_GATHER", 3), "gather-below-splits", None, "error"),
        (coll(1, 1, "ALL_GATHER", 4), "gather-below-splits", None, None),
        (coll(1, 1, cpu=True), "comm-on-cpu", "error", "error"),
    ],
)
def test_collectives_that_cannot_be(node, rule, streams, astra):
    assert severities(two_ranks(node), rule, ring(2, splits=4)) == (streams, astra)


@pytest.mark.parametrize("execution", BOTH)
def test_k44_another_order_within_a_group(execution):
    a, b = ("ALL_REDUCE", MIB), ("ALL_GATHER", 2 * MIB)
    trace = two_ranks(coll(1, 1, *a), coll(2, 1, *b, [1]), rank1=[coll(1, 1, *b), coll(2, 1, *a, [1])])
    finding = found(trace, execution)["collective-order"]
    assert finding.severity == "error"
    assert finding.message.startswith("position 0 of group 1: rank 0 ALL_REDUCE 1 MiB")
    assert "rank 1 ALL_GATHER 2 MiB" in finding.message


@pytest.mark.parametrize("execution", BOTH)
def test_k45_one_rank_has_another_size(execution):
    trace = traces([[coll(1, 1, size=200 * MIB)], *[[coll(1, 1, size=100 * MIB)]] * 3], {1: [0, 1, 2, 3]})
    finding = found(trace, execution)["collective-size"]
    assert finding.severity == "error"
    assert "rank 0 ALL_REDUCE 200 MiB" in finding.message
    assert "rank 1 ALL_REDUCE 100 MiB" in finding.message


@pytest.mark.parametrize("execution", BOTH)
def test_k46_one_rank_skips_the_second_collective(execution):
    nodes = [coll(1, 1), coll(2, 1, deps=[1])]
    finding = found(traces([nodes, nodes, nodes, nodes[:1]], {1: [0, 1, 2, 3]}), execution)["collective-count"]
    assert finding.severity == "error"
    assert finding.where == "rank 3"
    assert finding.message.startswith(
        "position 1 of group 1: rank 3 has only 1 of its collectives, rank 0 2: ALL_REDUCE 1 MiB"
    )


def test_a_member_that_never_comes():
    finding = found(traces([[coll(1, 1)], [comp(1)]], {1: [0, 1]}))["collective-count"]
    assert finding.where == "rank 1"
    assert "rank 1 takes part in none of its collectives" in finding.message


def test_calls_are_compared_in_the_order_in_which_they_happen_not_as_they_stand_in_the_file():
    rank0 = [coll(1, 1, "ALL_REDUCE"), coll(2, 1, "ALL_GATHER", deps=[1])]
    rank1 = [coll(20, 1, "ALL_GATHER", deps=[10]), coll(10, 1, "ALL_REDUCE")]
    descending = [coll(20, 1, "ALL_REDUCE"), coll(10, 1, "ALL_GATHER", deps=[20])]
    assert check(two_ranks(*rank0, rank1=rank1), None, "streams") == []
    assert check(two_ranks(*rank0, rank1=descending), None, "astra") == []


def test_dimensions_must_agree_under_astra():
    assert severities(two_ranks(coll(1, 1, dims=1), rank1=[coll(1, 1, dims=3)]), "collective-dims") == (None, "error")


def test_five_dimensions_need_involved_dim():
    fabric = Fabric(("a",) * 5, ("ring",) * 5, (2,) * 5, (1.0,) * 5, (0.0,) * 5,
                    {kind: (Algorithm("ring"),) * 5 for kind in Collective})  # fmt: skip
    bare, full = ([[coll(1, 0, **more)]] * 32 for more in ({}, {"dims": 31}))
    # ASTRA-sim's four dimensions are what the replay runs too: said, not refused.
    assert severities(traces(bare), "dims-missing", fabric) == (None, "warning")
    assert severities(traces(full), "dims-missing", fabric) == (None, None)


@pytest.mark.parametrize("ranks", [6, 8])
def test_k61_halving_doubling_needs_a_power_of_two(ranks):
    trace = traces([[coll(1, 0)]] * ranks)
    expected = ("error", "error") if ranks == 6 else (None, None)
    assert severities(trace, "power-of-two", ring(ranks, name="halving_doubling")) == expected


# --- groups ------------------------------------------------------------------------------------------------------


def test_groups_that_cannot_be():
    assert severities(traces([[coll(1, 7)], [coll(1, 7)]]), "unknown-group") == ("error", "error")
    assert severities(traces([[coll(1, 1)], [comp(1)]], {1: [1]}), "not-a-member") == ("error", "error")
    assert severities(traces([[coll(1, 1)], [coll(1, 1)]], {1: [0, 1, 1]}), "group-ranks") == ("error", "error")
    assert severities(traces([[coll(1, 1)], [coll(1, 1)]], {1: [0, 1, 5]}), "group-ranks") == ("error", "error")
    assert severities(traces([[coll(1, 1)]], {1: [0]}), "group-of-one") == ("warning", "error")
    three = traces([[coll(1, 0)], [coll(1, 0)], [comp(1)]], {0: [0, 1]})
    assert severities(three, "group-zero") == ("warning", "error")


@pytest.mark.parametrize(("number", "astra"), [(2147, None), (2148, "error")])
def test_group_numbers_above_2147_overflow(number, astra):
    assert severities(two_ranks(coll(1, number), groups={number: [0, 1]}), "group-number") == (None, astra)


def test_groups_equal_modulo_500_on_the_same_ranks():
    nodes = [coll(1, 1), coll(2, 501, deps=[1])]
    assert severities(two_ranks(*nodes, groups={1: [0, 1], 501: [1, 0]}), "group-modulo") == (None, "error")
    apart = traces([[coll(1, 1)], [coll(1, 1)], [coll(1, 501)], [coll(1, 501)]], {1: [0, 1], 501: [2, 3]})
    assert severities(apart, "group-modulo") == (None, None)


def test_k27_all_ranks_after_unequal_numbers_of_group_chunks():
    last = coll(2, 0, "ALL_GATHER", 1024)
    trace = traces([*[[last]] * 4, *[[coll(1, 1, size=1024), {**last, "deps": [1]}]] * 4], {1: [4, 5, 6, 7]})
    assert severities(trace, "group-chunks", ring(8)) == (None, "error")
    message = found(trace, "astra", ring(8))["group-chunks"].message
    assert "created 0 chunks" in message
    assert "ranks 5" not in message
    equal = traces(
        [[coll(1, 1 + r // 4, size=1024), {**last, "deps": [1]}] for r in range(8)], {1: [0, 1, 2, 3], 2: [4, 5, 6, 7]}
    )
    assert severities(equal, "group-chunks", ring(8)) == (None, None)


def test_a_collective_is_cut_into_chunks_of_one_size():
    # astra_sim_semantics 5: 1,234,567 B in 4 splits are 5 chunks of 308,641 B; 0 B move splits x ranks bytes.
    from tracegen.replay.rules.groups import chunks_of

    sizes, no_gathers = np.array([1_234_567, 0, 4 << 20]), np.zeros(3, bool)
    assert chunks_of(sizes, no_gathers, 4, 8).tolist() == [5, 4, 4]


# --- the whole ---------------------------------------------------------------------------------------------------


def test_other_rank_count_than_the_network():
    finding = found(GOOD, "streams", ring(4))["rank-count"]
    assert finding.severity == "error"
    assert "2 ranks, the network 4 = 4" in finding.message


def test_all_findings_at_once_errors_first_and_counted_above_the_cap():
    nodes = [send(i, peer=9, size=0) for i in range(CAP + 5)]
    findings = check(traces([nodes]), None, "streams")
    assert [f.severity for f in findings] == sorted(f.severity for f in findings)
    assert sum(f.rule == "peer" for f in findings) == CAP + 1
    assert [f.message for f in findings if f.rule == "peer"][-1].startswith("and 5 more")


def test_what_the_reader_found_is_told_once():
    problem = Problem("peer", "rank 0 (x.0.et)", "node 0: comm_dst is 9")
    findings = check(alone(send(1, peer=9)), None, "streams", problems=[problem])
    assert [f.message for f in findings if f.rule == "peer"] == ["node 0: comm_dst is 9"]
    assert [f.severity for f in check(None, None, "streams", problems=[problem])] == ["error"]


def test_every_rule_has_an_effect_somewhere():
    assert all(rule.streams or rule.astra for rule in RULES.values())


def test_names_with_control_characters_stay_on_one_line():
    finding = found(traces([[send(1, peer=1, name='a"\n\t\x01' + "x" * 9999)], [comp(1)]]))["send-without-recv"]
    assert "\n" not in finding.where
    assert len(finding.where) < 100


# --- nothing waits for ever --------------------------------------------------------------------------------------


def test_ids_along_a_stream_must_be_a_topological_order():
    trace = alone(comp(1, deps=[2]), comp(2))
    assert severities(trace, "deadlock", ring(1)) == ("error", None), "ASTRA-sim has no streams: node 2 goes first"


CROSSED = [[coll(1, 1), coll(2, 2, deps=[1])], [coll(1, 2), coll(2, 1, deps=[1])]]


def test_groups_entered_in_different_orders():
    trace = traces(CROSSED, {1: [0, 1], 2: [1, 0]})
    assert severities(trace, "deadlock", ring(2)) == ("error", "error")
    side_by_side = traces([[coll(1, 1), coll(2, 2)], [coll(1, 2), coll(2, 1)]], {1: [0, 1], 2: [1, 0]})
    assert severities(side_by_side, "deadlock", ring(2)) == (None, "error"), "ASTRA-sim has one communication slot"


def test_ranks_that_receive_before_they_send():
    nodes = [[recv(1, peer=1 - r), send(2, peer=1 - r, deps=[1])] for r in range(2)]
    assert severities(traces(nodes), "deadlock", ring(2)) == ("error", "error")
    eager = [[send(1, peer=1 - r), recv(2, peer=1 - r, deps=[1])] for r in range(2)]
    assert severities(traces(eager), "deadlock", ring(2)) == (None, None)


def test_a_cycle_through_three_groups():
    order = [(1, 2), (2, 3), (3, 1)]
    nodes = [[coll(1, a), coll(2, b, deps=[1])] for a, b in order]
    trace = traces(nodes, {1: [0, 2], 2: [0, 1], 3: [1, 2]})
    assert severities(trace, "deadlock", ring(3)) == ("error", "error")
    assert severities(trace, "deadlock") == ("error", None), "without a network only streams can be proved"


@settings(max_examples=150, deadline=None)
@given(programs(), st.data())
def test_what_passes_runs_to_its_end_and_what_dead_locks_does_not(program, data):
    # Ids are dealt anew, so streams may run against dependencies and groups against each other.
    nodes, groups, _ = program
    for rank, mine in enumerate(nodes):
        fresh = dict(zip([n["id"] for n in mine], data.draw(st.permutations(range(len(mine)))), strict=True))
        nodes[rank] = [{**n, "id": fresh[n["id"]], "deps": [fresh[d] for d in n["deps"]]} for n in mine]
    trace = traces([mine or [comp(0)] for mine in nodes], groups)
    errors = {f.rule for f in check(trace, None, "streams") if f.severity == "error"}
    finishes = bool((replayed(trace).end_ns >= 0).all())
    if not errors:
        assert finishes
    if "deadlock" in errors:
        assert not finishes


def test_what_replay_refuses_is_told_by_check():
    finding = found(two_ranks(coll(1, 1, "ALL_GATHER")), "streams", ring(2, name="double_binary_tree"))["refused"]
    assert finding.severity == "error"
    assert "double_binary_tree" in finding.message


def test_the_documented_rules_are_the_rules():
    page = (Path(__file__).parents[2] / "docs" / "definitions.md").read_text()
    rows = [f"| `{name}` | {rule.streams or '-'} | {rule.astra or '-'} | {rule.asks} |" for name, rule in RULES.items()]
    assert page[page.index("| rule | streams |") :].splitlines()[2:] == rows
