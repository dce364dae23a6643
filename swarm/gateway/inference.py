"""One model call of an episode: locate its prompt in the episode's tree, sample, record, reply.

Place in the flow: between the model routes and the engine. A reply is complete only once its turn is on disk, exactly
as it was sampled. A call whose engine dies is sampled again on the next one, unless part of it has left. It knows
nothing of HTTP framing, of rewards, or of training.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from swarm.config import TrainJob
from swarm.engine.base import Engine, EngineLost
from swarm.engine.state import SERVING
from swarm.errors import EngineFailure, EngineNotReady, EpisodeEnded, RolloutPaused, UnknownParameter
from swarm.gateway.dialects.chat import ChatRequest, SamplingDefaults
from swarm.gateway.dialects.chat_reply import ChunkStream, render_completion
from swarm.gateway.rollout import Rollout, RunningEpisode
from swarm.ledger import Ledger
from swarm.schemas import EngineState
from swarm.tracker.codec import Codec
from swarm.tracker.tree import Prompt
from swarm.types import EpisodeType, FinishReason, Message, TokenDelta, Turn

logger = logging.getLogger(__name__)

RATE_WINDOW_S = 10.0
DEATH_NOTICED_S = 0.02
"""How soon a call looks again after its engine died: the state says so within that time."""

SETTLED = SERVING | {EngineState.OFFLINE, EngineState.FAILED}
"""States in which it is known whether a waiting call can be answered."""


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


@dataclass(slots=True)
class ModelCall:
    """One call in progress: what was asked, where it stands in the tree, and what was sampled so far."""

    episode: RunningEpisode
    request: ChatRequest
    prompt: Prompt
    started_at: float
    call_id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    weight_versions: list[int] = field(default_factory=list[int])
    finish_reason: FinishReason | None = None
    has_left: bool = False
    """Whether the caller has been given part of the reply."""

    def take(self, delta: TokenDelta) -> None:
        self.token_ids.extend(delta.token_ids_T)
        self.logprobs.extend(delta.logprobs_T)
        self.weight_versions.extend(delta.weight_versions_T)
        self.finish_reason = delta.finish_reason

    def restart(self) -> None:
        """Forget what was sampled."""
        self.token_ids.clear()
        self.logprobs.clear()
        self.weight_versions.clear()
        self.finish_reason = None

    def turn(self, reply: Message) -> Turn:
        return Turn(
            episode_id=self.episode.episode_id,
            index=self.prompt.index,
            prompt_ids=self.prompt.prompt_ids,
            output_ids_T=tuple(self.token_ids),
            logprobs_T=tuple(self.logprobs),
            weight_versions_T=tuple(self.weight_versions),
            finish_reason=self.finish_reason or FinishReason.ABORT,
            params=self.request.params,
            messages=self.request.messages,
            reply=reply,
            tools=self.request.tools,
            parent=self.prompt.parent,
            fork_reason=self.prompt.fork_reason,
            started_at=self.started_at,
            ended_at=time.time(),
        )


@dataclass(slots=True)
class ModelService:
    """The served model of one started job. `on_engine_failure` hears of failures that a new engine would not mend."""

    rollout: Rollout
    engine: Engine
    codec: Codec
    ledger: Ledger
    hold_s: float
    on_engine_failure: Callable[[EngineFailure], None]
    _rate: TokenRate = field(default_factory=TokenRate)
    _records: set[asyncio.Task[Turn]] = field(default_factory=set[asyncio.Task[Turn]])

    @property
    def model_name(self) -> str:
        return self.job.model

    @property
    def job(self) -> TrainJob:
        return self.rollout.job

    def tokens_per_second(self) -> float:
        return self._rate.per_second()

    @property
    def tokens_sampled(self) -> int:
        """Since the engine was started for this run."""
        return self._rate.total

    def defaults(self) -> SamplingDefaults:
        """What applies where a request is silent."""
        return SamplingDefaults(
            temperature=self.job.temperature,
            top_p=1.0,
            max_tokens=self.job.max_response_length,
            stop_token_ids=self.codec.stop_token_ids,
        )

    async def complete(self, episode: RunningEpisode, request: ChatRequest) -> dict[str, Any]:
        """The body of a finished completion. Its turn is on record when this returns."""
        call = self._open(episode, request)
        try:
            async with aclosing(self._sample(call)) as deltas:
                async for delta in deltas:
                    call.take(delta)
        finally:
            turn = await self._close(call, None)
        return render_completion(
            request, turn, self.codec, completion_id=call.call_id, created=int(call.started_at), model=self.model_name
        )

    async def stream(self, episode: RunningEpisode, request: ChatRequest) -> AsyncGenerator[dict[str, Any]]:
        """The chunks of a completion as it is sampled. Its turn is on record before the last chunk leaves."""
        call = self._open(episode, request)
        chunks = ChunkStream(
            request,
            self.codec,
            completion_id=call.call_id,
            created=int(call.started_at),
            model=self.model_name,
            prompt_ids=call.prompt.prompt_ids,
            turn_index=call.prompt.index,
        )
        closed = False
        try:
            for chunk in chunks.start():
                yield chunk
            async with aclosing(self._sample(call)) as deltas:
                async for delta in deltas:
                    call.take(delta)
                    call.has_left = True
                    ready = chunks.push(delta)
                    if delta.finish_reason is not None:
                        closed = True
                        await self._close(call, chunks.reply)
                    for chunk in ready:
                        yield chunk
        finally:
            if not closed:
                await self._close(call, None)

    def _open(self, episode: RunningEpisode, request: ChatRequest) -> ModelCall:
        """Find where the call stands in the episode's tree, and count it as a sign of life."""
        if episode.episode_type is EpisodeType.TRAIN:
            _refuse_untrainable(request)
        prompt = episode.tree.locate(request.messages, request.tools, self.codec)
        episode.calls_in_flight += 1
        episode.touch()
        return ModelCall(episode=episode, request=request, prompt=prompt, started_at=time.time())

    async def _close(self, call: ModelCall, reply: Message | None) -> Turn:
        """Record the turn. Without a finish reason it is an orphan: on record, never trained. Raises LedgerError."""
        if reply is None:
            reply = self.codec.parse_reply(
                call.token_ids,
                call.request.callable_tools,
                turn_index=call.prompt.index,
                stop=call.request.params.stop,
            )
        record = asyncio.create_task(self._record(call.episode, call.turn(reply)))
        self._records.add(record)
        record.add_done_callback(self._records.discard)
        # Carried through even if the caller goes away meanwhile: the tree must hold just what the ledger holds.
        return await asyncio.shield(record)

    async def _record(self, episode: RunningEpisode, turn: Turn) -> Turn:
        try:
            if episode.closed is None:
                await self.ledger.add_turn(turn)
                episode.tree.add(turn)
        finally:
            episode.calls_in_flight -= 1
            episode.touch()
        return turn

    async def _sample(self, call: ModelCall) -> AsyncGenerator[TokenDelta]:
        """The tokens of one engine from the first to the last.

        Raises RolloutPaused if none comes for `hold_s` seconds, EpisodeEnded if the episode ends meanwhile.
        """
        while True:
            await self._until_served(call)
            try:
                async with aclosing(self._generate(call)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except EngineLost as error:
                if call.has_left:
                    raise
                logger.info("call %s is sampled again: %s", call.call_id, error.message)
                call.restart()
                await asyncio.sleep(DEATH_NOTICED_S)
            except EngineFailure as error:
                self.on_engine_failure(error)
                raise

    async def _until_served(self, call: ModelCall) -> None:
        """Hold a call while the engine boots. Raises RolloutPaused after `hold_s` seconds, or why none will serve."""
        lifecycle = self.rollout.lifecycle
        if not await lifecycle.wait_until(SETTLED, self.hold_s):
            raise RolloutPaused(f"the engine is {lifecycle.state}: {lifecycle.reason}", retry_after_s=5)
        if lifecycle.state is EngineState.FAILED:
            raise EngineFailure(f"the engine has failed: {lifecycle.reason}")
        if lifecycle.state is EngineState.OFFLINE:
            raise EngineNotReady("the engine was stopped", retry_after_s=5)
        _refuse_if_ended(call)

    async def _generate(self, call: ModelCall) -> AsyncGenerator[TokenDelta]:
        """Raises EngineLost if the engine dies, or is started anew, before the last token."""
        tokens = self.engine.generate(call.call_id, call.prompt.prompt_ids, call.request.params)
        try:
            while True:
                async with asyncio.timeout(self.hold_s):
                    delta = await anext(tokens, None)
                if delta is None:
                    return
                _refuse_if_ended(call)
                if delta.finish_reason is FinishReason.ABORT:
                    if self.rollout.lifecycle.state is EngineState.OFFLINE:
                        raise EngineNotReady("the engine stopped during this call", retry_after_s=5)
                    raise EngineLost("the engine was started anew")
                self._rate.add(len(delta.token_ids_T))
                yield delta
        except TimeoutError as error:
            raise RolloutPaused(f"no token for {self.hold_s:.0f} s: weights are changing", retry_after_s=5) from error
        finally:
            await tokens.aclose()


def _refuse_if_ended(call: ModelCall) -> None:
    if call.episode.closed is not None:
        raise EpisodeEnded(f"the episode ended during this call ({call.episode.closed})")


def _refuse_untrainable(request: ChatRequest) -> None:
    """The loss assumes tokens drawn from the tempered, untruncated distribution."""
    if request.params.top_p < 1:
        raise UnknownParameter("top_p below 1 is not supported in train episodes: use an eval episode", param="top_p")
    if request.params.top_k:
        raise UnknownParameter("top_k is not supported in train episodes: use an eval episode", param="top_k")
