"""The network of a job: dimensions, what runs over them, and the same as ASTRA-sim's input files.

Owns the sizes' arithmetic and the choice of an algorithm per dimension. Knows nothing of devices or parallelism;
`replay` imports this module and `units` of `spec` and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tracegen.spec.units import Bandwidth, Count, Degree, Frozen, Label, Seconds, Word, wrong

Topology = Literal["ring", "switch", "fully_connected"]
Algorithm = Literal["auto", "ring", "direct", "halving_doubling", "double_binary_tree"]

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""The collectives whose algorithm a network chooses."""

_ABLE = {"all_reduce": 5, "all_to_all": 3}
"""How many of the algorithms, in their order, can run a collective; 4 the others."""
_AUTO = {"ring": "ring", "switch": "ring", "fully_connected": "direct"}
_ASTRA_TOPOLOGY = {"ring": "Ring", "switch": "Switch", "fully_connected": "FullyConnected"}
_ASTRA_ALGORITHM = {
    "ring": "ring",
    "direct": "direct",
    "halving_doubling": "halvingDoubling",
    "double_binary_tree": "doubleBinaryTree",
}


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Algorithms = Annotated[tuple[Algorithm, ...], BeforeValidator(_listed)]
"""One algorithm for all dimensions, or one per dimension."""


class Dimension(Frozen):
    """One dimension of the network.

    Parameters
    ----------
    size : ranks along it.
    bandwidth : bytes/s per link and direction (DEFINITIONS 3).
    latency : s per link; a switch crossing pays two.
    """

    name: Word
    topology: Topology
    size: Degree
    bandwidth: Bandwidth
    latency: Seconds


class Collectives(Frozen):
    """How collectives run: an algorithm per dimension and kind, and the chunking.

    Parameters
    ----------
    splits : chunks that a collective is cut into.
    active : chunks in service at once per dimension.
    endpoint_delay : s, a whole number of ns, paid once per step.
    """

    all_reduce: Algorithms = ("auto",)
    all_gather: Algorithms = ("auto",)
    reduce_scatter: Algorithms = ("auto",)
    all_to_all: Algorithms = ("auto",)
    splits: Annotated[Count, Field(le=4096)] = 4
    active: Annotated[Count, Field(le=4096)] = 1
    endpoint_delay: Seconds = 10e-9

    @model_validator(mode="after")
    def _can(self) -> Self:
        """Refuse an algorithm that cannot run a collective."""
        for kind in KINDS:
            legal = ("auto", "ring", "direct", "halving_doubling", "double_binary_tree")[: _ABLE.get(kind, 4)]
            for algorithm in self.of(kind):
                if algorithm not in legal:
                    only = "all-reduces only" if algorithm == "double_binary_tree" else f"has no {kind}"
                    raise wrong(kind, f"{algorithm} {only}; legal: {', '.join(legal)}")
        return self

    def of(self, kind: str) -> tuple[str, ...]:
        """The algorithms of one of `KINDS`."""
        return tuple(getattr(self, kind))


class Network(Frozen):
    """Dimensions, innermost first, and resolved collectives (one algorithm per dimension, none ``auto``).

    A network of no dimensions is that of a job of one rank.
    """

    name: Label = "inline"
    source: str = ""
    dimensions: Annotated[tuple[Dimension, ...], Field(max_length=16)] = ()
    collectives: Collectives = Collectives()

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Expand what was written to one algorithm per dimension, on any way a network is made."""
        resolved = {kind: self._algorithms(kind) for kind in KINDS}
        object.__setattr__(self, "collectives", self.collectives.model_copy(update=resolved))
        return self

    def _algorithms(self, kind: str) -> tuple[str, ...]:
        written = self.collectives.of(kind)
        count = len(self.dimensions)
        if len(written) == 1:
            written = written * count
        if len(written) != count:
            raise wrong(f"collectives.{kind}", f"lists {len(written)} algorithms for {count} dimensions; list {count}")
        pairs = zip(written, self.dimensions, strict=True)
        return tuple(_AUTO[dim.topology] if name == "auto" else name for name, dim in pairs)

    @property
    def ranks(self) -> int:
        """Product of the sizes."""
        return prod(dim.size for dim in self.dimensions)

    def sized(self, sizes: Sequence[int]) -> Network:
        """The same network with these sizes; dimensions of 1 are dropped, and their algorithms with them."""
        kept = [index for index, size in enumerate(sizes) if size > 1]
        dims = tuple(self.dimensions[index].model_copy(update={"size": sizes[index]}) for index in kept)
        chosen = {kind: tuple(self.collectives.of(kind)[index] for index in kept) for kind in KINDS}
        collectives = self.collectives.model_copy(update=chosen)
        return self.model_copy(update={"dimensions": dims, "collectives": collectives})


def fill(inner: Sequence[int], world: int) -> list[int] | tuple[int, int]:
    """Sizes of a cluster for ``world`` ranks: each inner dimension its own or what is left, the last takes the rest.

    Parameters
    ----------
    inner : sizes of all dimensions but the last, innermost first.

    Returns
    -------
    The sizes of all dimensions; or, where the world does not divide, the nearest smaller and larger world that do.
    """
    if sizes := _fitted(inner, world):
        return sizes
    low, high = world - 1, world + 1
    while not _fitted(inner, low):
        low -= 1
    while not _fitted(inner, high):
        high += 1
    return low, high


def _fitted(inner: Sequence[int], world: int) -> list[int]:
    """The sizes, or none where the world does not divide."""
    sizes, left = [], world
    for size in inner:
        take = min(size, left)
        if left % take:
            return []
        sizes.append(take)
        left //= take
    return [*sizes, left]


def problems(network: Network) -> list[tuple[str, str]]:
    """What is wrong with a network of known sizes: (key below ``network``, message) each."""
    found = []
    for kind in KINDS:
        for dim, algorithm in zip(network.dimensions, network.collectives.of(kind), strict=True):
            if algorithm == "halving_doubling" and dim.size & (dim.size - 1):
                low = 1 << (dim.size.bit_length() - 1)
                why = f"needs a power of two, dimension {dim.name} has size {dim.size}; nearest {low} and {low * 2}"
                found.append((f"collectives.{kind}", f"halving_doubling {why}"))
    names = [dim.name for dim in network.dimensions]
    for name in sorted({name for name in names if names.count(name) > 1}):
        found.append(("dimensions", f"two dimensions are called {name}; rename one"))
    delay_ns = Decimal(repr(network.collectives.endpoint_delay)) * 10**9
    if delay_ns != int(delay_ns):
        why = f"{float(delay_ns):g} ns is no whole number of ns; nearest {int(delay_ns)} or {int(delay_ns) + 1} ns"
        found.append(("collectives.endpoint_delay", why))
    return found


@dataclass(frozen=True)
class AstraInputs:
    """Contents of ASTRA-sim's network.yml, system.json and memory.json, as plain data."""

    network: dict[str, Any]
    system: dict[str, Any]
    memory: dict[str, Any]


def astra_inputs(network: Network, memory_bandwidth: float | None) -> AstraInputs:
    """The network as ASTRA-sim reads it.

    Parameters
    ----------
    memory_bandwidth : bytes/s of the device's memory, None where unknown (``local-mem-bw`` is left out then).

    Notes
    -----
    ASTRA-sim's bandwidth "GB/s" is 2^30 bytes/s: 50 GB/s is written 46.566128730773926, every digit. Its
    ``local-mem-bw`` is decimal. ``roofline-enabled: 0`` makes it use the traces' durations.
    """
    dims = network.dimensions
    system: dict[str, Any] = {
        "scheduling-policy": "FIFO",
        "endpoint-delay": int(_nanoseconds(network.collectives.endpoint_delay)),
        "active-chunks-per-dimension": network.collectives.active,
        "preferred-dataset-splits": network.collectives.splits,
    }
    for kind in KINDS:
        key = kind.replace("_", "-") + "-implementation"
        system[key] = [_ASTRA_ALGORITHM[name] for name in network.collectives.of(kind)]
    system["collective-optimization"] = "localBWAware"
    if memory_bandwidth is not None:
        system["local-mem-bw"] = memory_bandwidth / 1e9
    system["roofline-enabled"] = 0
    return AstraInputs(
        network={
            "topology": [_ASTRA_TOPOLOGY[dim.topology] for dim in dims],
            "npus_count": [dim.size for dim in dims],
            "bandwidth": [dim.bandwidth / 2**30 for dim in dims],
            "latency": [_nanoseconds(dim.latency) for dim in dims],
        },
        system=system,
        memory={"memory-type": "NO_MEMORY_EXPANSION"},
    )


def _nanoseconds(seconds: float) -> float:
    """Seconds in ns, as the decimal that was written: 1.1e-06 gives 1100.0."""
    return float(Decimal(repr(seconds)) * 10**9)
