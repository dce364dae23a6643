"""Calls of a server's control API, each within three seconds whatever the server does.

No redirect is followed and no proxy used, so a token reaches the address that the user sees and no other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Thread
from typing import Any

import httpx

LIMIT_S = 3.0
MOST_BYTES = 2 * 2**20
UNAUTHORIZED = 401


class ServerCallFailed(Exception):
    """A call without an answer of a server. The text says why, in a sentence for the user."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The answer to a call: its HTTP status, and the JSON object that it holds."""

    status: int
    document: Mapping[str, Any]

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """The error in the answer, or nothing."""
        error = self.document.get("error")
        return str(error.get("message", "")) if isinstance(error, Mapping) else ""


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A call of the control API: method, path, and the JSON object of its body."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


READ_STATUS = ServerRequest("GET", "/v1/swarm/status")


def check_address(text: str) -> str:
    """Return the address of a server without a path. Raises ServerCallFailed for what is no such address."""
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise ServerCallFailed("This is no address. Give one such as http://127.0.0.1:10086.") from error
    if url.scheme not in ("http", "https") or not url.host or "%" in url.host or (url.port or 80) > 65535:
        raise ServerCallFailed("An address begins with http:// or https://, such as http://127.0.0.1:10086.")
    if url.userinfo or url.query or url.fragment or url.path not in ("", "/"):
        raise ServerCallFailed("An address has a host and a port only. A token goes into its own field.")
    return str(url).rstrip("/")


def call_server(address: str, request: ServerRequest, token: str = "") -> ServerAnswer:
    """Return what the server at a checked address answers. Raises ServerCallFailed."""
    if not (token.isascii() and token.isprintable()):
        raise ServerCallFailed("The token has characters that no token can have. Type it again.")
    outcome: list[ServerAnswer | ServerCallFailed] = []
    # Looking up a name cannot be interrupted, so the call is in a thread that is given up.
    thread = Thread(target=lambda: outcome.append(_try_call(address, request, token)), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    answer = outcome[0] if outcome else ServerCallFailed(f"{address} did not answer within {LIMIT_S:g} seconds.")
    if isinstance(answer, ServerCallFailed):
        raise answer
    return answer


def _try_call(address: str, request: ServerRequest, token: str) -> ServerAnswer | ServerCallFailed:
    try:
        return _call(address, request, token)
    except ServerCallFailed as failure:
        return failure
    except httpx.TimeoutException:
        return ServerCallFailed(f"{address} did not answer within {LIMIT_S:g} seconds.")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return ServerCallFailed(f"{address} cannot be reached: {reason}.")


def _call(address: str, request: ServerRequest, token: str) -> ServerAnswer:
    """Send a request and read its answer, up to a limit of bytes and time."""
    deadline = time.monotonic() + LIMIT_S
    headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {token}"} if token else {})
    # The list of authorities takes a while to read, and only https needs it.
    options: dict[str, Any] = {"verify": address.startswith("https:"), "trust_env": False, "timeout": LIMIT_S}
    content = bytearray()
    with (
        httpx.Client(**options) as client,
        client.stream(request.method, address + request.path, headers=headers, json=request.body) as response,
    ):
        for part in response.iter_raw():
            content += part
            if len(content) > MOST_BYTES or time.monotonic() > deadline:
                raise ServerCallFailed(f"{address} answered with more than a server's answer can be.")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, Mapping):
        raise ServerCallFailed(f"{address} answered, but not as a swarm server does.")
    return ServerAnswer(response.status_code, document)
