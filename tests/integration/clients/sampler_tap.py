"""An engine with a tap: all that the gateway asks a real engine and hears from it is kept and compared with records."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

from swarm.backends.base import Backend, Backends
from swarm.backends.fake import CONTEXT_LENGTH, FakeSampler, FakeTrainer
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, read_stop_ids, read_tokenizer
from swarm.sampler import Sampler, SamplerInfo
from swarm.types import FinishReason, SamplingParams, TokenDelta


@dataclass
class Generation:
    """One completion as the engine gave it."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def take(self, delta: TokenDelta) -> None:
        self.token_ids.extend(delta.token_ids_T)
        self.logprobs.extend(delta.logprobs_T)
        self.weight_versions.extend(delta.weight_versions_T)
        self.finish_reason = delta.finish_reason


class TappedSampler:
    """Implements `swarm.sampler.Sampler` by another one. `generations` are in the order they were asked for."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.generations: list[Generation] = []

    async def start(self) -> SamplerInfo:
        return await self._sampler.start()

    async def stop(self) -> None:
        await self._sampler.stop()

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta, None]:
        generation = Generation(tuple(prompt_ids), params)
        self.generations.append(generation)
        async with aclosing(self._sampler.generate(request_id, prompt_ids, params)) as deltas:
            async for delta in deltas:
                generation.take(delta)
                yield delta


class Script:
    """What a fake engine says, line by line, in the tokens of the bundled model."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque()
        self.sampler: FakeSampler | None = None
        self._tokenizer = read_tokenizer(BUNDLED_DIRECTORY)
        self._stop_id = min(read_stop_ids(BUNDLED_DIRECTORY, self._tokenizer))

    def next_line(self, prompt_ids: Sequence[int]) -> list[int]:
        """Whatever the prompt was."""
        line = self.lines.popleft() if self.lines else "(the script is over)"
        return [*self._tokenizer.encode(line, add_special_tokens=False).ids, self._stop_id]


class TappedBackends(Backends):
    """Real backends, whose fake engine follows a script and has this context length."""

    def __init__(self, config: ServerConfig, log_path: Path, context_length: int = CONTEXT_LENGTH) -> None:
        super().__init__(config, log_path)
        self._context_length = context_length
        self.script = Script()
        self.tap: TappedSampler | None = None

    def build(self, job: TrainJob, *, is_fresh: bool) -> Backend:
        backend = super().build(job, is_fresh=is_fresh)
        if job.engine == "fake":
            sampler = FakeSampler(reply=self.script.next_line, context_length=self._context_length)
            self.script.sampler = sampler
            backend = replace(backend, sampler=sampler, trainer=FakeTrainer(sampler, job))
        self.tap = TappedSampler(backend.sampler)
        return replace(backend, sampler=self.tap)
