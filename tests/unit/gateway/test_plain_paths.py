"""What the shortcut finds by a path or its last segment has the answer that the router gives."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel

from swarm.errors import EngineNotReady
from swarm.gateway.http.errors import install_error_handlers
from swarm.gateway.http.plain_paths import PlainPaths
from swarm.gateway.http.routes import DirectRoute


class Answer(BaseModel):
    by: str


def build() -> FastAPI:
    router = APIRouter(route_class=DirectRoute)

    @router.post("/things/{name}/first")
    async def first(name: str) -> Answer:
        return Answer(by=f"parameter {name}")

    @router.post("/things/plain/first")
    async def never(request: Request) -> Answer:
        return Answer(by="a route behind one that fits")

    @router.post("/plain", status_code=201)
    async def plain(request: Request) -> Answer:
        return Answer(by="path")

    @router.post("/refused")
    async def refused(request: Request) -> Answer:
        raise EngineNotReady("not now", retry_after_s=7)

    @router.get("/plain")
    async def read(request: Request) -> Answer:
        return Answer(by="get")

    app = FastAPI(openapi_url=None)
    app.router.routes[:0] = router.routes
    install_error_handlers(app)
    return app


REQUESTS = [
    ("POST", "/things/plain/first"),
    ("POST", "/things/other/first"),
    ("POST", "/things/with%2Fslash/first"),
    ("POST", "/others/other/first"),
    ("POST", "/things/first"),
    ("GET", "/things/other/first"),
    ("POST", "/plain"),
    ("POST", "/plain/"),
    ("POST", "/refused"),
    ("GET", "/plain"),
    ("GET", "/refused"),
    ("PUT", "/plain"),
    ("POST", "/none"),
]


def test_every_request_has_the_answer_that_the_router_gives() -> None:
    async def ask(app: Any) -> list[tuple[int, bytes, dict[str, str]]]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://swarm") as http:
            replies = [await http.request(method, path) for method, path in REQUESTS]
            return [(reply.status_code, reply.content, dict(reply.headers)) for reply in replies]

    async def scenario() -> None:
        app = build()
        by_router = await ask(app)
        shortened = PlainPaths(app, app.router.routes)
        assert set(shortened._routes) == {"/plain", "/refused", "first"}
        assert await ask(shortened) == by_router
        assert [status for status, _, _ in by_router] == [
            200,
            200,
            404,
            404,
            404,
            405,
            201,
            307,
            503,
            200,
            405,
            405,
            404,
        ]

    asyncio.run(asyncio.wait_for(scenario(), 60))
