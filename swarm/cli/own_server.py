"""The server that a command uses: a given one, or the command's own, a child process that ends with the command."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.cli.options import DATABASE_SINK
from swarm.errors import EngineFailure

if TYPE_CHECKING:
    from swarm.job import TrainJob
    from swarm.processes.child import Child

START_TIMEOUT_S = 120.0
"""Time limit for the start. On a busy machine, the first import of the web stack from disk is slow."""
STOP_TIMEOUT_S = 60.0
"""Time that a server has to free its model before it is killed."""
ORPHAN_TIMEOUT_S = 30.0
"""Time that a server has to end after its command was killed. Its supervisor normally ends it within seconds."""
POLL_S = 0.1
ANNOUNCEMENT = "stdout.log"


@contextmanager
def server_at(
    url: str | None, home: Path, job: TrainJob | None = None, *, sinks: Collection[str] = ()
) -> Generator[str]:
    """Yield `url`, or without one the address of a new server that runs in `home` until the context ends.

    The new server prepares for the engine of `job`, which it is about to get. It records its trainings in `sinks`.


    Raise EngineFailure if the new server does not start, LedgerInUse if another server runs in `home`.
    """
    if url is not None:
        yield url
        return
    from swarm.processes.child import Child, NoAnnouncement, await_announcement, python_module

    out, errors = home / ANNOUNCEMENT, home / "stderr.log"
    await_former_server(home)
    try:
        home.mkdir(parents=True, exist_ok=True)
        out.unlink(missing_ok=True)
    except OSError as error:
        raise EngineFailure(f"the server of this run cannot use {home}: {error.strerror}") from error
    command = python_module("swarm.cli", "start", "--port", "0", "--home", str(home), "--json")
    command += [] if DATABASE_SINK in sinks else ["--no-record"]
    command += [word for name in sinks if name != DATABASE_SINK for word in ("--log", name)]
    command += ["--warm-up"] if job is not None and job.chosen_engine == "local" else []
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
    """Wait until the server of a killed command has released its home.

    Raise LedgerInUse at once if no command started the server for itself, or after a while if the server does not end.
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


def own_server_pid(home: Path) -> int | None:
    """Return the process of the server that was started in this home by `server_at`, or None."""
    try:
        return json.loads((home / ANNOUNCEMENT).read_bytes())["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
        # The server was killed before it wrote its whole announcement.
        return True


def _end(child: Child, pid: int) -> None:
    """End the server and wait up to STOP_TIMEOUT_S. `Child.stop` waits only seconds, too short for a large model."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        child.wait(STOP_TIMEOUT_S)
