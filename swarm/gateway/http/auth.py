"""Who may call what: three roles on control routes, the key of an episode, in a header or the path, on model routes.

Place in the flow: `PathKeys` stands between the outermost middleware and the routes, so that a key in a path gets into
no log, metric or message; routes.py asks for the caller before anything of a request but its headers is read. This
module knows nothing of what a call does.
"""

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
"""Where in a request's scope the key stands that its path named, if it did."""


class Role(StrEnum):
    """What a token stands for: everything; the life of episodes; reading."""

    COMMANDER = "commander"
    ROLLOUT = "rollout"
    OBSERVER = "observer"


COMMANDERS = frozenset({Role.COMMANDER})
CLIENTS = frozenset({Role.COMMANDER, Role.ROLLOUT})
READERS = frozenset({Role.COMMANDER, Role.OBSERVER})
EVERYBODY = frozenset(Role)


def bearer(request: Request) -> str:
    """The presented key. Raises Unauthorized if there is none."""
    key = presented_key(request)
    if key is None:
        raise Unauthorized("no API key: send the header `Authorization: Bearer <key>`")
    return key


def presented_key(request: Request) -> str | None:
    """The key that the path named, else what stands in `Authorization: Bearer` or, failing that, in `x-api-key`.

    Clients that need a key in the path send a placeholder in the header.
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
    """Knows the tokens of one server. Without a commander's token everybody is commander."""

    def __init__(self, commander: str | None, rollout: str | None = None, observer: str | None = None) -> None:
        given = ((Role.COMMANDER, commander), (Role.ROLLOUT, rollout), (Role.OBSERVER, observer))
        self._digests = tuple((role, _digest(token)) for role, token in given if token is not None)

    def identify(self, request: Request) -> Role:
        """The role of the caller. Raises Unauthorized for no or a wrong token, Forbidden for an episode key or a web
        page."""
        key = presented_key(request)
        if not self._digests:
            _refuse_web_page(request)
            if key is not None and key.startswith(KEY_PREFIX):
                raise Forbidden("the key of an episode opens model routes only")
            return Role.COMMANDER
        if key is None:
            raise Unauthorized("no token: set SWARM_TOKEN, or send the header `Authorization: Bearer <token>`")
        # All are compared, each in constant time, so that the time taken says nothing about any of them.
        digest, found = _digest(key), None
        for role, known in self._digests:
            if secrets.compare_digest(digest, known):
                found = role
        if found is None:
            raise Unauthorized("wrong token for the control API")
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _refuse_web_page(request: Request) -> None:
    """A page from elsewhere, open in a browser on this machine, reaches a server that asks for no token.

    Browsers say where a page that writes comes from, also when its name was rebound to this machine.
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
"""Those that do not begin with the prefix."""


class PathKeys:
    """ASGI middleware."""

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
