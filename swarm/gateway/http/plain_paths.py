"""A shortcut past FastAPI's router: POST routes without path parameters are found in a dictionary by their path."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from swarm.errors import SwarmError
from swarm.gateway.http.errors import error_response
from swarm.gateway.http.routes import DirectRoute

METHOD = "POST"


class PlainPaths:
    """ASGI middleware around the app of the router that has these routes.

    The router tries one route after the other, inside two layers that handle errors and open files. Calls that come
    hundreds of times per second need neither: their routes do authentication, parsing and rendering themselves.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            route.path: route
            for route in routes
            if isinstance(route, DirectRoute) and _is_found_by_path(route) and _first(routes, route.path) is route
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_posted = scope["type"] == "http" and scope["method"] == METHOD and not scope.get("root_path")
        route = self._routes.get(scope["path"]) if is_posted else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"], scope["endpoint"], scope["path_params"] = route, route.endpoint, {}
        try:
            await route.app(scope, receive, send)
        except SwarmError as error:
            await error_response(error)(scope, receive, send)


def _is_found_by_path(route: DirectRoute) -> bool:
    """Return whether the path alone selects this route, and FastAPI is not needed to parse its query."""
    is_plain = type(route).matches is APIRoute.matches and not route.param_convertors
    return is_plain and not route.dependant.query_params and route.methods == {METHOD}


def _first(routes: Sequence[BaseRoute], path: str) -> BaseRoute | None:
    """Return the route that the router would take."""
    scope: Scope = {"type": "http", "method": METHOD, "path": path, "root_path": "", "headers": []}
    return next((route for route in routes if route.matches(scope)[0] is Match.FULL), None)
