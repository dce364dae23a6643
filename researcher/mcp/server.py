"""The MCP server of the researcher, over standard input and output."""

from __future__ import annotations

import asyncio
import logging

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import swarm
from researcher.planner.tools.base import Toolbox, ToolRefused

logger = logging.getLogger(__name__)

INSTRUCTIONS = (
    "Plans and reads studies of reinforcement learning. Begin one with `start` and planner `external`; then repeat: "
    "`question`, look around with `look` and the other tools, `answer`. The study trains, measures and judges by "
    "itself. `report` says what it found once it is over."
)


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


def serve(toolbox: Toolbox) -> None:
    """Serve one client over standard input and output until it closes them."""

    async def run() -> None:
        server = build_server(toolbox)
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    asyncio.run(run())


def _call(toolbox: Toolbox, name: str, arguments: dict[str, object]) -> tuple[str, bool]:
    """Return the text of a tool's result or failure, and whether it failed."""
    try:
        return toolbox.call(name, arguments), False
    except ToolRefused as error:
        return str(error), True
    except Exception as error:
        logger.exception("the tool %s failed", name)
        return f"the tool failed: {type(error).__name__}: {' '.join(str(error).split())[:500]}", True
