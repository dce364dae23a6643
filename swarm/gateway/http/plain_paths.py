"""A shortcut past FastAPI's router: POST routes are found in a dictionary, by their path or its last segment."""

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
        self._routes: dict[str, DirectRoute] = {}
        for route in routes:
            if isinstance(route, DirectRoute) and _needs_no_router(route) and _first(routes, route.path) is route:
                self._routes.setdefault(_key(route), route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._find(scope)
        if route is None:
            await self._app(scope, receive, send)
            return
        try:
            await route.app(scope, receive, send)
        except SwarmError as error:
            await error_response(error)(scope, receive, send)

    def _find(self, scope: Scope) -> DirectRoute | None:
        """Return the route of a request, and complete its scope as the router does. Return None for the router's."""
        if scope["type"] != "http" or scope["method"] != METHOD or scope.get("root_path"):
            return None
        path: str = scope["path"]
        route = self._routes.get(path) or self._routes.get(path.rpartition("/")[2])
        if route is None:
            return None
        match, found = route.matches(scope)
        if match is not Match.FULL:
            return None
        scope.update(found)
        scope["route"] = route
        return route


def _key(route: DirectRoute) -> str:
    """Return the path of a route without parameters, and the last segment of one that has some."""
    return route.path.rpartition("/")[2] if route.param_convertors else route.path


def _needs_no_router(route: DirectRoute) -> bool:
    """Return whether the path alone selects this route, and FastAPI is not needed to parse its query."""
    is_plain = type(route).matches is APIRoute.matches and not route.path.endswith("}")
    return is_plain and not route.dependant.query_params and route.methods == {METHOD}


def _first(routes: Sequence[BaseRoute], path: str) -> BaseRoute | None:
    """Return the route that the router would take."""
    scope: Scope = {"type": "http", "method": METHOD, "path": path, "root_path": "", "headers": []}
    return next((route for route in routes if route.matches(scope)[0] is Match.FULL), None)
