"""A reaper that ends every process of a driver's session once the driver is gone, for any reason."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 30.0
PAUSE_S = 0.02


def start_reaper() -> None:
    """Watch this process, which becomes a session leader if it is not one. Raise OSError if it cannot."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    # This end of the pipe is open in this process alone, so it closes when this process ends.
    watched, kept = os.pipe()
    subprocess.Popen([sys.executable, "-S", "-E", __file__], stdin=watched, close_fds=True)
    os.close(watched)
    os.set_inheritable(kept, False)


def _members(session: int) -> list[int]:
    """Return the ids of the running processes of a session."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
    return found


def end_others() -> None:
    """Kill all other processes of this session until none is left, or until PATIENCE_S have passed.

    A process that waits in the kernel, as for a broken disk or a GPU, may outlive SIGKILL. It is named and left alone.
    """
    session, give_up_at = os.getsid(0), time.monotonic() + PATIENCE_S
    while others := [pid for pid in _members(session) if pid != os.getpid() and not _is_zombie(pid)]:
        if time.monotonic() > give_up_at:
            left = ", ".join(map(str, others))
            sys.stderr.write(f"still there {PATIENCE_S:g} s after SIGKILL, and left alone: {left}\n")
            return
        for pid in others:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def _wait() -> None:
    """Wait until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while os.read(0, 1):
        pass


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[-1].split()[0] == "Z"
    except OSError:
        return True


if __name__ == "__main__":
    _wait()
    end_others()
