"""Who may begin an episode now, and who is held until that changes.

Place in the flow: rollout.py enters here before an episode exists and leaves once it is over. Whatever may open the
door (a new engine state, an episode that left, a sealed batch) calls `release`; nobody polls. It knows nothing of
leases or of the ledger.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict

from swarm.batch import BatchPool
from swarm.config import TrainJob
from swarm.engine.state import SERVING, EngineLifecycle
from swarm.errors import BadRequest, EngineFailure, EngineNotReady, RolloutPaused, SwarmError, TrainingComplete
from swarm.schemas import EngineState
from swarm.types import EpisodeType

Line = tuple[EpisodeType, str]
"""Those who wait for the same: episode type and data source."""


class Admission:
    """Counts the running episodes and keeps one waiting line per type and data source.

    A line is served in order of arrival; where several lines could move, they take turns. Used from one event loop.
    """

    def __init__(self, job: TrainJob, lifecycle: EngineLifecycle, pool: BatchPool, max_running: int) -> None:
        self._job = job
        self._lifecycle = lifecycle
        self._pool = pool
        self._max_running = max_running
        self._running: Counter[EpisodeType] = Counter()
        self._train_by_source: Counter[str] = Counter()
        self._lines: OrderedDict[Line, dict[asyncio.Future[None], None]] = OrderedDict()
        self._train_left = asyncio.Event()

    def extend(self, job: TrainJob) -> None:
        """From here on the present job has the `total_steps` of `job`."""
        self._job = job

    def running(self, episode_type: EpisodeType) -> int:
        return self._running[episode_type]

    @property
    def train_by_source(self) -> dict[str, int]:
        return dict(self._train_by_source)

    @property
    def waiting(self) -> int:
        """How many calls are held."""
        return sum(len(line) for line in self._lines.values())

    async def enter(self, episode_type: EpisodeType, data_source: str, wait_s: float) -> None:
        """Count one more running episode, as soon as it may begin.

        Raises RolloutPaused if that takes longer than `wait_s` seconds; BadRequest for a data source outside the
        mixture, TrainingComplete, EngineFailure or EngineNotReady at once, for no waiting would help.
        """
        line = (episode_type, data_source)
        if line not in self._lines and self._obstacle(line) is None:
            self.take(episode_type, data_source)
            return
        if wait_s <= 0 or not await self._wait_in(line, wait_s):
            obstacle = self._obstacle(line) or f"others wait for data source {data_source!r} already"
            raise RolloutPaused(f"{obstacle}: try again", retry_after_s=1)

    def take(self, episode_type: EpisodeType, data_source: str) -> None:
        """Count an episode whose right to run is beyond question."""
        self._running[episode_type] += 1
        if episode_type is EpisodeType.TRAIN:
            self._train_by_source[data_source] += 1

    def leave(self, episode_type: EpisodeType, data_source: str) -> None:
        """One running episode less; lets in whom that makes room for."""
        self._running[episode_type] -= 1
        if episode_type is EpisodeType.TRAIN:
            self._train_by_source[data_source] -= 1
            if not self._train_by_source[data_source]:
                del self._train_by_source[data_source]
            self._train_left.set()
        self.release()

    def release(self) -> None:
        """Let in whoever may begin now. Call it whenever something has changed that may hold a caller."""
        moved = True
        while moved:
            moved = False
            for line in list(self._lines):
                moved |= self._serve(line)

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no train episode runs; False if some still do after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._running[EpisodeType.TRAIN]:
                    self._train_left.clear()
                    await self._train_left.wait()
        except TimeoutError:
            return False
        return True

    async def _wait_in(self, line: Line, wait_s: float) -> bool:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(line, {})[place] = None
        try:
            async with asyncio.timeout(wait_s):
                await place
        except TimeoutError:
            # Let in at the very moment the time was over: it is counted, so it counts.
            return _is_granted(place)
        except asyncio.CancelledError:
            if _is_granted(place):
                self.leave(*line)
            raise
        finally:
            self._strike(line, place)
        return True

    def _serve(self, line: Line) -> bool:
        """Answer the first of a line, if there is an answer."""
        place = next(iter(self._lines[line]))
        try:
            if self._obstacle(line) is not None:
                return False
        except SwarmError as error:
            if not place.done():
                place.set_exception(error)
        else:
            if not place.done():
                self.take(*line)
                place.set_result(None)
        self._strike(line, place)
        if line in self._lines:
            self._lines.move_to_end(line)
        return True

    def _strike(self, line: Line, place: asyncio.Future[None]) -> None:
        places = self._lines.get(line)
        if places is None:
            return
        places.pop(place, None)
        if not places:
            del self._lines[line]

    def _obstacle(self, line: Line) -> str | None:
        """What an episode has to wait for; None if it may begin. Raises what no waiting will change."""
        episode_type, data_source = line
        state = self._lifecycle.state
        self._refuse_after_last_step(episode_type)
        if state is EngineState.FAILED:
            raise EngineFailure(f"the engine has failed: {self._lifecycle.reason}")
        if state is EngineState.OFFLINE:
            raise EngineNotReady("the engine is stopped: start it first")
        quota = self._quota_obstacle(data_source) if episode_type is EpisodeType.TRAIN else None
        if state not in self._open_states(episode_type):
            return f"the engine is {state}"
        if self._running.total() >= self._max_running:
            return f"{self._max_running} episodes run already, the most this server takes"
        return quota

    def _refuse_after_last_step(self, episode_type: EpisodeType) -> None:
        total, done = self._job.total_steps, self._lifecycle.weights.step
        if episode_type is EpisodeType.TRAIN and total is not None and done >= total:
            raise TrainingComplete(f"all {total} steps of this job are done: no more train episodes")

    def _open_states(self, episode_type: EpisodeType) -> frozenset[EngineState]:
        """On-policy, a train episode begun before the step is done would be stale; before the last one, useless."""
        if episode_type is EpisodeType.EVAL:
            return SERVING
        total, step = self._job.total_steps, self._lifecycle.weights.step + 1
        is_last = total is not None and step >= total
        return SERVING if self._pool.policy.max_staleness and not is_last else frozenset({EngineState.ROLLING})

    def _quota_obstacle(self, data_source: str) -> str | None:
        try:
            if self._pool.may_begin(data_source, self._train_by_source):
                return None
        except BadRequest:
            upcoming = self._pool.next_policy
            if upcoming is None or (upcoming.mixture is not None and data_source not in upcoming.mixture):
                raise
            return f"data source {data_source!r} counts from the next batch on"
        if self._pool.policy.mixture is None:
            return "enough episodes wait or run for all batches that max_staleness lets clients begin"
        return f"enough of data source {data_source!r} waits or runs"


def _is_granted(place: asyncio.Future[None]) -> bool:
    return place.done() and not place.cancelled() and place.exception() is None
