"""A private folder from which ASTRA-sim runs: its inputs under short relative names, around its traps.

Owns what stands in that folder. Nothing the user gave is changed: `system.json` is copied with the node log switched
on, traces are linked where ASTRA-sim can open them and copied where it cannot (it opens them for appending and reads no
gzip), and relative names keep the word "empty", which switches groups off, out of the path of the groups.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tracegen.proto.chakra_json import is_chakra_json, trace_bytes
from tracegen.proto.errors import InputError, RunError

_GZIP = b"\x1f\x8b"
_SAMPLE = 1 << 16  # bytes that tell a JSON dump
_NO_MEMORY = {"memory-type": "NO_MEMORY_EXPANSION"}
LOGS = "log"


class Inputs(NamedTuple):
    """ASTRA-sim's input files as the user named them; ``memory`` and ``comm_group`` may be missing."""

    network: Path
    system: Path
    memory: Path | None = None
    comm_group: Path | None = None


def prepare(folder: Path, traces: Sequence[Path], inputs: Inputs, *, node_log: bool) -> tuple[list[str], list[str]]:
    """Fill the folder.

    Parameters
    ----------
    traces : the file of each rank, in order.
    node_log : switch ``trace-enabled`` on, which logs the start and end of every node.

    Returns
    -------
    The arguments that name the files, and lines worth telling.

    Raises
    ------
    InputError
        A file that cannot be read, or a system file that is not JSON.
    """
    (folder / LOGS).mkdir()
    _copy(inputs.network, folder / "network.yml")
    system = _system(inputs.system)
    if node_log:
        system["trace-enabled"] = 1
    (folder / "system.json").write_text(json.dumps(system), encoding="utf-8")
    if inputs.memory is None:
        (folder / "memory.json").write_text(json.dumps(_NO_MEMORY), encoding="utf-8")
    else:
        _copy(inputs.memory, folder / "memory.json")
    arguments = [
        "--workload-configuration=trace",
        "--system-configuration=system.json",
        "--network-configuration=network.yml",
        "--remote-memory-configuration=memory.json",
        f"--logging-folder={LOGS}",
    ]
    if inputs.comm_group is None:
        arguments.append("--comm-group-configuration=empty")
    else:
        _copy(inputs.comm_group, folder / "comm_group.json")
        arguments.append("--comm-group-configuration=comm_group.json")
    return arguments, _bring_traces(folder, traces)


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as why:
        if why.filename2 is not None or str(why.filename) == str(target):
            raise RunError(f"{target}: {why.strerror}") from None
        raise InputError(f"{source}: cannot be read ({why.strerror})") from None


def _system(path: Path) -> dict[str, object]:
    try:
        system = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as why:
        raise InputError(f"{path}: cannot be read ({why.strerror})") from None
    except ValueError as why:
        raise InputError(f"{path}: not JSON ({why})") from None
    if not isinstance(system, dict):
        raise InputError(f"{path}: a JSON object is needed, this is a {type(system).__name__}")
    return system


def _bring_traces(folder: Path, traces: Sequence[Path]) -> list[str]:
    """Link each trace, or copy the ones that ASTRA-sim could not open or read; returns what to tell."""
    copied = changed = 0
    for rank, source in enumerate(traces):
        target = folder / f"trace.{rank}.et"
        try:
            with source.open("rb") as file:
                sample = file.read(_SAMPLE)
            if sample.startswith(_GZIP) or is_chakra_json(sample):
                changed += 1
                _write_plain(source, target, packed=sample.startswith(_GZIP))
            elif os.access(source, os.W_OK):
                target.symlink_to(source.resolve())
            else:
                copied += 1
                shutil.copyfile(source, target)
        except (EOFError, zlib.error, gzip.BadGzipFile) as why:
            raise InputError(f"{source}: not a whole gzip file ({why})") from None
        except OSError as why:
            raise InputError(f"{source}: cannot be handed to ASTRA-sim ({why.strerror})") from None
    notes = []
    if copied:
        notes.append(f"{copied} traces are read-only and were copied: ASTRA-sim opens traces for writing too")
    if changed:
        notes.append(f"{changed} traces are gzip or JSON and were handed over as plain ones, which ASTRA-sim reads")
    return notes


def _write_plain(source: Path, target: Path, *, packed: bool) -> None:
    """Unpack a gzip trace; turn a JSON dump, packed or not, into the bytes of a trace."""
    with gzip.open(source) if packed else source.open("rb") as old, target.open("wb") as new:
        sample = old.read(_SAMPLE)
        if is_chakra_json(sample):
            new.write(trace_bytes(sample + old.read(), str(source)))
        else:
            new.write(sample)
            shutil.copyfileobj(old, new, 1 << 20)
