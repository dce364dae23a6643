"""The HTTP connection to one replica, and the completions route of OpenAI's API with token ids."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, cast

import httpx

from swarm.backends.replicas.adapter import StreamPiece
from swarm.errors import BadRequest, ContextLengthExceeded, EngineFailure, SwarmError
from swarm.sampler import EngineLost
from swarm.types import TokenLogprobs

IMPOSSIBLE: Final = -9999.0
"""The protocol's value for minus infinity."""
LONGEST_REASON: Final = 300


def read_event(data: bytes, server: str, *, top_logprobs: int) -> StreamPiece | None:
    """Return the piece of one event, or None for an empty one. Raise the error that the event reports.

    `server` is the name of the server in messages.
    """
    event = json.loads(data)
    if "error" in event:
        code = event["error"].get("code") if isinstance(event["error"], dict) else None
        raise error_of(code if isinstance(code, int) else 500, event, server)
    if not event.get("choices"):
        return None
    choice = event["choices"][0]
    token_ids: list[int] = choice.get("token_ids") or []
    reported: dict[str, Any] = choice.get("logprobs") or {}
    logprobs: list[float | None] = reported.get("token_logprobs") or []
    likeliest: list[dict[str, float | None]] = reported.get("top_logprobs") or []
    piece = StreamPiece(
        tuple(token_ids),
        tuple(_number(value) for value in logprobs),
        tuple(_likeliest(each, top_logprobs) for each in likeliest) if top_logprobs else (),
        choice.get("finish_reason"),
    )
    if len(piece.token_ids_T) != len(piece.logprobs_T):
        raise EngineFailure(f"{server} sent tokens without their ids or probabilities: it is too old for this engine")
    return piece if piece.token_ids_T or piece.ended else None


def error_of(status: int, answer: object, server: str) -> SwarmError:
    """Return the error for a refusal by a server: the caller's mistake, or a replica that cannot continue."""
    message = _message(answer)
    if status == 400 or status == 422:
        if "context length" in message or "max_model_len" in message:
            return ContextLengthExceeded(message)
        return BadRequest(f"{server} refuses the request: {message}")
    if status in {401, 403, 404}:
        return EngineFailure(f"{server} answers with status {status}: {message}")
    return EngineLost(f"{server} answers with status {status}: {message}")


def _number(value: float | None) -> float:
    """Return a log-probability, or NaN for null and impossible values: JSON has no NaN, so servers send null."""
    return math.nan if value is None or value <= IMPOSSIBLE else value


def _likeliest(named: Mapping[str, float | None], count: int) -> TokenLogprobs:
    """Return the likeliest tokens. `named` maps "token_id:5" to a logprob, and may also have the sampled token."""
    pairs = [
        (int(name.removeprefix("token_id:")), value)
        for name, value in named.items()
        if value is not None and value > IMPOSSIBLE
    ]
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:count])


def _message(answer: object) -> str:
    found: Any = answer
    for name in ("error", "detail", "message"):
        if isinstance(found, dict) and name in found:
            found = found[name]  # pyright: ignore[reportUnknownVariableType]
    text = found if isinstance(found, str) else json.dumps(found)
    return " ".join(text.split())[:LONGEST_REASON] or "no reason given"


CONNECT_S: Final = 10.0
WRITE_S: Final = 60.0
READY_INTERVAL_S: Final = 0.1
EVENT_MARK: Final = b"data: "
LAST_EVENT: Final = b"[DONE]"


class ReplicaClient:
    """HTTP client of one replica. Used from one asyncio event loop."""

    def __init__(self, base_url: str, key: str, server: str) -> None:
        """Prepare a connection. Every request has `key`; `server` is the name of the server in messages."""
        self.base_url = base_url
        self._server = server
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

    async def until_ready(self, path: str) -> None:
        """Wait until the replica answers with success. The caller limits the wait and watches the process."""
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    if await self.succeeds(path):
                        return
            except (EngineLost, TimeoutError):
                # The server does not listen yet.
                pass
            await asyncio.sleep(READY_INTERVAL_S)

    async def succeeds(self, path: str) -> bool:
        """Return whether the answer has status 200. The caller limits the wait."""
        return (await self._send("GET", path)).status_code == 200

    async def get(self, path: str, limit_s: float | None) -> dict[str, Any]:
        """Return an answer. Without a limit, the caller limits the wait."""
        return await self._call("GET", path, limit_s)

    async def post(
        self, path: str, limit_s: float, *, query: Mapping[str, str] | None = None, body: object = None
    ) -> dict[str, Any]:
        return await self._call("POST", path, limit_s, query, body)

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """Yield the events of one completion, without their framing. An early close aborts the completion.

        Raise BadRequest if the request is refused, and EngineLost if the replica breaks off. The caller limits the
        wait.
        """
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    raise error_of(response.status_code, _parsed(await response.aread()), self._server)
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

    async def _call(
        self, method: str, path: str, limit_s: float | None, query: Mapping[str, str] | None = None, body: object = None
    ) -> dict[str, Any]:
        """Return the answer. Raise EngineLost if the replica exceeds the limit, or the SwarmError of its answer."""
        try:
            async with asyncio.timeout(limit_s):
                response = await self._send(method, path, query, body)
        except TimeoutError:
            raise EngineLost(f"a replica did not answer {path} within {limit_s:g} s") from None
        answer = _parsed(response.content)
        if response.status_code >= 400:
            raise error_of(response.status_code, answer, self._server)
        return cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> httpx.Response:
        if self._http.is_closed:
            # A call of several requests may go on after the end of its replica.
            raise EngineLost("the replica has ended")
        try:
            return await self._http.request(method, path, params=query, json=body)
        except httpx.TransportError as error:
            raise EngineLost(f"a replica broke off at {path}: {error or type(error).__name__}") from error


def _parsed(content: bytes) -> object:
    try:
        return json.loads(content) if content else {}
    except ValueError:
        return content.decode(errors="replace")
