"""Finds the routes whose path has no parameter, at once and in one step; all others are left to FastAPI's router.

Place in the flow: between the keys in paths and the router, which tries one route after the other, within two nets for
errors and files. The calls that come by the hundred per second (a model call, episodes that begin or end) need none of
that: who may call, what is read and what is answered is in the route itself, and an error is answered here as there.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from swarm.errors import SwarmError
from swarm.gateway.http.errors import error_response
from swarm.gateway.http.routes import DirectRoute


class PlainPaths:
    """ASGI middleware over the app of the router that has these routes."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes: dict[tuple[str, str], DirectRoute] = {}
        for route in routes:
            if isinstance(route, DirectRoute) and _is_found_by_path(route):
                for method in route.methods or ():
                    # The router takes the first that fits, too.
                    self._routes.setdefault((method, route.path), route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None or scope.get("root_path"):
            await self._app(scope, receive, send)
            return
        scope["route"], scope["endpoint"], scope["path_params"] = route, route.endpoint, {}
        try:
            await route.app(scope, receive, send)
        except SwarmError as error:
            await error_response(error)(scope, receive, send)


def _is_found_by_path(route: DirectRoute) -> bool:
    """A route that looks at more than the path, or is called at FastAPI's own pace, is the router's."""
    plain = type(route).matches is APIRoute.matches
    return plain and not route.param_convertors and not route.dependant.query_params and route.methods == {"POST"}
