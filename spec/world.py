"""How many ranks a job has, and the network's sizes for them: what the spec leaves out is inferred, and said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tracegen.spec.network import Network, fill, problems
from tracegen.spec.parallelism import Parallelism
from tracegen.spec.rules import Problem, multiples

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Inferred(Generic[_Value]):
    """A value with what was inferred on the way, and what is wrong with it."""

    value: _Value
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def split(p: Parallelism, dp_given: bool, gpus: int, network: Network | None, is_open: bool) -> Inferred[Parallelism]:
    """The split with ``dp`` known: as given, or what ``gpus`` or the network's ranks leave for it.

    Parameters
    ----------
    gpus : 0 where the spec leaves it out.
    network : None where the spec leaves it out; ``is_open`` where its outermost dimension has no size yet.
    """
    others = p.tp * p.cp * p.pp
    degrees = f"tp {p.tp} · cp {p.cp} · pp {p.pp}"
    if dp_given:
        product = f"tp {p.tp} · cp {p.cp} · dp {p.dp} · pp {p.pp} = {p.world}"
        if gpus and p.world != gpus:
            fix = f"nearest dp {gpus // others}" if gpus % others == 0 else f"nearest gpus {p.world}"
            return Inferred(p, problems=(("gpus", f"{product}, but gpus is {gpus}; {fix}"),))
        return Inferred(p, () if gpus else (f"gpus {p.world} inferred: {product}",))
    sized = network is not None and not is_open and network.dimensions
    key, what, ranks = "gpus", "gpus", gpus
    if not gpus and network is not None and sized:
        key, what, ranks = "network.dimensions", "the network's ranks", network.ranks
    if not ranks:
        return Inferred(p, (f"gpus {others} inferred: {degrees} · dp 1 (dp and gpus are left out)",))
    if ranks % others:
        why = f"{what} {ranks} does not divide by {degrees} = {others}; {multiples(ranks, others)}"
        return Inferred(p, problems=((key, why),))
    dp = ranks // others
    said = (f"dp {dp} inferred: {what} {ranks} / ({degrees})",) if ranks > 1 else ()
    return Inferred(p.model_copy(update={"dp": dp}), said)


def shape(network: Network | None, is_open: bool, world: int) -> Inferred[Network]:
    """The network with every size known, dimensions of 1 dropped, and its own rules checked."""
    if network is None:
        said = f"is missing; a job of {world} ranks needs one: name a cluster or give dimensions"
        return Inferred(Network(name="none"), problems=() if world == 1 else (("network", said),))
    found = _filled(network, world) if is_open else _closed(network, world)
    if found.problems:
        return found
    wrong = tuple((f"network.{key}", message) for key, message in problems(found.value))
    return Inferred(found.value, found.notes, wrong)


def _filled(network: Network, world: int) -> Inferred[Network]:
    inner = [dim.size for dim in network.dimensions[:-1]]
    sizes = fill(inner, world)
    if isinstance(sizes, tuple):
        nearest = " or ".join(map(str, sizes))
        shown = " · ".join(map(str, inner))
        why = f"a world of {world} does not divide by {network.name}'s inner sizes {shown}; nearest {nearest}"
        return Inferred(network, problems=(("network", why),))
    network = network.sized(sizes)
    shown = " · ".join(f"{dim.name} {dim.size}" for dim in network.dimensions) or "no dimension"
    return Inferred(network, (f"network {network.name} for {world} ranks: {shown}",))


def _closed(network: Network, world: int) -> Inferred[Network]:
    sizes = [dim.size for dim in network.dimensions]
    if network.ranks == world:
        return Inferred(network.sized(sizes))
    shown = " · ".join(map(str, sizes)) or "of no dimension"
    why = f"sizes {shown} = {network.ranks} ranks, the world is {world}"
    inner = network.ranks // sizes[-1] if sizes else 0
    if inner and world % inner == 0:
        why += f"; nearest: {network.dimensions[-1].name} size {world // inner}"
    return Inferred(network, problems=(("network.dimensions", why),))
