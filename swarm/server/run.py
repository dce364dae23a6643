"""A run of a job: its engine boots, trains, and is restarted after a crash, until the run ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swarm.backends.base import END_TIMEOUT_S, Backend
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
from swarm.trainer.loop import Record, TrainLoop
from swarm.trainer.recovery import Recovered, Recovery
from swarm.types import EpisodeType

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Restarts without a finished step in between. After more of them, another restart would not help either."""

ABORTED_TOGETHER = 500
"""Episodes that are aborted at the same time. The ledger commits their writes together."""

REWOUND = "weights_rewound"


@dataclass(slots=True)
class JobRun:
    """A run of a job. `carry_on` executes it until it is cancelled, or raises the error that ended the run.

    `recoveries` counts the crashes of engine or server that this job has survived. `fail` ends the run from outside of
    `carry_on`. `crashed_at` is when the present recovery from a crash began, in seconds of the monotonic clock.
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
        """Serve and train, and restart the engine whenever it dies. The state must be BOOTING at the call.

        Raise EngineFailure or LedgerError when the run cannot continue.
        """
        while True:
            recovered = await self._bring_up()
            if self.crashed_at is not None:
                await self._record_recovery(recovered, time.monotonic() - self.crashed_at)
                # Counted only after it is recorded. Otherwise the next server process would report a smaller number.
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
        """Train up to the end of `job`, which is the job as given with more `total_steps`."""
        self.job.extend(job)
        await self.loop.look_again()

    async def change(self, settings: Mapping[str, Any], at_step: int | None, expected_revision: int | None) -> None:
        """Change settings from a step on. The change is durable on return. Raise the errors of `RunningJob.change`."""
        await self.job.change(settings, at_step=at_step, expected_revision=expected_revision)
        await self.loop.look_again()

    async def export(self) -> Path:
        """Save a checkpoint that is kept. Raise IllegalTransition while a batch is trained, and CheckpointError."""
        async with self.loop.between_batches(EngineState.EXPORTING):
            return await self.loop.save(kept=True, is_asked=True)

    async def load(self, step: int, *, end: bool) -> None:
        """Go back to the weights of an earlier step. The later steps are undone and counted as rewound.

        With `end` the job ends with that step, before a batch can be closed from episodes that wait.

        Running train episodes are aborted, because the weights that sampled their tokens no longer exist. Raise
        NotFound for a step that was not reached yet, IllegalTransition while a batch is trained, and CheckpointError.
        """
        present = self.lifecycle.weights
        if step > present.step:
            raise NotFound(f"this run has done {present.step} steps: it cannot go to step {step}", param="step")
        await self.recovery.require_way_to(step)
        async with self.loop.between_batches(EngineState.BOOTING, f"going back to step {step}"):
            try:
                await self._return_to(step, lambda: self.ledger.rewind(step, "loaded by command"))
                if end:
                    await self.job.change({"total_steps": step})
            except EngineFailure as error:
                if not isinstance(error, EngineLost):
                    await self.fail(error.message)
                raise

    async def _go_back(self, step: int, record: Record) -> None:
        """Go back to an earlier step for the training loop, which holds its turn and has moved the state."""
        try:
            await self.recovery.require_way_to(step)
        except NotFound as error:
            raise CheckpointError(error.message) from error
        await self._return_to(step, record)

    async def _return_to(self, step: int, record: Record) -> None:
        """Serve the weights of an earlier step, once `record` has made the return durable.

        Raise CheckpointError if nothing has changed yet, EngineFailure if the weights cannot be served.
        """
        await self._abort_running()
        try:
            await asyncio.to_thread(self.recovery.checkpoints.set_aside, step)
        except OSError as error:
            raise CheckpointError(f"later checkpoints cannot be set aside: {error}") from error
        await record()
        self.lifecycle.publish(replace(self.lifecycle.weights, step=step))
        try:
            await self._start_engine()
            await self._recover()
        except EngineFailure:
            raise
        except SwarmError as error:
            # On record, the weights are at the earlier step already: no later ones may be served.
            raise EngineFailure(error.message) from error

    async def close(self, reason: str | None) -> None:
        """Free the engine. With a `reason`, abort running episodes; without one, the next server continues them."""
        self.loop.evaluations.close()
        if reason is not None:
            await self.episodes.close(reason)
        await self.backend.stop()

    async def _bring_up(self) -> Recovered:
        """Start the engine with the weights of the last trained step. Try again if it dies meanwhile."""
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
        self.episodes.info = await self.backend.start(limit_s)
        self.loop.supervision.require_within(self.episodes.info.context_length)

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
            # The engine serves again, and a missing record is no reason to stop it.
            logger.error("the recovery could not be recorded: %s", error.message)

    async def _train_until_death(self) -> str:
        """Train until the engine dies, and return the reason. Raise any other error of the training loop."""
        training = asyncio.create_task(self.loop.run(self._go_back), name="training loop")
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
        # An export or load in progress fails together with the engine, and then releases `turn`.
        async with asyncio.timeout(END_TIMEOUT_S), self.loop.turn:
            if self.lifecycle.state is not EngineState.BOOTING:
                await self.lifecycle.move(EngineState.BOOTING, reason)

    def _count_death(self, reason: str) -> None:
        """Count a crash of the engine. Raise EngineFailure after more than MAX_RESTARTS without a finished step."""
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
