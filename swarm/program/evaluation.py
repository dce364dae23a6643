"""Held-out scores during training: each measures one weight version and has the step at which it was measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from swarm.client import Evaluation, SwarmClient
from swarm.errors import EngineFailure, EngineNotReady
from swarm.schemas import EngineState, PoolView, Status

Measure = Callable[[], Evaluation]

POLL_S = 0.1
MAX_MEASUREMENTS = 3
"""Weights change during a measurement only if other clients train too, or if a timeout completes a batch."""


@dataclass(frozen=True, slots=True)
class StepScore:
    """The score of the weights after `step` steps.

    `step` is None if the weights changed during every measurement. The score is then of several versions.
    """

    step: int | None
    evaluation: Evaluation


def score_at_rest(client: SwarmClient, measure: Measure) -> StepScore:
    """Measure a score while no batch is in training; repeat it if the weights changed meanwhile.

    Raises EngineFailure or EngineNotReady if the engine does not serve.
    """
    left = MAX_MEASUREMENTS
    while True:
        status, evaluation, left = until_rest(client), measure(), left - 1
        if set(evaluation.weight_versions) <= {status.weight_version}:
            return StepScore(status.step, evaluation)
        if not left:
            return StepScore(None, evaluation)


class PeriodicEvaluation:
    """A score every `every` steps, except after the last step of a job; pass its method `gate` to `train`."""

    def __init__(
        self,
        client: SwarmClient,
        measure: Measure,
        *,
        every: int,
        batch_size: int,
        on_score: Callable[[StepScore], None],
    ) -> None:
        self._client = client
        self._measure = measure
        self._every = every
        self._batch_size = batch_size
        self._on_score = on_score
        self._due: int | None = None
        self._granted = 0

    def gate(self, number: int) -> int:
        """Return how many of the next `number` tasks may run before the next call. Call it while no episode runs."""
        if self._granted == 0:
            self._granted = self._batch_size * self._steps_until_due()
        granted = min(number, self._granted)
        self._granted -= granted
        return granted

    def _steps_until_due(self) -> int:
        """Measure a score that is due, and return the steps until the next one, at least 1."""
        status = until_rest(self._client)
        if self._due is not None and status.step >= self._due and status.state is not EngineState.COMPLETE:
            self._on_score(score_at_rest(self._client, self._measure))
            status = self._client.status()
        if self._due is None or status.step >= self._due:
            self._due = (status.step // self._every + 1) * self._every
        return self._due - status.step


def until_rest(client: SwarmClient) -> Status:
    """Wait until no batch is in training, and return the status.

    Raises EngineFailure or EngineNotReady if the engine fails or is stopped.
    """
    while True:
        status = client.status()
        if status.state is EngineState.FAILED:
            raise EngineFailure(f"the engine failed: {status.reason or 'see the log of the server'}")
        if status.state is EngineState.OFFLINE:
            raise EngineNotReady("the engine is stopped: start it again")
        is_resting = status.state is EngineState.ROLLING and (status.pool is None or not _is_full(status.pool))
        if is_resting or status.state is EngineState.COMPLETE:
            return status
        time.sleep(POLL_S)


def _is_full(pool: PoolView) -> bool:
    """Return whether the current batch is complete, so that the server is about to train it."""
    match pool.stop_rule:
        case "enough_episodes":
            return pool.episodes >= pool.episodes_target
        case "enough_tasks" | "enough_non_constant_tasks":
            return pool.tasks >= pool.tasks_target
        case _:
            # With the other rules the clients agree on the end of a batch, and they cannot be asked.
            return False
