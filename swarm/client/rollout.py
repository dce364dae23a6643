"""Run an agent on many tasks at once, and do not let one failure end the others.

Place in the flow: on top of SwarmClient, in the program of the user. Knows nothing of agents or tasks.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import httpx

from swarm.errors import BadRequest, EpisodeEnded, ServerUnreachable, TrainingComplete, Unauthorized, Unavailable

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

# More threads than this only queue at the server.
DEFAULT_MAX_WORKERS = 64
MAX_ATTEMPTS = 5
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0

# Unauthorized (401) is how an agent learns in mid-episode that the server has given its episode up.
_TRANSIENT = (
    Unavailable, ServerUnreachable, EpisodeEnded, Unauthorized, httpx.TransportError, ConnectionError, TimeoutError,
)  # fmt: skip
_TRANSIENT_STATUSES = frozenset({401, 408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """A task whose function raised for good. `position` is that of the task in the given sequence."""

    position: int
    attempts: int
    error: Exception


@dataclass(frozen=True, slots=True)
class EpisodeRuns(Generic[Result]):
    """`results` has one entry per task, in order: what the function returned, or None where it failed or never ran.

    `training_complete` is True if the server had done its last step, which ends a run early.
    """

    results: tuple[Result | None, ...]
    failures: tuple[EpisodeFailure, ...]
    training_complete: bool


def run_episodes_until_all_complete(
    tasks: Sequence[Item],
    func: Callable[[Item], Result],
    max_workers: int | None = None,
    auto_retry: bool = True,
) -> EpisodeRuns[Result]:
    """Call `func(task)` for every task on a pool of threads; `func` begins and ends the episode itself.

    Returns when all are done, or soon after the server says TrainingComplete: tasks not yet begun are then left out. A
    function that raises costs only its own task; with `auto_retry` it is called again, up to 5 times, if the failure
    is the system's (the server was away, the episode was given up, a connection broke) and not the function's own.
    """
    if max_workers is not None and max_workers < 1:
        raise BadRequest(f"max_workers must be at least 1, got {max_workers}", param="max_workers")
    if not tasks:
        return EpisodeRuns((), (), False)
    run = _Run(func, MAX_ATTEMPTS if auto_retry else 1)
    workers = max_workers or min(DEFAULT_MAX_WORKERS, len(tasks))
    with ThreadPoolExecutor(workers, thread_name_prefix="episode") as pool:
        try:
            outcomes = list(pool.map(run.attempt, range(len(tasks)), tasks))
        except BaseException:
            run.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return EpisodeRuns(
        results=tuple(None if isinstance(outcome, EpisodeFailure) else outcome for outcome in outcomes),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, EpisodeFailure)),
        training_complete=run.training_complete,
    )


def is_transient(error: BaseException) -> bool:
    """Whether another attempt may succeed: the server was away or lost the episode, or a connection broke.

    SDKs wrap what happened: their `status_code` and the causes of the error are looked at too.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, _TRANSIENT) or getattr(cause, "status_code", None) in _TRANSIENT_STATUSES:
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


def backoff_s(attempt: int) -> float:
    """Seconds before attempt number `attempt` + 1, jittered so that many clients do not come back at once."""
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)


class _Run(Generic[Item, Result]):
    """One call of run_episodes_until_all_complete, shared by its threads."""

    def __init__(self, func: Callable[[Item], Result], max_attempts: int) -> None:
        self._func = func
        self._max_attempts = max_attempts
        self.stop = threading.Event()
        self.training_complete = False

    def attempt(self, position: int, task: Item) -> Result | EpisodeFailure | None:
        attempts = 0
        while not self.stop.is_set():
            attempts += 1
            try:
                return self._func(task)
            except TrainingComplete:
                self.training_complete = True
                self.stop.set()
            except Exception as error:  # the boundary: a failure of one task is data of the run
                if attempts >= self._max_attempts or not is_transient(error):
                    logger.warning("task %d failed after %d attempt(s)", position, attempts, exc_info=error)
                    return EpisodeFailure(position, attempts, error)
                logger.info("task %d is tried again: %s", position, error)
                self.stop.wait(backoff_s(attempts))
        return None
