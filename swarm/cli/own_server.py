"""The server that a command speaks to: the one it was given, or one that lives as long as the command.

Place in the flow: `swarm train` and `swarm env check` open one. A server of a command's own is a child process
(swarm.processes), so that it ends however the command does. This module knows nothing of jobs or episodes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
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
ORPHAN_TIMEOUT_S = 30.0
"""What the server of a command that was killed may take to end: its supervisor sees to it within seconds."""
POLL_S = 0.1
ANNOUNCEMENT = "stdout.log"


@contextmanager
def server_at(url: str | None, home: Path) -> Generator[str]:
    """Yield the address of the server that was named, or of one with its files in `home` that runs until this is left.

    Raise EngineFailure if that server does not start, LedgerInUse if another one runs there.
    """
    if url is not None:
        yield url
        return
    from swarm.processes.announcement import NoAnnouncement, await_announcement
    from swarm.processes.child import Child

    out, errors = home / ANNOUNCEMENT, home / "stderr.log"
    await_former_server(home)
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


def await_former_server(home: Path) -> None:
    """Wait until the server of a command that was killed has let go of its home.

    Raise LedgerInUse for a server that no command has started for itself, at once, and for one that does not end.
    """
    from swarm.config import LEDGER
    from swarm.errors import LedgerInUse
    from swarm.ledger.database import hold_lock

    ledger = home / LEDGER
    deadline = time.monotonic() + ORPHAN_TIMEOUT_S
    while ledger.exists():
        try:
            hold_lock(ledger).close()
            return
        except LedgerInUse:
            if not _is_own(home) or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


def _is_own(home: Path) -> bool:
    """Return whether the server that runs in this home was started by `server_at`."""
    from swarm.config import LEDGER
    from swarm.ledger.database import lock_of

    try:
        pid = json.loads((home / ANNOUNCEMENT).read_bytes())["pid"]
        return lock_of(home / LEDGER).read_text() == str(pid)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        # Killed before it could say who it is.
        return True


def _end(child: Child, pid: int) -> None:
    """Give the server the time that it needs. A stopped child gets seconds, and a large model may take longer."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        child.wait(STOP_TIMEOUT_S)
