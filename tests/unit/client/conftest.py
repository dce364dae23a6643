"""Two servers for the client: a scripted one that can misbehave on the wire, and the real one on the fake engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_answers import BEGUN, ENDED, VIEW
from scripted_server import Canned, Heard, ScriptedServer


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture
def canned() -> type[Canned]:
    return Canned


@pytest.fixture
def refusal() -> Callable[..., Canned]:
    """An error answer in the shape of the contract."""

    def make(status: int, code: str, message: str = "no", **headers: str) -> Canned:
        body = {"error": {"message": message, "type": "x", "param": None, "code": code}}
        return Canned(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return make


@pytest.fixture
def swarm_double(scripted: ScriptedServer, canned: type[Canned]) -> Any:
    """Answers every call of an episode's life. `ended` is what heartbeats are told, unless there is a `refusal`."""
    begun = iter(range(1_000_000))

    def answer(heard: Heard) -> Canned:
        scripted.heard.append(heard)
        if heard.path == "/v1/swarm/heartbeat":
            return scripted.refusal or canned(body={"ended": scripted.ended})
        if heard.path.endswith("/begin"):
            return canned(201, {**BEGUN, "episode_id": f"e{next(begun)}", "lease_s": heard.body["lease_s"]})
        if heard.path.endswith("/end"):
            return canned(body={**ENDED, "episode_id": heard.path.split("/")[4]})
        if heard.path.endswith("/abort"):
            ended = {"episode_id": heard.path.split("/")[4], "state": "aborted", "outcome": heard.body["reason"]}
            return canned(body={**VIEW, **ended})
        return canned(404, {"error": {"message": heard.path, "type": "x", "param": None, "code": "not_found"}})

    scripted.next_answer = answer
    return scripted


@pytest.fixture
def server_url(start_server: Any) -> str:
    """A real server with nothing started, over HTTP."""
    return start_server().url
