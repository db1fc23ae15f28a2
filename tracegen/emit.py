"""A build on disk: one trace per rank and everything ASTRA-sim and replay need beside them.

Owns the folder: which files, their text, and that it appears whole or not at all. Does not know what is in a trace
(`tracegen.proto.encode` writes it) nor how ASTRA-sim's inputs come about (`tracegen.spec.network` does).

The folder is written as a sibling ``.NAME.tmp-PID`` and renamed at the end. A process that is killed leaves its
sibling behind; the next run removes those whose process is gone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracegen.proto.encode import write_rank
from tracegen.proto.errors import InputError, RunError
from tracegen.proto.graph import Kind, TraceSet
from tracegen.spec.network import astra_inputs
from tracegen.spec.source import dump

if TYPE_CHECKING:
    from tracegen.build import Build

MANIFEST = "manifest.json"
WORLD = 0  # the group number that files leave out: no name means all ranks


def emit(
    build: Build,
    out: Path,
    *,
    execution: str = "streams",
    ranks: Sequence[int] | None = None,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[str, ...]:
    """Write a build to a folder.

    Parameters
    ----------
    out : the folder. One that exists is replaced if tracegen wrote it, and refused otherwise.
    execution : what the manifest says about how to replay the traces, ``streams`` or ``astra``.
    ranks : write the traces of these only, and mark the manifest ``partial``.
    jobs : how many ranks are written at once. The bytes do not depend on it.
    progress : called with (ranks written, ranks to write) after each.

    Returns
    -------
    Lines worth telling whoever asked.

    Raises
    ------
    InputError
        A rank that the job does not have, or a folder that cannot be made or is not ours.
    RunError
        Writing failed half-way. Nothing is left behind.
    """
    traces = build.traces
    chosen = _chosen(ranks, traces.ranks)
    out = Path(os.path.abspath(out))
    _refuse_foreign(out)
    with _appearing(out) as folder:
        for name, text in _beside(build, execution, partial=len(chosen) < traces.ranks).items():
            (folder / name).write_text(text, encoding="utf-8")
        _write_traces(traces, folder, build.job.name, chosen, jobs, progress)
    return _remarks(traces, out)


def used_groups(traces: TraceSet) -> dict[int, list[int]]:
    """Members of every group that a collective names, by its number in files; the world is not among them."""
    used: set[int] = set()
    for index, graph in enumerate(traces.graphs):
        slots = np.unique(graph.slot[graph.kind == Kind.COLL])
        used.update(np.unique(traces.slots[traces.class_of == index][:, slots[slots >= 0]]).tolist())
    numbers = {int(traces.groups.number[group]): group for group in used if group >= 0}
    return {number: traces.groups.ranks(numbers[number]).tolist() for number in sorted(numbers) if number != WORLD}


def _chosen(ranks: Sequence[int] | None, world: int) -> list[int]:
    """The ranks to write, ascending."""
    if ranks is None:
        return list(range(world))
    outside = [rank for rank in ranks if not 0 <= rank < world]
    if outside:
        raise InputError(f"--ranks: there is no rank {outside[0]}; the job has ranks 0 to {world - 1}")
    if not ranks:
        raise InputError(f"--ranks: names no rank; the job has ranks 0 to {world - 1}")
    return sorted(set(ranks))


def _beside(build: Build, execution: str, *, partial: bool) -> dict[str, str]:
    """Every file but the traces: name and text. Nothing in them depends on when or where they are written."""
    job, traces = build.job, build.traces
    inputs = astra_inputs(job.network, job.device.memory_bandwidth)
    files = {"system.json": _json(inputs.system), "memory.json": _json(inputs.memory)}
    if traces.ranks > 1:
        files["network.yml"] = _network_text(inputs.network)
        files["comm_group.json"] = _groups_text(used_groups(traces))
    files["job.yaml"] = dump(job.document())
    files[MANIFEST] = _json({**build.manifest, "execution": execution, "partial": partial})
    return files


def _write_traces(
    traces: TraceSet,
    folder: Path,
    name: str,
    ranks: Sequence[int],
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the trace files, several at once. The first failure stops the rest."""

    def one(rank: int) -> None:
        with open(folder / f"{name}.{rank}.et", "wb") as file:
            write_rank(file, traces, rank)

    pool = ThreadPoolExecutor(max_workers=max(1, jobs))
    try:
        for done, future in enumerate(as_completed([pool.submit(one, rank) for rank in ranks]), start=1):
            future.result()
            if progress is not None:
                progress(done, len(ranks))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _refuse_foreign(out: Path) -> None:
    """Refuse a place that is no folder, or holds something we did not write."""
    there = next(path for path in (out, *out.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise InputError(f"--out: {there} is a file, a folder is needed")
    if there != out:
        return
    try:
        manifest = json.loads((out / MANIFEST).read_bytes())
    except (OSError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or "tracegen" not in manifest:
        raise InputError(
            f"--out: {out} exists and is not a folder that tracegen wrote (no {MANIFEST} of ours); "
            "remove it or choose another name"
        )


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A temporary sibling that becomes ``out`` if the body succeeds and vanishes if it does not."""
    temporary = out.with_name(f".{out.name}.tmp-{os.getpid()}")
    replaced = temporary.with_name(temporary.name + "-old")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _clear_dead(out)
        temporary.mkdir()
    except OSError as why:
        raise InputError(f"--out: cannot write in {out.parent}: {why.strerror}") from why
    try:
        yield temporary
        if os.path.lexists(out):
            out.rename(replaced)
        temporary.rename(out)
    except OSError as why:
        where = why.filename if why.filename is not None else temporary
        raise RunError(f"writing {where} failed: {why.strerror}; nothing was kept") from why
    finally:
        if replaced.exists() and not os.path.lexists(out):
            replaced.rename(out)
        for leftover in (temporary, replaced):
            shutil.rmtree(leftover, ignore_errors=True)


def _clear_dead(out: Path) -> None:
    """Remove what killed runs left behind: temporaries of ``out`` whose process is gone, or had our own number."""
    for left in out.parent.glob(f".{_literal(out.name)}.tmp-*"):
        pid = left.name.rpartition(".tmp-")[2].removesuffix("-old")
        if pid.isascii() and pid.isdigit() and (int(pid) == os.getpid() or not _alive(int(pid))):
            shutil.rmtree(left)


def _literal(name: str) -> str:
    """A name as a glob pattern that matches nothing else."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _alive(pid: int) -> bool:
    """Whether a process of this number runs, ours or another user's."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _remarks(traces: TraceSet, out: Path) -> tuple[str, ...]:
    """What a reader of the folder should know."""
    if traces.ranks == 1:
        return ("one rank: no network.yml and comm_group.json written, since ASTRA-sim needs at least two ranks",)
    if "empty" in str(out):
        return (f"ASTRA-sim ignores every group when the path of comm_group.json contains 'empty', as {out} does",)
    return ()


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _groups_text(groups: Mapping[int, list[int]]) -> str:
    """``comm_group.json``, a group a line: a thousand groups stay readable."""
    lines = ",\n".join(f'  "{number}": {json.dumps(members)}' for number, members in groups.items())
    return f"{{\n{lines}\n}}\n" if lines else "{}\n"


def _network_text(network: Mapping[str, Sequence[str | int | float]]) -> str:
    """``network.yml``, with every digit of every number, since ASTRA-sim's GB/s are GiB/s."""
    text = ""
    for key, values in network.items():
        text += f"{key}: [ {', '.join(value if isinstance(value, str) else repr(value) for value in values)} ]\n"
    return text
