"""How a job is split over ranks: the degrees of every axis, their order, and the stages. Knows no ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tracegen.spec.units import Degree, Frozen, shown

Axis = Literal["tp", "cp", "ep", "dp", "pp"]
AXES: tuple[Axis, ...] = ("tp", "cp", "ep", "dp", "pp")


def _stages(value: object) -> object:
    if isinstance(value, tuple | list):
        return tuple(_layers(layers, stage, len(value)) for stage, layers in enumerate(value))
    if value in ("balanced", "even"):
        return value
    legal = "none of balanced, even, or a list of layers per stage like [20, 20, 20, 20]"
    raise ValueError(f"{shown(value)} is {legal}")


def _layers(value: object, stage: int, stages: int) -> int:
    """Layers of one stage; the line names the stage, which a union's error does not."""
    which = f"stage {stage} (of 0 to {stages - 1})" if stages > 1 else "stage 0"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{which}: layers must be a whole number, not {shown(value)}")
    if value < 1:
        raise ValueError(f"{which} has {value} layers; at least 1")
    return value


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
        Literal["balanced", "even"] | tuple[int, ...],
        Field(union_mode="left_to_right"),
        BeforeValidator(_stages),
    ] = "balanced"

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp
