"""The launch of a run on a server, under a key: a server that is asked again goes on with the run that it has.

Place in the flow: the evaluator calls it before a run's base weights are scored, and before its trained weights are.
This module knows nothing of scores or programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from experiments_db import Run
from researcher.errors import RunBroken, RunLost, RunRejected, ServerInUse
from swarm import SwarmClient
from swarm.errors import LaunchConflict
from swarm.schemas import Status

POLL_S = 0.1


def launch_once(client: SwarmClient, run: Run, job: Mapping[str, Any], project: str, boot_timeout_s: float) -> None:
    """Start the run's job under its key, unless the server has started it before; return while the engine boots.

    Raises RunBroken if the engine failed. Raises RunRejected if the run's program began another run in its place,
    RunLost if any other run took its place. Raises ServerInUse if the server works for another project than `project`.
    """
    key = run.idempotency_key
    try:
        launched = client.launch(key, job)
    except LaunchConflict as conflict:
        if client.status().project_name != project:
            raise ServerInUse(f"{client.url}: {conflict.message}") from conflict
        # The study holds the lease and gave the server to this run, so any other job there was left behind.
        client.stop_engine()
        launched = client.launch(key, job)
    match launched.outcome:
        case "failed":
            raise RunBroken(f"the engine failed: {launched.reason}")
        case "replaced":
            refuse_own_successor(client, run)
            raise RunLost(f"a later run took its place on {client.url} at step {launched.step}")
        case "stopped":
            client.auto_sync_train_config_and_start_engine(job, boot_timeout=boot_timeout_s)
        case "running" | "done":
            pass


def await_serving(client: SwarmClient, wait_s: float, check_stop: Callable[[], None]) -> Status:
    """Return the server's status once its engine serves the model.

    Raises RunBroken if the engine fails or does not serve within `wait_s` seconds, and what `check_stop` raises.
    """
    deadline = time.monotonic() + wait_s
    while (status := client.status()).state in ("BOOTING", "FAILED", "OFFLINE"):
        check_stop()
        if status.state == "FAILED":
            raise RunBroken(f"the engine failed: {status.reason}")
        if time.monotonic() > deadline:
            raise RunBroken(f"the engine is {status.state} after {wait_s:g} s: {status.reason or 'it does not boot'}")
        time.sleep(POLL_S)
    check_stop()
    return status


def is_replaced(client: SwarmClient, run: Run, boot_timeout_s: float) -> bool:
    """Return whether the server has another run by now; start the engine again if it was stopped.

    Raises RunLost if the server knows nothing of the run.
    """
    launched = client.find_launch(run.idempotency_key)
    if launched is None:
        raise RunLost(f"{client.url} has no record of it any more")
    if launched.outcome == "stopped":
        client.auto_sync_train_config_and_start_engine(run.job, boot_timeout=boot_timeout_s)
    return launched.outcome == "replaced"


def refuse_own_successor(client: SwarmClient, run: Run) -> None:
    """Raise RunRejected if a job with this run's own name has taken its place.

    A name is given once per attempt, so only the program of the run can have started that job.
    """
    if client.status().experiment_name == run.job["experiment_name"]:
        raise RunRejected("its program restarted the job on the server: a score would not be the arm's")
