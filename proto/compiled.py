"""How kernels are compiled: one decorator, one disk cache for all kernel files. Owns nothing that computes.

numba's own cache notices a changed kernel file but not a changed *callee* in another file, so the cache folder's name
carries a hash of every kernel file: edit one and all compile anew. Kernel files are those named ``*_kernels.py`` in
the installed package. Where no cache folder can be written, kernels compile uncached. Either way one line on stderr
says so when the first one is really compiled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config, event

_settings, _njit, _register = cast("tuple[Any, Any, Any]", (config, numba.njit, event.register))  # typed of late only
_Function = TypeVar("_Function", bound=Callable[..., Any])
_UNUSED_S = 30 * 24 * 3600.0


def kernel_files() -> list[Path]:
    """Every kernel file of the installed package, sorted by name."""
    import tracegen

    rooms = [Path(__file__).parent, Path(tracegen.__file__).parent]
    for room in ("spec", "replay"):
        beside = Path(__file__).parent.parent / room
        rooms.append(beside)
    return sorted({file.resolve() for room in rooms if room.is_dir() for file in room.rglob("*_kernels.py")})


def cache_root() -> Path:
    """Where compiled kernels are kept: ``TRACEGEN_CACHE``, else the user's cache folder."""
    if given := os.environ.get("TRACEGEN_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tracegen"


@cache
def cache_folder() -> Path | None:
    """The folder of this code's compiled kernels, made on first use; None where it cannot be written."""
    digest = hashlib.sha256(f"{sys.version_info} numba {numba.__version__}".encode())
    for file in kernel_files():
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    folder = cache_root() / f"kernels-{digest.hexdigest()[:16]}"
    try:
        if not folder.exists():
            _clear_unused(folder.parent)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as why:
        reason = f"{folder} cannot be written: {why.strerror}"
        _announce_on_compilation(f"compiling kernels, on every run anew (about 25 s in all), since {reason}")
        return None
    _announce_on_compilation("compiling kernels, each once per installation (about 25 s in all)")
    return folder


def _clear_unused(root: Path) -> None:
    """Remove the compiled kernels of versions that no process has used for a month; each use touches its folder."""
    for folder in root.glob("kernels-*"):
        if time.time() - folder.stat().st_mtime > _UNUSED_S:
            shutil.rmtree(folder, ignore_errors=True)


class _Announcement(event.Listener):
    """Prints one line when the first of our kernels is really compiled, not when it is loaded from the cache."""

    def __init__(self, line: str) -> None:
        self._line = line

    def on_start(self, event: event.Event) -> None:
        if event.data["dispatcher"].py_func.__code__.co_filename.endswith("_kernels.py") and self._line:
            print(f"tracegen: {self._line}", file=sys.stderr, flush=True)
            self._line = ""

    def on_end(self, event: event.Event) -> None:
        """Nothing to say when it is done."""


def _announce_on_compilation(line: str) -> None:
    _register("numba:compile", _Announcement(line))


def kernel(function: _Function) -> _Function:
    """Compile a plain function on arrays, cached on disk under a name that changes with any kernel file."""
    return _compile(function)


def inlined(function: _Function) -> _Function:
    """As `kernel`, and copied into every kernel that calls it: for small ones called several times a node."""
    return _compile(function, inline="always")


# Kernels that allocate nothing and hand many arrays to one another spend three quarters of their time counting
# references to them (measured); these are compiled without. All but the entry are callable from kernels only.


def bare(function: _Function) -> _Function:
    """As `kernel`, without reference counts: for functions that allocate nothing and that only kernels call."""
    return _compile(function, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def bare_inlined(function: _Function) -> _Function:
    """As `bare`, and copied into its caller: for kernels with one caller."""
    return _compile(function, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, inline="always")


def bare_entry(function: _Function) -> _Function:
    """As `bare`, callable from Python."""
    return _compile(function, _nrt=False, no_cfunc_wrapper=True)


def _compile(function: _Function, **options: str | bool) -> _Function:
    folder = cache_folder()
    before = _settings.CACHE_DIR
    _settings.CACHE_DIR = str(folder or before)
    try:
        return cast(_Function, _njit(cache=folder is not None, nogil=True, **options)(function))
    finally:
        _settings.CACHE_DIR = before
