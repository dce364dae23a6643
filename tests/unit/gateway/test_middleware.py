"""The outermost layer: every request is answered, counted and given back, whatever happens behind or before it."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from swarm.gateway.http import middleware as edge
from swarm.gateway.http.middleware import BUCKETS_S, InputLimits, Latencies, RequestMiddleware, Traffic

Messages = list[dict[str, Any]]


def scope_of(**changes: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {"type": "http", "method": "GET", "headers": [], "raw_path": b"/", "query_string": b""}
    return {**scope, **changes}


def run(app: Any, traffic: Traffic, scope: dict[str, Any] | None = None, send: Any = None) -> Messages:
    """What the app sends behind an edge, to a caller that sends nothing and, by default, takes everything."""
    sent: Messages = []

    async def take(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def call() -> None:
        async with asyncio.timeout(60):
            await RequestMiddleware(app, InputLimits(1000), traffic)(scope or scope_of(), receive, send or take)

    asyncio.run(call())
    return sent


def test_an_error_that_nobody_expected_is_answered_and_logged_under_the_request_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("a bug")

    traffic = Traffic()
    with caplog.at_level(logging.ERROR):
        start, body = run(app, traffic, scope_of(headers=[(b"x-request-id", b"mine-1")]))
    assert start["status"] == 500
    assert (b"x-request-id", b"mine-1") in start["headers"]
    assert json.loads(body["body"])["error"]["code"] == "internal_error"
    assert "a bug" not in body["body"].decode()
    assert "mine-1" in caplog.text
    assert list(traffic.latencies) == [("GET", "unmatched", "5xx")]


def test_a_reader_that_takes_nothing_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "CHUNK_TIMEOUT_S", 0.05)
    is_released = False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal is_released
        await send({"type": "http.response.start", "status": 200})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
        finally:
            is_released = True

    async def take_nothing(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    traffic = Traffic()
    run(app, traffic, send=take_nothing)
    assert is_released
    assert list(traffic.latencies) == [("GET", "unmatched", "2xx")]


def test_a_call_whose_caller_left_counts_as_unanswered() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise asyncio.CancelledError

    traffic = Traffic()
    with pytest.raises(asyncio.CancelledError):
        run(app, traffic)
    assert list(traffic.latencies) == [("GET", "unmatched", "none")]


@pytest.mark.parametrize("given", [b"", b"x" * 129, b"two words", b"caf\xe9 \xff", b"a\x00b"])
def test_a_request_id_that_is_not_sane_is_replaced(given: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})

    [start] = run(app, Traffic(), scope_of(headers=[(b"x-request-id", given)]))
    [(name, made)] = start["headers"]
    assert (name, made[:4], len(made)) == (b"x-request-id", b"req-", 36)


def test_buckets_are_cumulative_and_bounds_belong_to_them() -> None:
    traffic = Traffic()
    for seconds in (0.0, BUCKETS_S[0], 0.002, 1e9):
        traffic.count("GET", "/", "2xx", seconds)
    latencies = traffic.latencies["GET", "/", "2xx"]
    counted = list(latencies.cumulative())
    assert counted[:2] == [(BUCKETS_S[0], 2), (BUCKETS_S[1], 3)]
    assert counted[-1] == (float("inf"), 4)
    assert latencies.total_s == pytest.approx(1e9 + 0.003)
    assert list(Latencies().cumulative())[-1] == (float("inf"), 0)
