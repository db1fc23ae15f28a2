"""A build on disk: one trace per rank and everything ASTRA-sim and replay need beside them.

Owns the folder: which files, their text, and that it appears whole or not at all. Does not know what is in a trace
(`tracegen.proto.encode` writes it) nor how ASTRA-sim's inputs come about (`tracegen.spec.network` does).

The folder is written as a sibling ``.NAME.tmp-PID`` and renamed at the end; one that it replaces is moved aside for
that instant, to ``.NAME.tmp-PID-old``. A process that is killed leaves its sibling behind; the next run removes those
whose process is gone, and restores what was moved aside where nothing took its place. Links are followed: what a link
names is replaced, the link stays.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
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
BESIDE = {MANIFEST, "job.yaml", "network.yml", "system.json", "memory.json", "comm_group.json"}
_TYPES = {
    **dict.fromkeys(("tracegen", "name", "execution", "network_model", "message_label"), str),
    **dict.fromkeys(("model", "device", "parallelism", "schedule"), str),
    **{"ranks": int, "partial": bool, "groups": dict, "stage_of": list},
}
_EXECUTIONS = ("streams", "astra")
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
    out : the folder. One that exists is replaced if it is empty or holds nothing but what emit wrote, and refused
        otherwise.
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
    if out == Path():
        raise InputError("--out: the name of a folder is needed; '' and '.' name none, but where you are")
    given, out = Path(os.path.abspath(out)), Path(os.path.realpath(out))
    _restore(out)
    _refuse_foreign(out)
    with _appearing(out) as folder:
        for name, text in _beside(build, execution, partial=len(chosen) < traces.ranks).items():
            (folder / name).write_text(text, encoding="utf-8")
        _write_traces(traces, folder, build.job.name, chosen, jobs, progress)
    return _remarks(traces, given)


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
    """Refuse a place that is no folder, cannot be replaced, or holds something we did not write."""
    there = next(path for path in (out, *out.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise InputError(f"--out: {there} is a file, a folder is needed")
    if there != out:
        return
    if out.is_mount() or out.samefile(Path()):
        what = "a mount point" if out.is_mount() else "where you are"
        raise InputError(
            f"--out: {out} is {what} and cannot be replaced; name a folder in it, such as {out / 'traces'}"
        )
    if not os.access(out, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(f"--out: {out} cannot be replaced: {os.strerror(errno.EACCES)}")
    inside = sorted(os.scandir(out), key=lambda entry: entry.name)
    if not inside:
        return
    manifest = read_manifest(out)
    if manifest is None:
        raise InputError(
            f"--out: {out} exists and is not a folder that tracegen wrote (no {MANIFEST} of ours); "
            "remove it or choose another name"
        )
    for entry in inside:
        if not (entry.is_file(follow_symlinks=False) and _is_ours(entry.name, manifest)):
            raise InputError(f"--out: {entry.path} is not of the traces there; move it, or choose another name")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder that emit wrote; None for anything else, a manifest of another shape included."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or any(type(manifest.get(key)) is not kind for key, kind in _TYPES.items()):
        return None
    numbered = all(number.isascii() and number.isdigit() for number in manifest["groups"])
    whole = len(manifest["stage_of"]) == manifest["ranks"] and manifest["execution"] in _EXECUTIONS
    return manifest if numbered and whole else None


def _is_ours(name: str, manifest: Mapping[str, Any]) -> bool:
    """Whether emit writes a file of this name beside this manifest."""
    rank = name.removeprefix(f"{manifest['name']}.").removesuffix(".et")
    if rank.isascii() and rank.isdigit() and len(rank) < 20 and name == f"{manifest['name']}.{int(rank)}.et":
        return int(rank) < int(manifest["ranks"])
    return name in BESIDE


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
        _refuse_foreign(out)  # again: something may have been put there meanwhile
        if os.path.lexists(out):
            temporary.chmod(stat.S_IMODE(out.stat().st_mode))
            out.rename(replaced)
        temporary.rename(out)
    except OSError as why:
        where = why.filename if why.filename is not None else temporary
        raise RunError(f"writing {where} failed: {why.strerror}; nothing was kept") from why
    finally:
        if replaced.exists() and not os.path.lexists(out):
            replaced.rename(out)
        _remove(temporary)
        if replaced.exists():
            replaced.rename(temporary)  # whole as long as it is called old
            _remove(temporary)


def _remove(left: Path) -> None:
    """Remove a file, a link (not what it names) or a folder, as far as that can be done."""
    if left.is_symlink() or not left.is_dir():
        with suppress(OSError):
            left.unlink(missing_ok=True)
    else:
        shutil.rmtree(left, ignore_errors=True)


def _dead(out: Path) -> list[Path]:
    """What killed runs left behind: siblings of ``out`` whose process is gone, or had our own number."""
    dead = []
    for left in sorted(out.parent.glob(f".{_literal(out.name)}.tmp-*")):
        pid = left.name.rpartition(".tmp-")[2].removesuffix("-old")
        if pid.isascii() and pid.isdigit() and (int(pid) == os.getpid() or not _alive(int(pid))):
            dead.append(left)
    return dead


def _restore(out: Path) -> None:
    """Put back a folder that a run moved aside and was killed before it could put another in its place."""
    for left in _dead(out):
        aside = left.name.endswith("-old") and left.is_dir() and not left.is_symlink()
        if aside and not os.path.lexists(out) and read_manifest(left) is not None:
            with suppress(OSError):
                left.rename(out)


def _clear_dead(out: Path) -> None:
    """Remove what killed runs left behind."""
    for left in _dead(out):
        _remove(left)


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
