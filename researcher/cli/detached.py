"""The process that works on a study after the command that began it has ended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments_db import ExperimentStore, Study, lease_name
from researcher.errors import NotDetached
from swarm.processes import python_module, tail

START_LIMIT_S = 120.0
"""The longest start, in seconds: far above the time of the imports on a busy laptop."""

POLL_S = 0.1
FAILURE = "researcher: "
"""The prefix of the line with which a command explains its failure (terminal.py)."""


@dataclass(frozen=True, slots=True)
class DetachedWork:
    """A process that works on a study.

    `pid` is its process id and the id of its session. `log` has all that it prints.
    """

    pid: int
    log: Path


def work_detached(
    store: ExperimentStore, study: Study, home: Path, db: str | None, options: Sequence[str] = ()
) -> DetachedWork:
    """Start a process that works on a study, and wait until it has the study's lease.

    Only then does a request to pause or stop reach it. `options` are further options of `resume`. Raises NotDetached,
    with the exit code of the process, if it ended before that.
    """
    log = (home / "studies" / study.id / "output.log").resolve()
    log.parent.mkdir(parents=True, exist_ok=True)
    command = python_module("researcher.cli", "resume", study.id, "--home", str(home))
    command += [*options, *([] if db is None else ["--db", db])]
    with log.open("ab") as output:
        begins = output.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + START_LIMIT_S
    while not _has_begun(store, study, process.pid):
        code = process.poll()
        if code == 0:
            break
        if code is not None:
            raise NotDetached(_failure(log, begins) or f"the process ended with exit code {code}: {log}", code)
        if time.monotonic() > deadline:
            process.terminate()
            process.wait()
            raise NotDetached(f"the process did not begin within {START_LIMIT_S:.0f} s: {log}", 1)
        time.sleep(POLL_S)
    return DetachedWork(process.pid, log)


def _has_begun(store: ExperimentStore, study: Study, pid: int) -> bool:
    """Return whether the process has the lease and has set the study running.

    Setting it running would undo an earlier request to pause.
    """
    lease = store.find_lease(lease_name(study.id))
    is_taken = lease is not None and lease.owner.split(":")[1] == str(pid)
    return is_taken and store.get_study(study.id).updated_at > study.updated_at


def _failure(log: Path, begins: int) -> str:
    """Return the process's line about its failure, after byte `begins` of the log.

    An older process may have written to the same log before.
    """
    if log.stat().st_size <= begins:
        return ""
    failures = [line for line in tail(log).splitlines() if line.startswith(FAILURE)]
    return failures[-1].removeprefix(FAILURE) if failures else ""
