"""The HTTP side of one replica: its features, its health, the calls that control it, and streams of events.

Place in the flow: replica.py owns one client per run of its process. Every call has a deadline. The client knows vLLM's
routes and the shape of its answers; wire.py reads the content of events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

import httpx

from swarm.backends.vllm.requests.wire import error_of
from swarm.sampler import EngineLost

CONNECT_S: Final = 10.0
WRITE_S: Final = 60.0
READY_INTERVAL_S: Final = 0.1
EVENT_MARK: Final = b"data: "
LAST_EVENT: Final = b"[DONE]"


class ReplicaHealth(StrEnum):
    """Health of a replica. HUNG means that its process lives but does not answer in time."""

    SERVING = "serving"
    PAUSED = "paused"
    ASLEEP = "asleep"
    DEAD = "dead"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class Features:
    """Features that this vLLM lists in its own description. `preempts`: it can recompute running requests."""

    routes: frozenset[str]
    preempts: bool

    @property
    def updates(self) -> bool:
        return "/update_weights" in self.routes and "/pause" in self.routes

    @property
    def sleeps(self) -> bool:
        return "/sleep" in self.routes and "/wake_up" in self.routes


class ReplicaClient:
    """HTTP client of one replica. Used from one asyncio event loop."""

    def __init__(self, base_url: str, key: str) -> None:
        self.base_url = base_url
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"authorization": f"Bearer {key}"},
            # Every request has a stream, so connections are unlimited. The environment's proxies are for other hosts.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            timeout=httpx.Timeout(None, connect=CONNECT_S, write=WRITE_S),
            trust_env=False,
            # Certificates are read only if needed, because that takes a tenth of a second.
            verify=base_url.startswith("https:"),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def until_ready(self) -> None:
        """Wait until the replica serves requests. The caller limits the wait and watches the process."""
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    if (await self._http.get("/health")).status_code == 200:
                        return
            except (httpx.TransportError, TimeoutError):
                # The server does not listen yet.
                pass
            await asyncio.sleep(READY_INTERVAL_S)

    async def features(self, limit_s: float) -> Features:
        described = await self.get("/openapi.json", limit_s)
        paths = cast("dict[str, dict[str, Any]]", described.get("paths") or {})
        reset = cast("dict[str, Any]", paths.get("/reset_prefix_cache", {}).get("post") or {})
        parameters = cast("list[dict[str, Any]]", reset.get("parameters") or [])
        return Features(frozenset(paths), any(each.get("name") == "reset_running_requests" for each in parameters))

    async def context_length(self, limit_s: float) -> int:
        """Return the maximum of prompt plus completion, in tokens."""
        return int((await self.get("/v1/models", limit_s))["data"][0]["max_model_len"])

    async def health(self, features: Features, limit_s: float) -> ReplicaHealth:
        try:
            async with asyncio.timeout(limit_s):
                if (await self._http.get("/health")).status_code != 200:
                    return ReplicaHealth.DEAD
                # Unlike the route above, these reach the process that samples, so they notice if it hangs.
                paused = await self._says("/is_paused", features)
                sleeping = await self._says("/is_sleeping", features)
                if sleeping and paused and not await self._has_given_memory_back():
                    return ReplicaHealth.PAUSED
        except TimeoutError:
            return ReplicaHealth.HUNG
        except (httpx.TransportError, EngineLost):
            return ReplicaHealth.DEAD
        return ReplicaHealth.ASLEEP if sleeping else ReplicaHealth.PAUSED if paused else ReplicaHealth.SERVING

    async def get(self, path: str, limit_s: float) -> dict[str, Any]:
        return await self._call("GET", path, limit_s)

    async def post(
        self, path: str, limit_s: float, *, query: Mapping[str, str] | None = None, body: object = None
    ) -> dict[str, Any]:
        return await self._call("POST", path, limit_s, query, body)

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """Yield the events of one completion, without their framing. An early close aborts the completion.

        Raise BadRequest if the request is refused, and EngineLost if the replica breaks off. The caller limits the
        wait.
        """
        try:
            async with self._http.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    raise error_of(response.status_code, _parsed(await response.aread()))
                buffer = b""
                async for data in response.aiter_raw():
                    *events, buffer = (buffer + data).split(b"\n\n")
                    for event in events:
                        content = event.strip().removeprefix(EVENT_MARK)
                        if content == LAST_EVENT:
                            return
                        if content and not content.startswith(b":"):
                            yield content
        except httpx.TransportError as error:
            raise EngineLost(f"a replica broke off: {error or type(error).__name__}") from error

    async def _says(self, path: str, features: Features) -> bool:
        if path not in features.routes:
            return False
        answer = _checked(await self._http.get(path))
        return bool(answer.get(path.removeprefix("/")))

    async def _has_given_memory_back(self) -> bool:
        """Return whether a sleeping replica has freed its memory; True without a gauge.

        Some versions report a paused replica as asleep as well; the gauge tells the two apart.
        """
        response = await self._http.get("/metrics")
        lines = [line for line in response.text.splitlines() if line.startswith("vllm:engine_sleep_state")]
        awake = [line for line in lines if 'sleep_state="awake"' in line]
        return not awake or any(float(line.rsplit(" ", 1)[-1]) == 0 for line in awake)

    async def _call(
        self, method: str, path: str, limit_s: float, query: Mapping[str, str] | None = None, body: object = None
    ) -> dict[str, Any]:
        """Return the answer. Raise EngineLost if the replica exceeds the limit, or the SwarmError of its answer."""
        try:
            async with asyncio.timeout(limit_s):
                return _checked(await self._http.request(method, path, params=query, json=body))
        except TimeoutError:
            raise EngineLost(f"a replica did not answer {path} within {limit_s:g} s") from None
        except httpx.TransportError as error:
            raise EngineLost(f"a replica broke off at {path}: {error or type(error).__name__}") from error


def _checked(response: httpx.Response) -> dict[str, Any]:
    answer = _parsed(response.content)
    if response.status_code >= 400:
        raise error_of(response.status_code, answer)
    return cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}


def _parsed(content: bytes) -> object:
    try:
        return json.loads(content) if content else {}
    except ValueError:
        return content.decode(errors="replace")
