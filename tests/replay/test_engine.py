"""The compiled engine equals a plain heap twin, node by node, hangs included; folded runs equal unfolded ones."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from handmade import Node, coll, comp, recv, send, traces
from heap_twin import merged, play_twin, rings

from tracegen.proto.errors import InputError
from tracegen.proto.graph import TraceSet
from tracegen.replay.engine import Jitter, run
from tracegen.replay.fabric import Fabric
from tracegen.replay.paths import FOLDED

EXECUTIONS = ("streams", "astra")
FABRICS = [
    rings((2,), ("switch",)),
    rings((3,), ("ring",), splits=3),
    rings((4,), ("ring",), memory_bandwidth=100.0),
    rings((4,), ("fully_connected",), splits=4, active=2),
    rings((2, 2), ("ring", "switch"), splits=2),
    rings((3, 2), ("switch", "switch"), memory_bandwidth=50.0),
]


def random_traces(fabric: Fabric, seed: int, *, hangs: bool) -> TraceSet:
    """Compute, messages and collectives in one global order (so that they can finish), under random dependencies."""
    draw = random.Random(seed)
    ranks = fabric.ranks
    groups = {g: draw.sample(range(ranks), draw.randint(2, ranks)) for g in range(1, 4)}
    nodes: list[list[Node]] = [[] for _ in range(ranks)]

    def add(rank: int, node: Node) -> None:
        ids = [other["id"] for other in nodes[rank]]
        node["deps"] = draw.sample(ids, min(len(ids), draw.choice([0, 1, 1, 2])))
        nodes[rank].append(node)

    for number in range(draw.randint(8, 40)):
        what = draw.random()
        if what < 0.45:
            us = draw.choice([0, 1, 2, 7])
            add(draw.randrange(ranks), comp(number, ns=us * 1000, us=us, cpu=draw.random() < 0.2))
        elif what < 0.75:
            a, b = draw.sample(range(ranks), 2)
            size, tag = draw.choice([1, 1000, 50_000]), draw.randint(0, 2)
            if not (hangs and draw.random() < 0.05):
                add(a, send(number, b, size, tag))
            add(b, recv(number, a, size, tag))
        else:
            group = draw.choice([0, 1, 2, 3])
            kind, size = draw.choice(["ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER"]), draw.choice([400, 100_000])
            for rank in groups[group] if group else range(ranks):
                if not (hangs and draw.random() < 0.02):
                    add(rank, coll(number, group, kind, size))
    for mine in nodes:
        if not mine:
            mine.append(comp(0))
        if draw.random() < 0.3:
            draw.shuffle(mine)
    return traces(nodes, groups)


def assert_equal_to_twin(made: TraceSet, fabric: Fabric, execution: str) -> None:
    for fold in (False, True):
        # The twin knows closed forms only, as the folded engine does.
        done = run(made, fabric, execution=execution, fold=fold, path=FOLDED)
        for node in play_twin(made, fabric, execution):
            at = done.nodes_of(node.rank).start + node.position
            ours = (int(done.ready_ns[at]), int(done.issue_ns[at]), int(done.end_ns[at]))
            assert ours == (node.ready, node.issue, node.end), (node.rank, node.id, fold)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("fabric", FABRICS, ids=lambda f: "x".join(map("{}{:.1}".format, f.size, f.topology)))
def test_random_graphs_equal_the_heap_twin(execution: str, hangs: bool, fabric: Fabric) -> None:
    for seed in range(12):
        assert_equal_to_twin(random_traces(fabric, seed, hangs=hangs), fabric, execution)


@pytest.mark.verify
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_many_random_graphs_equal_the_heap_twin(execution: str) -> None:
    for seed in range(1000, 1600):
        fabric = FABRICS[seed % len(FABRICS)]
        assert_equal_to_twin(random_traces(fabric, seed, hangs=seed % 3 == 0), fabric, execution)


def alike(fabric: Fabric, seed: int) -> TraceSet:
    """Every rank runs one of two programs, by its parity; peers at fixed distances, groups are lines of ranks."""
    draw = random.Random(seed)
    ranks = fabric.ranks
    lines = {1 + i: list(range(i * fabric.size[0], (i + 1) * fabric.size[0])) for i in range(ranks // fabric.size[0])}
    steps = []
    for number in range(draw.randint(5, 25)):
        us = [draw.choice([1, 3, 9])] * 2 if draw.random() < 0.7 else [draw.choice([1, 3, 9]) for _ in range(2)]
        steps.append((number, draw.random(), us, draw.randint(1, ranks - 1), draw.choice([100, 40_000]), draw.random()))
    nodes: list[list[Node]] = []
    for rank in range(ranks):
        mine: list[Node] = []
        for number, what, us, distance, size, tied in steps:
            deps = [mine[-1]["id"]] if mine and tied < 0.7 else []
            if what < 0.4:
                mine.append(comp(3 * number, ns=us[rank % 2] * 1000, us=us[rank % 2], deps=deps))
            elif what < 0.6:
                mine.append(send(3 * number, (rank + distance) % ranks, size, number, deps=deps))
                mine.append(recv(3 * number + 1, (rank - distance) % ranks, size, number, deps=deps))
                mine.append(comp(3 * number + 2, deps=[3 * number + 1]))
            else:
                group = 0 if what > 0.85 else 1 + rank // fabric.size[0]
                mine.append(coll(3 * number, group, "ALL_REDUCE", size, deps=deps))
        nodes.append(mine or [comp(0)])
    return merged(traces(nodes, lines))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_folded_equals_unfolded_where_ranks_are_alike(execution: str) -> None:
    """Every column but the ranks named in ``late_rank``, with real folding.

    The last two fabrics make messages, delays and compute fall on the same ticks: there ASTRA-sim decides by the order
    of ranks, which no folded run knows, so that the engine must notice and play every rank.
    """
    fabrics = [
        rings((8, 2), ("switch", "switch"), splits=2),
        rings((8,), ("ring",), memory_bandwidth=90.0),
        rings((4, 2), ("ring", "switch"), latency=(0.0, 0.0), bandwidth=(1e9, 1e9), endpoint_delay_ns=1000),
        rings((4,), ("switch",), latency=(500.0,), bandwidth=(1e9,), endpoint_delay_ns=500),
    ]
    folded = 0
    for seed in range(120):
        fabric = fabrics[seed % 4]
        made = alike(fabric, seed)
        few, all_ = (run(made, fabric, execution=execution, fold=fold, path=FOLDED) for fold in (True, False))
        folded += few.cells < made.ranks
        for rank in range(made.ranks):
            a, b = few.nodes_of(rank), all_.nodes_of(rank)
            for name in ("ready_ns", "issue_ns", "transfer_ns", "end_ns", "ahead", "duration_ns"):
                assert (getattr(few, name)[a] == getattr(all_, name)[b]).all(), (seed, rank, name)
    assert folded > (100 if execution == "streams" else 25)  # else the test shows nothing


def test_renumbered_and_shuffled_graphs_run_alike() -> None:
    """Ids with gaps beyond 2^53 and another order in the file change no time (K36, check 4)."""
    fabric = FABRICS[4]
    for execution in EXECUTIONS:
        made = random_traces(fabric, 3, hangs=False)
        moved = replace(made, graphs=tuple(replace(g, id=g.id * np.uint64(3) + np.uint64(2**60)) for g in made.graphs))
        a, b = (run(t, fabric, execution=execution) for t in (made, moved))
        assert (a.end_ns == b.end_ns).all()


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_world_collective_over_some_dimensions_is_one_per_line(execution: str) -> None:
    """``involved_dim`` of dimension 1 only, on 2 x 2: {0, 2} and {1, 3} meet each other and nobody else."""
    nodes = [[comp(0, 1000 * (1 + rank), us=1 + rank), coll(1, 0, deps=[0], dims=2)] for rank in range(4)]
    done = run(traces(nodes), FABRICS[4], execution=execution)
    ends = [int(done.end_ns[done.nodes_of(rank)][1]) for rank in range(4)]
    assert ends[1] - ends[0] == ends[3] - ends[2] == 1000
    assert (ends[0] == ends[2]) == (execution == "streams")


def test_late_rank_is_the_sender_or_the_lowest_of_the_last_members() -> None:
    nodes = [
        [comp(0, 3000), coll(1, 0, deps=[0]), recv(2, 1, 10)],
        [comp(0, 5000), coll(1, 0, deps=[0]), send(2, 0, 10)],
        [comp(0, 5000), coll(1, 0, deps=[0])],
        [comp(0, 1000), coll(1, 0, deps=[0])],
    ]
    done = run(traces(nodes), rings((4,), ("switch",)), execution="streams")
    assert [int(done.late_rank[done.nodes_of(rank).start + 1]) for rank in range(4)] == [1, 1, 1, 1]
    assert int(done.late_rank[done.nodes_of(0).start + 2]) == 1
    assert [int(done.transfer_ns[done.nodes_of(rank).start + 1]) for rank in range(4)] == [5000] * 4


def test_ahead_is_the_operation_queued_behind() -> None:
    """Two ready compute nodes: the second queues behind the first; one that was ready late queues behind nothing."""
    nodes = [[comp(0, 1000), comp(1, 1000), comp(2, 1000, deps=[1])], [comp(0)]]
    for execution in EXECUTIONS:
        done = run(traces(nodes), FABRICS[0], execution=execution)
        assert done.ahead[done.nodes_of(0)].tolist() == [-1, 0, -1]


def test_jitter_is_a_hash_of_seed_rank_and_node() -> None:
    """Factors lie in the range, differ between ranks and seeds, and come again; nothing folds (issue check 5)."""
    made = merged(traces([[comp(i, 1_000_000, us=1000) for i in range(50)] for _ in range(4)]))
    fabric = FABRICS[2]
    for execution in EXECUTIONS:
        one = run(made, fabric, execution=execution, jitter=Jitter(0.5, 2.0, seed=1))
        again = run(made, fabric, execution=execution, jitter=Jitter(0.5, 2.0, seed=1))
        other = run(made, fabric, execution=execution, jitter=Jitter(0.5, 2.0, seed=2))
        assert one.cells == 4
        assert (one.duration_ns == again.duration_ns).all()
        assert (one.duration_ns != other.duration_ns).mean() > 0.9
        assert len(np.unique(one.duration_ns)) > 190
        assert 500_000 <= one.duration_ns.min() < 600_000
        assert 1_900_000 < one.duration_ns.max() <= 2_000_000


def test_scale_multiplies_compute_and_splits_cells() -> None:
    made = merged(traces([[comp(0, 1001)] for _ in range(4)]))
    slow = replace(made, scale=np.array([1.0, 1.5, 1.0, 1.0]))
    done = run(slow, FABRICS[2], execution="streams")
    assert done.cell_of.tolist() == [0, 1, 0, 0]
    assert done.end_ns.tolist() == [1001, 1502]  # 1501.5 rounds half to even


def test_a_hundred_thousand_nodes_in_a_chain() -> None:
    """K34: 100,000 nodes of 1 us, each after the one before: 100 ms."""
    n = 100_000
    graph = traces([[comp(0, 1000, us=1)]]).graphs[0]
    columns = {
        name: np.repeat(getattr(graph, name), n)
        for name in ("kind", "cpu", "duration_ns", "duration_us", "flops", "mem_bytes", "comm_bytes", "collective",
                     "slot", "tag", "priority", "dims", "operator", "layer", "phase", "microbatch", "chunk", "name")
    }  # fmt: skip
    ptr = np.maximum(np.arange(n + 1) - 1, 0)
    long = replace(graph, id=np.arange(n, dtype=np.uint64), data_ptr=ptr, data_deps=np.arange(n - 1, dtype=np.int32),
                   ctrl_ptr=np.zeros(n + 1, np.int64), **columns)  # fmt: skip
    made = traces([[comp(0)], [comp(0)]])
    made = replace(made, graphs=(long,), class_of=np.zeros(2, np.int32))
    for execution in EXECUTIONS:
        done = run(made, FABRICS[0], execution=execution)
        assert done.cells == 1
        assert int(done.end_ns.max()) == 100_000_000


def test_control_edges_order_like_data_edges() -> None:
    """K32: A 5 us, B 5 us after A by a control edge: 10 us. K33: B stands before A in the file."""
    for nodes in (
        [comp(1, 5000, us=5), comp(2, 5000, us=5, ctrl=[1])],
        [comp(2, 5000, us=5, ctrl=[1]), comp(1, 5000, us=5)],
    ):
        for execution in EXECUTIONS:
            assert run(traces([nodes, [comp(0)]]), FABRICS[0], execution=execution).end_ns.max() == 10_000


def test_a_rank_without_nodes_finishes_at_0() -> None:
    done = run(traces([[comp(0)], []]), FABRICS[0], execution="streams")
    assert done.finish_ns()[done.cell_of].tolist() == [1000, 0]


def test_what_cannot_run_is_refused_by_name() -> None:
    two = FABRICS[0]
    with pytest.raises(InputError, match=r"4 ranks, the network 2 = 2"):
        run(traces([[comp(0)]] * 4), two, execution="streams")
    with pytest.raises(InputError, match="unknown; use one of streams, astra"):
        run(traces([[comp(0)]] * 2), two, execution="real")
    memory = [{"id": 5, "kind": 2, "deps": []}]
    with pytest.raises(InputError, match="rank 0 node 5: MEM_LOAD"):
        run(traces([memory, [comp(0)]]), two, execution="streams")
    broken = [coll(7, 0, "REDUCE")]
    with pytest.raises(InputError, match="rank 0 node 7: ASTRA-sim does not run REDUCE"):
        run(traces([broken, broken]), two, execution="astra")
    outsider = [coll(7, 1)]
    with pytest.raises(InputError, match="rank 1 runs a collective on group 1, which does not list it"):
        run(traces([[comp(0)], outsider], {1: [0]}), two, execution="streams")
