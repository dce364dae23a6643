"""One run of one job: its engine boots, trains, and is restarted when it dies, until the run ends.

Place in the flow: commands.py makes one per start of the engine and hands its service to the gateway. Pool, running
episodes and service live as long as the run; the engine behind them may come and go. It knows nothing of HTTP, or of
which job runs next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swarm.backends.base import Backend
from swarm.config import ServerConfig
from swarm.errors import CheckpointError, EngineFailure, EpisodeEnded, LedgerUnwritable, NotFound, SwarmError
from swarm.job import TrainJob
from swarm.ledger import Ledger
from swarm.rollout.completion import ModelService
from swarm.rollout.episodes import Episodes
from swarm.run.lifecycle import EngineLifecycle
from swarm.run.running_job import RunningJob
from swarm.sampler import EngineLost
from swarm.schemas import EngineState, EpisodeState
from swarm.trainer.loop import TrainLoop
from swarm.trainer.recovery import Recovered, Recovery
from swarm.types import EpisodeType

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""An engine that dies more often without a finished step in between has a fault that no new process mends."""

END_TIMEOUT_S = 20.0
ABORTED_TOGETHER = 500
"""Writes handed to the ledger at once: it commits them in one group."""

REWOUND = "weights_rewound"


@dataclass(slots=True)
class Run:
    """`carry_on` runs until it is cancelled, or raises the error that ended the run.

    `recoveries` counts the deaths of engine or server that this job has survived. `fail` ends the run from outside of
    `carry_on`. `crashed_at` is when a crashed server began to come back, in seconds of the monotonic clock.
    """

    config: ServerConfig
    ledger: Ledger
    lifecycle: EngineLifecycle
    backend: Backend
    service: ModelService
    loop: TrainLoop
    recovery: Recovery
    fail: Callable[[str], Awaitable[None]]
    recoveries: int
    crashed_at: float | None
    _deaths: int = 0
    _step_at_death: int = -1

    @property
    def episodes(self) -> Episodes:
        return self.service.episodes

    async def carry_on(self) -> None:
        """Serve and train, on one engine after another. The state is BOOTING when this is called.

        Raises EngineFailure or LedgerError when the run cannot go on.
        """
        while True:
            recovered = await self._bring_up()
            if self.crashed_at is not None:
                await self._record_recovery(recovered, time.monotonic() - self.crashed_at)
                # Told once it is on record: the next server would tell a smaller number else.
                self.recoveries += 1
            await self.loop.rest()
            reason = await self._train_until_death()
            self.crashed_at = time.monotonic()
            logger.error("the engine died: %s", reason)
            self._count_death(reason)
            await self._leave_service(f"the engine worker died ({reason}): starting another")

    @property
    def job(self) -> RunningJob:
        return self.loop.job

    async def extend(self, job: TrainJob) -> None:
        """Go on to the end of `job`: the one as given, with more `total_steps`."""
        self.job.extend(job)
        await self.loop.look_again()

    async def change(self, settings: Mapping[str, Any], at_step: int | None, expected_revision: int | None) -> None:
        """Change settings from a step on; durable on return. Raises as `RunningJob.change`."""
        await self.job.change(settings, at_step=at_step, expected_revision=expected_revision)
        await self.loop.look_again()

    async def export(self) -> Path:
        """Write a checkpoint that is kept. Raises IllegalTransition while a batch is in work, CheckpointError."""
        async with self.loop.between_batches(EngineState.EXPORTING):
            return await self.loop.save(kept=True, is_asked=True)

    async def load(self, step: int) -> None:
        """Go back to the weights of an earlier step, for good: what was trained since counts as rewound.

        Running train episodes are aborted, for their tokens are of weights that no longer exist. Raises NotFound for a
        step that was not reached yet, IllegalTransition while a batch is in work.
        """
        present = self.lifecycle.weights
        if step > present.step:
            raise NotFound(f"this run has done {present.step} steps: there is no step {step} to go to", param="step")
        await self.recovery.require_way_to(step)
        async with self.loop.between_batches(EngineState.BOOTING, f"going back to step {step}"):
            await self._abort_running()
            try:
                await asyncio.to_thread(self.recovery.checkpoints.set_aside, step)
            except OSError as error:
                raise CheckpointError(f"later checkpoints cannot be set aside: {error}") from error
            await self.ledger.rewind(step, "loaded by command")
            self.lifecycle.publish(replace(present, step=step))
            try:
                await self._start_engine()
                await self._recover()
            except EngineLost:
                raise
            except SwarmError as error:
                await self.fail(error.message)
                raise

    async def close(self, reason: str | None) -> None:
        """Free the engine. With a `reason` running episodes are aborted; without, they wait for the next server."""
        self.loop.evaluations.close()
        if reason is not None:
            await self.episodes.close(reason)
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self.backend.engine.stop()
        except (TimeoutError, EngineFailure) as error:
            logger.warning("the engine does not stop, its process is ended: %s", error)
            await self.backend.end()

    async def _bring_up(self) -> Recovered:
        """Start the engine with the weights of the last trained step; once more if it dies meanwhile."""
        while True:
            try:
                await self._start_engine()
                return await self._recover()
            except EngineLost as error:
                logger.error("the engine died while it started: %s", error.message)
                self.crashed_at = self.crashed_at or time.monotonic()
                self._count_death(error.message)

    async def _start_engine(self) -> None:
        limit_s = self.config.boot_limit_s(self.job.timeline.job.chosen_engine)
        try:
            async with asyncio.timeout(limit_s):
                self.episodes.info = await self.backend.engine.start()
        except TimeoutError:
            await self.backend.end()
            raise EngineFailure(f"the engine did not start within {limit_s:.0f} s") from None

    async def _recover(self) -> Recovered:
        present = self.lifecycle.weights
        recovered = await self.recovery.restore(present.step)
        self.lifecycle.publish(recovered.weights)
        self.episodes.fill(recovered.weights.step + 1)
        if recovered.weights.version != present.version:
            self.loop.source.publish(recovered.weights.version)
        return recovered

    async def _record_recovery(self, recovered: Recovered, seconds: float) -> None:
        detail = {"seconds": seconds, "step": recovered.weights.step, "replayed": recovered.replayed}
        logger.info("recovered at step %d in %.1f s", recovered.weights.step, seconds)
        try:
            await self.ledger.record_event("engine.recovered", detail)
        except LedgerUnwritable as error:
            # An engine that serves is worth more than the note that it does.
            logger.error("the recovery could not be recorded: %s", error.message)

    async def _train_until_death(self) -> str:
        """Why the engine died. Raises what the training loop raises, unless that is the death itself."""
        training = asyncio.create_task(self.loop.run(), name="training loop")
        death = asyncio.create_task(self.backend.died(), name="engine watch")
        try:
            await asyncio.wait({training, death}, return_when=asyncio.FIRST_COMPLETED)
            if training.done():
                _raise_unless_lost(training)
            reason = await death
            self.loop.interrupt()
            await asyncio.wait({training}, timeout=END_TIMEOUT_S)
            if training.done():
                _raise_unless_lost(training)
            return reason
        finally:
            training.cancel()
            death.cancel()
            await asyncio.gather(training, death, return_exceptions=True)

    async def _leave_service(self, reason: str) -> None:
        # An export or load in progress fails with the engine and gives the turn back.
        async with asyncio.timeout(END_TIMEOUT_S), self.loop.turn:
            if self.lifecycle.state is not EngineState.BOOTING:
                await self.lifecycle.move(EngineState.BOOTING, reason)

    def _count_death(self, reason: str) -> None:
        """Raises EngineFailure if new engines do not help."""
        step = self.lifecycle.weights.step
        self._deaths = self._deaths + 1 if step == self._step_at_death else 1
        self._step_at_death = step
        if self._deaths > MAX_RESTARTS:
            raise EngineFailure(
                f"the engine died {self._deaths} times without a finished step in between; the last time: {reason}"
            )

    async def _abort_running(self) -> None:
        running = self.episodes.running_views(self.config.max_running_episodes)
        train = [
            view.episode_id
            for view in running
            if view.episode_type is EpisodeType.TRAIN and view.state is EpisodeState.RUNNING
        ]
        for start in range(0, len(train), ABORTED_TOGETHER):
            await asyncio.gather(*(self._abort(episode_id) for episode_id in train[start : start + ABORTED_TOGETHER]))

    async def _abort(self, episode_id: str) -> None:
        try:
            await self.episodes.abort(episode_id, REWOUND)
        except EpisodeEnded:
            logger.debug("episode %s ended by itself", episode_id)


def _raise_unless_lost(training: asyncio.Task[None]) -> None:
    error = training.exception()
    if error is not None and not isinstance(error, EngineLost):
        raise error
