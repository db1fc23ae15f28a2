"""The trace files of a job, and its comm_group.json, as one TraceSet. The bytes of one file: `decode`.

Ranks are read one after the other; a rank's groups and peers are taken out of its graph into slots, and ranks whose
graphs are equal then share one, so that a thousand ranks of one class cost the memory of one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tracegen.proto.decode import Decoded, decode
from tracegen.proto.graph import Groups, Kind, RankGraph, TraceSet
from tracegen.proto.metadata_groups import GroupsInTraces
from tracegen.proto.problems import Problem, TraceErrors

__all__ = ["Loaded", "Problem", "TraceErrors", "find_ranks", "load_traces", "read_groups", "read_rank", "read_traces"]

WORLD = 0  # the number of the group of all ranks, which files leave out
_NAME = re.compile(r"(?P<prefix>.*)\.(?P<rank>[0-9]+)\.(?P<form>et|json)(\.gz)?")
_RULE = "files are named PREFIX.RANK.et or PREFIX.RANK.et.gz (or .json), ranks from 0 without gaps or leading zeros"
_MOST_LISTED = 12


@dataclass(frozen=True)
class Loaded:
    """Traces as far as they could be read, and what is wrong with them.

    Parameters
    ----------
    traces : None where a file is missing or unreadable. Else every node is there, and what the problems name
        stands so that nothing breaks: a group that no file defines is empty, a peer that is no rank has slot -1.
    problems : everything found while reading.
    notes : what was assumed, to be told.
    """

    traces: TraceSet | None
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Whole numbers as runs, first and last."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _gaps(numbers: Iterable[int], end: int) -> list[tuple[int, int]]:
    """Runs of what is missing below `end`."""
    edges = [(-1, -1), *(run for run in _runs(numbers) if run[0] < end), (end, end)]
    return [(low + 1, high - 1) for (_, low), (high, _) in pairwise(edges) if high - low > 1]


def _in_words(runs: list[tuple[int, int]]) -> str:
    """Runs as ranges, cut where there are many."""
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    more = f" and {len(texts) - _MOST_LISTED} more" if len(texts) > _MOST_LISTED else ""
    return ", ".join(texts[:_MOST_LISTED]) + more


def _listed(numbers: Iterable[int]) -> str:
    """Whole numbers in words."""
    return _in_words(_runs(numbers))


def _candidates(location: Path) -> tuple[Path, str | None]:
    """The folder to look in, and the prefix of names where one is given."""
    if location.is_dir():
        return location, None
    if location.is_file():
        matched = _NAME.fullmatch(location.name)
        prefix = matched["prefix"] if matched else "PREFIX"
        whole = location.parent / prefix
        message = f"this is one file, but all ranks are needed: give the folder, or the prefix {whole}"
        raise TraceErrors([Problem("rank-files", str(location), message)])
    if not location.parent.is_dir():
        raise TraceErrors(
            [Problem("rank-files", str(location), "there is no such folder and no file with this prefix")]
        )
    return location.parent, location.name


def find_ranks(location: str | Path, ranks: int | None = None) -> list[Path]:
    """The trace files of all ranks, in order.

    Parameters
    ----------
    location : a folder with the files of one job, or their prefix.
    ranks : how many there must be; None for as many as there are, without gaps.

    Raises
    ------
    TraceErrors
        No files, several jobs in one folder, missing, surplus or misnamed ranks: all of them at once.
    """
    location = Path(location)
    folder, prefix = _candidates(location)
    found: dict[str, dict[int, list[Path]]] = {}
    odd: list[str] = []  # no names of ranks: told where a rank is missing, else somebody else's
    zeros: list[str] = []
    for file in _trace_names(folder, prefix):
        matched = _NAME.fullmatch(file.name)
        if matched and (prefix is None or matched["prefix"] == prefix):
            if matched["rank"] != str(int(matched["rank"])):
                zeros.append(f"{file.name} (write {matched['prefix']}.{int(matched['rank'])}.{matched['form']})")
            else:
                found.setdefault(matched["prefix"], {}).setdefault(int(matched["rank"]), []).append(file)
        elif not matched and (prefix is None or file.name.startswith(prefix)):
            odd.append(file.name)
    if len(found) > 1:
        names = ", ".join(str(folder / name) for name in sorted(found)[:_MOST_LISTED])
        message = f"traces of {len(found)} jobs are in this folder; give one prefix: {names}"
        raise TraceErrors([Problem("rank-files", str(location), message)])
    files = next(iter(found.values()), {})
    problems = _file_problems(str(location), files, zeros, odd, ranks)
    if problems:
        raise TraceErrors(problems)
    return [files[rank][0] for rank in range(len(files))]


def _trace_names(folder: Path, prefix: str | None) -> list[Path]:
    """Files whose names end as traces' do; dumps (.json) only where no .et file has the prefix, or the folder one."""
    files = sorted(folder.iterdir())
    traces = [file for file in files if file.name.endswith((".et", ".et.gz"))]
    if any(prefix is None or file.name.startswith(f"{prefix}.") for file in traces):
        return traces
    return traces + [file for file in files if (named := _NAME.fullmatch(file.name)) and named["form"] == "json"]


def _file_problems(
    where: str, files: dict[int, list[Path]], zeros: list[str], odd: list[str], ranks: int | None
) -> list[Problem]:
    """What is wrong with the files found for each rank, and with names that are near theirs."""
    problems = []
    last = max(files, default=-1)
    wanted = last + 1 if ranks is None else ranks
    missing = _gaps(files, wanted)
    if wrong := zeros + (odd if missing or not files else []):
        listed = ", ".join(wrong[:_MOST_LISTED]) + (" ..." if len(wrong) > _MOST_LISTED else "")
        problems.append(Problem("rank-name", where, f"{listed}: {_RULE}"))
    if not files:
        return problems or [Problem("rank-files", where, f"no trace files here; {_RULE}")]
    if missing:
        have = f"files of {len(files)} ranks ({_listed(files)}) are here"
        reason = f"the highest is rank {last}" if ranks is None else f"{ranks} ranks are needed"
        message = f"the files of rank {_in_words(missing)} are missing: {have}, {reason}"
        problems.append(Problem("missing-rank", where, message))
    if surplus := [rank for rank in files if rank >= wanted]:
        message = f"files of {len(files)} ranks are here, but {wanted} are needed: rank {_listed(surplus)} is too many"
        problems.append(Problem("surplus-rank", where, message))
    for rank, named in sorted(files.items()):
        if len(named) > 1:
            message = f"rank {rank} has two files, {named[0].name} and {named[1].name}; remove one"
            problems.append(Problem("rank-files", where, message))
    return problems


def _bytes_of(path: Path, where: str) -> NDArray[np.uint8]:
    """The file's bytes, unpacked where it is gzipped (seen by its first bytes); else mapped, not read."""
    if path.is_dir():
        raise TraceErrors([Problem("not-a-trace", where, "this is a folder, but one rank's trace file is needed")])
    try:
        if path.stat().st_size == 0:
            return np.zeros(0, np.uint8)
        with path.open("rb") as file:
            if file.read(2) != b"\x1f\x8b":
                return np.memmap(path, np.uint8, "r")
            file.seek(0)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return np.frombuffer(unpacked.read(), np.uint8)
    except EOFError:
        message = f"the gzip stream is cut: its end is missing after {path.stat().st_size} bytes"
        raise TraceErrors([Problem("gzip", where, message)]) from None
    except (gzip.BadGzipFile, zlib.error) as why:
        raise TraceErrors([Problem("gzip", where, f"the gzip stream is broken: {why}")]) from None
    except OSError as why:
        raise TraceErrors([Problem("rank-files", where, f"the file cannot be read: {why.strerror}")]) from None


def read_rank(path: str | Path, rank: int | None = None) -> Decoded:
    """Decode one rank's file, gzipped or not; errors name the rank where it is given."""
    path = Path(path)
    where = str(path) if rank is None else f"rank {rank} ({path.name})"
    return decode(_bytes_of(path, where), where=where)


def read_groups(path: str | Path) -> dict[int, list[int]]:
    """Read comm_group.json: the ordered ranks of each numbered group.

    Raises
    ------
    TraceErrors
        It cannot be read, or a key is no number above 0, or ranks are no numbers or named twice: all of them at once.
    """
    where = str(path)
    try:
        text = Path(path).read_text()
    except OSError as why:
        raise TraceErrors([Problem("group-file", where, f"the file cannot be read: {why.strerror}")]) from None
    except UnicodeDecodeError:
        raise TraceErrors([Problem("group-file", where, "this is no JSON text")]) from None
    doubled: list[str] = []

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        doubled.extend(key for key, times in Counter(key for key, _ in items).items() if times > 1)
        return dict(items)

    try:
        content = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as why:
        raise TraceErrors([Problem("group-file", f"{where}:{why.lineno}", f"this is no JSON: {why.msg}")]) from None
    if not isinstance(content, dict):
        raise TraceErrors([Problem("group-file", where, 'an object {"1": [0, 1], ...} is needed')])
    problems = [Problem("group-file", where, f'group "{key}" is defined twice') for key in doubled]
    groups: dict[int, list[int]] = {}
    for key, members in content.items():
        found = _group_problems(key, members)
        problems += [Problem("group-file", where, f'group "{key}" {message}') for message in found]
        if not found:
            groups[int(key)] = list(members)
    if problems:
        raise TraceErrors(problems)
    return groups


def _group_problems(key: str, members: object) -> list[str]:
    """What is wrong with one entry of comm_group.json."""
    found = []
    if not re.fullmatch(r"[1-9][0-9]*", key) or int(key) >= 2**31:
        found.append("is not numbered: keys are decimal numbers from 1 to 2147483647 (0 is the world, in no file)")
    if not isinstance(members, list) or not members:
        found.append("is no list of ranks")
    elif bad := [rank for rank in members if type(rank) is not int or rank < 0]:
        found.append(f"lists {json.dumps(bad[0])}, which is no rank (a whole number from 0, without quotes)")
    elif twice := [rank for rank, times in sorted(Counter(members).items()) if times > 1]:
        found.append(f"lists rank {_listed(twice)} more than once")
    return found


def _take_slots(decoded: Decoded) -> tuple[RankGraph, NDArray[np.int64]]:
    """The graph with slots numbered by first use, and for each slot 2·group number or 2·peer + 1.

    Ranks of one class use groups and peers in one order, so their graphs become equal.
    """
    kind = decoded.graph.kind
    message = (kind == Kind.SEND) | (kind == Kind.RECV)
    key = np.where(message, 2 * decoded.peer + 1, 2 * decoded.group_number)
    at = np.flatnonzero((key >= 0) & (message | (kind == Kind.COLL)))
    keys, first, inverse = np.unique(key[at], return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order))
    slot = np.full(len(kind), -1, np.int32)
    slot[at] = number[inverse]
    return replace(decoded.graph, slot=slot), keys[order]


def _digest(graph: RankGraph) -> bytes:
    """A hash of all columns: equal for equal graphs only."""
    digest = hashlib.sha256()  # in hardware on most processors: three times as fast as blake2b
    for column in fields(graph):
        value = getattr(graph, column.name)
        arrays = (value.blob, value.ptr) if column.name == "names" else (value,)
        for array in arrays:
            if isinstance(array, np.ndarray):
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
            else:
                digest.update(repr(array).encode())
    return digest.digest()


def _group_table(
    used: Mapping[int, list[int]], given: Mapping[int, Sequence[int]] | None, labels: Mapping[int, str], ranks: int
) -> tuple[Groups, list[Problem]]:
    """The groups that nodes use, in order of their numbers, and what is wrong with them or with the given ones."""
    problems = []
    members: list[list[int]] = []
    for number, users in sorted(used.items()):
        if number == WORLD:
            members.append(list(range(ranks)))
            continue
        if given is None or number not in given:
            file = (
                "no groups are given: name its comm_group.json (--comm-group)"
                if given is None
                else "comm_group.json does not define it"
            )
            problems.append(Problem("unknown-group", f"group {number}", f"rank {_listed(users)} uses it, but {file}"))
        members.append(list(given.get(number, ())) if given else [])
    for number, listed in sorted((given or {}).items()):
        if outside := sorted(rank for rank in listed if not 0 <= rank < ranks):
            message = f"rank {_listed(outside)} is a member, but there are {ranks} ranks (0-{ranks - 1})"
            problems.append(Problem("group-ranks", f"group {number}", message))
    names = [labels.get(number, "world" if number == WORLD else f"group {number}") for number in sorted(used)]
    members = [[rank for rank in listed if 0 <= rank < ranks] for listed in members]
    return Groups.of(members, names, sorted(used)), problems


def load_traces(
    location: str | Path,
    *,
    groups: Mapping[int, Sequence[int]] | None,
    ranks: int | None = None,
    labels: Mapping[int, str] | None = None,
    message_label: str = "p2p",
) -> Loaded:
    """Read all ranks' traces, as `read_traces`, but hand back problems instead of raising them."""
    try:
        files = find_ranks(location, ranks)
    except TraceErrors as found:
        return Loaded(None, tuple(found.problems))
    problems: list[Problem] = []
    graphs: list[RankGraph] = []
    class_of = np.zeros(len(files), np.int32)
    classes: dict[bytes, int] = {}
    keys: list[NDArray[np.int64]] = []
    used: dict[int, list[int]] = {}
    readable, unsaid = True, 0
    described = GroupsInTraces(groups, len(files))
    for rank, file in enumerate(files):
        try:
            decoded = read_rank(file, rank)
        except TraceErrors as found:
            problems += found.problems
            readable = False
            continue
        problems += _message_problems(decoded, rank, len(files), file.name)
        problems += described.add(decoded.graph, rank)
        unsaid += decoded.unsaid
        graph, key = _take_slots(decoded)
        keys.append(key)
        for number in key[key % 2 == 0] // 2:
            used.setdefault(int(number), []).append(rank)
        class_of[rank] = classes.setdefault(_digest(graph), len(graphs))
        if class_of[rank] == len(graphs):
            graphs.append(graph)
    if not readable:
        return Loaded(None, tuple(problems))
    table, found_in_groups = _group_table(used, described.groups, labels or {}, len(files))
    slots = _slot_table(keys, table, len(files))
    notes = (f"{unsaid} compute nodes have no is_cpu_op and count as the GPU's",) if unsaid else ()
    traces = TraceSet(tuple(graphs), class_of, table, slots, None, message_label)
    return Loaded(traces, (*problems, *found_in_groups), notes)


def _slot_table(keys: list[NDArray[np.int64]], groups: Groups, ranks: int) -> NDArray[np.int32]:
    """What each rank's slots name: the index of a group, a peer, or -1 where the peer is no rank."""
    slots = np.full((ranks, max((len(key) for key in keys), default=0)), -1, np.int32)
    for rank, key in enumerate(keys):
        peer = np.where(key // 2 < ranks, key // 2, -1)
        slots[rank, : len(key)] = np.where(key % 2 == 1, peer, np.searchsorted(groups.number, key // 2))
    return slots


def _message_problems(decoded: Decoded, rank: int, ranks: int, file: str) -> list[Problem]:
    """Sends and receives that name no rank, or another rank than the file's as their own end."""
    problems = []
    where = f"rank {rank} ({file})"
    for rule, wrong, column, right in (
        ("peer", (decoded.peer >= ranks) | (decoded.peer < -1), decoded.peer, f"ranks are 0 to {ranks - 1}"),
        ("own-rank", (decoded.own != -1) & (decoded.own != rank), decoded.own, f"its own end must be rank {rank}"),
    ):
        for node in np.flatnonzero(wrong)[:_MOST_LISTED]:
            sends = decoded.graph.kind[node] == Kind.SEND
            name = "comm_dst" if sends == (rule == "peer") else "comm_src"
            what = f"node {node} (id {decoded.graph.id[node]}, a {'send' if sends else 'receive'})"
            problems.append(Problem(rule, where, f"{what}: {name} is {column[node]}, but {right}"))
    return problems


def read_traces(
    location: str | Path,
    *,
    groups: Mapping[int, Sequence[int]] | None,
    ranks: int | None = None,
    labels: Mapping[int, str] | None = None,
    message_label: str = "p2p",
) -> TraceSet:
    """Read all ranks' traces into one TraceSet; ranks whose graphs are equal up to their slots share one.

    Parameters
    ----------
    location : a folder with the files of one job, or their prefix (``dir/name`` for ``dir/name.0.et``).
    groups : the content of comm_group.json, None where there is none.
    ranks : how many ranks there must be; None for as many as there are files.
    labels : printed names of groups by number; else "group N", and "world" for number 0.
    message_label : what time exposed to sends and receives is charged to.

    Raises
    ------
    TraceErrors
        With every problem of every file.
    """
    loaded = load_traces(location, groups=groups, ranks=ranks, labels=labels, message_label=message_label)
    if loaded.problems or loaded.traces is None:
        raise TraceErrors(loaded.problems)
    return loaded.traces
