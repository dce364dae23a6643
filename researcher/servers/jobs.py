"""The job of a run on its server: its launch under a key, its early end, and attempts that fail."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from experiments_db import Run
from researcher.errors import RunBroken, RunDiverged, RunLost, RunRejected, ServerInUse
from researcher.record.costs import error_of_program
from researcher.record.runs import PROGRAM, Diagnosis
from swarm import SwarmClient, SwarmError
from swarm.errors import BadRequest, EpisodeEnded, LaunchConflict
from swarm.job import build_job
from swarm.processes import Child
from swarm.schemas import MetricPointView, Status

POLL_S = 0.1
FAILED, COMPLETE = ("FAILED", "OFFLINE"), ("COMPLETE",)
RESTING = ("ROLLING", *COMPLETE)
SERVING = ("DRAINING", "TRAINING", "EXPORTING", *RESTING)
"""States of an engine that has failed, has done its job, trains nothing now, and serves the model."""


def launch_once(client: SwarmClient, run: Run, job: Mapping[str, Any], project: str, boot_timeout_s: float) -> None:
    """Start the run's job under its key, unless the server has started it before; return while the engine boots.

    Raises RunBroken if the engine failed, RunDiverged if its weights are the cause. Raises RunRejected if the run's
    program began another run in its place, RunLost if any other run took its place. Raises ServerInUse if the server
    works for another project than `project`.
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
            raise _failure_of(client.status(), f"the engine failed: {launched.reason}")
        case "replaced":
            refuse_own_successor(client, run)
            raise RunLost(f"a later run took its place on {client.url} at step {launched.step}")
        case "stopped":
            client.auto_sync_train_config_and_start_engine(job, boot_timeout=boot_timeout_s)
        case "running" | "done":
            pass


def await_state(
    client: SwarmClient,
    states: Collection[str],
    wait_s: float,
    check_stop: Callable[[], None],
    *,
    failed: Collection[str] = FAILED,
) -> Status:
    """Return the server's status once its engine is in one of the states. Raises as `poll_states` does."""
    *_, status = poll_states(client, states, wait_s, check_stop, failed=failed)
    return status


def poll_states(
    client: SwarmClient,
    states: Collection[str],
    wait_s: float,
    check_stop: Callable[[], None],
    *,
    failed: Collection[str] = FAILED,
) -> Iterator[Status]:
    """Yield the server's status at each look, the last time with its engine in one of `states`.

    Raises RunBroken if the engine is in a `failed` state or needs more than `wait_s` seconds, RunDiverged if its
    weights are the cause, SwarmError, and what `check_stop` raises.
    """
    deadline = time.monotonic() + wait_s
    while (status := client.status()).state not in states:
        check_stop()
        if status.state in failed or time.monotonic() > deadline:
            reason = status.reason or f"it has not come to {' or '.join(states)} within {wait_s:g} s"
            raise _failure_of(status, f"the engine is {status.state}: {reason}")
        yield status
        time.sleep(POLL_S)
    yield status


def _failure_of(status: Status, sentence: str) -> RunBroken:
    return RunDiverged(sentence) if status.has_diverged else RunBroken(sentence)


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


logger = logging.getLogger(__name__)

MAX_RUNNING = 10_000


@dataclass(frozen=True, slots=True)
class EndedTraining:
    """The last trained step, and the metrics that the server has of the steps asked for."""

    step: int
    points: tuple[MetricPointView, ...]


def end_job(
    client: SwarmClient, child: Child | None, after_step: int, *, wait_s: float, check_stop: Callable[[], None]
) -> EndedTraining:
    """End the server's job with the step that is done or in progress, and end its program.

    The result holds the metrics of the steps after `after_step`. A second call changes nothing.

    Raises RunBroken if the engine fails or no step was done, SwarmError, and what `check_stop` raises.
    """
    # This comes first, so that requests that the program still sends cannot complete another step.
    _end_with_present_step(client, poll_states(client, COMPLETE, wait_s, check_stop))
    if child is not None:
        child.stop()
    _abort_train_episodes(client)
    ended = await_state(client, COMPLETE, wait_s, check_stop)
    return EndedTraining(ended.step, tuple(client.metrics(after_step)))


def stop_job(client: SwarmClient, child: Child | None, after_step: int) -> EndedTraining:
    """End the program and free the engine, whatever it is doing. Raises SwarmError."""
    if child is not None:
        child.stop()
    client.stop_engine()
    points = tuple(client.metrics(after_step))
    return EndedTraining(points[-1].step if points else 0, points)


def free_engine(client: SwarmClient) -> None:
    """Stop an engine that nobody needs any more.

    An error is only logged: the next launch on the server stops the engine too.
    """
    try:
        client.stop_engine()
    except SwarmError as error:
        logger.warning("the engine of %s is not stopped: %s", client.url, error)


def _end_with_present_step(client: SwarmClient, statuses: Iterable[Status]) -> None:
    for status in statuses:
        if status.state in ("BOOTING", *COMPLETE):
            # After an outage the server does not know yet with which step it goes on.
            continue
        filling = client.job().filling
        if filling is None or filling < 2:
            raise RunBroken("the run was to end before a step of it was done")
        try:
            client.change_job({"total_steps": filling - 1})
        except BadRequest:
            # Another batch may have been completed in between.
            if client.job().filling == filling:
                raise
        else:
            return


def _abort_train_episodes(client: SwarmClient) -> None:
    """Abort the running train episodes: nobody continues them, and the next batch would wait for their end."""
    for episode in client.episodes(limit=MAX_RUNNING, state="running", episode_type="train"):
        with suppress(EpisodeEnded):
            client.abort_episode(episode.episode_id)


MAX_SHARE = 0.5
"""The largest share of failed attempts that a run may have before its first step."""
MAX_READ = 10_000


def diagnose_attempts(client: SwarmClient, status: Status, job: Mapping[str, Any]) -> Diagnosis | None:
    """Return a diagnosis once a batch's worth of attempts, and more than MAX_SHARE of all, have failed.

    Raises SwarmError.
    """
    if status.step or status.pool is None:
        return None
    batch = build_job(dict(job)).resolve()
    needed = batch.batch_size * batch.num_repeat
    if sum(status.failures.values()) < needed:
        return None
    given_up = client.episodes(limit=MAX_READ, state="aborted", episode_type="train")
    reasons = Counter(name for episode in given_up if (name := error_of_program(episode.outcome)) is not None)
    failed = reasons.total()
    made = failed + status.pool.episodes
    if failed < needed or failed <= MAX_SHARE * made:
        return None
    ((name, count),) = reasons.most_common(1)
    sentence = f"{failed} of {made} attempts of its program failed before the first step, {count} of them by {name}."
    return Diagnosis(PROGRAM, sentence, is_scored=False, is_retried=False)
