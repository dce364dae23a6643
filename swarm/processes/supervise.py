"""The supervisor of one command, which it ends with all descendants once standard input closes or the parent dies."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from types import FrameType

GRACES_S = ((signal.SIGINT, 5.0), (signal.SIGTERM, 3.0))
"""Signals before SIGKILL, each with its grace in seconds. SIGINT comes first because a Python program unwinds on it: a
client then aborts its running episodes, which SIGTERM would leave to the server's idle timeout."""

KILL_TIMEOUT_S = 5.0
PR_SET_PDEATHSIG = 1
PARENT_POLL_S = 0.5


def main(argv: list[str]) -> int:
    """Run the command and return its exit code.

    The code is 128 + signal if a signal ended the command, and 127 if it could not be started.
    """
    # If a parent is named, standard input belongs to the command, and the parent is watched instead.
    parent = int(argv[1]) if argv[:1] == ["--parent"] else None
    argv = argv if parent is None else argv[2:]
    if not argv:
        return 2
    stdin = subprocess.DEVNULL if parent is None else None
    try:
        child = subprocess.Popen(argv, stdin=stdin, start_new_session=True, preexec_fn=_die_with_parent)
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
        return 127

    def stop(_signal: int, _frame: FrameType | None) -> None:
        threading.Thread(target=_end_group, args=(child,), daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    await_end = partial(_await_closing, child) if parent is None else partial(_await_death, parent, child)
    threading.Thread(target=await_end, daemon=True).start()
    if parent is not None:
        # The pipes must close when the command ends, not when this process does.
        os.close(0)
        os.close(1)
    code = child.wait()
    _signal_group(child, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    # A background job of a shell inherits an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Ends the command if this process itself dies, which no closed pipe can do. Linux only.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _await_closing(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    _end_group(child)


def _await_death(parent: int, child: subprocess.Popen[bytes]) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    _end_group(child)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    for number, grace_s in (*GRACES_S, (signal.SIGKILL, KILL_TIMEOUT_S)):
        _signal_group(child, number)
        # A stopped process handles a signal only once it goes on.
        _signal_group(child, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
            return
    os.write(2, f"process {child.pid} is still there {KILL_TIMEOUT_S:g} s after SIGKILL: it is left alone\n".encode())
    os._exit(128 + signal.SIGKILL)


def _signal_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The group exists as long as any of its members, also without its leader.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
