"""Admission of episodes: who may begin now, and who waits."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable

from swarm.batch import BatchPool, Place
from swarm.errors import BadRequest, RolloutPaused, SwarmError, TrainingComplete
from swarm.job import TrainJob
from swarm.run.lifecycle import SERVING, EngineLifecycle
from swarm.schemas import EngineState
from swarm.types import EpisodeType

Kind = tuple[EpisodeType, str]
"""Episode type and data source."""

Waiter = asyncio.Future[Place | None]
"""A waiting call; its result is what `enter` returns."""

Departure = Callable[[], Awaitable[None]]
"""A call that returns once a caller has gone away."""

Line = OrderedDict[str | None, dict[Waiter, None]]
"""The calls that wait for one kind of episode, by task; None is a task that is named only at the end."""


class Admission:
    """Count of the running episodes, with one waiting line per episode type and data source.

    The task that has waited longest comes first in its line. A task whose group already has a place may overtake it.
    Where several lines could move, they take turns. Use it from one event loop.

    Callers call `release` after every event that may admit a waiting caller: a new engine state, a finished episode, a
    closed batch. Nobody polls.
    """

    def __init__(
        self,
        job_at: Callable[[int], TrainJob],
        lifecycle: EngineLifecycle,
        pool: BatchPool,
        max_running: int,
    ) -> None:
        """Build an admission without running episodes.

        `job_at` returns the resolved job of a step.
        """
        self._job_at = job_at
        self._lifecycle = lifecycle
        self._pool = pool
        self._max_running = max_running
        self._running: Counter[EpisodeType] = Counter()
        self._lines: OrderedDict[Kind, Line] = OrderedDict()
        self._train_left = asyncio.Event()
        self.asked = asyncio.Event()
        """Set once somebody has asked to begin a train episode."""

    def running(self, episode_type: EpisodeType) -> int:
        return self._running[episode_type]

    @property
    def waiting(self) -> int:
        """Number of calls that wait to begin."""
        return sum(len(queue) for line in self._lines.values() for queue in line.values())

    def awaits(self, data_source: str, task_id: str) -> bool:
        """Return whether a call waits to begin a train episode of this task."""
        return task_id in self._lines.get((EpisodeType.TRAIN, data_source), ())

    async def enter(
        self,
        episode_type: EpisodeType,
        data_source: str,
        task_id: str | None,
        wait_s: float,
        departure: Departure | None = None,
    ) -> Place | None:
        """Count one more running episode as soon as it may begin, and return the place of a train episode.

        Raise RolloutPaused if the wait exceeds `wait_s` seconds or the caller leaves. Raise BadRequest for a data
        source outside the mixture, TrainingComplete, EngineFailure or EngineNotReady at once, since waiting would not
        help.
        """
        kind = (episode_type, data_source)
        if episode_type is EpisodeType.TRAIN:
            self.asked.set()
        is_first = task_id not in self._lines.get(kind, ())
        if is_first and self._obstacle(kind, task_id) is None:
            return self.take(episode_type, data_source, task_id)
        if wait_s > 0:
            waiter = await self._wait_in(kind, task_id, wait_s, departure or _never)
            if _is_granted(waiter):
                return waiter.result()
        obstacle = self._obstacle(kind, task_id) or f"others wait for data source {data_source!r} already"
        raise RolloutPaused(f"{obstacle}: try again", retry_after_s=1)

    def take(
        self, episode_type: EpisodeType, data_source: str, task_id: str | None, *, is_greedy: bool | None = None
    ) -> Place | None:
        """Count an episode that may run in any case, and return the place of a train episode.

        Pass `is_greedy` for an episode that has begun before.
        """
        self._running[episode_type] += 1
        if episode_type is not EpisodeType.TRAIN:
            return None
        return self._pool.begin(data_source, task_id, is_greedy=is_greedy)

    def leave(self, episode_type: EpisodeType) -> None:
        """Count one running episode less, and admit the callers that may begin now.

        The caller has already freed the episode's place in the pool.
        """
        self._running[episode_type] -= 1
        if episode_type is EpisodeType.TRAIN:
            self._train_left.set()
        self.release()

    def release(self) -> None:
        """Admit every caller that may begin now.

        Call it after any change that may end a wait.
        """
        moved = True
        while moved:
            moved = False
            for kind in list(self._lines):
                moved |= self._serve(kind)

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no train episode runs; return False if some still run after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._running[EpisodeType.TRAIN]:
                    self._train_left.clear()
                    await self._train_left.wait()
        except TimeoutError:
            return False
        return True

    async def _wait_in(self, kind: Kind, task_id: str | None, wait_s: float, departure: Departure) -> Waiter:
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._lines.setdefault(kind, OrderedDict()).setdefault(task_id, {})[waiter] = None
        leaving = asyncio.ensure_future(departure())
        try:
            await asyncio.wait({waiter, leaving}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._refuse(kind, waiter)
            raise
        finally:
            self._strike(kind, task_id, waiter)
            leaving.cancel()
        if leaving.done():
            self._refuse(kind, waiter)
            raise RolloutPaused("the caller has gone away: its episode was not begun")
        # A caller admitted at the very moment its time ran out is already counted, so it stays admitted.
        if waiter.done():
            waiter.result()
        return waiter

    def _refuse(self, kind: Kind, waiter: Waiter) -> None:
        """Free the place of an answer for which nobody waits any more."""
        if _is_granted(waiter):
            place = waiter.result()
            if place is not None:
                self._pool.lose(place)
            self.leave(kind[0])
        waiter.cancel()

    def _serve(self, kind: Kind) -> bool:
        """Answer the first waiter of a line that can be answered; return whether there was one."""
        line = self._lines[kind]
        task_id = next(iter(line))
        try:
            if self._obstacle(kind, task_id) is not None:
                found = self._with_place(kind, line)
                if found is None:
                    return False
                (task_id,) = found
        except SwarmError as error:
            waiter = next(iter(line[task_id]))
            if not waiter.done():
                waiter.set_exception(error)
        else:
            waiter = next(iter(line[task_id]))
            if not waiter.done():
                waiter.set_result(self.take(*kind, task_id))
        self._strike(kind, task_id, waiter)
        if kind in self._lines:
            self._lines.move_to_end(kind)
        return True

    def _with_place(self, kind: Kind, line: Line) -> tuple[str | None] | None:
        """Return a task further back in the line that may begin before the first one, or None."""
        episode_type, data_source = kind
        if episode_type is EpisodeType.EVAL:
            return None
        candidates: list[str | None] = [task for task in self._pool.tasks_with_place(data_source) if task in line]
        if None in line:
            candidates.append(None)
        return next(((task,) for task in candidates if self._obstacle(kind, task) is None), None)

    def _strike(self, kind: Kind, task_id: str | None, waiter: Waiter) -> None:
        line = self._lines.get(kind)
        if line is None or task_id not in line:
            return
        line[task_id].pop(waiter, None)
        if not line[task_id]:
            del line[task_id]
        if not line:
            del self._lines[kind]

    def _obstacle(self, kind: Kind, task_id: str | None) -> str | None:
        """Return what an episode has to wait for, or None if it may begin.

        Raise the error that no waiting would change.
        """
        episode_type, data_source = kind
        state = self._lifecycle.state
        self._refuse_after_last_step(episode_type)
        if state in {EngineState.FAILED, EngineState.OFFLINE}:
            raise self._lifecycle.refusal()
        shortage = None
        if episode_type is EpisodeType.TRAIN:
            if supervised := self._supervised_obstacle():
                return supervised
            shortage = self._place_obstacle(data_source, task_id)
        if state not in self._open_states(episode_type):
            return f"the engine is {state}"
        if self._running.total() >= self._max_running:
            return f"{self._max_running} episodes run already, the most this server takes"
        return shortage

    def _supervised_obstacle(self) -> str | None:
        step = self._lifecycle.weights.step + 1
        job = self._job_at(step)
        return f"demonstrations are trained up to step {job.sft_steps}" if job.is_supervised(step) else None

    def _refuse_after_last_step(self, episode_type: EpisodeType) -> None:
        done = self._lifecycle.weights.step
        total = self._job_at(done + 1).total_steps
        if episode_type is EpisodeType.TRAIN and total is not None and done >= total:
            raise TrainingComplete(f"all {total} steps of this job are done: no more train episodes")

    def _open_states(self, episode_type: EpisodeType) -> frozenset[EngineState]:
        """Return the engine states in which an episode of this type may begin.

        In on-policy training, a train episode begun before the end of the step would be stale. Before the end of the
        last step it would be useless.
        """
        if episode_type is EpisodeType.EVAL:
            return SERVING
        step = self._lifecycle.weights.step + 1
        total = self._job_at(step).total_steps
        is_last = total is not None and step >= total
        return SERVING if self._pool.policy.max_staleness and not is_last else frozenset({EngineState.ROLLING})

    def _place_obstacle(self, data_source: str, task_id: str | None) -> str | None:
        try:
            if self._pool.may_begin(data_source, task_id):
                return None
        except BadRequest:
            upcoming = self._pool.next_policy
            if upcoming is None or (upcoming.mixture is not None and data_source not in upcoming.mixture):
                raise
            return f"data source {data_source!r} counts from the next batch on"
        policy = self._pool.policy
        if policy.mixture is not None:
            return f"enough of data source {data_source!r} waits or runs"
        if policy.max_staleness:
            return "enough episodes wait or run for all batches that max_staleness lets clients begin"
        return "enough episodes wait or run for this batch: others begin with the next one"


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


def _is_granted(waiter: Waiter) -> bool:
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None
