"""What ASTRA-sim prints and logs, as it appears: finished lines on stdout, a line per node event in the debug log.

Owns the text of both (astra_sim_semantics 2.7, 2.3 `trace-enabled`) and the following of a log that is rotated while
it is read. Starts no process and judges nothing.
"""

from __future__ import annotations

import os
import re
from collections import deque
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# A rank's end: tick of its last event, and that minus the GPU compute it issued.
_FINISHED = re.compile(rb"sys\[(\d{1,9})\] finished, (\d{1,20}) cycles, exposed communication (-?\d{1,20}) cycles")
# In the log, behind the logger's own prefix; a node's start or end likewise. Names of nodes, which may hold anything,
# come after a comma.
_LOGGED_FINISHED = re.compile(rb"^[^,\n]*?" + _FINISHED.pattern, re.MULTILINE)
_EVENT = re.compile(
    rb"^[^,\n]*?\b(issue|callback),sys->id=(\d{1,9}), tick=(\d{1,20}), node->id=(\d{1,20})\b", re.MULTILINE
)
_LONGEST_LINE = 1 << 16  # bytes; more without a newline is not ours
_BLOCK = 1 << 20  # bytes read at once
_TELLING = re.compile(r"error|critical|assert|terminate|what\(\)|not found", re.IGNORECASE)
_LAST_WORDS = 12  # lines kept of what it said
_OLDEST = "log.10.log"  # the logger keeps log.log and ten older files of 10 MB, then forgets
_UNSIGNED, _MOST = 1 << 64, (1 << 63) - 1


class Output:
    """Standard output and error of the simulator, fed in pieces.

    Attributes
    ----------
    finish : rank to (tick, exposed communication) of its finished line, both ns; the first one counts.
    strange : ranks outside the network that claim to have finished.
    """

    def __init__(self, ranks: int) -> None:
        self.finish: dict[int, tuple[int, int]] = {}
        self.strange: set[int] = set()
        self._ranks = ranks
        self._rest = b""
        self._said: deque[bytes] = deque(maxlen=_LAST_WORDS)

    def feed(self, piece: bytes) -> None:
        """Read on; an unfinished line is kept for the next piece."""
        whole, newline, rest = (self._rest + piece).rpartition(b"\n")
        self._rest = rest[-_LONGEST_LINE:]  # something may have been printed before the line on it
        if newline:
            self._read(whole)

    def close(self) -> None:
        """There is no more: the last line counts without its newline."""
        self._read(self._rest)
        self._rest = b""

    def finished(self, lines: list[tuple[bytes, bytes, bytes]]) -> None:
        """Finished lines, as rank, tick and exposed communication; wherever they were read."""
        for rank, tick, exposed in lines:
            if int(rank) >= self._ranks:
                self.strange.add(int(rank))
                continue
            # Both are unsigned there; an exposed time below zero has wrapped.
            below = int(exposed) - _UNSIGNED if int(exposed) > _MOST else int(exposed)
            self.finish.setdefault(int(rank), (min(int(tick), _MOST), below))

    def _read(self, text: bytes) -> None:
        self.finished(_FINISHED.findall(text))
        lines = [line for line in text[-_LONGEST_LINE:].splitlines()[-_LAST_WORDS:] if line.strip()]
        self._said.extend(lines)

    def last_words(self) -> str:
        """The line of its last ones that most likely says what went wrong, on one line and printable; "" if none."""
        lines = [line.decode(errors="replace").strip() for line in self._said]
        telling = [line for line in lines if _TELLING.search(line)]
        last = (telling or lines or [""])[-1]
        return "".join(letter for letter in last if letter.isprintable())[:200]


@dataclass(frozen=True, eq=False)
class NodeLog:
    """Every node event of a run, in no particular order.

    Parameters
    ----------
    ended : bool, whether it is the end of the node (``callback``) or its start (``issue``).
    rank : i32. tick : i64, ns. node : u64, the node's id.
    lost : the log was rotated away faster than it was read, so events may be missing.
    """

    ended: NDArray[np.bool_]
    rank: NDArray[np.int32]
    tick: NDArray[np.int64]
    node: NDArray[np.uint64]
    lost: bool

    def __len__(self) -> int:
        return len(self.node)


class Follower:
    """Reads the events of ``log.log`` and its rotated files while they are written, and its copies of finished lines.

    Files are known by their inode and held open, so that one renamed between two looks is read on where we stopped,
    and one deleted to its end.
    """

    def __init__(self, folder: Path, output: Output) -> None:
        self._folder, self._output = folder, output
        self._files: dict[tuple[int, int], FileIO] = {}
        self._rest: dict[tuple[int, int], bytes] = {}
        self._events: list[tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64]]] = []
        self._lost = False

    def look(self) -> None:
        """Read whatever has been written since the last look."""
        known = set(self._files)
        if not known and (self._folder / _OLDEST).exists():
            self._lost = True
        self._open_new()
        for key in list(self._files):
            self._read(key)
            if os.fstat(self._files[key].fileno()).st_nlink == 0:
                self._read(key)
                self._files.pop(key).close()
                del self._rest[key]
        if known and not known & set(self._files):
            self._lost = True

    def close(self) -> NodeLog:
        """Everything read; the files are let go."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        empty = (np.zeros(0, np.bool_), np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.uint64))
        ended, rank, tick, node = zip(empty, *self._events, strict=True)
        return NodeLog(
            np.concatenate(ended), np.concatenate(rank), np.concatenate(tick), np.concatenate(node), self._lost
        )

    def _open_new(self) -> None:
        for path in sorted(self._folder.glob("log*.log")):
            try:
                file = FileIO(path)
            except OSError:  # renamed since it was listed: found under its new name next time
                continue
            state = os.fstat(file.fileno())
            key = (state.st_dev, state.st_ino)
            if key in self._files:
                file.close()
            else:
                self._files[key], self._rest[key] = file, b""

    def _read(self, key: tuple[int, int]) -> None:
        while block := self._files[key].read(_BLOCK):
            whole, newline, rest = (self._rest[key] + block).rpartition(b"\n")
            self._rest[key] = rest[:_LONGEST_LINE]  # what we read stands at the beginning of a line
            if newline:
                self._events_of(whole)

    def _events_of(self, text: bytes) -> None:
        self._output.finished(_LOGGED_FINISHED.findall(text))
        found = _EVENT.findall(text)
        if not found:
            return
        what, rank, tick, node = zip(*found, strict=True)
        self._events.append(
            (
                np.array([word == b"callback" for word in what], np.bool_),
                np.array(list(map(int, rank)), np.int32),
                np.array([min(int(value), _MOST) for value in tick], np.int64),
                np.array([int(value) % _UNSIGNED for value in node], np.uint64),
            )
        )
