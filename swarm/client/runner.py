"""Run an agent on many tasks at once, and do not let one failure end the others.

Place in the flow: on top of SwarmClient, in the program of the user. Knows nothing of agents or tasks.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar, cast, overload

from swarm.client.client import SwarmClient
from swarm.client.episode import Attempt, Credentials, abort_reason, current_attempt
from swarm.client.throttler import Throttler
from swarm.client.transient_errors import is_transient
from swarm.errors import (
    BadRequest,
    RolloutPaused,
    TrainingComplete,
)
from swarm.types import Task, WorkflowOutput

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
RunAgent = Callable[[Task, Credentials], WorkflowOutput]

# More threads than this only queue at the server.
DEFAULT_MAX_WORKERS = 64
MAX_ATTEMPTS = 5
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
# After an interrupt, agents whose episodes were aborted get this long to notice.
INTERRUPT_GRACE_S = 5.0
# How soon the waiting main thread sees an interrupt.
WATCH_S = 0.2


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """A task whose function raised for good. `position` is that of the attempt in the order of the results."""

    position: int
    attempts: int
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeRuns(Sequence[Result | None]):
    """What the function returned, per task and repeat in order, or None where it failed or never ran.

    Iterates, indexes and compares as the list of these, which are in `results` as well. `training_complete` is True if
    the server had done its last step, which ends a run early.
    """

    results: tuple[Result | None, ...]
    failures: tuple[EpisodeFailure, ...]
    training_complete: bool

    @overload
    def __getitem__(self, index: int) -> Result | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[Result | None]: ...

    def __getitem__(self, index: int | slice) -> Result | list[Result | None] | None:
        return list(self.results[index]) if isinstance(index, slice) else self.results[index]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result | None]:
        return iter(self.results)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EpisodeRuns):
            same = cast("EpisodeRuns[object]", other)
            return list(self) == list(same) and self.failures == same.failures
        return list(self) == other if isinstance(other, list) else NotImplemented


@overload
def run_episodes_until_all_complete(
    tasks: Sequence[Item],
    func: Callable[[Item], Result],
    max_workers: int | None = None,
    auto_retry: bool = True,
    *,
    num_repeat: int = 1,
    throttler: Throttler | None = None,
) -> EpisodeRuns[Result]: ...


@overload
def run_episodes_until_all_complete(
    tasks: Sequence[Task],
    func: RunAgent,
    max_workers: int | None = None,
    auto_retry: bool = True,
    *,
    client: SwarmClient,
    num_repeat: int = 1,
    throttler: Throttler | None = None,
) -> EpisodeRuns[WorkflowOutput]: ...


def run_episodes_until_all_complete(
    tasks: Sequence[Item],
    func: Callable[..., Result],
    max_workers: int | None = None,
    auto_retry: bool = True,
    *,
    client: SwarmClient | None = None,
    num_repeat: int = 1,
    throttler: Throttler | None = None,
) -> EpisodeRuns[Result]:
    """Attempt every task on a pool of threads, `num_repeat` times in a row, so that its group fills at once.

    Without `client`, `func(task)` begins and ends its episode itself; what it began and left open when it raised is
    aborted. With `client`, each attempt is a train episode of the task, its data source and its group; `func(task,
    credentials)` is the agent, and the WorkflowOutput it returns ends the episode.

    Returns when all are done, or soon after the server says TrainingComplete: tasks not yet begun are then left out. A
    function that raises costs only its own attempt and is never rewarded; with `auto_retry` it is called again, up to 5
    times, if the failure is the system's (the server was away, the episode was given up, a connection broke) and not
    the function's own; waiting for the server to let an episode begin is no attempt. The server hears of an attempt
    that failed for good, and does not wait for it. An interrupt (Ctrl-C) aborts the open episodes and is raised.
    """
    for name, value in (("max_workers", max_workers), ("num_repeat", num_repeat)):
        if value is not None and value < 1:
            raise BadRequest(f"{name} must be at least 1, got {value}", param=name)
    # The overloads see to it that with a client, tasks are Tasks and func is an agent.
    call = func if client is None else cast(Callable[[Item], Result], _in_episodes(client, cast(RunAgent, func)))
    attempts = [task for task in tasks for _ in range(num_repeat)]
    run = _Run(attempts, call, MAX_ATTEMPTS if auto_retry else 1, throttler)
    run.work(max_workers or DEFAULT_MAX_WORKERS)
    return EpisodeRuns(
        results=tuple(None if isinstance(outcome, EpisodeFailure) else outcome for outcome in run.outcomes),
        failures=tuple(outcome for outcome in run.outcomes if isinstance(outcome, EpisodeFailure)),
        training_complete=run.training_complete,
    )


def backoff_s(attempt: int) -> float:
    """Seconds before attempt number `attempt` + 1, jittered so that many clients do not come back at once."""
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)


def _in_episodes(client: SwarmClient, run_agent: RunAgent) -> Callable[[Task], WorkflowOutput | None]:
    def attempt(task: Task) -> WorkflowOutput | None:
        # Who made the call aborts what this leaves open, and knows whether another attempt follows.
        episode_id, credentials = client.begin_episode(task_id=task.task_id, data_source=task.data_source)
        # Untyped agents may well return nothing.
        output = cast(WorkflowOutput | None, run_agent(task, credentials))
        if output is None:
            client.abort_episode(episode_id, "no_result", final=True)
        else:
            client.end_episode(task, episode_id, output)
        return output

    return attempt


class _Run(Generic[Item, Result]):
    """One call of run_episodes_until_all_complete, shared by its threads.

    The threads are daemons: after an interrupt, an agent that hangs must not keep the program from ending.
    """

    def __init__(
        self,
        tasks: Sequence[Item],
        func: Callable[[Item], Result],
        max_attempts: int,
        throttler: Throttler | None,
    ) -> None:
        self.outcomes: list[Result | EpisodeFailure | None] = [None] * len(tasks)
        self.training_complete = False
        self._tasks = tasks
        self._func = func
        self._max_attempts = max_attempts
        self._throttler = throttler
        self._positions: Iterator[int] = iter(range(len(tasks)))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._open: set[Attempt] = set()
        self._interrupt: BaseException | None = None
        self._is_abandoned = False

    def work(self, max_workers: int) -> None:
        """Raises what ended a thread, or the main thread's wait, other than an Exception of the function."""
        threads = [
            threading.Thread(target=self._work_through, name=f"episode-{number}", daemon=True)
            for number in range(min(max_workers, len(self._tasks)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and self._interrupt is None:
                    thread.join(WATCH_S)
            if self._interrupt is not None:
                raise self._interrupt
        except BaseException:
            self._abandon(threads)
            raise

    def _work_through(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                position = next(self._positions, None)
            if position is None:
                return
            try:
                self.outcomes[position] = self._try(position)
            except BaseException as interrupt:  # noqa: BLE001 - the waiting thread raises it
                self._interrupt = interrupt
                return

    def _try(self, position: int) -> Result | EpisodeFailure | None:
        attempts, task = 0, self._tasks[position]
        while not self._stop.is_set():
            attempts += 1
            attempt = Attempt(task if isinstance(task, Task) else None)
            try:
                with self._throttler or nullcontext():
                    if self._stop.is_set():
                        return None
                    result = self._call(task, attempt, attempts)
                attempt.give_up("no_result")
                return result
            except TrainingComplete:
                self.training_complete = True
                self._stop.set()
            except Exception as error:  # the boundary: a failure of one task is data of the run
                if self._is_abandoned:
                    return None
                if self._is_final(error, attempts):
                    attempt.give_up(abort_reason(error))
                    logger.warning("attempt %d failed after %d call(s)", position, attempts, exc_info=error)
                    return EpisodeFailure(position, attempts, error)
                logger.info("attempt %d is made again: %s", position, error)
                if isinstance(error, RolloutPaused):
                    attempts -= 1
                self._stop.wait(backoff_s(max(1, attempts)))
        return None

    def _is_final(self, error: BaseException, attempts: int) -> bool:
        """Whether a task is left as it is after so many attempts. Waiting for a place was none."""
        if isinstance(error, RolloutPaused) and self._max_attempts > 1:
            return False
        return attempts >= self._max_attempts or not is_transient(error)

    def _call(self, task: Item, attempt: Attempt, attempts: int) -> Result:
        token = current_attempt.set(attempt)
        with self._lock:
            self._open.add(attempt)
            if self._stop.is_set():
                attempt.abort_rest("client_interrupted")
        try:
            return self._func(task)
        except BaseException as error:
            attempt.abort_rest(abort_reason(error), is_final=self._is_final(error, attempts))
            raise
        finally:
            with self._lock:
                self._open.discard(attempt)
            current_attempt.reset(token)

    def _abandon(self, threads: Sequence[threading.Thread]) -> None:
        """Stop, give up what is open, so that its model calls fail, and leave the threads a moment to notice."""
        self._is_abandoned = True
        self._stop.set()
        with self._lock:
            left = list(self._open)
        # Not waited for longer than the rest: the server may be away.
        aborting = threading.Thread(target=_abort_all, args=(left,), name="episode-abort", daemon=True)
        aborting.start()
        deadline = time.monotonic() + INTERRUPT_GRACE_S
        # An interrupt may come before all have been started.
        for thread in (aborting, *(thread for thread in threads if thread.ident is not None)):
            thread.join(max(0.0, deadline - time.monotonic()))


def _abort_all(attempts: Sequence[Attempt]) -> None:
    for attempt in attempts:
        attempt.abort_rest("client_interrupted")
