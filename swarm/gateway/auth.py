"""Who may call what: the commander token on control routes, the episode key on model routes.

Place in the flow: dependencies of the routers. It knows nothing of what a call does.
"""

from __future__ import annotations

import hashlib
import secrets

from fastapi import Request

from swarm.errors import Unauthorized

KEY_PREFIX = "sk-swarm-"


def new_key() -> str:
    """An unguessable episode key (192 bits)."""
    return KEY_PREFIX + secrets.token_urlsafe(24)


def key_digest(key: str) -> str:
    """What is kept of a key: enough to recognize it, not to use it."""
    return hashlib.sha256(key.encode()).hexdigest()


def bearer(request: Request) -> str:
    """The presented key. Raises Unauthorized if there is none."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    if key := request.headers.get("x-api-key"):
        return key
    raise Unauthorized("no API key: send the header `Authorization: Bearer <key>`")


class TokenGuard:
    """Lets a request pass if no token is configured or if it carries the token."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    async def __call__(self, request: Request) -> None:
        # A coroutine only so that FastAPI calls it in place: a plain function would cost a thread switch per request.
        if self._token is None:
            return
        if not secrets.compare_digest(bearer(request).encode(), self._token.encode()):
            raise Unauthorized("wrong token for the control API")
