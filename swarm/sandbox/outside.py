"""The host's end of the only way out of the sandbox: a Unix socket that leads to one swarm server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path

from swarm.sandbox.cgroup import has_killed, remove_cgroup
from swarm.sandbox.inside import CHUNK_BYTES, Connect, Handler, connected, copy, exit_code, pass_signals_on

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 2**30
HEAD_TIMEOUT_S = 60.0

_MODEL_ROUTE = re.compile(r"(/e/[\w.~-]+)?(/v1/(?!swarm(/|$))[\w./~-]*|/tokenize|/detokenize)")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONNECTION_HEADERS = frozenset({b"connection", b"keep-alive"})
_OF_THE_CONNECTION = frozenset({"connection", "keep-alive", "proxy-connection", "upgrade", "te", "expect"})


class NotForwarded(Exception):
    """A request that is not forwarded to the server."""


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """The head of a request as it goes to the server, and the length of its body."""

    head: bytes
    body_bytes: int


@dataclass(frozen=True, slots=True)
class WayOut:
    """The Unix socket in the sandbox, the server that it leads to, and the cgroup to remove at the end."""

    socket: str
    host: str
    port: int
    tls: bool
    path: str
    cgroup: str | None


def main(argv: list[str]) -> int:
    return asyncio.run(_run(WayOut(**json.loads(argv[0])), argv[1:]))


async def _run(options: WayOut, command: list[str]) -> int:
    tls = ssl.create_default_context() if options.tls else None

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(options.host, options.port, ssl=tls)

    handler = model_forwarder(connect, options.path)
    server = await asyncio.start_unix_server(handler, path=options.socket, limit=MAX_HEAD_BYTES)
    # The user inside may be another one. Nobody else can list the socket's folder.
    os.chmod(options.socket, 0o666)
    try:
        async with server:
            process = await asyncio.create_subprocess_exec(*command)
            pass_signals_on(process)
            return exit_code(await process.wait())
    finally:
        # The process that started this one may be gone and unable to clean up.
        shutil.rmtree(Path(options.socket).parent, ignore_errors=True)
        if options.cgroup:
            if has_killed(Path(options.cgroup)):
                sys.stderr.write("sandbox: stopped: it used more memory than it may\n")
            remove_cgroup(Path(options.cgroup))


def model_forwarder(connect: Connect, prefix: str) -> Handler:
    """Return a connection handler for one request to a model route of a server whose routes begin with `prefix`."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_TIMEOUT_S)
            request = read_head(head, prefix)
        except NotForwarded as refusal:
            writer.write(_refusal(str(refusal)))
            writer.close()
            return
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.close()
            return
        upstream = await connected(connect, writer)
        if upstream is None:
            return
        sending = asyncio.ensure_future(_send(request, reader, upstream[1]))
        await _answer(upstream[0], writer)
        sending.cancel()
        upstream[1].close()

    return forward


async def _answer(upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy the server's answer, with a header that closes the connection, which not every server sends."""
    try:
        first, *lines = (await upstream.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        writer.close()
        return
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _CONNECTION_HEADERS]
    writer.write(b"\r\n".join([first, *kept, b"connection: close", b"", b""]))
    await copy(upstream, writer)


async def _send(request: ForwardedRequest, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
    """Send the request to the server, and drop all further bytes on the same connection."""
    try:
        upstream.write(request.head)
        left = request.body_bytes
        while left and (data := await reader.read(min(left, CHUNK_BYTES))):
            left -= len(data)
            upstream.write(data)
            await upstream.drain()
        while not left and await reader.read(CHUNK_BYTES):
            pass
    except OSError:
        pass
    # The guest has disconnected, so tell the server to stop.
    upstream.close()


def read_head(head: bytes, prefix: str) -> ForwardedRequest:
    """Return the request with its head rewritten.

    Raises NotForwarded for a head that is not plain, and for a route that is not a model's.
    """
    try:
        first, *lines = head[:-4].decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise NotForwarded("the head of a request must be ASCII") from None
    words = first.split(" ")
    if len(words) != 3 or words[0] not in ("GET", "POST") or words[2] != "HTTP/1.1":
        raise NotForwarded("only GET and POST of HTTP/1.1 are forwarded")
    path = words[1].partition("?")[0]
    below = path.removeprefix(prefix)
    if not (path.startswith(prefix) and _MODEL_ROUTE.fullmatch(below)) or "//" in below or "/." in below:
        raise NotForwarded("a program may reach the routes of the model, and no other route of the server")
    kept = [line for line in map(_plain_header, lines) if line is not None]
    lengths = [value for name, value in kept if name.lower() == "content-length"]
    if len(lengths) > 1 or not all(re.fullmatch(r"\d{1,10}", value) for value in lengths):
        raise NotForwarded("a request must have one content-length, a number")
    body_bytes = int(lengths[0]) if lengths else 0
    if body_bytes > MAX_BODY_BYTES:
        raise NotForwarded("the body of the request is too long")
    fields = "".join(f"{name}: {value}\r\n" for name, value in kept)
    return ForwardedRequest(f"{first}\r\n{fields}connection: close\r\n\r\n".encode("ascii"), body_bytes)


def _plain_header(line: str) -> tuple[str, str] | None:
    """Return the name and value of a header, or None for one that concerns this connection alone.

    Raises NotForwarded for a header that is not plain.
    """
    name, colon, value = line.partition(":")
    value = value.strip(" \t")
    if not colon or not _NAME.fullmatch(name) or not all(" " <= letter <= "~" or letter == "\t" for letter in value):
        raise NotForwarded("a header of the request is not plain")
    if name.lower() == "transfer-encoding":
        raise NotForwarded("transfer-encoding is not forwarded: send the length of the body as content-length")
    return None if name.lower() in _OF_THE_CONNECTION else (name, value)


def _refusal(message: str) -> bytes:
    error = {"message": message, "type": "permission_error", "param": None, "code": "forbidden"}
    body = json.dumps({"error": error}).encode()
    lines = ["HTTP/1.1 403 Forbidden", "content-type: application/json", f"content-length: {len(body)}"]
    lines += ["x-should-retry: false", "connection: close", "", ""]
    return "\r\n".join(lines).encode() + body
