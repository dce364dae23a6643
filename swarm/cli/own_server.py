"""The server that a command speaks to: the one it was given, or one that lives as long as the command.

Place in the flow: `swarm train` and `swarm env check` open one. A server of a command's own is a child process
(swarm.processes), so that it ends however the command does. This module knows nothing of jobs or episodes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.errors import EngineFailure

if TYPE_CHECKING:
    from swarm.processes.child import Child

START_TIMEOUT_S = 120.0
"""A cold start imports the web stack from disk, on a busy machine slowly."""
STOP_TIMEOUT_S = 60.0
"""What a server may take to free its model before it is ended less gently."""


@contextmanager
def server_at(url: str | None, home: Path) -> Generator[str]:
    """The address of the server that was named, or of one with its files in `home` that runs until this is left.

    Raises EngineFailure if that one does not start.
    """
    if url is not None:
        yield url
        return
    from swarm.processes.announcement import NoAnnouncement, await_announcement
    from swarm.processes.child import Child

    out, errors = home / "stdout.log", home / "stderr.log"
    try:
        home.mkdir(parents=True, exist_ok=True)
        out.unlink(missing_ok=True)
    except OSError as error:
        raise EngineFailure(f"the server of this run cannot use {home}: {error.strerror}") from error
    command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", str(home), "--json"]
    child = Child(command, env=dict(os.environ), cwd=Path.cwd(), out=out, errors=errors)
    try:
        try:
            announced = await_announcement(child, out, errors, START_TIMEOUT_S)
        except NoAnnouncement as error:
            raise EngineFailure(f"the server of this run did not start: {error} (log: {errors})") from error
        try:
            yield announced["url"]
        finally:
            _end(child, announced["pid"])
    finally:
        child.stop()


def _end(child: Child, pid: int) -> None:
    """Give the server the time that it needs: a child that is stopped gets seconds, a large model may take longer."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        child.wait(STOP_TIMEOUT_S)
