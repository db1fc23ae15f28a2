"""How a job is split over ranks: the degrees of every axis, their order, and the stages. Knows no ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tracegen.spec.units import Count, Degree, Frozen

Axis = Literal["tp", "cp", "ep", "dp", "pp"]
AXES: tuple[Axis, ...] = ("tp", "cp", "ep", "dp", "pp")


def _stages(value: object) -> object:
    if isinstance(value, tuple | list):
        return tuple(value)
    if value in ("balanced", "even"):
        return value
    raise ValueError(f"{value!r} is none of balanced, even, or a list of layers per stage like [20, 20, 20, 20]")


class Parallelism(Frozen):
    """Degrees of the axes; world = tp·cp·dp·pp (DEFINITIONS 1).

    Parameters
    ----------
    ep, etp : degrees of the expert grid etp·ep·edp·pp = world; they never multiply the world.
    vpp : chunks per stage (interleaving).
    sp : sequence parallelism inside the tp group.
    order : axes, fastest first; ep and edp are placed in the expert grid by it, etp where tp is.
    stages : ``balanced`` (least largest stage time), ``even`` (extra layers first), or layers per stage.
    """

    tp: Degree = 1
    cp: Degree = 1
    ep: Degree = 1
    dp: Degree = 1
    pp: Degree = 1
    etp: Degree = 1
    vpp: Degree = 1
    sp: bool = False
    order: tuple[Axis, ...] = AXES
    stages: Annotated[
        Literal["balanced", "even"] | tuple[Count, ...],
        Field(union_mode="left_to_right"),
        BeforeValidator(_stages),
    ] = "balanced"

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp
