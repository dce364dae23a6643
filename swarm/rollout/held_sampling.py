"""Tokens of one completion from whichever engine serves, held while none does.

Place in the flow: below completion.py, above the engine. It knows nothing of messages, records or replies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from swarm.errors import EngineFailure, EngineNotReady, EpisodeEnded, RolloutPaused
from swarm.lifecycle import SERVING, EngineLifecycle
from swarm.rollout.call_metrics import TokenRate
from swarm.sampler import Engine, EngineLost
from swarm.schemas import EngineState
from swarm.types import FinishReason, SamplingParams, TokenDelta

logger = logging.getLogger(__name__)

DEATH_NOTICED_S = 0.02
"""How soon a call looks again after its engine died: the state says so within that time."""

SETTLED = SERVING | {EngineState.OFFLINE, EngineState.FAILED}
"""States in which it is known whether a waiting call can be answered."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be sampled, and who asks. `ended` says why the asker's episode is over, once it is; `has_left` whether
    the asker may have seen part of the reply; `restart` forgets what was sampled."""

    request_id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    ended: Callable[[], str | None]
    has_left: Callable[[], bool]
    restart: Callable[[], None]


@dataclass(slots=True)
class Sampler:
    """The engine of one started job. `on_failure` hears of failures that a new engine would not mend."""

    engine: Engine
    lifecycle: EngineLifecycle
    hold_s: float
    on_failure: Callable[[EngineFailure], None]
    rate: TokenRate = field(default_factory=TokenRate)

    async def sample(self, draft: Draft) -> AsyncGenerator[TokenDelta]:
        """The tokens of one engine from the first to the last.

        A completion whose engine dies is sampled again on the next one, unless part of it has left. Raises
        RolloutPaused if no token comes for `hold_s` seconds, EpisodeEnded if the episode ends meanwhile.
        """
        while True:
            await self._until_served(draft)
            try:
                async with aclosing(self._generate(draft)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except EngineLost as error:
                if draft.has_left():
                    raise
                logger.info("call %s is sampled again: %s", draft.request_id, error.message)
                draft.restart()
                await asyncio.sleep(DEATH_NOTICED_S)
            except EngineFailure as error:
                self.on_failure(error)
                raise

    async def _until_served(self, draft: Draft) -> None:
        """Hold a call while the engine boots. Raises RolloutPaused after `hold_s` seconds, or why none will serve."""
        lifecycle = self.lifecycle
        if not await lifecycle.wait_until(SETTLED, self.hold_s):
            raise RolloutPaused(f"the engine is {lifecycle.state}: {lifecycle.reason}", retry_after_s=5)
        if lifecycle.state is EngineState.FAILED:
            raise EngineFailure(f"the engine has failed: {lifecycle.reason}")
        if lifecycle.state is EngineState.OFFLINE:
            raise EngineNotReady("the engine was stopped", retry_after_s=5)
        _refuse_if_ended(draft)

    async def _generate(self, draft: Draft) -> AsyncGenerator[TokenDelta]:
        """Raises EngineLost if the engine dies, or is started anew, before the last token."""
        tokens = self.engine.generate(draft.request_id, draft.prompt_ids, draft.params)
        try:
            while True:
                async with asyncio.timeout(self.hold_s):
                    delta = await anext(tokens, None)
                if delta is None:
                    return
                _refuse_if_ended(draft)
                if delta.finish_reason is FinishReason.ABORT:
                    if self.lifecycle.state is EngineState.OFFLINE:
                        raise EngineNotReady("the engine stopped during this call", retry_after_s=5)
                    raise EngineLost("the engine was started anew")
                self.rate.add(len(delta.token_ids_T))
                yield delta
        except TimeoutError as error:
            raise RolloutPaused(f"no token for {self.hold_s:.0f} s: weights are changing", retry_after_s=5) from error
        finally:
            await tokens.aclose()


def _refuse_if_ended(draft: Draft) -> None:
    reason = draft.ended()
    if reason is not None:
        raise EpisodeEnded(f"the episode ended during this call ({reason})")
