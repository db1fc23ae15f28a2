"""Files that a run writes: whole or not at all, nothing destroyed in their place. Knows no content.

A regular file, or one that does not exist yet, is written as a temporary sibling and renamed when done; links are
followed, so that the link stays. Anything else (a terminal, a pipe, a device) is written to as it is. A place that
cannot be written is refused (`InputError`); writing that fails half-way is a failed run (`RunError`).
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from tracegen.proto.errors import InputError, RunError

SIDE_FILES = frozenset({"comm_group.json", "network.yml", "system.json", "memory.json", "job.yaml", "manifest.json"})
"""What stands beside the traces in a folder that emit wrote."""

_TRACE = re.compile(r"(?P<prefix>.*)\.[0-9]+\.(et|json)(\.gz)?")


@contextmanager
def replacing(path: str | Path) -> Iterator[TextIO]:
    """A text file (UTF-8, newlines as written) that takes the place of ``path`` when the block ends without an error.

    A pipe whose reader has had enough ends the block without an error.

    Raises
    ------
    InputError
        The file cannot be written there.
    RunError
        Writing failed half-way. A regular file is as it was before.
    """
    target = Path(os.path.realpath(path))
    temporary = None if _written_through(path) else _sibling(target)
    file = _opened(path) if temporary is None else _created(target, temporary)
    try:
        with file:
            yield file
        if temporary is not None:
            temporary.replace(target)
    except OSError as why:
        if temporary is None and isinstance(why, BrokenPipeError):
            return
        raise RunError(f"{path}: writing failed ({why.strerror})") from None
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def refuse_unwritable(paths: Mapping[str, Path | None]) -> None:
    """Refuse, before a long run, what could not be written at its end.

    Parameters
    ----------
    paths : the files to be written, by flag; None where not given.

    Raises
    ------
    InputError
        A file that cannot be written: its folder is missing, or may not be written in; a folder.
    """
    for flag, path in paths.items():
        if path is None:
            continue
        try:
            if _written_through(path):
                if path.is_dir():
                    raise InputError(f"{path}: is a folder; name a file in it")
                if not os.access(path, os.W_OK):
                    raise InputError(f"{path}: cannot be written (Permission denied)")
            else:
                target = Path(os.path.realpath(path))
                temporary = _sibling(target)
                _created(target, temporary).close()
                temporary.unlink()
        except InputError as why:
            raise InputError(f"{flag}: {why}") from None


def refuse_same(paths: Mapping[str, Path | None], inputs: Sequence[Path]) -> None:
    """Refuse to write two outputs into one file, or an output over what is read. Links are followed.

    Parameters
    ----------
    paths : the files to be written, by flag; None where not given.
    inputs : the files that are read; for a folder or prefix of traces, every trace of it and what emit puts beside.

    Raises
    ------
    InputError
        Two are one file.
    """
    read = {file: given for given in inputs for file in _files_of(given)}
    written: dict[object, str] = {}
    for flag, path in paths.items():
        if path is None or os.path.realpath(path) == os.devnull:
            continue
        file = _identity(path)
        given = read.get(file) or next((each for each in inputs if _would_join(path, each)), None)
        if given is not None:
            raise InputError(f"{flag}: {path} is read too, as {given}; name another file")
        if file in written:
            raise InputError(f"{flag}: {path} is the file of {written[file]} too; name another file")
        written[file] = flag


def _identity(path: Path) -> object:
    """Equal for two paths of one file, whether it exists or not."""
    try:
        found = path.stat()
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _files_of(given: Path) -> Iterator[object]:
    """Identities of the files that an input stands for."""
    yield _identity(given)
    folder = given if given.is_dir() else given.parent
    with suppress(OSError):
        yield from (_identity(file) for file in folder.iterdir() if _belongs(file.name, given))


def _belongs(name: str, given: Path) -> bool:
    """Whether a file of this name, in the folder of an input, is part of it."""
    trace = _TRACE.fullmatch(name)
    if given.is_dir():
        return trace is not None or name in SIDE_FILES
    return trace is not None and trace["prefix"] == given.name


def _would_join(path: Path, given: Path) -> bool:
    """Whether a file that does not exist yet would be read as part of an input."""
    target, folder = Path(os.path.realpath(path)), given if given.is_dir() else given.parent
    return str(target.parent) == os.path.realpath(folder) and _belongs(target.name, given)


def _written_through(path: str | Path) -> bool:
    """Whether something stands there that no regular file may replace, or our own output goes there."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return not stat.S_ISREG(found.st_mode) or _own(found) is not None


def _own(found: os.stat_result) -> int | None:
    """The descriptor of our standard output or error that goes to a file; None where neither does."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), found):
                return descriptor
    return None


def _sibling(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def _opened(path: str | Path) -> TextIO:
    """A pipe, terminal or device as it stands; our own output where it goes on, not from its beginning."""
    sys.stdout.flush()
    try:
        descriptor = _own(os.stat(path))
        where = path if descriptor is None else os.dup(descriptor)
        return open(where, "w", encoding="utf-8", newline="")
    except OSError as why:
        raise InputError(f"{path}: cannot be written ({why.strerror})") from None


def _created(target: Path, temporary: Path) -> TextIO:
    """The temporary sibling, with the rights of the file that it will replace."""
    try:
        rights = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        if rights is not None and not os.access(target, os.W_OK):
            raise InputError(f"{target}: cannot be written (Permission denied)")
        temporary.unlink(missing_ok=True)
        file = temporary.open("x", encoding="utf-8", newline="")
        if rights is not None:
            temporary.chmod(rights)
    except OSError as why:
        reason = why.strerror if target.parent.is_dir() else f"there is no folder {target.parent}"
        raise InputError(f"{target}: cannot be written ({reason})") from None
    return file
