"""Tokens of one completion from whichever sampler serves."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from swarm.errors import EngineFailure, EngineNotReady, EpisodeEnded, RolloutPaused
from swarm.run.call_metrics import TokenRate
from swarm.run.lifecycle import SERVING, EngineLifecycle
from swarm.sampler import EngineLost, Sampler
from swarm.schemas import EngineState
from swarm.types import FinishReason, SamplingParams, TokenDelta

logger = logging.getLogger(__name__)

DEATH_NOTICED_S = 0.02
"""How soon a call checks the state after its sampler died: the state has changed by then."""

SETTLED = SERVING | {EngineState.OFFLINE, EngineState.FAILED}
"""States in which it is known whether a waiting call can be answered."""


class Crowded(RolloutPaused):
    """No token came in time, while other calls got theirs.

    The sampler serves, but it is overloaded. For the caller this is a RolloutPaused like any other.
    """


@dataclass(frozen=True, slots=True)
class Draft:
    """A completion to sample, and the `asker` as messages name it.

    `ended` returns why the asker's episode is over, once it is. `has_left` returns whether the asker may have seen part
    of the reply. `restart` forgets what was sampled. The caller of a draft that `is_patient` waits without a limit.
    """

    request_id: str
    asker: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    ended: Callable[[], str | None]
    has_left: Callable[[], bool]
    restart: Callable[[], None]
    is_patient: bool = False


@dataclass(slots=True)
class WaitingSampler:
    """The sampler of one started job.

    `on_failure` is called for failures that a new sampler would not repair. It returns True if other weights will, so
    that the call waits for them. `rate` counts the tokens of each piece of a completion.
    """

    sampler: Sampler
    lifecycle: EngineLifecycle
    max_wait_s: float
    on_failure: Callable[[EngineFailure], bool]
    rate: TokenRate
    _token_at: float = field(default=-math.inf, init=False)

    async def sample(self, draft: Draft) -> AsyncGenerator[TokenDelta]:
        """Yield the tokens of one sampler from the first to the last.

        If a sampler dies, the completion is sampled again on the next one, unless part of it has left. Raise
        EpisodeEnded if the episode ends meanwhile. Unless the draft is patient, raise RolloutPaused if no token comes
        for `max_wait_s` seconds, and Crowded if other calls got some lately.
        """
        while True:
            await self._until_served(draft)
            try:
                with self.rate.sampling():
                    async with aclosing(self._generate(draft)) as deltas:
                        async for delta in deltas:
                            yield delta
                return
            except EngineLost as error:
                if draft.has_left():
                    raise
                failure: EngineFailure = error
            except EngineFailure as error:
                failure = type(error)(f"{error.message} (in a call of {draft.asker})")
                if not self.on_failure(failure) or draft.has_left():
                    raise failure from error
            logger.info("call %s is sampled again: %s", draft.request_id, failure.message)
            draft.restart()
            await asyncio.sleep(DEATH_NOTICED_S)

    async def _until_served(self, draft: Draft) -> None:
        """Wait while the engine boots.

        Raise the reason why no engine will serve, or RolloutPaused after `max_wait_s` seconds unless the draft is
        patient.
        """
        lifecycle = self.lifecycle
        if not await lifecycle.wait_until(SETTLED, None if draft.is_patient else self.max_wait_s):
            raise RolloutPaused(f"the engine is {lifecycle.state}: {lifecycle.reason}", retry_after_s=5)
        if not lifecycle.serving:
            raise lifecycle.refusal()
        _refuse_if_ended(draft)

    async def _generate(self, draft: Draft) -> AsyncGenerator[TokenDelta]:
        """Yield tokens of the present sampler.

        Raise EngineLost if the sampler dies, or starts anew, before the last token.
        """
        tokens = self.sampler.generate(draft.request_id, draft.prompt_ids, draft.params)
        clock = asyncio.get_running_loop().time
        try:
            # One limit is moved for each token: a new limit would cost more than all other work on the token here.
            async with asyncio.timeout(None) as limit:
                while True:
                    if not draft.is_patient:
                        limit.reschedule(clock() + self.max_wait_s)
                    delta = await anext(tokens, None)
                    limit.reschedule(None)
                    if delta is None:
                        return
                    _refuse_if_ended(draft)
                    if delta.finish_reason is FinishReason.ABORT:
                        if self.lifecycle.state is EngineState.OFFLINE:
                            raise EngineNotReady("the engine stopped during this call", retry_after_s=5)
                        raise EngineLost("the engine was started anew")
                    self._token_at = clock()
                    self.rate.add(len(delta.token_ids_T))
                    yield delta
        except TimeoutError as error:
            if clock() - self._token_at < self.max_wait_s / 2:
                raise Crowded(f"no token for {self.max_wait_s:.0f} s: others wait as well", retry_after_s=5) from error
            raise RolloutPaused(
                f"no token for {self.max_wait_s:.0f} s: weights are changing", retry_after_s=5
            ) from error
        finally:
            await tokens.aclose()


def _refuse_if_ended(draft: Draft) -> None:
    reason = draft.ended()
    if reason is not None:
        raise EpisodeEnded(f"the episode ended during this call ({reason})")
