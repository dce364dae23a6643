"""The one line in which a child says that it is ready: how a child says it, and how its parent waits for it.

Place in the flow: servers, environments and programs keep their standard output for what their parent reads. child.py
starts them. This module knows nothing of what a line says.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from swarm.processes.child import KILLED, Child, tail

POLL_S = 0.02


class NoAnnouncement(Exception):
    """A child ended, or was silent for too long. The message is the last line of what it said on standard error.

    `was_killed` says that it was killed before it could say anything.
    """

    def __init__(self, message: str, *, was_killed: bool = False) -> None:
        super().__init__(message)
        self.was_killed = was_killed


def claim_stdout() -> TextIO:
    """Standard output for this process's own lines alone: what other code prints goes to standard error from now on."""
    claimed = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return claimed


def await_announcement(
    child: Child, out: Path, errors: Path, timeout_s: float, *, is_given_up: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """The JSON document that the child writes as the first line of the file `out`.

    Raises NoAnnouncement if it ends or `timeout_s` pass without one, or once `is_given_up` says so. The child is left
    as it is.
    """
    deadline, code = time.monotonic() + timeout_s, None
    while time.monotonic() < deadline and not is_given_up():
        # Asked before the file is read, so that a child which ends right after its line has been heard.
        code = child.poll()
        line, newline, _ = out.read_text(encoding="utf-8").partition("\n")
        if newline:
            return json.loads(line)
        if code is not None:
            break
        time.sleep(POLL_S)
    if code == KILLED:
        raise NoAnnouncement("it was killed", was_killed=True)
    said = tail(errors).splitlines()
    silence = f"no sign of life within {timeout_s:.0f} s" if code is None else f"it ended with exit code {code}"
    raise NoAnnouncement(said[-1] if said else silence)
