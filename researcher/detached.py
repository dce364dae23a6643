"""A process of its own that works on a study after the command that began it has ended.

Place in the flow: command_parts.py starts it in place of working on the study itself; it runs `researcher resume`. It
has a session of its own, so neither the end of a terminal nor a Ctrl-C in it reaches it. This module knows nothing of
what the study is.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments_db import ExperimentStore, Study, lease_name
from researcher.errors import NotDetached
from swarm.processes.child import tail

START_LIMIT_S = 120.0
"""A cold start imports LangGraph and the web stack from disk; far above the seconds that takes on a busy laptop."""

POLL_S = 0.1
FAILURE = "researcher: "
"""What the line begins with in which a command says why it failed (terminal.py)."""


@dataclass(frozen=True, slots=True)
class DetachedWork:
    """`pid` is the process that works, also the number of its session; `log` has all that it prints."""

    pid: int
    log: Path


def work_detached(
    store: ExperimentStore, study: Study, home: Path, db: str | None, options: Sequence[str] = ()
) -> DetachedWork:
    """Returns once the process has the study to itself, so that a request to pause or stop reaches it. `options` are
    further ones of `resume`.

    Raises NotDetached, with the exit code of the process, if it ended before that.
    """
    log = (home / "studies" / study.id / "output.log").resolve()
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "researcher.cli", "resume", study.id, "--home", str(home)]
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
    """Whether the process has the lease and has set the study running, which would undo an earlier request to pause."""
    lease = store.find_lease(lease_name(study.id))
    is_taken = lease is not None and lease.owner.split(":")[1] == str(pid)
    return is_taken and store.get_study(study.id).updated_at > study.updated_at


def _failure(log: Path, begins: int) -> str:
    """The line in which the process said why it ended, since byte `begins`; another one may write there as well."""
    if log.stat().st_size <= begins:
        return ""
    said = [line for line in tail(log).splitlines() if line.startswith(FAILURE)]
    return said[-1].removeprefix(FAILURE) if said else ""
