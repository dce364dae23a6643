"""The MCP server of the researcher, over standard input and output or over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import socket
from collections.abc import Callable

import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from starlette.types import ASGIApp, Receive, Scope, Send

import swarm
from researcher.errors import ResearchError
from researcher.planner.tools.base import Toolbox, ToolRefused
from swarm.config import is_loopback

logger = logging.getLogger(__name__)

INSTRUCTIONS = (
    "Plans and reads studies of reinforcement learning. Begin one with `start` and planner `external`; then repeat: "
    "`question`, look around with `look` and the other tools, `answer`. The study trains, measures and judges by "
    "itself. `report` says what it found once it is over."
)
MIN_TOKEN_CHARS = 16


def build_server(toolbox: Toolbox) -> Server[object]:
    """Return a server that offers the tools of a toolbox."""

    async def list_tools(_context: object, _params: object) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name, description=tool.description, input_schema=tool.arguments.model_json_schema()
                )
                for tool in toolbox.tools.values()
            ]
        )

    async def call_tool(_context: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        # A client that goes away leaves its call behind; every call has a limit of its own.
        text, is_error = await asyncio.to_thread(_call, toolbox, params.name, params.arguments or {})
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)

    return Server(
        "researcher",
        version=swarm.__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def serve_stdio(toolbox: Toolbox) -> None:
    """Serve one client over standard input and output until it closes them."""

    async def serve() -> None:
        server = build_server(toolbox)
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    asyncio.run(serve())


def serve_http(toolbox: Toolbox, host: str, port: int, *, token: str | None, announce: Callable[[str], object]) -> None:
    """Serve clients over HTTP until a signal ends it; `announce` gets the URL once the port is taken.

    Raises ResearchError for an address that other machines reach without a token, or that is taken.
    """
    check_exposure(host, token)
    app = build_server(toolbox).streamable_http_app(host=host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            # Clients may connect as soon as the URL is announced: they wait until the application serves.
            listener.listen()
        except OSError as error:
            raise ResearchError(f"{host}:{port} cannot be used: {error.strerror or error}") from error
        shown = f"[{host}]" if ":" in host else host
        announce(f"http://{shown}:{listener.getsockname()[1]}/mcp")
        config = uvicorn.Config(
            app if token is None else TokenGate(app, token), log_level="warning", timeout_graceful_shutdown=2
        )
        uvicorn.Server(config).run([listener])


def check_exposure(host: str, token: str | None) -> None:
    """Raise ResearchError for a token that is too short, or for an address beyond this machine without one."""
    if token is not None and len(token) < MIN_TOKEN_CHARS:
        raise ResearchError(f"RESEARCHER_TOKEN has {len(token)} characters: take {MIN_TOKEN_CHARS} or more")
    if token is None and not is_loopback(host):
        raise ResearchError(
            f"host {host} is reachable from other machines: set RESEARCHER_TOKEN ({MIN_TOKEN_CHARS}+ characters) first"
        )


class TokenGate:
    """ASGI middleware that lets only requests with the token pass."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_known(scope):
            headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"no token, or a wrong one: check RESEARCHER_TOKEN\n"})
            return
        await self._app(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        # Digests have one length, so the time of the comparison reveals nothing about the token.
        is_same = secrets.compare_digest(hashlib.sha256(token.strip()).digest(), self._digest)
        return is_same and scheme.lower() == b"bearer"


def _call(toolbox: Toolbox, name: str, arguments: dict[str, object]) -> tuple[str, bool]:
    """Return the text of a tool's result or failure, and whether it failed."""
    try:
        return toolbox.call(name, arguments), False
    except ToolRefused as error:
        return str(error), True
    except Exception as error:
        logger.exception("the tool %s failed", name)
        return f"the tool failed: {type(error).__name__}: {' '.join(str(error).split())[:500]}", True
