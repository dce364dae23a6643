"""One running vLLM server by vLLM's own routes: completions, weights, sleep and health."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from swarm.backends.grammar import write_lark
from swarm.backends.replicas.adapter import (
    ReplicaOrder,
    SamplerLimits,
    SamplerRequest,
    StreamPiece,
    WeightBroadcast,
    WeightFile,
    WeightSource,
)
from swarm.backends.replicas.client import ReplicaClient, read_event
from swarm.errors import EngineFailure
from swarm.sampler import EngineLost

SERVED_NAME: Final = "policy"
SEED_RANGE: Final = 2**63


def completion_body(request: SamplerRequest) -> dict[str, Any]:
    """Return the body of a request. Raise BadRequest for an invalid grammar."""
    params = request.params
    body: dict[str, Any] = {
        "model": SERVED_NAME,
        "request_id": request.request_id,
        "prompt": request.prompt_ids,
        "stream": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "logprobs": params.top_logprobs,
        "skip_special_tokens": False,
        "max_tokens": request.max_tokens,
        "min_tokens": request.min_tokens,
        "ignore_eos": True,
        "stop_token_ids": sorted(request.end_ids),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
    }
    if params.logit_bias:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias}
    if request.seed is not None:
        body["seed"] = request.seed % SEED_RANGE
    if params.grammar is not None:
        body["structured_outputs"] = {"grammar": write_lark(params.grammar, request.end_ids, request.eos_id)}
    return body


NAME: Final = "vLLM"


class VllmServer:
    """Implementation of `replicas.adapter.SamplerServer` by vLLM."""

    def __init__(self, client: ReplicaClient, order: ReplicaOrder, limits: SamplerLimits) -> None:
        self._client = client
        self._order = order
        self._limits = limits
        self._routes = frozenset[str]()
        self._preempts = False

    @property
    def base_url(self) -> str:
        return self._client.base_url

    async def close(self) -> None:
        await self._client.close()

    async def until_ready(self) -> None:
        await self._client.until_ready("/health")

    async def inspect(self) -> int:
        limit_s = self._limits.call_timeout_s
        described = await self._client.get("/openapi.json", limit_s)
        paths = cast("dict[str, dict[str, Any]]", described.get("paths") or {})
        reset = cast("dict[str, Any]", paths.get("/reset_prefix_cache", {}).get("post") or {})
        parameters = cast("list[dict[str, Any]]", reset.get("parameters") or [])
        self._routes = frozenset(paths)
        # Whether this vLLM can compute running requests anew.
        self._preempts = any(each.get("name") == "reset_running_requests" for each in parameters)
        if not {"/update_weights", "/pause"} <= self._routes:
            raise EngineFailure("this vLLM cannot change weights while it runs: use 0.24 or later")
        return int((await self._client.get("/v1/models", limit_s))["data"][0]["max_model_len"])

    async def complete(self, request: SamplerRequest) -> AsyncGenerator[StreamPiece]:
        async with aclosing(self._client.stream("/v1/completions", completion_body(request))) as events:
            async for event in events:
                piece = read_event(event, NAME, top_logprobs=request.params.top_logprobs)
                if piece is not None:
                    yield piece

    async def check(self) -> None:
        if not await self._client.succeeds("/health"):
            raise EngineLost("it says that it is dead")
        # Unlike the route above, this one reaches the process that samples, so it notices if that hangs.
        if "/is_paused" in self._routes and (await self._client.get("/is_paused", None)).get("is_paused"):
            raise EngineLost("it is paused though it should serve")

    async def pause(self) -> None:
        await self._post("/pause", query={"mode": "keep"})

    async def resume(self) -> None:
        await self._post("/resume")

    async def load(self, source: WeightSource) -> None:
        limit_s = self._limits.transfer_timeout_s
        if isinstance(source, WeightBroadcast):
            await self._join(source)
        if "/start_weight_update" in self._routes:
            await self._post("/start_weight_update", body={"is_checkpoint_format": True})
        await self._post("/update_weights", limit_s, body={"update_info": _update_info(source)})
        if "/finish_weight_update" in self._routes:
            await self._post("/finish_weight_update", limit_s, body={"weight_version": str(source.version)})
        await self.forget_cache()

    async def forget_cache(self) -> None:
        """Drop the cache of other weights. Running requests are computed anew if this vLLM supports it."""
        query = {"reset_running_requests": "true"} if self._preempts else None
        answer = await self._post("/reset_prefix_cache", query=query)
        if self._preempts and answer.get("success") is False:
            raise EngineLost("vLLM kept its cache of the old weights, and would sample from them in part")

    async def sleep(self) -> None:
        if not {"/sleep", "/wake_up"} <= self._routes:
            raise EngineFailure("this vLLM cannot sleep: set actor_rollout_ref.hybrid_engine to false")
        await self.pause()
        # Sleep discards the cache that running requests would read.
        await self.forget_cache()
        await self._post("/sleep", self._limits.transfer_timeout_s, query={"level": "1", "mode": "keep"})

    async def wake(self) -> None:
        await self._post("/wake_up", self._limits.transfer_timeout_s)
        await self.resume()

    async def _join(self, source: WeightBroadcast) -> None:
        """Join the trainer's rank 0 and the other replicas in a group for this version."""
        layout = self._order.settings.layout
        if "/shutdown_weight_transfer_engine" in self._routes:
            await self._post("/shutdown_weight_transfer_engine")
        meeting = {
            "master_address": source.master_address,
            "master_port": source.master_port,
            "rank_offset": 1 + self._order.index * layout.tensor_parallel * layout.data_parallel,
            "world_size": source.world_size,
        }
        limit_s = self._limits.transfer_timeout_s
        await self._post("/init_weight_transfer_engine", limit_s, body={"init_info": meeting})

    async def _post(
        self,
        path: str,
        limit_s: float | None = None,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
    ) -> dict[str, Any]:
        return await self._client.post(path, limit_s or self._limits.call_timeout_s, query=query, body=body)


def _update_info(source: WeightSource) -> dict[str, Any]:
    if isinstance(source, WeightFile):
        return {"path": str(source.path)}
    return {
        "names": list(source.names),
        "dtype_names": list(source.dtypes),
        "shapes": [list(shape) for shape in source.shapes],
    }
