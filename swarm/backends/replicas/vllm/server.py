"""One running vLLM server as its replica controls it: completions, weights, sleep and health by vLLM's routes.

Place in the flow: adapter.py makes one per start of a replica. It knows the routes and which of them this version of
vLLM has. It does not know when weights are taken, or what happens to a replica that breaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from swarm.backends.replicas.adapter import ReplicaHealth, SamplerRequest, StreamPiece
from swarm.backends.replicas.client import ReplicaClient
from swarm.backends.replicas.layout import ReplicaOrder, SamplerLimits, WeightBroadcast, WeightFile, WeightSource
from swarm.backends.replicas.openai_wire import read_event
from swarm.backends.replicas.vllm.wire import completion_body
from swarm.errors import EngineFailure
from swarm.sampler import EngineLost

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

    async def health(self) -> ReplicaHealth:
        try:
            async with asyncio.timeout(self._limits.hang_s):
                if not await self._client.succeeds("/health"):
                    return ReplicaHealth.DEAD
                # Unlike the route above, these reach the process that samples, so they notice if it hangs.
                paused = await self._says("/is_paused")
                sleeping = await self._says("/is_sleeping")
                if sleeping and paused and not await self._has_given_memory_back():
                    return ReplicaHealth.PAUSED
        except TimeoutError:
            return ReplicaHealth.HUNG
        except EngineLost:
            return ReplicaHealth.DEAD
        return ReplicaHealth.ASLEEP if sleeping else ReplicaHealth.PAUSED if paused else ReplicaHealth.SERVING

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
            raise EngineLost("vLLM did not give up what it had computed from the old weights")

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

    async def _says(self, path: str) -> bool:
        if path not in self._routes:
            return False
        return bool((await self._client.get(path, None)).get(path.removeprefix("/")))

    async def _has_given_memory_back(self) -> bool:
        """Return whether a sleeping replica has freed its memory; True without a gauge.

        Some versions report a paused replica as asleep as well; the gauge tells the two apart.
        """
        gauges = (await self._client.text("/metrics")).splitlines()
        lines = [line for line in gauges if line.startswith("vllm:engine_sleep_state")]
        awake = [line for line in lines if 'sleep_state="awake"' in line]
        return not awake or any(float(line.rsplit(" ", 1)[-1]) == 0 for line in awake)

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
