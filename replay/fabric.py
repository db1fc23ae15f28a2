"""The network as replay sees it: dimensions, links, how collectives run on them. Reads ASTRA-sim's inputs; no time.

One `Fabric` serves both executions. Bandwidth is bytes per nanosecond, latency nanoseconds, per link and direction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tracegen.proto.errors import InputError
from tracegen.proto.graph import Collective

if TYPE_CHECKING:
    from tracegen.spec.network import Network

GIB = 2**30
RING, SWITCH, FULLY_CONNECTED = "ring", "switch", "fully_connected"
_ASTRA_TOPOLOGY = {"Ring": RING, "Switch": SWITCH, "FullyConnected": FULLY_CONNECTED}
_ASTRA_ALGORITHM = {
    "ring": "ring",
    "direct": "direct",
    "halvingDoubling": "halving_doubling",
    "doubleBinaryTree": "double_binary_tree",
}
_ASTRA_FLAT = {"oneRing": "ring", "oneDirect": "direct", "oneHalvingDoubling": "halving_doubling"}
_ASTRA_KEYS = {
    Collective.ALL_REDUCE: "all-reduce",
    Collective.ALL_GATHER: "all-gather",
    Collective.REDUCE_SCATTER: "reduce-scatter",
    Collective.ALL_TO_ALL: "all-to-all",
}


LARGEST = 1e15  # of any number in system.json: as ns eleven days, as bytes a petabyte; sums stay within 64 bits


class Algorithm(NamedTuple):
    """How a collective runs on one dimension.

    Parameters
    ----------
    name : ring, direct, halving_doubling or double_binary_tree.
    window : messages a direct algorithm keeps in flight; 0 is all n - 1.
    flat : one phase over all ranks as one list, whatever the dimensions (ASTRA-sim's ``one*`` names).
    """

    name: str
    window: int = 0
    flat: bool = False


@dataclass(frozen=True)
class Fabric:
    """Dimensions innermost first, and the rules by which collectives use them.

    Parameters
    ----------
    names, topology, size : per dimension; topology is ring, switch or fully_connected.
    bandwidth : bytes per ns, per link and direction.
    latency : ns per link (a switch crossing pays two).
    algorithms : per collective, one `Algorithm` per dimension.
    splits, active : chunks of a collective, and how many of them a dimension serves at once. 0 splits (ASTRA-sim's
        default) run nothing.
    endpoint_delay_ns : paid at every step of a collective.
    memory_bandwidth : bytes per ns, for ASTRA-sim's reductions (and its roofline); 0 makes reductions free.
    queues : logical queues per dimension (ASTRA-sim).
    bandwidth_aware : ``collective-optimization: localBWAware``.
    peak_flops : FLOP/s of ASTRA-sim's roofline; 0 where it is off and written durations count.
    rated_flops : ``peak-perf`` in FLOP/s, also where the roofline is off; 0 where none is given. `streams` times nodes
        by it that give no duration.
    """

    names: tuple[str, ...]
    topology: tuple[str, ...]
    size: tuple[int, ...]
    bandwidth: tuple[float, ...]
    latency: tuple[float, ...]
    algorithms: Mapping[Collective, tuple[Algorithm, ...]]
    splits: int = 1
    active: int = 1
    endpoint_delay_ns: int = 10
    memory_bandwidth: float = 0.0
    queues: int = 1
    bandwidth_aware: bool = True
    peak_flops: float = 0.0
    rated_flops: float = 0.0

    @property
    def ranks(self) -> int:
        """Product of the dimensions' sizes."""
        return prod(self.size)

    @property
    def dimensions(self) -> int:
        """How many dimensions."""
        return len(self.size)

    def coordinates(self) -> NDArray[np.int32]:
        """Coordinates i32[ranks, dimensions], dimension 0 fastest."""
        return coordinates(self.size)

    def algorithm(self, kind: int) -> tuple[Algorithm, ...]:
        """The algorithm of a collective per dimension; those without their own run as the one they are made of."""
        own = {
            Collective.REDUCE_SCATTER_BLOCK: Collective.REDUCE_SCATTER,
            Collective.BARRIER: Collective.ALL_REDUCE,
        }.get(Collective(kind), Collective(kind))
        return self.algorithms.get(own, ())

    @classmethod
    def from_network(cls, network: Network) -> Fabric:
        """The fabric a spec describes; its bandwidths are decimal bytes per second."""
        rules = network.collectives
        named = {
            Collective.ALL_REDUCE: rules.all_reduce,
            Collective.ALL_GATHER: rules.all_gather,
            Collective.REDUCE_SCATTER: rules.reduce_scatter,
            Collective.ALL_TO_ALL: rules.all_to_all,
        }
        return cls(
            names=tuple(dimension.name for dimension in network.dimensions),
            topology=tuple(dimension.topology for dimension in network.dimensions),
            size=tuple(dimension.size for dimension in network.dimensions),
            bandwidth=tuple(dimension.bandwidth / 1e9 for dimension in network.dimensions),
            latency=tuple(_nanoseconds(dimension.latency) for dimension in network.dimensions),
            algorithms={kind: tuple(Algorithm(name) for name in names) for kind, names in named.items()},
            splits=rules.splits,
            active=rules.active,
            endpoint_delay_ns=round(rules.endpoint_delay * 1e9),
        )

    @classmethod
    def from_astra(
        cls, network: Mapping[str, Any], system: Mapping[str, Any], *, queues: int = 1, injection_scale: float = 1.0
    ) -> Fabric:
        """The fabric ASTRA-sim reads: network GB/s are GiB/s, ``local-mem-bw`` is decimal GB/s.

        Parameters
        ----------
        network, system : content of ``network.yml`` and ``system.json``.
        queues : ``--num-queues-per-dim``.
        injection_scale : ``--injection-scale``, a factor on ``endpoint-delay`` where that key is present.

        Raises
        ------
        InputError
            Lists of unequal length, an unknown topology or algorithm, a number out of range.
        """
        size, topology, bandwidth, latency = _network_lists(network)
        algorithms = {}
        for kind, key in _ASTRA_KEYS.items():
            given = system.get(f"{key}-implementation")
            if given is not None:
                algorithms[kind] = _implementations(f"{key}-implementation", given, len(size))
        if not 0 <= injection_scale <= LARGEST:
            raise InputError(f"--injection-scale {injection_scale:g} must be a number from 0 to {LARGEST:g}")
        delay = int(_number(system, "endpoint-delay", 10))
        if "endpoint-delay" in system:
            delay = int(min(delay * injection_scale, LARGEST))
        rated = _number(system, "peak-perf", 0) * 1e12
        return cls(
            names=tuple(f"dim{d}" for d in range(len(size))),
            topology=topology,
            size=size,
            bandwidth=tuple(b * GIB / 1e9 for b in bandwidth),
            latency=latency,
            algorithms=algorithms,
            splits=int(_number(system, "preferred-dataset-splits", 0)),
            active=_positive(system, "active-chunks-per-dimension", 1),
            endpoint_delay_ns=delay,
            memory_bandwidth=_number(system, "local-mem-bw", 0),
            queues=queues,
            bandwidth_aware=_optimization(system),
            peak_flops=rated if _number(system, "roofline-enabled", 0) else 0.0,
            rated_flops=rated,
        )


def _nanoseconds(seconds: float) -> float:
    """Seconds as written in ns: 5e-7 is 500, which the product in binary is not."""
    return float(Decimal(repr(seconds)) * 10**9)


def coordinates(size: Sequence[int]) -> NDArray[np.int32]:
    """Mixed radix of every rank's number, first dimension fastest: i32[ranks, dimensions]."""
    ranks = np.arange(prod(size))
    out = np.zeros((len(ranks), len(size)), np.int32)
    for d, n in enumerate(size):
        out[:, d] = ranks % n
        ranks = ranks // n
    return out


def read_network(path: str | Path) -> dict[str, Any]:
    """Content of an ASTRA-sim ``network.yml``."""
    try:
        content = YAML(typ="safe").load(Path(path))
    except OSError as why:
        raise InputError(f"{path}: {why.strerror}") from None
    except (YAMLError, UnicodeDecodeError) as why:
        raise InputError(f"{path}: not YAML: {str(why).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise InputError(
            f"{path}: expected keys topology, npus_count, bandwidth, latency; found {type(content).__name__}"
        )
    return content


def read_system(path: str | Path) -> dict[str, Any]:
    """Content of an ASTRA-sim ``system.json`` (or of another JSON file of keys)."""
    try:
        content = json.loads(Path(path).read_text())
    except OSError as why:
        raise InputError(f"{path}: {why.strerror}") from None
    except ValueError as why:
        raise InputError(f"{path}: not JSON: {why}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object of keys, found {type(content).__name__}")
    return content


def refuse_other_size(fabric: Fabric, ranks: int) -> None:
    """Refuse traces whose rank count is not the network's.

    Raises
    ------
    InputError
        With both numbers.
    """
    if fabric.ranks != ranks:
        dims = " x ".join(map(str, fabric.size)) or "1"
        raise InputError(
            f"the traces have {ranks} ranks, the network {dims} = {fabric.ranks}; "
            f"give a network whose sizes multiply to {ranks}"
        )


def _network_lists(
    network: Mapping[str, Any],
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Size, topology, bandwidth and latency of ``network.yml``, checked against each other."""
    lists: dict[str, list[Any]] = {}
    for key in ("npus_count", "topology", "bandwidth", "latency"):
        if key not in network:
            raise InputError(f"network.yml: {key} is missing")
        value = network[key]
        lists[key] = list(value) if isinstance(value, (list, tuple)) else [value]
    dims = len(lists["npus_count"])
    for key, values in lists.items():
        if len(values) != dims:
            raise InputError(f"network.yml: {key} has {len(values)} entries, npus_count has {dims}; give {dims}")
    for name in lists["topology"]:
        if name not in _ASTRA_TOPOLOGY:
            raise InputError(f"network.yml: topology {name!r} is unknown; use one of {', '.join(_ASTRA_TOPOLOGY)}")
    for key, least in (("npus_count", 2), ("bandwidth", 0), ("latency", 0)):
        for value in lists[key]:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InputError(f"network.yml: {key}: {value!r} is not a number")
            if value < least or (key == "bandwidth" and value == 0):
                raise InputError(
                    f"network.yml: {key}: {value} is below {least}" + (" or 0" if key == "bandwidth" else "")
                )
    if any(int(n) != n for n in lists["npus_count"]):
        raise InputError(f"network.yml: npus_count {lists['npus_count']} must be whole numbers")
    return (
        tuple(int(n) for n in lists["npus_count"]),
        tuple(_ASTRA_TOPOLOGY[name] for name in lists["topology"]),
        tuple(float(b) for b in lists["bandwidth"]),
        tuple(float(x) for x in lists["latency"]),
    )


def _implementations(key: str, given: Any, dims: int) -> tuple[Algorithm, ...]:
    """One algorithm per dimension from a system.json list.

    A shorter list is refused where a collective over all dimensions uses it; groups may run by a list of one.
    """
    names = [given] if isinstance(given, str) else list(given)
    found = tuple(_algorithm(key, str(name)) for name in names)
    if any(one.flat for one in found):
        if len(found) != 1:
            raise InputError(
                f"system.json: {key}: {names[0]} runs over all ranks and stands alone; {len(found)} are given"
            )
        return found
    if len(found) > dims:
        raise InputError(f"system.json: {key} has {len(found)} entries, the network {dims} dimensions; give {dims}")
    return found


def _algorithm(key: str, name: str) -> Algorithm:
    stem = name.rstrip("0123456789")
    window = int(name[len(stem) :] or 0)
    if stem in _ASTRA_FLAT and (not window or stem == "oneDirect"):
        return Algorithm(_ASTRA_FLAT[stem], window, flat=True)
    if stem not in _ASTRA_ALGORITHM or (window and stem != "direct"):
        known = ", ".join([*_ASTRA_ALGORITHM, *_ASTRA_FLAT])
        raise InputError(f"system.json: {key}: {name!r} is unknown; use one of {known}")
    return Algorithm(_ASTRA_ALGORITHM[stem], window)


def _optimization(system: Mapping[str, Any]) -> bool:
    given = system.get("collective-optimization", "localBWAware")
    if given not in ("localBWAware", "baseline"):
        raise InputError(f"system.json: collective-optimization: {given!r} is unknown; use baseline or localBWAware")
    return bool(given == "localBWAware")


def _number(system: Mapping[str, Any], key: str, default: float) -> float:
    value = system.get(key, default)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise InputError(f"system.json: {key}: {value!r} is not a number") from None
    if not isinstance(value, (int, float)) or not 0 <= value <= LARGEST:
        raise InputError(f"system.json: {key}: {value!r} must be a number from 0 to {LARGEST:g}")
    return float(value)


def _positive(system: Mapping[str, Any], key: str, default: int) -> int:
    value = int(_number(system, key, default))
    if value < 1:
        raise InputError(f"system.json: {key}: {value} must be 1 or more")
    return value
