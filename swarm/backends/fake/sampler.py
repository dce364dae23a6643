"""A sampler without a model: deterministic replies at any speed, and faults on demand.

Place in the flow: replaces the local sampler in load tests, in the check of new client code, and in tests. It has a
real tokenizer, that of the bundled model, so the gateway renders and decodes as usual. No model stands behind the
tokens.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tokenizers import Tokenizer

from swarm.backends.stopping import StopRule
from swarm.errors import ContextLengthExceeded, EngineFailure, WeightsNotFinite
from swarm.model_path import BUNDLED_DIRECTORY, read_stop_ids, read_tokenizer
from swarm.sampler import EngineLost, SamplerInfo
from swarm.types import FinishReason, SamplingParams, TokenDelta

CONTEXT_LENGTH = 4096
LONGEST_REPLY = 16
"""Tokens of the longest random reply: about a short sentence."""

Reply = Callable[[Sequence[int]], Sequence[int]]
"""Prompt ids -> completion ids. A completion that max_tokens does not cut ends with finish reason `stop`."""


class FaultKind(StrEnum):
    """Kinds of faults: RAISE fails the request, HANG stalls it for good, DIE ends the engine until the next start.

    NOT_FINITE fails the request like weights that give no finite numbers.

    A fault stays until it is removed: a restarted engine dies again.
    """

    RAISE = "raise"
    NOT_FINITE = "not_finite"
    HANG = "hang"
    DIE = "die"


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault that strikes once a request has received `after_tokens` tokens."""

    kind: FaultKind
    after_tokens: int = 0


class FakeSampler:
    """Implementation of `swarm.sampler.Sampler` without a model.

    Without `reply`, a completion is up to LONGEST_REPLY random letters and the stop token. It is a function of prompt
    and seed, or of the prompt alone at temperature 0. An unseeded completion depends on prompt and order of arrival.
    """

    def __init__(
        self,
        *,
        reply: Reply | None = None,
        token_delay_s: float = 0.0,
        fault: Fault | None = None,
        tokenizer_path: Path = BUNDLED_DIRECTORY,
        context_length: int = CONTEXT_LENGTH,
    ) -> None:
        self.fault = fault
        self.weight_version = 0
        self.died = asyncio.Event()
        self._reply = reply
        self._token_delay_s = token_delay_s
        self._tokenizer_path = tokenizer_path
        self._context_length = context_length
        self._running: _Running | None = None
        self._death: EngineLost | None = None

    @property
    def death(self) -> str | None:
        """Reason why the engine died, until it is started again."""
        return None if self._death is None else self._death.message

    def die(self, reason: str) -> None:
        """End like a killed process: every request and training step fails until the engine is started again."""
        self._death = EngineLost(reason)
        self.died.set()
        if self._running is not None:
            self._running.steady.set()

    async def start(self) -> SamplerInfo:
        if self._running is not None:
            self._running.stopped.set()
        tokenizer = read_tokenizer(self._tokenizer_path)
        self._running = _Running(tokenizer, read_stop_ids(self._tokenizer_path, tokenizer))
        self._death = None
        self.died.clear()
        self.weight_version = 0
        return SamplerInfo(
            model="fake",
            tokenizer_path=str(self._tokenizer_path),
            context_length=self._context_length,
            parameters=0,
            device="none",
        )

    async def stop(self) -> None:
        if self._running is not None:
            self._running.stopped.set()
            self._running = None

    @asynccontextmanager
    async def weight_change(self) -> AsyncGenerator[None]:
        """Pause generations inside the block; tokens after it carry the `weight_version` that was set in the block."""
        running = self._require_running()
        running.steady.clear()
        try:
            yield
            if self._death is not None:
                raise self._death
        finally:
            running.steady.set()

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta]:
        running = self._require_running()
        room = self._context_length - len(prompt_ids)
        if room < 1:
            raise ContextLengthExceeded(
                f"the prompt has {len(prompt_ids)} tokens and the context holds {self._context_length}: shorten it"
            )
        reply = self._reply(prompt_ids) if self._reply else running.random_reply(prompt_ids, params)
        rule = StopRule(params, running.stop_ids, room, running.decode)
        for count, token_id in enumerate(reply, start=1):
            await self._meet_fault(running, tokens_given=count - 1)
            if not await self._wait_turn(running):
                yield TokenDelta((), (), (), FinishReason.ABORT)
                return
            finish = rule.check(reply[:count])
            if finish is None and count == len(reply):
                finish = FinishReason.STOP
            top = (((token_id, running.logprob),),) if params.top_logprobs else None
            yield TokenDelta((token_id,), (running.logprob,), (self.weight_version,), finish, top)
            if finish is not None:
                return

    def _require_running(self) -> _Running:
        if self._death is not None:
            raise self._death
        if self._running is None:
            raise EngineFailure("the fake engine is not started")
        return self._running

    async def _wait_turn(self, running: _Running) -> bool:
        """Wait for one token, longer while weights change. Return False if the engine was stopped meanwhile."""
        await asyncio.sleep(self._token_delay_s)
        if not running.steady.is_set():
            await _first_of(running.steady, running.stopped)
        if self._death is not None:
            raise self._death
        return not running.stopped.is_set()

    async def _meet_fault(self, running: _Running, *, tokens_given: int) -> None:
        if self.fault is None or tokens_given < self.fault.after_tokens:
            return
        match self.fault.kind:
            case FaultKind.RAISE:
                raise EngineFailure(f"fake fault after {tokens_given} tokens")
            case FaultKind.NOT_FINITE:
                raise WeightsNotFinite(f"fake weights after {tokens_given} tokens")
            case FaultKind.HANG:
                await running.stopped.wait()
            case FaultKind.DIE:
                self.die(f"the fake engine died after {tokens_given} tokens")
                self._require_running()


class _Running:
    """State that exists between start and stop."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: frozenset[int]) -> None:
        self.stop_ids = stop_ids
        self.steady = asyncio.Event()
        self.steady.set()
        self.stopped = asyncio.Event()
        self._tokenizer = tokenizer
        self._arrivals = 0
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        self._letters = sorted(vocabulary[token] for token in vocabulary if token.isascii() and token.isalpha())
        self.logprob = -math.log(len(self._letters))

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def random_reply(self, prompt_ids: Sequence[int], params: SamplingParams) -> Sequence[int]:
        self._arrivals += 1
        if params.temperature == 0:
            source = "greedy"
        else:
            source = f"seed {params.seed}" if params.seed is not None else f"arrival {self._arrivals}"
        generator = random.Random(f"{source}: {list(prompt_ids)}")
        letters = generator.choices(self._letters, k=generator.randint(1, LONGEST_REPLY))
        return [*letters, *sorted(self.stop_ids)[:1]]


async def _first_of(*events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
