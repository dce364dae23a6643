"""Authentication: tokens with three roles on control routes, the key of an episode on model routes."""

from __future__ import annotations

import hashlib
import re
import secrets
from enum import StrEnum
from urllib.parse import quote, urlsplit

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from swarm.config import is_loopback
from swarm.errors import Forbidden, NotFound, Unauthorized
from swarm.gateway.http.errors import error_response
from swarm.rollout.running import KEY_PREFIX
from swarm.schemas import API_PREFIX

PATH_KEY = "swarm.path_key"
"""The name in the ASGI scope of the key that the path contained, if any."""


class Role(StrEnum):
    """The rights of a token: a commander may do everything, rollout runs episodes, an observer reads."""

    COMMANDER = "commander"
    ROLLOUT = "rollout"
    OBSERVER = "observer"


COMMANDERS = frozenset({Role.COMMANDER})
CLIENTS = frozenset({Role.COMMANDER, Role.ROLLOUT})
READERS = frozenset({Role.COMMANDER, Role.OBSERVER})
EVERYBODY = frozenset(Role)


def bearer(request: Request) -> str:
    """Return the key of a request. Raises Unauthorized if there is none."""
    key = presented_key(request)
    if key is None:
        raise Unauthorized("no API key: send the header `Authorization: Bearer <key>`")
    return key


def presented_key(request: Request) -> str | None:
    """Return the key of a request: from its path, else from `Authorization: Bearer`, else from `x-api-key`.

    The path comes first, because clients that put the key there send a placeholder in the header.
    """
    if (named := request.scope.get(PATH_KEY)) is not None:
        return named
    fallback: str | None = None
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and (key := key.strip()):
                return key.decode("latin-1")
        elif name == b"x-api-key" and value:
            fallback = value.decode("latin-1")
    return fallback


class TokenGuard:
    """The tokens of one server. Without a commander token every caller is a commander."""

    def __init__(self, commander: str | None, rollout: str | None = None, observer: str | None = None) -> None:
        given = ((Role.COMMANDER, commander), (Role.ROLLOUT, rollout), (Role.OBSERVER, observer))
        self._digests = tuple((role, _digest(token)) for role, token in given if token is not None)

    def identify(self, request: Request) -> Role:
        """Return the role of the caller.

        Raises Unauthorized for a missing or wrong token. On a server without tokens, raises Forbidden for an episode
        key or a web page of another host.
        """
        key = presented_key(request)
        if not self._digests:
            _refuse_web_page(request)
            if key is not None and key.startswith(KEY_PREFIX):
                raise Forbidden("the key of an episode opens model routes only: send control calls without it")
            return Role.COMMANDER
        if key is None:
            raise Unauthorized("no token: set SWARM_TOKEN, or send the header `Authorization: Bearer <token>`")
        # Every token is compared, each in constant time, so that the time taken reveals nothing about any of them.
        digest, found = _digest(key), None
        for role, known in self._digests:
            if secrets.compare_digest(digest, known):
                found = role
        if found is None:
            raise Unauthorized("wrong token for the control API: check SWARM_TOKEN")
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _refuse_web_page(request: Request) -> None:
    """Raise Forbidden for a request of a web page that another host served.

    A page that is open in a browser on this machine can reach a server that needs no token. Browsers name the page's
    host in the header `Origin` of a request that writes, even after DNS rebinding to this machine.
    """
    for name, value in request.scope["headers"]:
        if name == b"origin" and not _is_of_this_machine(value.decode("latin-1")):
            raise Forbidden("web pages of other hosts may not call a server without a token: set SWARM_TOKEN")


def _is_of_this_machine(origin: str) -> bool:
    try:
        host = urlsplit(origin).hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)


_KEYED = re.compile(r"/e/([^/]*)(.*)", re.DOTALL)
_MODEL_PREFIX = "/v1/"
_MODEL_ROUTES = frozenset({"/tokenize", "/detokenize"})
"""The model routes that do not begin with `_MODEL_PREFIX`."""


class PathKeys:
    """ASGI middleware that moves an episode key from the path `/e/<key>/v1/...` into the scope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keyed = _KEYED.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if keyed is None:
            await self._app(scope, receive, send)
            return
        key, path = keyed.groups()
        scope["path"], scope["raw_path"] = path, quote(path).encode()
        if not key or not _is_model_route(path):
            refusal = NotFound("no such route below /e/<key>: the model routes are at /e/<key>/v1")
            await error_response(refusal)(scope, receive, send)
            return
        scope[PATH_KEY] = key
        await self._app(scope, receive, send)


def _is_model_route(path: str) -> bool:
    is_control = path == API_PREFIX or path.startswith(f"{API_PREFIX}/")
    return path in _MODEL_ROUTES or (path.startswith(_MODEL_PREFIX) and not is_control)
