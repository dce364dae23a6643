"""What a sampler must do: token ids in, token ids and logprobs out.

Place in the flow: the gateway calls `generate`, server/commands.py starts and stops. Implemented by `fake` and `local`;
an engine knows nothing of messages, episodes or rewards.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from swarm.errors import EngineFailure
from swarm.types import SamplingParams, TokenDelta


class EngineLost(EngineFailure):
    """The process behind engine and trainer is gone, with the weights and all that was under way.

    The same request succeeds once the engine was started again and its weights are restored.
    """


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
        """Load the model, weight version 0; what was loaded before is given up, its generations end with `abort`.

        Raises EngineFailure with the reason (a wrong path, a model that cannot be served), EngineLost if the process
        dies meanwhile.
        """
        ...

    async def stop(self) -> None:
        """Free everything; running generations end with finish reason `abort`. Idempotent."""
        ...

    def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta, None]:
        """Sample one completion. Closing the generator early aborts the request within one decoding step.

        While weights change, the generator pauses and goes on with the new version. Raises ContextLengthExceeded if the
        prompt leaves no room for one token, EngineLost if the engine dies.
        """
        ...
