"""Episodes named by path: `/e/<key>/v1/...` is `/v1/...` with that key, for what can be told nothing but a base URL.

Place in the flow: between the edge and the routes. From here on nobody sees the path that was asked for, so that the
key gets into no log, metric or message. It opens what a key opens in a header: the model routes, nothing else.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

from swarm.errors import NotFound
from swarm.gateway.http.auth import PATH_KEY
from swarm.gateway.http.errors import error_response
from swarm.schemas import API_PREFIX

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
