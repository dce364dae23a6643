"""The runner of many episodes at once, in which one failed episode does not end the others."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar, cast, overload

from swarm.client.client import SwarmClient
from swarm.client.episode import Attempt, Credentials, abort_reason, current_attempt
from swarm.client.fault_log import FaultLog
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
# After an interrupt, the agents of aborted episodes get this long to end.
INTERRUPT_GRACE_S = 5.0
# The waiting main thread looks for an interrupt this often.
WATCH_S = 0.2


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """A task whose function raised and is not called again. `position` is its index in the results."""

    position: int
    attempts: int
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeRuns(Sequence[Result | None]):
    """The results of the function, in the order of tasks and repeats; None where it failed or did not run.

    It iterates, indexes and compares like the list of its `results`. `training_complete` is True if the server had done
    its last step, which ends a run early.
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
    throttler: AbstractContextManager[None] | None = None,
    faults: FaultLog | None = None,
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
    throttler: AbstractContextManager[None] | None = None,
    faults: FaultLog | None = None,
) -> EpisodeRuns[WorkflowOutput]: ...


def run_episodes_until_all_complete(
    tasks: Sequence[Item],
    func: Callable[..., Result],
    max_workers: int | None = None,
    auto_retry: bool = True,
    *,
    client: SwarmClient | None = None,
    num_repeat: int = 1,
    throttler: AbstractContextManager[None] | None = None,
    faults: FaultLog | None = None,
) -> EpisodeRuns[Result]:
    """Run every task `num_repeat` times on a pool of threads, and return the results.

    The repeats of a task follow one another, so that its group fills at once. Without `client`, `func(task)` begins and
    ends its episode itself. An episode that is open when it raises is aborted. With `client`, each attempt is a train
    episode of the task. `func(task, credentials)` is the agent, and its WorkflowOutput ends the episode.

    Returns when all attempts are done, or soon after the server raises TrainingComplete. Tasks that have not begun are
    then left out.

    A function that raises fails only its own attempt, which gets no reward. With `auto_retry` it is called up to 5
    times if the failure is transient: the server did not answer or aborted the episode, or a connection broke. The wait
    for the server to admit an episode is no attempt. The server learns when an attempt has failed for good, and does
    not wait for it. A failure of many attempts is logged once, with its traceback, and counted; `faults` counts those
    of several runs together. An interrupt (Ctrl-C) aborts the open episodes and is raised. Raises BadRequest for
    `max_workers` or `num_repeat` below 1.
    """
    for name, value in (("max_workers", max_workers), ("num_repeat", num_repeat)):
        if value is not None and value < 1:
            raise BadRequest(f"{name} must be at least 1, got {value}", param=name)
    # The overloads ensure that with a client, tasks are Tasks and func is an agent.
    call = func if client is None else cast(Callable[[Item], Result], _in_episodes(client, cast(RunAgent, func)))
    attempts = [task for task in tasks for _ in range(num_repeat)]
    with nullcontext(faults) if faults is not None else FaultLog() as log:
        run = _Run(attempts, call, MAX_ATTEMPTS if auto_retry else 1, throttler, log)
        run.work(max_workers or DEFAULT_MAX_WORKERS)
    return EpisodeRuns(
        results=tuple(None if isinstance(outcome, EpisodeFailure) else outcome for outcome in run.outcomes),
        failures=tuple(outcome for outcome in run.outcomes if isinstance(outcome, EpisodeFailure)),
        training_complete=run.training_complete,
    )


def backoff_s(attempt: int) -> float:
    """Return the seconds to wait after attempt number `attempt`, with jitter so that clients do not retry at once."""
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)


def _in_episodes(client: SwarmClient, run_agent: RunAgent) -> Callable[[Task], WorkflowOutput | None]:
    def attempt(task: Task) -> WorkflowOutput | None:
        # The caller aborts an open episode, because it knows whether another attempt follows.
        episode_id, credentials = client.begin_episode(task_id=task.task_id, data_source=task.data_source)
        # An agent without type annotations may return None.
        output = cast(WorkflowOutput | None, run_agent(task, credentials))
        if output is None:
            client.abort_episode(episode_id, "no_result", final=True)
        else:
            client.end_episode(task, episode_id, output)
        return output

    return attempt


class _Run(Generic[Item, Result]):
    """The state of one call of run_episodes_until_all_complete, shared by its threads.

    The threads are daemons, so that an agent that hangs does not keep an interrupted program from ending.
    """

    def __init__(
        self,
        tasks: Sequence[Item],
        func: Callable[[Item], Result],
        max_attempts: int,
        throttler: AbstractContextManager[None] | None,
        faults: FaultLog,
    ) -> None:
        self.outcomes: list[Result | EpisodeFailure | None] = [None] * len(tasks)
        self.training_complete = False
        self._tasks = tasks
        self._func = func
        self._max_attempts = max_attempts
        self._throttler = throttler
        self._faults = faults
        self._positions: Iterator[int] = iter(range(len(tasks)))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._open: set[Attempt] = set()
        self._interrupt: BaseException | None = None
        self._is_abandoned = False

    def work(self, max_workers: int) -> None:
        """Run all attempts. Raises only an interrupt, of a thread or of the main thread."""
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
            except Exception as error:  # noqa: BLE001 - the boundary: a failure of one task is data of the run
                if self._is_abandoned:
                    return None
                if self._is_final(error, attempts):
                    attempt.give_up(abort_reason(error))
                    self._faults.add(f"attempt {position} ({attempts} calls)", error)
                    return EpisodeFailure(position, attempts, error)
                logger.info("attempt %d is repeated: %s", position, error)
                if isinstance(error, RolloutPaused):
                    attempts -= 1
                self._stop.wait(backoff_s(max(1, attempts)))
        return None

    def _is_final(self, error: BaseException, attempts: int) -> bool:
        """Return whether the task is not attempted again. A wait for admission does not count as an attempt."""
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
        """Stop the run: abort the open episodes, so that their model calls fail, and wait briefly for the threads."""
        self._is_abandoned = True
        self._stop.set()
        with self._lock:
            left = list(self._open)
        # In a thread of its own, because a server that does not answer must not hold up the interrupt.
        aborting = threading.Thread(target=_abort_all, args=(left,), name="episode-abort", daemon=True)
        aborting.start()
        deadline = time.monotonic() + INTERRUPT_GRACE_S
        # An interrupt may come before all threads have been started.
        for thread in (aborting, *(thread for thread in threads if thread.ident is not None)):
            thread.join(max(0.0, deadline - time.monotonic()))


def _abort_all(attempts: Sequence[Attempt]) -> None:
    for attempt in attempts:
        attempt.abort_rest("client_interrupted")
