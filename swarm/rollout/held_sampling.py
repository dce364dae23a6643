"""Tokens of one completion from whichever engine serves, held while none does, and what is counted of model calls.

Place in the flow: below completion.py, above the engine; the status shows the counts. This module knows nothing of
messages, records or replies.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum

from swarm.errors import EngineFailure, EngineNotReady, EpisodeEnded, RolloutPaused
from swarm.run.lifecycle import SERVING, EngineLifecycle
from swarm.sampler import Engine, EngineLost
from swarm.schemas import EngineState
from swarm.types import FinishReason, SamplingParams, TokenDelta

MAX_NAMES = 100
"""Clients choose the names of the fields they send; beyond these they are counted as `other`."""

OTHER = "other"


class Oddity(StrEnum):
    """An attempt joined a running call, or was told a finished one again; a call was given up by its caller; a turn
    was withheld from training because its tokens do not spell what was shown."""

    JOINED = "joined"
    REPLAYED = "replayed"
    ORPHANED = "orphaned"
    DECODE_MISMATCH = "decode_mismatch"


@dataclass(slots=True)
class CallCounts:
    """`ignored_fields` counts the fields without effect by name."""

    oddities: Counter[str] = field(default_factory=Counter[str])
    ignored_fields: Counter[str] = field(default_factory=Counter[str])

    def count(self, oddity: Oddity) -> None:
        self.oddities[oddity.value] += 1

    def ignore(self, names: Iterable[str]) -> None:
        for name in names:
            known = name in self.ignored_fields or len(self.ignored_fields) < MAX_NAMES
            self.ignored_fields[name if known else OTHER] += 1


RATE_WINDOW_S = 10.0


class TokenRate:
    """Tokens per second over the last seconds; `total` counts them all."""

    def __init__(self, window_s: float = RATE_WINDOW_S) -> None:
        self.total = 0
        self._window_s = window_s
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, tokens: int) -> None:
        self.total += tokens
        self._counts.append((time.monotonic(), tokens))
        self._forget()

    def per_second(self) -> float:
        self._forget()
        return sum(tokens for _, tokens in self._counts) / self._window_s

    def _forget(self) -> None:
        horizon = time.monotonic() - self._window_s
        while self._counts and self._counts[0][0] < horizon:
            self._counts.popleft()


logger = logging.getLogger(__name__)

DEATH_NOTICED_S = 0.02
"""How soon a call looks again after its engine died: the state says so within that time."""

SETTLED = SERVING | {EngineState.OFFLINE, EngineState.FAILED}
"""States in which it is known whether a waiting call can be answered."""


class Crowded(RolloutPaused):
    """No token came in time, while other calls got theirs: the engine serves, and more is asked of it than it can do.

    To the caller it is no other error.
    """


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
class HeldSampler:
    """The engine of one started job. `on_failure` hears of failures that a new engine would not mend."""

    engine: Engine
    lifecycle: EngineLifecycle
    hold_s: float
    on_failure: Callable[[EngineFailure], None]
    rate: TokenRate = field(default_factory=TokenRate)
    _token_at: float = field(default=-math.inf, init=False)

    async def sample(self, draft: Draft) -> AsyncGenerator[TokenDelta]:
        """The tokens of one engine from the first to the last.

        A completion whose engine dies is sampled again on the next one, unless part of it has left. Raises
        RolloutPaused if no token comes for `hold_s` seconds, Crowded if others got some lately, EpisodeEnded if the
        episode ends meanwhile.
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
        clock = asyncio.get_running_loop().time
        try:
            # One limit that is moved for each token: a new one costs more than the token's way through here.
            async with asyncio.timeout(None) as limit:
                while True:
                    limit.reschedule(clock() + self.hold_s)
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
            if clock() - self._token_at < self.hold_s / 2:
                raise Crowded(f"no token for {self.hold_s:.0f} s: others wait as well", retry_after_s=5) from error
            raise RolloutPaused(f"no token for {self.hold_s:.0f} s: weights are changing", retry_after_s=5) from error
        finally:
            await tokens.aclose()


def _refuse_if_ended(draft: Draft) -> None:
    reason = draft.ended()
    if reason is not None:
        raise EpisodeEnded(f"the episode ended during this call ({reason})")
