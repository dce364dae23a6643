"""The early end of a run's training: the server trains no further step and returns the record of what it trained.

Place in the flow: monitor calls it in the background for every run that it ends. `end_job` keeps the weights served, so
that they can be scored. `stop_job` frees the engine of a run that nobody scores. This module knows nothing of scores or
of why a run ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from researcher.errors import RunBroken
from swarm import SwarmClient, SwarmError
from swarm.errors import BadRequest, EpisodeEnded
from swarm.processes import Child
from swarm.schemas import MetricPointView

logger = logging.getLogger(__name__)

POLL_S = 0.1
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
    _end_with_present_step(client, _looks(client, wait_s, check_stop))
    if child is not None:
        child.stop()
    _abort_train_episodes(client)
    for _ in _looks(client, wait_s, check_stop):
        pass
    return EndedTraining(client.status().step, tuple(client.metrics(after_step)))


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


def _looks(client: SwarmClient, wait_s: float, check_stop: Callable[[], None]) -> Iterator[str]:
    """Yield the state of the engine at each look, until its job is complete.

    Raises RunBroken once the engine has failed or takes longer than `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    while (status := client.status()).state != "COMPLETE":
        check_stop()
        if status.state in ("FAILED", "OFFLINE") or time.monotonic() > deadline:
            raise RunBroken(f"the engine is {status.state}: {status.reason or 'it does not finish its step'}")
        yield status.state
        time.sleep(POLL_S)


def _end_with_present_step(client: SwarmClient, looks: Iterable[str]) -> None:
    for state in looks:
        if state == "BOOTING":
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
