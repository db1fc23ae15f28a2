"""Which rank sits where: the map between rank numbers and axis coordinates, and every group of ranks it implies.

Owns the two grids of a job (dense tp cp dp pp, expert etp ep edp pp) and what a group kind means. Does not know what
the groups are used for, how a network lays out ranks, or whether the degrees suit a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.errors import InputError

if TYPE_CHECKING:
    from tracegen.spec.parallelism import Parallelism

DENSE = ("tp", "cp", "dp", "pp")
EXPERT = ("etp", "ep", "edp", "pp")
# Where an axis of the dense grid has a counterpart in the expert grid, the counterpart takes its place in the order.
_COUNTERPART = {"tp": "etp", "dp": "edp", "ep": "ep", "pp": "pp"}

Grid = tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class Placement:
    """The coordinates of every rank, and its groups.

    Parameters
    ----------
    world : ranks in all.
    dense, expert : axes and sizes of the two grids, fastest first. Both products are ``world``.
    kv_heads : key/value heads of the model; needed for ``tp/kv_copies`` only.
    """

    world: int
    dense: Grid
    expert: Grid
    kv_heads: int | None = None

    @classmethod
    def of(cls, parallelism: Parallelism, world: int, kv_heads: int | None = None) -> Placement:
        """Place ``world`` ranks by ``parallelism``.

        Raises
        ------
        InputError
            The degrees do not multiply to ``world``, the order leaves out an axis, or (with ep above 1) the two grids
            disagree on which ranks form a stage.
        """
        degrees = {axis: int(getattr(parallelism, axis)) for axis in ("tp", "cp", "ep", "dp", "pp", "etp")}
        product = prod(degrees[axis] for axis in DENSE)
        if product != world:
            sizes = "*".join(str(degrees[axis]) for axis in DENSE)
            raise InputError(f"parallelism: tp*cp*dp*pp = {sizes} = {product}, but the world is {world} ranks")
        inner = degrees["etp"] * degrees["ep"] * degrees["pp"]
        if world % inner:
            raise InputError(
                f"parallelism: etp*ep*pp = {degrees['etp']}*{degrees['ep']}*{degrees['pp']} = {inner} "
                f"does not divide the world of {world} ranks"
            )
        degrees["edp"] = world // inner
        order = _whole(parallelism.order, degrees)
        dense: Grid = tuple((axis, degrees[axis]) for axis in order if axis in DENSE)
        expert: Grid = tuple((twin, degrees[twin]) for twin in map(_COUNTERPART.get, order) if twin is not None)
        placement = cls(world, dense, expert, kv_heads)
        if degrees["ep"] > 1:
            placement._grid({"ep"})
        return placement

    @property
    def stages(self) -> int:
        """How many pipeline stages."""
        return dict(self.dense)["pp"]

    @property
    def stage_of(self) -> NDArray[np.int32]:
        """i32[ranks]: the pipeline stage of every rank."""
        return self.coordinate("pp")

    def coordinate(self, axis: str) -> NDArray[np.int32]:
        """i32[ranks]: every rank's coordinate on an axis."""
        stride, size = _stride(self._grid({axis}), axis)
        return (np.arange(self.world, dtype=np.int32) // stride % size).astype(np.int32)

    def groups(self, kind: str) -> NDArray[np.int32]:
        """The groups of a kind.

        Parameters
        ----------
        kind : an axis (``tp``), a product of axes of one grid (``dp*cp``), ``tp/kv_copies`` (the tp ranks that hold
            the same key/value head), ``embedding`` (first and last stage, otherwise equal coordinates) or ``world``.

        Returns
        -------
        i32[groups, size]: rows ascend by their first rank, and a row follows the axes from the fastest. Every rank is
        in exactly one row; for ``embedding`` every rank of the first and the last stage.

        Raises
        ------
        ValueError
            No such kind.
        InputError
            The kind needs the expert grid, and the order makes it disagree with the dense grid on stages.
        """
        if kind == "world":
            return self._rows({axis for axis, _ in self.dense})
        if kind == "embedding":
            pipelines = self._rows({"pp"})
            return pipelines[:, [0, -1]] if self.stages > 1 else pipelines
        if kind == "tp/kv_copies":
            return self._rows({"tp"}).reshape(-1, self.kv_copies)
        return self._rows(set(kind.split("*")))

    def group_of(self, kind: str) -> NDArray[np.int32]:
        """i32[ranks]: the row of ``groups(kind)`` that holds each rank, -1 where none does."""
        rows = self.groups(kind)
        row_of = np.full(self.world, -1, np.int32)
        row_of[rows] = np.arange(len(rows), dtype=np.int32)[:, None]
        return row_of

    def peer(self, delta: int) -> NDArray[np.int32]:
        """i32[ranks]: the rank ``delta`` stages further with otherwise equal coordinates, -1 beyond the ends."""
        stride, size = _stride(self.dense, "pp")
        there = self.stage_of + delta
        rank = np.arange(self.world, dtype=np.int32) + np.int32(delta * stride)
        return np.where((there >= 0) & (there < size), rank, -1).astype(np.int32)

    @property
    def kv_copies(self) -> int:
        """On how many tp ranks each key/value head lies: 1 while there are at least as many heads as tp ranks."""
        if self.kv_heads is None:
            raise ValueError("tp/kv_copies needs the number of key/value heads")
        tp = dict(self.dense)["tp"]
        if max(tp, self.kv_heads) % min(tp, self.kv_heads):
            raise InputError(f"parallelism.tp: {tp} and the model's {self.kv_heads} kv heads do not divide one another")
        return max(1, tp // self.kv_heads)

    def _rows(self, axes: set[str]) -> NDArray[np.int32]:
        """Ranks that differ in these axes only, a row each."""
        grid = self._grid(axes)[::-1]  # slowest first, as numpy counts
        sizes = [size for _, size in grid]
        outer = [i for i, (axis, _) in enumerate(grid) if axis not in axes]
        inner = [i for i, (axis, _) in enumerate(grid) if axis in axes]
        ranks = np.arange(self.world, dtype=np.int32).reshape(sizes).transpose(outer + inner)
        return np.ascontiguousarray(ranks.reshape(-1, prod(sizes[i] for i in inner)))

    def _grid(self, axes: set[str]) -> Grid:
        """The grid that has all these axes."""
        if axes <= set(DENSE):
            return self.dense
        if not axes <= set(EXPERT):
            raise ValueError(f"no such group kind: {'*'.join(sorted(axes))}")
        (dense_stride, _), (expert_stride, size) = _stride(self.dense, "pp"), _stride(self.expert, "pp")
        if size > 1 and dense_stride != expert_stride:
            order = ", ".join(axis for axis, _ in self.dense)
            raise InputError(
                f"parallelism.order: under the order {order}, neighbours in a pipeline are {dense_stride} ranks apart "
                f"in the dense grid but {expert_stride} in the expert grid: the grids disagree on stages; put pp last"
            )
        return self.expert


def _stride(grid: Grid, axis: str) -> tuple[int, int]:
    """How far apart neighbours on an axis are, and how many there are."""
    names = [name for name, _ in grid]
    at = names.index(axis)
    return prod(size for _, size in grid[:at]), grid[at][1]


def _whole(order: tuple[str, ...], degrees: dict[str, int]) -> tuple[str, ...]:
    """The order with the axes of degree 1 that it leaves out added at its end, where they change nothing."""
    missing = [axis for axis in ("tp", "cp", "ep", "dp", "pp") if axis not in order]
    needed = [axis for axis in missing if degrees[axis] > 1]
    if needed:
        axis = needed[0]
        raise InputError(f"parallelism.order: {', '.join(order)} leaves out {axis}, whose degree is {degrees[axis]}")
    return (*(axis for axis in order if axis != "etp"), *missing)
