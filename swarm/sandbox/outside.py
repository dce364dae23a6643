"""The host's end of the only way out of the sandbox: a Unix socket that leads to one swarm server.

Place in the flow: sandbox.py has this started around bubblewrap: `outside --socket FILE --host HOST --port PORT --path
PATH -- COMMAND`. Bytes go: guest -> TCP port inside -> Unix socket -> TCP connection to the server. Each connection
carries one request, and only to a route of the model APIs: a server without tokens takes anybody for its commander,
and a program has no business with its control routes. When the command ends, what was made for it is removed: the
socket's folder, and its cgroup.

Uses the standard library alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm.sandbox.cgroup import has_killed, remove_cgroup
from swarm.sandbox.forwarding import CHUNK_BYTES, Connect, Handler, connected, copy, exit_code, pass_signals_on

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 2**30
HEAD_TIMEOUT_S = 60.0

_MODEL_ROUTE = re.compile(r"(/e/[\w.~-]+)?(/v1/(?!swarm(/|$))[\w./~-]*|/tokenize|/detokenize)")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONNECTION_HEADERS = frozenset({b"connection", b"keep-alive"})
_OF_THE_CONNECTION = frozenset({"connection", "keep-alive", "proxy-connection", "upgrade", "te", "expect"})


class Refused(Exception):
    """A request that is not carried to the server."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it goes to the server, and how long its body is."""

    head: bytes
    body_bytes: int


def main(argv: list[str]) -> int:
    options, command = _parse(argv)
    return asyncio.run(_run(options, command))


async def _run(options: argparse.Namespace, command: list[str]) -> int:
    tls = ssl.create_default_context() if options.tls else None

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(options.host, options.port, ssl=tls)

    handler = model_forwarder(connect, options.path)
    server = await asyncio.start_unix_server(handler, path=options.socket, limit=MAX_HEAD_BYTES)
    # The user inside may be another one; the folder of the socket is not listed to anyone else.
    os.chmod(options.socket, 0o666)
    try:
        async with server:
            process = await asyncio.create_subprocess_exec(*command)
            pass_signals_on(process)
            return exit_code(await process.wait())
    finally:
        # Whoever started this may be gone.
        shutil.rmtree(Path(options.socket).parent, ignore_errors=True)
        if options.cgroup:
            if has_killed(options.cgroup):
                sys.stderr.write("sandbox: stopped: more memory than it may use\n")
            remove_cgroup(options.cgroup)


def model_forwarder(connect: Connect, prefix: str) -> Handler:
    """A connection handler for one request to a model route of the server whose routes begin with `prefix`."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_TIMEOUT_S)
            request = read_head(head, prefix)
        except Refused as refusal:
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
    """The server's answer, which says to the guest that the connection ends with it: not every server does."""
    try:
        first, *lines = (await upstream.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        writer.close()
        return
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _CONNECTION_HEADERS]
    writer.write(b"\r\n".join([first, *kept, b"connection: close", b"", b""]))
    await copy(upstream, writer)


async def _send(request: Request, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
    """The request, then nothing more: what follows it on the same connection is not carried."""
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
    # The guest has gone away, so that the server need not go on.
    upstream.close()


def read_head(head: bytes, prefix: str) -> Request:
    """The request of a head, written anew. Raises Refused for one that is not plain, or no model's."""
    try:
        first, *lines = head[:-4].decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise Refused("the head of a request is ASCII") from None
    words = first.split(" ")
    if len(words) != 3 or words[0] not in ("GET", "POST") or words[2] != "HTTP/1.1":
        raise Refused("only GET and POST of HTTP/1.1 are carried")
    path = words[1].partition("?")[0]
    below = path.removeprefix(prefix)
    if not (path.startswith(prefix) and _MODEL_ROUTE.fullmatch(below)) or "//" in below or "/." in below:
        raise Refused("a program reaches the model and nothing else of the server")
    kept = [line for line in map(_plain_header, lines) if line is not None]
    lengths = [value for name, value in kept if name.lower() == "content-length"]
    if len(lengths) > 1 or not all(re.fullmatch(r"\d{1,10}", value) for value in lengths):
        raise Refused("a request has one length")
    body_bytes = int(lengths[0]) if lengths else 0
    if body_bytes > MAX_BODY_BYTES:
        raise Refused("the body of the request is too long")
    fields = "".join(f"{name}: {value}\r\n" for name, value in kept)
    return Request(f"{first}\r\n{fields}connection: close\r\n\r\n".encode("ascii"), body_bytes)


def _plain_header(line: str) -> tuple[str, str] | None:
    """Name and value; None for what is only said to this end. Raises Refused."""
    name, colon, value = line.partition(":")
    value = value.strip(" \t")
    if not colon or not _NAME.fullmatch(name) or not all(" " <= letter <= "~" or letter == "\t" for letter in value):
        raise Refused("a header of the request is not plain")
    if name.lower() == "transfer-encoding":
        raise Refused("say how long the body is, with Content-Length")
    return None if name.lower() in _OF_THE_CONNECTION else (name, value)


def _refusal(message: str) -> bytes:
    error = {"message": message, "type": "permission_error", "param": None, "code": "forbidden"}
    body = json.dumps({"error": error}).encode()
    lines = ["HTTP/1.1 403 Forbidden", "content-type: application/json", f"content-length: {len(body)}"]
    lines += ["x-should-retry: false", "connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    split = list(argv).index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--path", required=True)
    parser.add_argument("--cgroup", type=Path)
    return parser.parse_args(argv[:split]), list(argv[split + 1 :])
