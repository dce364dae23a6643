"""Bytes carried between two connections, and the end of a command as an exit code: what both ends of the way out share.

Place in the flow: inside.py listens with `forwarder`, outside.py with a handler of its own. Uses the standard library
alone.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Connection]]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

CHUNK_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 30.0


def forwarder(connect: Connect) -> Handler:
    """A connection handler that copies bytes both ways; a connection that cannot be made is closed at once."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await connected(connect, writer)
        if upstream is not None:
            await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer))

    return forward


async def connected(connect: Connect, writer: asyncio.StreamWriter) -> Connection | None:
    """The other side of a connection; None if it cannot be reached, when `writer` has been closed."""
    try:
        return await asyncio.wait_for(connect(), CONNECT_TIMEOUT_S)
    except (OSError, TimeoutError):
        writer.close()
        return None


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one of the sides ends; `writer` is closed then."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def pass_signals_on(process: asyncio.subprocess.Process) -> None:
    def send(number: int) -> None:
        if process.returncode is None:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, send, number)


def exit_code(code: int) -> int:
    """128 + N for a process that signal N ended."""
    return code if code >= 0 else 128 - code
