"""What a sampler must do: token ids in, token ids and logprobs out.

Place in the flow: the gateway calls `generate`, server.py starts and stops. Implemented by `fake` and `local`; an
engine knows nothing of messages, episodes or rewards.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from swarm.types import SamplingParams, TokenDelta


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts of a started engine. `context_length` bounds prompt plus completion, in tokens."""

    model: str
    tokenizer_path: str
    context_length: int
    parameters: int
    device: str


class Engine(Protocol):
    """A started model. Implementations are used from one asyncio event loop."""

    async def start(self) -> EngineInfo:
        """Load the model. Raises EngineFailure with the reason (a wrong path, no memory, a worker that died)."""
        ...

    async def stop(self) -> None:
        """Free everything; running generations end with finish reason `abort`. Idempotent."""
        ...

    def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta, None]:
        """Sample one completion. Closing the generator early aborts the request within one decoding step.

        While weights change, the generator pauses and goes on with the new version. Raises ContextLengthExceeded if the
        prompt leaves no room for one token, EngineFailure if the engine dies.
        """
        ...
