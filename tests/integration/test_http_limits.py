"""Input that is too large, too deep, too slow or no JSON over a real socket: 400 with the reason, never 500."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests_support import begin, wait_for_state

from swarm.gateway.http import connection, routes
from swarm.job import TrainJob

JOB = TrainJob(engine="fake", batch_size=1000, num_repeat=2)
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def url(start_shared_server: Any) -> str:
    return start_shared_server(JOB, max_body_bytes=100_000).url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        wait_for_state(client, "ROLLING")
        yield client
        assert client.get("/health").status_code == 200


def refusal(reply: httpx.Response, param: str | None = None) -> str:
    """The message of a 400 in the shape of all errors."""
    assert reply.status_code == 400, (reply.status_code, reply.text)
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert reply.headers["x-request-id"]
    if param is not None:
        assert error["param"] == param
    return error["message"]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no body"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"task_id": "\\ud800", "reward": 1}', "not valid JSON"),
        (b'{"task_id": "t", "reward": 1' + b"0" * 5000 + b"}", "not valid JSON"),
        (b'{"task_id": "t", "reward": 1, "metadata": {"x": ' + nested(5000).encode() + b"}}", "recursion limit"),
        (b'{"task_id": "t", "reward": 1, "metadata": {"x": [NaN]}}', "metadata.x.0: must be a finite number"),
        (b'{"task_id": "t", "reward": 1, "metadata": {"x": 1e999}}', "metadata.x: must be a finite number"),
        (b'{"task_id": "t", "reward": 1, "metadata": {"x": 1' + b"0" * 400 + b".0}}", "metadata.x: must be a finite"),
        (b'{"task_id": "t", "reward": NaN}', "reward"),
        (b'{"task_id": "t", "reward": 1, "turn_rewards": [NaN]}', "turn_rewards.0"),
        (b'{"task_id": "t", "reward": 1, "color": 1}', "color"),
    ],
)
def test_a_body_that_is_no_clean_json_is_refused_and_changes_nothing(
    http: httpx.Client, content: bytes, why: str
) -> None:
    episode = begin(http)
    path = f"/v1/swarm/episodes/{episode['episode_id']}"
    assert why in refusal(http.post(f"{path}/end", content=content, headers=JSON))
    assert http.get(path).json()["episode"]["state"] == "running"


def test_a_body_within_the_depth_is_taken(http: httpx.Client) -> None:
    episode = begin(http)
    body = f'{{"task_id": "t", "reward": 1, "metadata": {{"x": {nested(150)}, "NaN": "1e999 Infinity"}}}}'
    reply = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/end", content=body)
    assert reply.status_code == 200, reply.text


def test_every_route_with_a_body_survives_what_is_no_json(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    routes = [
        (method, path.format(episode_id="ep-1"))
        for path, operations in paths.items()
        for method, operation in operations.items()
        if "requestBody" in operation and path.startswith("/v1/swarm")
    ]
    assert len(routes) >= 10
    for method, path in routes:
        for content in (b"{", b"[]", b'{"\xff": 1}', nested(9000).encode(), b'{"job": {"lr": NaN}}'):
            refusal(http.request(method, path, content=content, headers=JSON))


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_body_over_the_limit_is_refused(http: httpx.Client, is_declared: bool) -> None:
    body = json.dumps({"job": {"model": "x" * 200_000}}).encode()
    # An iterator is sent in chunks, of which nobody knows how many come.
    content = body if is_declared else iter([body[:60_000], body[60_000:]])
    assert "exceeds 100000 bytes" in refusal(http.put("/v1/swarm/job", content=content, headers=JSON))


def test_head_path_and_query_are_bounded(http: httpx.Client) -> None:
    assert "path and query" in refusal(http.get("/v1/swarm/episodes/" + "x" * 9000))
    assert "path and query" in refusal(http.get("/v1/swarm/episodes", params={"task_id": "x" * 9000}))
    assert "100 headers" in refusal(http.get("/v1/swarm/status", headers={f"x-{n}": "1" for n in range(200)}))
    assert "headers exceed" in refusal(http.get("/v1/swarm/status", headers={"x-long": "x" * 40_000}))


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("episodes?limit=0", "limit"),
        ("episodes?state=sleeping", "state"),
        ("episodes?stat=running", "stat"),
        ("episodes?cursor=abc", "cursor"),
        ("episodes?task_id=" + "x" * 600, "task_id"),
        ("metrics?after_step=-1", "after_step"),
        ("metrics?after_step=9223372036854775808", "after_step"),
        ("events?after_id=99999999999999999999", "after_id"),
        ("audit?after_id=1.5", "after_id"),
    ],
)
def test_a_query_out_of_bounds_is_refused_by_name(http: httpx.Client, path: str, param: str) -> None:
    refusal(http.get(f"/v1/swarm/{path}"), param)


@pytest.mark.parametrize(
    "episode_id", ["..%2f..%2fetc", "%00", "%f0%9f%92%a9", "%ff", "'; DROP TABLE episodes; --", "a" * 4000]
)
def test_an_odd_id_is_just_not_found(http: httpx.Client, episode_id: str) -> None:
    reply = http.get(f"/v1/swarm/episodes/{episode_id}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


def test_odd_methods_and_hosts_are_answered_in_shape(http: httpx.Client) -> None:
    for method in ("DELETE", "OPTIONS", "HEAD"):
        assert http.request(method, "/v1/swarm/status").status_code == 405
    reply = http.post("/v1/swarm/episodes/begin", json={}, headers={"host": "[::1"})
    assert reply.status_code == 201
    assert http.get("/nothing", headers={"host": "["}).status_code == 404


def talk(http: httpx.Client, sent: bytes, limit_s: float = 60.0) -> bytes:
    """What the server answers on a bare socket until it hangs up."""
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=limit_s) as connected:
        connected.sendall(sent)
        answer = b""
        # Hung up on before it has said all, the other side may hear of it as a reset.
        with contextlib.suppress(ConnectionResetError):
            while received := connected.recv(65_536):
                answer += received
        return answer


def test_what_is_no_http_gets_an_error_in_shape(http: httpx.Client) -> None:
    head, _, body = talk(http, b"GET / HTTP/9.9\r\nx y z\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "bad_request"


def test_a_head_without_end_is_cut_off(http: httpx.Client) -> None:
    answer = talk(http, b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 500) for n in range(300)))
    assert answer == b"" or b"exceed 65536 bytes" in answer


def test_a_slow_head_is_cut_off(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.3)
    assert b"did not arrive within" in talk(http, b"")
    assert b"did not arrive within" in talk(http, b"GET /health HT")
    second = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\nGET /health HTTP/1.1\r\n"
    answer = talk(http, second)
    assert answer.startswith(b"HTTP/1.1 200") and b"did not arrive within" in answer


def test_a_slow_body_is_cut_off(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BODY_TIMEOUT_S", 0.3)
    head = b"PUT /v1/swarm/job HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 50\r\n\r\n"
    assert b"did not arrive within" in talk(http, head + b'{"job": ')
