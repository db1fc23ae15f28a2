"""ASTRA-sim's input files and flags as a fabric and a mode, and what has to be said about them. Runs nothing.

Owns which keys count, which ASTRA-sim ignores (a note), and which change its results in a way that is not modelled (a
refusal). Sections in brackets are of ASTRA-sim's semantics as measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracegen.proto.errors import InputError
from tracegen.replay.astra_mode import Mode, RemoteMemory
from tracegen.replay.cells.plan import ASTRA
from tracegen.replay.fabric import Fabric

_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
_NETWORK_KEYS = frozenset({"topology", "npus_count", "bandwidth", "latency"})
_SYSTEM_KEYS = frozenset({
    "endpoint-delay", "active-chunks-per-dimension", "preferred-dataset-splits",
    "collective-optimization", "local-mem-bw", "peak-perf", "roofline-enabled", "replay-only",
    *(f"{name}-implementation" for name in _COLLECTIVES),
})  # fmt: skip
_MEMORY_KEYS = frozenset({
    "memory-type", "remote-mem-latency", "remote-mem-bw", "num-nodes", "num-npus-per-node",
})  # fmt: skip
_POLICIES = ("LIFO", "FIFO", "EXPLICIT")
UNITS = (
    "network.yml's GB/s are read as ASTRA-sim reads them, 2^30 bytes per second (100 means 107.4e9); "
    "local-mem-bw, remote-mem-bw (10^9) and peak-perf (10^12) are decimal"
)


@dataclass(frozen=True)
class Flags:
    """ASTRA-sim's command line beside the files.

    Parameters
    ----------
    congestion : the congestion-aware backend.
    queues : ``--num-queues-per-dim``.
    rendezvous : ``--rendezvous-protocol``.
    injection_scale : ``--injection-scale``, on ``endpoint-delay`` where that key is present.
    """

    congestion: bool = False
    queues: int = 1
    rendezvous: bool = False
    injection_scale: float = 1.0


@dataclass(frozen=True)
class AstraSystem:
    """What ASTRA-sim's files describe, and ``notes`` on keys without effect."""

    fabric: Fabric
    mode: Mode
    notes: tuple[str, ...]


def astra_system(
    network: Mapping[str, Any],
    system: Mapping[str, Any],
    memory: Mapping[str, Any] | None = None,
    flags: Flags | None = None,
) -> AstraSystem:
    """The content of ``network.yml``, ``system.json`` and ``memory.json`` as ASTRA-sim would run it.

    Raises
    ------
    InputError
        What ASTRA-sim exits or aborts on, and keys that change its results and are not modelled.
    """
    given = flags or Flags()
    _refuse_unmodelled(system)
    fabric = Fabric.from_astra(network, system, queues=given.queues, injection_scale=given.injection_scale)
    if fabric.peak_flops and not fabric.memory_bandwidth:
        raise InputError("system.json: roofline-enabled needs local-mem-bw (GB/s), by which ASTRA-sim divides")
    if _switched_on(system, "roofline-enabled") and not fabric.peak_flops:
        raise InputError("system.json: roofline-enabled needs peak-perf (TFLOP/s) above 0")
    mode = Mode(
        congestion=given.congestion,
        rendezvous=given.rendezvous,
        replay_only=_switched_on(system, "replay-only"),
        memory=RemoteMemory.from_astra(memory or {}, fabric.ranks),
    )
    return AstraSystem(fabric, mode, tuple(_notes(network, system, memory or {})))


def _switched_on(system: Mapping[str, Any], key: str) -> bool:
    value = system.get(key, 0)
    if value not in (0, 1):
        raise InputError(f"system.json: {key}: {value!r} must be 0 or 1")
    return bool(value)


def _refuse_unmodelled(system: Mapping[str, Any]) -> None:
    policy = system.get("scheduling-policy", "FIFO")
    if policy not in _POLICIES:
        raise InputError(f"system.json: scheduling-policy: {policy!r} is unknown; use one of {', '.join(_POLICIES)}")
    if _switched_on(system, "model-shared-bus"):
        raise InputError("system.json: model-shared-bus: 1 (the LogGP bus) is not modelled; write 0 or leave it out")
    for key in system:
        if key.endswith("-custom") or "custom-implementation" in key:
            raise InputError(f"system.json: {key}: collectives given as traces are not modelled; use a named algorithm")


def _notes(network: Mapping[str, Any], system: Mapping[str, Any], memory: Mapping[str, Any]) -> Iterable[str]:
    for file, content, used in (
        ("network.yml", network, _NETWORK_KEYS),
        ("system.json", system, _SYSTEM_KEYS),
        ("memory.json", memory, _MEMORY_KEYS),
    ):
        if ignored := sorted(str(key) for key in content if key not in used):
            verb = "has" if len(ignored) == 1 else "have"
            yield f"{file}: {', '.join(ignored)} {verb} no effect on times in ASTRA-sim's analytical backends, nor here"
    if "collective-optimization" not in system:
        yield "system.json: collective-optimization is missing, which ASTRA-sim leaves undefined: localBWAware is used"
    if not system.get("local-mem-bw"):
        yield "system.json: local-mem-bw is missing or 0: reductions cost no time, as in ASTRA-sim's build"


def groups_path(path: str | None, execution: str) -> tuple[str | None, tuple[str, ...]]:
    """The comm-group file to read, if any, and what to say: to ASTRA-sim any path with "empty" in it is none (2.1)."""
    if path is None or "empty" not in path:
        return path, ()
    if not Path(path).exists():
        return None, ()
    if execution != ASTRA:
        return path, (f'--comm-group {path}: ASTRA-sim would not read it, since its path contains "empty"',)
    return None, (
        f'--comm-group {path}: to ASTRA-sim any path that contains "empty" means no groups, so it is not read; '
        "rename it if it is meant",
    )
