"""A second kind of sampler server: OpenAI's completions route with token ids, and four routes for weights."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from swarm.backends.replicas.adapter import (
    Device,
    ReplicaOrder,
    SamplerLimits,
    SamplerRequest,
    StreamPiece,
    WeightFile,
    WeightSource,
)
from swarm.backends.replicas.client import ReplicaClient, read_event
from swarm.sampler import EngineLost

NAME = "the OpenAI server"


class OpenAiAdapter:
    name = NAME

    def flags_beside_trainer(self, device: Device) -> Mapping[str, Any]:
        return {}

    def command(self, order: ReplicaOrder, *, host: str, port: int) -> list[str]:
        server = Path(__file__).with_name("openai_server.py")
        return [str(order.python), str(server), str(order.settings.model_directory), host, str(port)]

    def environment(self, order: ReplicaOrder, shared: Mapping[str, str]) -> dict[str, str]:
        path = [shared["PYTHONPATH"], *filter(None, sys.path)]
        return {**shared, "OPENAI_API_KEY": order.key, "PYTHONPATH": ":".join(path)}

    def connect(self, base_url: str, order: ReplicaOrder, limits: SamplerLimits) -> OpenAiServer:
        return OpenAiServer(ReplicaClient(base_url, order.key, NAME), limits)


class OpenAiServer:
    def __init__(self, client: ReplicaClient, limits: SamplerLimits) -> None:
        self._client = client
        self._limits = limits

    @property
    def base_url(self) -> str:
        return self._client.base_url

    async def close(self) -> None:
        await self._client.close()

    async def until_ready(self) -> None:
        await self._client.until_ready("/health")

    async def inspect(self) -> int:
        answer = await self._client.get("/v1/models", self._limits.call_timeout_s)
        return int(answer["data"][0]["max_model_len"])

    async def complete(self, request: SamplerRequest) -> AsyncGenerator[StreamPiece]:
        params = request.params
        body = {
            "prompt": request.prompt_ids,
            "stream": True,
            "logprobs": params.top_logprobs,
            "max_tokens": request.max_tokens,
            "temperature": params.temperature,
            "seed": request.seed,
            "stop_token_ids": sorted(request.end_ids),
            "grammar": params.grammar and [params.grammar.kind, params.grammar.text],
        }
        async with aclosing(self._client.stream("/v1/completions", body)) as events:
            async for event in events:
                piece = read_event(event, NAME, top_logprobs=params.top_logprobs)
                if piece is not None:
                    yield piece

    async def check(self) -> None:
        if not await self._client.succeeds("/health"):
            raise EngineLost("it is dead")

    async def pause(self) -> None:
        await self._client.post("/pause", self._limits.call_timeout_s)

    async def resume(self) -> None:
        await self._client.post("/resume", self._limits.call_timeout_s)

    async def load(self, source: WeightSource) -> None:
        assert isinstance(source, WeightFile)
        await self._client.post("/weights", self._limits.transfer_timeout_s, body={"path": str(source.path)})

    async def forget_cache(self) -> None:
        pass

    async def sleep(self) -> None:
        await self.pause()

    async def wake(self) -> None:
        await self.resume()
