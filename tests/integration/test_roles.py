"""Who may call which route: every route of the description, with every kind of caller."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests_support import begin, chat, end, wait_for_state

from swarm.job import TrainJob

JOB = TrainJob(engine="fake", batch_size=100, num_repeat=2)
COMMANDER, ROLLOUT, OBSERVER = "commander-0123456789", "rollout-0123456789", "observer-0123456789"
PREFIX = "/v1/swarm"

ROLLOUT_ROUTES = {
    ("GET", "/v1/swarm/status"),
    ("GET", "/v1/swarm/job"),
    ("GET", "/v1/swarm/batch/policy"),
    ("GET", "/v1/swarm/tasks"),
    ("GET", "/v1/swarm/usage"),
    ("GET", "/v1/swarm/episodes/{episode_id}"),
    ("POST", "/v1/swarm/batch/agree"),
    ("POST", "/v1/swarm/heartbeat"),
    ("POST", "/v1/swarm/evaluations/claim"),
    ("POST", "/v1/swarm/evaluations/heartbeat"),
    ("POST", "/v1/swarm/evaluations/end"),
    ("POST", "/v1/swarm/evaluations/record"),
    ("POST", "/v1/swarm/episodes/begin"),
    ("POST", "/v1/swarm/episodes/{episode_id}/end"),
    ("POST", "/v1/swarm/episodes/{episode_id}/abort"),
    ("POST", "/v1/swarm/episodes/{episode_id}/heartbeat"),
    ("POST", "/v1/swarm/episodes/{episode_id}/reward"),
    ("POST", "/v1/swarm/episodes/{episode_id}/prepare"),
    ("POST", "/v1/swarm/episodes/{episode_id}/commit"),
}
# A transaction is asked for by other servers, which have no token; its id is a secret.
PUBLIC_ROUTES = {
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/v1/swarm/transactions/{transaction_id}"),
}
COMMANDERS_READS = {("GET", "/v1/swarm/audit")}


@dataclass(frozen=True)
class Served:
    """A server with a token for each role, and one of its running episodes."""

    http: httpx.Client
    episode: dict[str, Any]

    def call(self, method: str, path: str, token: str | None, **headers: str) -> httpx.Response:
        """With a body that is refused wherever one is looked at, so that no call that is let in does anything."""
        given = {} if token is None else {"authorization": f"Bearer {token}"}
        path = path.replace("{episode_id}", "none").replace("{model_id}", "none")
        body = None if method == "GET" else b"{"
        return self.http.request(method, path, headers={**headers, **given}, content=body)

    def get(self, path: str, token: str) -> httpx.Response:
        return self.http.get(path, headers={"authorization": f"Bearer {token}"})


@pytest.fixture
def served(start_shared_server: Any) -> Iterator[Served]:
    server = start_shared_server(JOB, token=COMMANDER, rollout_token=ROLLOUT, observer_token=OBSERVER)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        http.headers["authorization"] = f"Bearer {COMMANDER}"
        wait_for_state(http, "ROLLING")
        episode = begin(http)
        del http.headers["authorization"]
        yield Served(http, episode)


def routes_of(http: httpx.Client) -> set[tuple[str, str]]:
    paths = http.get("/openapi.json").json()["paths"]
    return {(method.upper(), path) for path, operations in paths.items() for method in operations}


def guarded_routes(http: httpx.Client) -> set[tuple[str, str]]:
    return {route for route in routes_of(http) - PUBLIC_ROUTES if route[1].startswith(PREFIX) or route[1] == "/metrics"}


# Without a body to be refused, these would do what they are asked for.
BODILESS = {
    ("POST", "/v1/swarm/engine/stop"),
    ("POST", "/v1/swarm/engine/checkpoint"),
    ("POST", "/v1/swarm/shutdown"),
}


def test_every_route_wants_a_token_and_a_wrong_one_is_refused_everywhere(served: Served) -> None:
    routes = guarded_routes(served.http)
    assert len(routes) > 20
    for method, path in routes:
        for token in (None, "wrong-0123456789abc", COMMANDER[:-1], COMMANDER + "x", served.episode["api_key"]):
            reply = served.call(method, path, token)
            assert reply.status_code == 401, (method, path, token, reply.text)
            assert reply.json()["error"]["code"] == "unauthorized"
            assert reply.headers["www-authenticate"] == "Bearer"
    for header in ("Basic Y29tbWFuZGVy", "Bearer", COMMANDER):
        assert served.call("GET", "/v1/swarm/status", None, authorization=header).status_code == 401
    assert served.call("GET", "/v1/swarm/status", None, **{"x-api-key": OBSERVER}).status_code == 200


def test_a_rollout_token_opens_the_life_of_episodes_and_nothing_else(served: Served) -> None:
    for method, path in guarded_routes(served.http):
        status = served.call(method, path, ROLLOUT).status_code
        if (method, path) in ROLLOUT_ROUTES:
            assert status not in {401, 403} and status < 500, (method, path, status)
        else:
            assert status == 403, (method, path, status)
    assert served.get("/v1/swarm/status", COMMANDER).json()["state"] == "ROLLING"


def test_an_observer_reads_everything_but_the_audit_log_and_writes_nothing(served: Served) -> None:
    for method, path in guarded_routes(served.http):
        status = served.call(method, path, OBSERVER).status_code
        if method == "GET" and (method, path) not in COMMANDERS_READS:
            assert status in {200, 404}, (method, path, status)
        else:
            assert status == 403, (method, path, status)


def test_a_commander_is_let_in_everywhere(served: Served) -> None:
    for method, path in guarded_routes(served.http) - BODILESS:
        status = served.call(method, path, COMMANDER).status_code
        assert status not in {401, 403} and status < 500, (method, path, status)


def test_the_description_says_who_may_call_what(served: Served) -> None:
    for path, operations in served.http.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            route = (method.upper(), path)
            if route in PUBLIC_ROUTES:
                assert "security" not in operation
            elif route in guarded_routes(served.http):
                allowed = {"commander"}
                allowed |= {"rollout"} if route in ROLLOUT_ROUTES else set()
                allowed |= {"observer"} if method == "get" and route not in COMMANDERS_READS else set()
                assert set(operation["x-roles"]) == allowed, route
            else:
                assert operation["security"] == [{"episode_key": []}], route


def test_health_needs_no_token_and_says_nothing_of_the_training(served: Served) -> None:
    assert served.http.get("/health").json() == {"status": "ok"}
    assert served.http.get("/").json()["docs"] == "/docs"
    assert set(served.http.get("/ready").json()) == {"ready", "state", "reason"}


def test_a_transaction_nobody_knows_says_nothing_but_that(served: Served) -> None:
    reply = served.http.get(f"/v1/swarm/transactions/{'x' * 22}")
    assert (reply.status_code, reply.json()) == (200, {"state": "aborted"})


def test_a_rollout_token_sees_the_state_of_an_episode_and_not_its_tokens(served: Served) -> None:
    chat(served.http, served.episode, "a secret question")
    path = f"/v1/swarm/episodes/{served.episode['episode_id']}"
    full = served.get(path, OBSERVER).json()
    assert len(full["turns"]) == len(full["samples"]) == 1
    shown = served.get(path, ROLLOUT)
    assert shown.json()["episode"]["turns"] == 1
    assert (shown.json()["turns"], shown.json()["samples"]) == ([], [])
    assert "secret question" not in shown.text
    assert served.get("/v1/swarm/episodes", ROLLOUT).status_code == 403


def test_a_key_opens_the_model_for_its_own_episode_and_nothing_of_another(served: Served) -> None:
    http, first = served.http, served.episode
    http.headers["authorization"] = f"Bearer {ROLLOUT}"
    second = begin(http)
    del http.headers["authorization"]
    chat(http, first, "first")
    for path in ("", "/end", "/heartbeat", "/abort", "/reward"):
        method = "POST" if path else "GET"
        for key in (first["api_key"], second["api_key"]):
            reply = http.request(
                method,
                f"/v1/swarm/episodes/{first['episode_id']}{path}",
                headers={"authorization": f"Bearer {key}"},
                json=None if method == "GET" else {"task_id": "t", "reward": 1.0},
            )
            assert reply.status_code == 401, (path, reply.text)
    chat(http, second, "second")
    turns = served.get(f"/v1/swarm/episodes/{second['episode_id']}", OBSERVER).json()["turns"]
    assert [turn["messages"][0]["content"] for turn in turns] == ["second"]
    for token in (COMMANDER, ROLLOUT, OBSERVER):
        assert served.get("/v1/models", token).status_code == 401
    assert served.get("/v1/models", second["api_key"]).status_code == 200


def test_without_tokens_everybody_commands_but_a_key_and_a_web_page_of_another_host_do_not(start_server: Any) -> None:
    with httpx.Client(base_url=start_server(JOB).url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        episode = begin(http)
        key = {"authorization": f"Bearer {episode['api_key']}"}
        for path in ("status", "episodes", f"episodes/{episode['episode_id']}", "audit", "job"):
            assert http.get(f"/v1/swarm/{path}").status_code == 200
            assert http.get(f"/v1/swarm/{path}", headers=key).status_code == 403
        origins = ("https://example.org", "null", "http://[", "http://127.0.0.1.example.org")
        for headers in (key, {"x-api-key": episode["api_key"]}, *({"origin": origin} for origin in origins)):
            refused = http.post("/v1/swarm/engine/stop", headers=headers)
            assert refused.status_code == 403, refused.text
            assert not re.search("access-control-allow", str(refused.headers))
        assert http.get("/v1/swarm/status", headers={"origin": "http://localhost:8501"}).status_code == 200
        assert end(http, episode, task_id="t", reward=1.0)["state"] == "completed"
