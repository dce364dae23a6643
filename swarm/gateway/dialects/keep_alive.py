"""Answers to patient callers: blanks before the JSON keep their connection alive while a call is worked on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from pydantic_core import to_json

from swarm.errors import BadRequest, EpisodeEnded, SwarmError
from swarm.gateway.http.routes import until_left
from swarm.types import KEEP_ALIVE_HEADER

SHORTEST_S, LONGEST_S = 0.1, 60.0
LOOK_S = 1.0
"""The interval of looks whether the episode has ended."""
BLANK = b" "
"""JSON may have blanks before it, and every parser skips them."""

Result = TypeVar("Result")


def interval_asked(request: Request, *, is_streamed: bool) -> float | None:
    """Return the seconds between the signs of life that a call asks for, or None. Raises BadRequest."""
    asked = request.headers.get(KEEP_ALIVE_HEADER)
    if asked is None:
        return None
    if is_streamed:
        raise BadRequest(
            f"{KEEP_ALIVE_HEADER} is for replies in one piece: leave it out, as a stream has pings of its own",
            param=KEEP_ALIVE_HEADER,
        )
    try:
        seconds = float(asked)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise BadRequest(
            f"{KEEP_ALIVE_HEADER}: must be {SHORTEST_S:g} to {LONGEST_S:g} seconds", param=KEEP_ALIVE_HEADER
        )
    return seconds


async def answer_whole(
    request: Request,
    work: Coroutine[Any, Any, bytes],
    headers: dict[str, str],
    *,
    every_s: float | None,
    ended: Callable[[], str | None],
    render_error: Callable[[SwarmError], Any],
) -> Response | None:
    """Return the answer whose JSON body the work returns, or None if the client disconnects before.

    With `every_s`, the answer begins after so many seconds, and has a blank each time that they pass again. An error
    after that is rendered as the body, and so is the end of the episode, of which `ended` returns the reason.
    """
    working = asyncio.ensure_future(work)
    try:
        if await unless_disconnected(request, _wait(working, every_s, ended)) is None:
            working.cancel()
            return None
    except BaseException:
        working.cancel()
        raise
    if working.done():
        return Response(working.result(), media_type="application/json", headers=headers)
    assert every_s is not None, "without an interval the work is waited for"
    body = _with_blanks(working, every_s, ended, render_error)
    return StreamingResponse(body, media_type="application/json", headers=headers)


async def _wait(working: asyncio.Future[bytes], seconds: float | None, ended: Callable[[], str | None]) -> bool:
    """Wait for the work, at most so many seconds, and return True. Raises EpisodeEnded once the episode has ended.

    A sampler that stands still gives no token, with which its caller would see that. Without a limit of seconds the
    sampler has one.
    """
    if seconds is None:
        await asyncio.wait({working})
        return True
    until = time.monotonic() + seconds
    while not working.done() and (left_s := until - time.monotonic()) > 0:
        await asyncio.wait({working}, timeout=min(LOOK_S, left_s))
        if not working.done() and (reason := ended()) is not None:
            raise EpisodeEnded(f"the episode ended during this call ({reason})")
    return True


async def _with_blanks(
    working: asyncio.Future[bytes],
    every_s: float,
    ended: Callable[[], str | None],
    render_error: Callable[[SwarmError], Any],
) -> AsyncGenerator[bytes]:
    try:
        while not working.done():
            yield BLANK
            await _wait(working, every_s, ended)
        yield working.result()
    except SwarmError as error:
        yield to_json(render_error(error))
    finally:
        working.cancel()


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of the work, or None as soon as the client has disconnected."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(until_left(request.receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait({working})
        return None
    finally:
        watching.cancel()
        working.cancel()
