"""The state of the engine, with its legal moves, and the version of the weights that it serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from swarm.errors import EngineNotReady, FailedEngine, IllegalTransition, TrainingDiverged
from swarm.schemas import LEGAL_ENGINE_MOVES, EngineState
from swarm.types import WeightVersion

SERVING = frozenset(
    {
        EngineState.ROLLING,
        EngineState.DRAINING,
        EngineState.TRAINING,
        EngineState.EXPORTING,
        EngineState.COMPLETE,
    }
)
"""The states in which a model is loaded and answers, though possibly after a pause."""

RecordMove = Callable[[EngineState, str | None], Awaitable[None]]


class EngineLifecycle:
    """The state of the engine, with a reason for people. Use it from one event loop."""

    def __init__(self, record: RecordMove) -> None:
        self._record = record
        self._state = EngineState.OFFLINE
        self._reason: str | None = None
        self._has_diverged = False
        self._weights = WeightVersion(version=0, step=0, published_at=0.0)
        self._changed = asyncio.Condition()
        self._listeners: list[Callable[[], None]] = []
        self.moved_at = time.monotonic()
        """The time of the last change of state, on the monotonic clock."""

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def reason(self) -> str | None:
        return self._reason

    @property
    def has_diverged(self) -> bool:
        """True if the engine has failed because trained weights give no finite numbers."""
        return self._has_diverged

    @property
    def serving(self) -> bool:
        return self._state in SERVING

    @property
    def weights(self) -> WeightVersion:
        """The weights that new tokens are sampled with; `step` counts the finished training steps of the job."""
        return self._weights

    def publish(self, weights: WeightVersion) -> None:
        self._weights = weights

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change of state, until the returned function is called."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def refusal(self) -> FailedEngine | EngineNotReady:
        """Return the error of a call that needs an engine, while none runs. It is final if the engine has failed."""
        if self._state is EngineState.FAILED:
            kind = TrainingDiverged if self._has_diverged else FailedEngine
            return kind(f"the engine has failed: {self._reason or 'see the log of the server'}")
        return EngineNotReady(
            "no engine is running: start a job, from a client with auto_sync_train_config_and_start_engine or from a"
            " shell with `swarm start --job job.yaml`",
            retry_after_s=2,
        )

    async def move(self, to: EngineState, reason: str | None = None, *, has_diverged: bool = False) -> None:
        """Change the state, wake the waiting tasks and record it. Raise IllegalTransition for an illegal move.

        `has_diverged` says that the engine fails because trained weights give no finite numbers.
        """
        if to not in LEGAL_ENGINE_MOVES[self._state]:
            raise IllegalTransition(f"the engine is {self._state}: it cannot become {to} from there")
        async with self._changed:
            self._state, self._reason, self._has_diverged = to, reason, has_diverged
            self.moved_at = time.monotonic()
            self._changed.notify_all()
        for listener in list(self._listeners):
            listener()
        await self._record(to, reason)

    async def wait_until(self, states: frozenset[EngineState], timeout_s: float | None) -> bool:
        """Return True as soon as the state is one of `states`, or False after `timeout_s` seconds (None: never)."""
        if self._state in states:
            return True
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._state in states)
        except TimeoutError:
            return False
        return True
