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

from swarm.processes.child import Child, tail

POLL_S = 0.02


class NoAnnouncement(Exception):
    """A child ended, or was silent for too long. The message is the last line of what it said on standard error."""


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
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not is_given_up():
        # Asked before the file is read, so that a child which ends right after its line has been heard.
        has_ended = child.poll() is not None
        line, newline, _ = out.read_text(encoding="utf-8").partition("\n")
        if newline:
            return json.loads(line)
        if has_ended:
            break
        time.sleep(POLL_S)
    said = tail(errors).splitlines()
    raise NoAnnouncement(said[-1] if said else f"no sign of life within {timeout_s:.0f} s")
