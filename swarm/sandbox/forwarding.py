"""The code that both ends of the sandbox's way out share: copying bytes between connections, signals and exit codes."""

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
    """Return a connection handler that copies bytes both ways, or closes the connection if it cannot connect."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await connected(connect, writer)
        if upstream is not None:
            await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer))

    return forward


async def connected(connect: Connect, writer: asyncio.StreamWriter) -> Connection | None:
    """Return the connection to the other side, or close `writer` and return None if it cannot be reached."""
    try:
        return await asyncio.wait_for(connect(), CONNECT_TIMEOUT_S)
    except (OSError, TimeoutError):
        writer.close()
        return None


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until one of the sides ends, and close `writer`."""
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
    """Return the exit code as a shell reports it: 128 + N for a process that signal N ended."""
    return code if code >= 0 else 128 - code
