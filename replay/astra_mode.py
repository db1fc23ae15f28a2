"""What ASTRA-sim's flags, the choice of backend and ``memory.json`` add to a `Fabric`. No time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracegen.proto.errors import InputError


@dataclass(frozen=True)
class RemoteMemory:
    """ASTRA-sim's remote memory: a request takes latency + floor(size / bandwidth), both whole numbers (2.4).

    Parameters
    ----------
    ranks_per_pool : how many ranks share one that serves one request at a time; 0: every rank has its own, no queue.
    latency_ns, bandwidth : ns; bytes per ns.
    """

    ranks_per_pool: int
    latency_ns: int
    bandwidth: int

    @classmethod
    def from_astra(cls, memory: Mapping[str, Any], ranks: int) -> RemoteMemory | None:
        """From the content of ``memory.json``; None without remote memory.

        Raises
        ------
        InputError
            An unknown type or a bandwidth below 1.
        """
        kind = memory.get("memory-type", "NO_MEMORY_EXPANSION")
        shared = {"PER_NPU_MEMORY_EXPANSION": 0, "PER_NODE_MEMORY_EXPANSION": 1, "MEMORY_POOL": ranks}
        if kind == "NO_MEMORY_EXPANSION":
            return None
        if kind not in shared:
            raise InputError(
                f"memory.json: memory-type {kind!r} is unknown; use NO_MEMORY_EXPANSION, {', '.join(shared)}"
            )
        together = shared[kind]
        if kind == "PER_NODE_MEMORY_EXPANSION":
            together = _whole(memory, "num-npus-per-node", least=1)
        return cls(together, _whole(memory, "remote-mem-latency", least=0), _whole(memory, "remote-mem-bw", least=1))


def _whole(memory: Mapping[str, Any], key: str, *, least: int) -> int:
    value = memory.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) < least:
        raise InputError(f"memory.json: {key}: {value!r} must be a number of {least} or more (fractions are cut off)")
    return int(value)


@dataclass(frozen=True)
class Mode:
    """What ASTRA-sim's flags and the choice of backend add to a fabric.

    Parameters
    ----------
    congestion : the congestion-aware backend (one dimension; FIFO links, whole messages stored and forwarded).
    rendezvous : ``--rendezvous-protocol``.
    replay_only : ``replay-only``: every node lasts its written duration, communication included.
    memory : remote memory, for memory nodes.
    """

    congestion: bool = False
    rendezvous: bool = False
    replay_only: bool = False
    memory: RemoteMemory | None = None
