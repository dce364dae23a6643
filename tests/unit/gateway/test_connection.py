"""The head of an answer leaves with what follows it, and never later than the loop's next turn."""

from __future__ import annotations

import asyncio
from typing import Any

from swarm.gateway.http.connection import JoinedHead

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Wire(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.sent.append("closed")

    def abort(self) -> None:
        self.sent.append("aborted")


def written(*actions: Any) -> list[Any]:
    """What arrives of these writes; None lets the loop turn once, a name calls the method."""

    async def scenario() -> list[Any]:
        wire = Wire()
        transport = JoinedHead(wire, asyncio.get_running_loop())
        for action in actions:
            if action is None:
                await asyncio.sleep(0)
            elif isinstance(action, str):
                getattr(transport, action)()
            else:
                transport.write(action)
        return wire.sent

    return asyncio.run(scenario())


def test_head_and_body_are_one_write() -> None:
    assert written(HEAD, b"body") == [HEAD + b"body"]
    assert written(HEAD, b"5\r\nfirst\r\n", b"0\r\n\r\n", HEAD, b"x") == [
        HEAD + b"5\r\nfirst\r\n",
        b"0\r\n\r\n",
        HEAD + b"x",
    ]


def test_a_head_that_nothing_follows_leaves_by_itself() -> None:
    assert written(HEAD, None) == [HEAD]
    assert written(HEAD, None, b"late") == [HEAD, b"late"]
    assert written(HEAD, "close", None) == [HEAD, "closed"]


def test_an_abort_sends_nothing_that_waits() -> None:
    assert written(HEAD, "abort") == ["aborted"]
