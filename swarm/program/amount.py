"""The limits of a training run by trained tokens, by seconds or by a step."""

from __future__ import annotations

import time
from collections.abc import Callable

from swarm.client import SwarmClient
from swarm.program.evaluation import until_rest

TOKENS = ("rollout/trained_tokens", "actor/trained_tokens")
"""The metric of a step that counts the tokens the model wrote in its episodes. Engine `fake` uses the second name."""


class AmountGate:
    """A limit on the amount of training; pass its method `gate` to `train`.

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
        self._client = client
        self._tokens = tokens
        self._end = None if seconds is None else clock() + seconds
        self._steps = steps
        self._batch_size = batch_size
        self._clock = clock
        self._granted = 0
        self._step = 0
        self._used = 0.0

    def gate(self, number: int) -> int:
        """Return how many of the next `number` tasks may run before the next call; 0 ends the training.

        Call it while no episode runs.
        """
        if self._granted == 0:
            step = until_rest(self._client).step
            if self._is_reached(step):
                return 0
            self._granted = self._batch_size
        granted = min(number, self._granted)
        self._granted -= granted
        return granted

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
