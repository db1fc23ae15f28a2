"""A child process that cannot outlive us: its own group, ended with SIGTERM, then SIGKILL, whatever becomes of us.

Knows nothing of simulators. On Linux the child is told to die with its parent; elsewhere a parent that is killed
outright leaves it behind.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from tracegen.proto.errors import InputError

_PATIENCE_S = 2.0  # between SIGTERM and SIGKILL
_LOOK_S = 0.1  # between two looks at a child that says nothing
_BLOCK = 1 << 16

# Runs in a fresh interpreter between fork and exec, since code in a forked copy of a process with threads may
# dead-lock: asks the kernel to kill us with our parent (PR_SET_PDEATHSIG = 1 of prctl), undoes Python's ignored
# signals, becomes the program, and reports why if it cannot.
_BECOME = """
import ctypes, os, signal, sys
parent, report, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.set_inheritable(report, False)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
try:
    os.execv(program, sys.argv[3:])
except OSError as why:
    os.write(report, os.strerror(why.errno).encode())
    os._exit(1)
"""


def run_bounded(
    command: Sequence[str],
    folder: Path,
    *,
    deadline: float | None,
    heard: Callable[[bytes], None],
    looked: Callable[[], None],
) -> int | None:
    """Run a program to its end or to a deadline.

    Parameters
    ----------
    command : an absolute path, then arguments.
    folder : where it runs.
    deadline : of `time.monotonic`; None waits for ever.
    heard : called with what it writes, standard output and error together.
    looked : called about ten times a second.

    Returns
    -------
    int or None
        Its return code, negative for the signal it died of; None where it was stopped at the deadline.

    Raises
    ------
    InputError
        The program cannot be started.
    """
    with _signals_raise():
        child = _start(command, folder)
        try:
            return _attend(child, deadline, heard, looked)
        finally:
            _end(child)


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    listen, report = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), str(report), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(report,),
            start_new_session=True,
        )
    except BaseException:
        os.close(listen)
        raise
    finally:
        os.close(report)
    try:
        with os.fdopen(listen, "rb") as pipe:
            why = pipe.read()
    except BaseException:
        _end(child)
        raise
    if why:
        _end(child)
        raise InputError(f"{command[0]}: cannot be run ({why.decode(errors='replace')})")
    return child


def _attend(
    child: subprocess.Popen[bytes], deadline: float | None, heard: Callable[[bytes], None], looked: Callable[[], None]
) -> int | None:
    assert child.stdout is not None
    pipe = child.stdout.fileno()
    saying, next_look = True, 0.0
    while True:
        now = time.monotonic()
        if now >= next_look:
            looked()
            next_look = now + _LOOK_S
        if deadline is not None and now >= deadline:
            return None
        ended = _has_ended(child)  # asked before reading: what it wrote last is still read below
        if saying and select.select([pipe], [], [], 0 if ended else _LOOK_S)[0]:
            piece = os.read(pipe, _BLOCK)
            saying = bool(piece)
            heard(piece)
        elif ended:
            _signal_group(child, signal.SIGKILL)  # whatever it started and left behind
            return child.wait()
        elif not saying:
            time.sleep(_LOOK_S)


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether the child has ended; it is not collected, so that its number still names its group and no other."""
    if child.returncode is not None:
        return True
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and its group, and collect it."""
    if child.returncode is None and not _has_ended(child):
        _signal_group(child, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE_S
        while not _has_ended(child) and time.monotonic() < until:
            time.sleep(0.01)
    if child.returncode is None:
        _signal_group(child, signal.SIGKILL)
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind us as Ctrl-C does, where nobody else handles them, so that the child is ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {
        number: signal.signal(number, leave)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
