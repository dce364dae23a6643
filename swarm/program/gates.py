"""Gates of a training: a limit on its amount, and held-out scores in between, each of one weight version."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from swarm.client import Evaluation, SwarmClient
from swarm.errors import EngineFailure, EngineNotReady, RolloutPaused, TrainingComplete
from swarm.job import TrainJob
from swarm.schemas import STOP_RULES, EngineState, PoolView, Status

Measure = Callable[[], Evaluation]

TOKENS = ("rollout/trained_tokens", "actor/trained_tokens")
"""The metric of a step that counts the tokens the model wrote in its episodes. Engine `fake` uses the second name."""
POLL_S = 0.1
ASKING = "demonstrations"
"""The task of a request to begin an episode that only asks for the supervised steps."""
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


class ChunkGate(ABC):
    """A part of the training that decides how many tasks may run next; pass its method `gate` to `train`.

    `train` asks it before each chunk of tasks, so that the server is at rest when the gate looks.
    """

    def __init__(self, client: SwarmClient, batch_size: int) -> None:
        self._client = client
        self._batch_size = batch_size
        self._granted = 0

    def gate(self, number: int) -> int:
        """Return how many of the next `number` tasks may run before the next call; 0 ends the training.

        Call it while no episode runs.
        """
        if self._granted == 0:
            self._granted = self._batch_size * self._next_steps()
        granted = min(number, self._granted)
        self._granted -= granted
        return granted

    @abstractmethod
    def _next_steps(self) -> int:
        """Return how many steps may be trained before this is asked again."""


class PeriodicEvaluation(ChunkGate):
    """A score every `every` steps, except after the last step of a job."""

    def __init__(
        self,
        client: SwarmClient,
        measure: Measure,
        *,
        every: int,
        batch_size: int,
        on_score: Callable[[StepScore], None],
    ) -> None:
        super().__init__(client, batch_size)
        self._measure = measure
        self._every = every
        self._on_score = on_score
        self._due: int | None = None

    def _next_steps(self) -> int:
        """Measure a score that is due, and return the steps until the next one, at least 1."""
        status = until_rest(self._client)
        if self._due is not None and status.step >= self._due and status.state is not EngineState.COMPLETE:
            self._on_score(score_at_rest(self._client, self._measure))
            status = self._client.status()
        if self._due is None or status.step >= self._due:
            self._due = (status.step // self._every + 1) * self._every
        return self._due - status.step


class AmountGate(ChunkGate):
    """A limit on the amount of training. A run ends with the first step that reaches its limit.

    `tokens` limits the trained tokens of all steps of the run, also of those before this process. `seconds` count from
    the creation of the gate. `steps` is the last step to train, counted as the server counts. None sets no limit.
    """

    def __init__(
        self,
        client: SwarmClient,
        *,
        tokens: float | None,
        seconds: float | None,
        steps: int | None = None,
        batch_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, batch_size)
        self._tokens = tokens
        self._end = None if seconds is None else clock() + seconds
        self._steps = steps
        self._clock = clock
        self._step = 0
        self._used = 0.0

    def _next_steps(self) -> int:
        return 0 if self._is_reached(until_rest(self._client).step) else 1

    def _is_reached(self, step: int) -> bool:
        if self._steps is not None and step >= self._steps:
            return True
        if self._end is not None and self._clock() >= self._end:
            return True
        return self._tokens is not None and self._count_tokens() >= self._tokens

    def _count_tokens(self) -> float:
        while points := self._client.metrics(self._step):
            self._used += sum(next((p.metrics[name] for name in TOKENS if name in p.metrics), 0.0) for p in points)
            self._step = points[-1].step
        return self._used


def until_demonstrated(client: SwarmClient, job: TrainJob) -> Status:
    """Have the server train the demonstrations of its job, wait until that is done, and return the status.

    The first supervised step waits for a client that asks to begin an episode, so that the model can be scored before.
    A run may end in its supervised steps: then the status is that of its end.
    Raises EngineFailure or EngineNotReady if the engine fails or is stopped.
    """
    while (status := until_rest(client)).step < job.sft_steps and status.state is not EngineState.COMPLETE:
        try:
            episode_id, _ = client.begin_episode(task_id=ASKING, wait_timeout=0)
        except (RolloutPaused, TrainingComplete):
            time.sleep(POLL_S)
        else:
            client.abort_episode(episode_id)
    return status


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
    unit = STOP_RULES[pool.stop_rule].unit
    if unit is None:
        # The clients agree on the end of a batch, and they cannot be asked.
        return False
    return pool.tasks >= pool.tasks_target if unit == "tasks" else pool.episodes >= pool.episodes_target
