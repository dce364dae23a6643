"""The protocol of a sampler: token ids in, token ids and logprobs out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from swarm.errors import EngineFailure
from swarm.types import SamplingParams, TokenDelta


class EngineLost(EngineFailure):
    """The process of sampler and trainer died. Its weights and all requests in progress are lost.

    The same request succeeds after the sampler has been restarted and its weights restored.
    """


@dataclass(frozen=True, slots=True)
class SamplerInfo:
    """Facts about a started sampler. `context_length` limits prompt plus completion, in tokens."""

    model: str
    tokenizer_path: str
    context_length: int
    parameters: int
    device: str


class Sampler(Protocol):
    """A sampler with one model. It is used from one asyncio event loop."""

    async def start(self) -> SamplerInfo:
        """Load the model at weight version 0. A previously loaded model is dropped, and its completions are aborted.

        Raise EngineFailure with the reason, such as a wrong path or an unsupported model. Raise EngineLost if the
        process dies meanwhile.
        """
        ...

    async def stop(self) -> None:
        """Free all resources. Running completions end with finish reason `abort`. A second call does nothing."""
        ...

    def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta, None]:
        """Sample one completion. Closing the generator early aborts the request within one decoding step.

        While weights change, the generator pauses; it continues with the new version. Raise ContextLengthExceeded if
        not even one token fits after the prompt, EngineLost if the sampler dies.
        """
        ...
