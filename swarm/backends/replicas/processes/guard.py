"""A guard that runs a command, and ends all its processes when the command ends or standard input closes.

Usage: guard.py [--detach] SECONDS CORES COMMAND...

SECONDS is the time that the command may take to end in order. CORES are the numbers of its cores, separated by commas,
or "all". The process id of the command goes to standard output, and its output to standard error. The exit status is
the command's, or 128 and the signal; it goes to standard output as well. With --detach the guard is no child of its
caller, for callers that are killed together with their children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOOK_INTERVAL_S = 0.05
LAST_PATIENCE_S = 10.0
"""Time for killed processes to disappear: one may be writing a core dump, or wait for a device."""

SHARED_MEMORY = Path("/dev/shm")
NAMES = ("psm_", "sem.")


def main() -> int:
    words = sys.argv[1:]
    if words[0] == "--detach":
        words = words[1:]
        if os.fork():
            os._exit(0)
        os.setsid()
    grace_s, cores, command = float(words[0]), words[1], words[2:]
    if cores != "all":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    libc = ctypes.CDLL(None)
    # This process must wait for descendants whose parents have died.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be run: {error.strerror}\n")
        return 127
    _report(process.pid)
    ended = os.pidfd_open(process.pid)
    is_given_up = _wait_for_end(ended)
    shared = _shared_memory(process.pid)
    if is_given_up:
        _signal_group(process.pid, signal.SIGTERM)
        select.select([ended], [], [], grace_s)
    _signal_group(process.pid, signal.SIGKILL)
    status = process.wait()
    _reap(process.pid)
    for path in shared:
        path.unlink(missing_ok=True)
    if own := os.environ.get("TMPDIR"):
        shutil.rmtree(own, ignore_errors=True)
    status = 128 - status if status < 0 else status
    _report(status)
    return status


def _report(number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


def _wait_for_end(ended: int) -> bool:
    """Return True if standard input was closed first, False if the command has ended."""
    while True:
        ready, _, _ = select.select([ended, sys.stdin.fileno()], [], [])
        if ended in ready:
            return False
        if not os.read(sys.stdin.fileno(), 4096):
            return True


def _shared_memory(session: int) -> set[Path]:
    """Return the shared memory that a session's processes mapped by multiprocessing's names.

    Killed processes leave it in memory.
    """
    found: set[Path] = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == session:
                words = (line.split() for line in (entry / "maps").read_text().splitlines())
                paths = {Path(each[5]) for each in words if len(each) == 6}
                found |= {path for path in paths if path.parent == SHARED_MEMORY and path.name.startswith(NAMES)}
    return found


def _signal_group(group: int, signal_number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal_number)


def _reap(group: int) -> None:
    give_up_at = time.monotonic() + LAST_PATIENCE_S
    while time.monotonic() < give_up_at:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                _signal_group(group, signal.SIGKILL)
                time.sleep(LOOK_INTERVAL_S)
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main())
