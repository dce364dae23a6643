"""The one line of JSON that tells a parent that its child process is ready."""

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
    """A child process that ended without its line, or took too long to write it.

    The message is the child's last line on standard error. `was_killed` says that a signal killed the child first.
    """

    def __init__(self, message: str, *, was_killed: bool = False) -> None:
        super().__init__(message)
        self.was_killed = was_killed


def claim_stdout() -> TextIO:
    """Return standard output for this process's own lines, and redirect what other code prints to standard error."""
    claimed = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return claimed


def await_announcement(
    child: Child, out: Path, errors: Path, timeout_s: float, *, is_given_up: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Return the JSON document that the child writes as the first line of the file `out`.

    Raises NoAnnouncement if the child ends or `timeout_s` seconds pass without one, or once `is_given_up` returns true.
    The child itself is not stopped.
    """
    deadline, code = time.monotonic() + timeout_s, None
    while time.monotonic() < deadline and not is_given_up():
        # Poll before reading, so that the line of a child that ends right after it is not missed.
        code = child.poll()
        line, newline, _ = out.read_text(encoding="utf-8").partition("\n")
        if newline:
            return json.loads(line)
        if code is not None:
            break
        time.sleep(POLL_S)
    if code == KILLED:
        raise NoAnnouncement("it was killed", was_killed=True)
    lines = tail(errors).splitlines()
    silence = f"it wrote nothing within {timeout_s:.0f} s" if code is None else f"it ended with exit code {code}"
    raise NoAnnouncement(lines[-1] if lines else silence)
