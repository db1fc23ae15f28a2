"""Placement: which ranks form which group, by hand-counted examples and by what must hold for any order."""

from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegen.placement import Placement
from tracegen.proto.errors import InputError

ORDER = ("tp", "cp", "ep", "dp", "pp")


def place(tp=1, cp=1, ep=1, dp=1, pp=1, etp=None, order=ORDER, kv_heads=None, world=None):
    parallelism = SimpleNamespace(tp=tp, cp=cp, ep=ep, dp=dp, pp=pp, etp=tp if etp is None else etp, order=order)
    return Placement.of(parallelism, tp * cp * dp * pp if world is None else world, kv_heads)


def sets(rows):
    return {tuple(int(rank) for rank in row) for row in rows}


def test_k21_groups_of_eight_ranks():
    """K21: order tp-cp-ep-dp-pp, tp 2, dp 2, pp 2 on 8 ranks."""
    placement = place(tp=2, dp=2, pp=2)
    assert sets(placement.groups("tp")) == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert sets(placement.groups("dp")) == {(0, 2), (1, 3), (4, 6), (5, 7)}
    assert sets(placement.groups("pp")) == {(0, 4), (1, 5), (2, 6), (3, 7)}
    assert sets(placement.groups("embedding")) == {(0, 4), (1, 5), (2, 6), (3, 7)}
    assert sets(placement.groups("world")) == {tuple(range(8))}
    assert placement.stage_of.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_k21_context_groups_of_thirty_two_ranks():
    """K21: cp 16, dp 2 on 32 ranks: cp {0..15} {16..31}, dp {i, i+16}."""
    placement = place(cp=16, dp=2)
    assert sets(placement.groups("cp")) == {tuple(range(16)), tuple(range(16, 32))}
    assert sets(placement.groups("dp")) == {(i, i + 16) for i in range(16)}
    assert sets(placement.groups("dp*cp")) == {tuple(range(32))}


def test_another_order_moves_the_axes():
    """Order dp-pp-tp on 8 ranks, by hand: rank = dp + 2 pp + 4 tp. K22: groups then are no runs of ranks."""
    placement = place(tp=2, dp=2, pp=2, order=("dp", "pp", "tp"))
    assert sets(placement.groups("dp")) == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert sets(placement.groups("pp")) == {(0, 2), (1, 3), (4, 6), (5, 7)}
    assert sets(placement.groups("tp")) == {(0, 4), (1, 5), (2, 6), (3, 7)}
    assert placement.stage_of.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_embedding_groups_skip_the_stages_between():
    placement = place(tp=2, pp=4)
    assert sets(placement.groups("embedding")) == {(0, 6), (1, 7)}
    assert placement.group_of("embedding").tolist() == [0, 1, -1, -1, -1, -1, 0, 1]


def test_a_single_stage_holds_both_embeddings():
    """Without a pipeline the first stage is the last: groups of one, which no collective uses."""
    assert sets(place(tp=2).groups("embedding")) == {(0,), (1,)}


def test_k07_ranks_that_hold_copies_of_a_kv_head():
    """K07: 2 kv heads over tp 8 are 4 copies each, on neighbours, since query heads of a kv head are neighbours."""
    placement = place(tp=8, dp=2, kv_heads=2)
    assert placement.kv_copies == 4
    assert sets(placement.groups("tp/kv_copies")) == {(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)}
    assert place(tp=8, kv_heads=8).kv_copies == 1
    assert place(tp=4, kv_heads=32).groups("tp/kv_copies").shape == (4, 1)


def test_k07_tp_that_no_copying_makes_even_is_refused():
    with pytest.raises(InputError, match=r"3 and the model's 2 kv heads"):
        place(tp=3, kv_heads=2).groups("tp/kv_copies")


def test_k15_expert_axis_is_no_factor_of_the_world():
    """K15: world 4, tp 4, ep 4, etp 1 is legal with expert data parallelism 4/(1*4*1) = 1."""
    placement = place(tp=4, ep=4, etp=1)
    assert sets(placement.groups("ep")) == {(0, 1, 2, 3)}
    assert dict(placement.expert)["edp"] == 1
    assert sets(place(pp=2, ep=2, dp=2, etp=1).groups("ep")) == {(0, 1), (2, 3)}


def test_expert_grid_of_a_larger_job():
    """tp 2, dp 4, pp 2, ep 4, etp 1: within a stage of 8 ranks, ep is fastest and edp = 16/(1*4*2) = 2."""
    placement = place(tp=2, dp=4, pp=2, ep=4, etp=1)
    assert sets(placement.groups("ep")) == {(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)}
    assert sets(placement.groups("edp")) == {(i, i + 4) for i in (0, 1, 2, 3, 8, 9, 10, 11)}


def test_an_order_that_tears_stages_apart_is_refused():
    with pytest.raises(InputError, match="grids disagree on stages"):
        place(tp=2, pp=2, dp=2, ep=2, etp=1, order=("tp", "pp", "dp", "ep"))


def test_a_dense_job_needs_no_expert_grid():
    """Under tp-cp-pp-dp the two grids disagree, which only a job with experts has to care about."""
    placement = place(tp=2, cp=2, pp=2, order=("tp", "cp", "pp", "dp", "ep"))
    assert placement.stage_of.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    with pytest.raises(InputError, match="grids disagree on stages"):
        placement.groups("edp")


def test_k11_world_must_be_the_product():
    with pytest.raises(InputError, match=r"4\*1\*2\*1 = 8, but the world is 128"):
        place(tp=4, dp=2, world=128)


def test_an_axis_left_out_of_the_order_is_refused():
    with pytest.raises(InputError, match="leaves out dp, whose degree is 2"):
        place(tp=2, dp=2, order=("tp", "pp"))


def test_no_such_kind():
    with pytest.raises(ValueError, match="no such group kind: ep\\*tp"):
        place(tp=2).groups("tp*ep")


def test_peers_follow_the_pipeline_and_stop_at_its_ends():
    placement = place(tp=2, pp=3)
    assert placement.peer(1).tolist() == [2, 3, 4, 5, -1, -1]
    assert placement.peer(-1).tolist() == [-1, -1, 0, 1, 2, 3]


@given(
    st.sampled_from(sorted(permutations(("tp", "cp", "dp", "pp")))),
    *(st.integers(1, 4) for _ in range(4)),
)
def test_every_order_partitions_the_ranks(order, tp, cp, dp, pp):
    """For any order: each axis's groups hold every rank once, members differ in that axis only, ascending from 0."""
    placement = place(tp=tp, cp=cp, dp=dp, pp=pp, order=(*order, "ep"))
    axes = {axis: placement.coordinate(axis) for axis in ("tp", "cp", "dp", "pp")}
    for kind in ("tp", "cp", "dp", "pp", "dp*cp", "world"):
        rows = placement.groups(kind)
        assert sorted(rows.ravel().tolist()) == list(range(placement.world))
        assert (np.diff(rows[:, 0]) > 0).all()
        inside = set(axes) if kind == "world" else set(kind.split("*"))
        for axis, coordinate in axes.items():
            if axis not in inside:
                assert (coordinate[rows] == coordinate[rows[:, :1]]).all()
        if len(inside) == 1:
            assert (axes[kind][rows] == np.arange(rows.shape[1])).all()
        assert (rows[placement.group_of(kind)] == np.arange(placement.world)[:, None]).any(axis=1).all()
    assert [axis for axis, _ in placement.dense] == list(order)
    radix = np.zeros(placement.world, int)
    for axis, size in reversed(placement.dense):
        radix = radix * size + axes[axis]
    assert (radix == np.arange(placement.world)).all()
