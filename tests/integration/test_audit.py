"""The audit log over real HTTP: every call for a commander's rights, with its answer, durable, and no secret in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests_support import begin, wait_for_state

from swarm.job import TrainJob

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2)
COMMANDER, ROLLOUT, OBSERVER = "commander-0123456789", "rollout-0123456789", "observer-0123456789"
TOKENS = {"token": COMMANDER, "rollout_token": ROLLOUT, "observer_token": OBSERVER}
AUDIT = "/v1/swarm/audit"


@pytest.fixture
def http(start_server: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    server = start_server(JOB, home=tmp_path / "home", **TOKENS)
    with httpx.Client(base_url=server.url, timeout=60, headers=bearer(COMMANDER)) as client:
        wait_for_state(client, "ROLLING")
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def entries(http: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    reply = http.get(AUDIT, params=query)
    assert reply.status_code == 200, reply.text
    return reply.json()["entries"]


def shown(entry: dict[str, Any]) -> tuple[str, str, str, int]:
    return (entry["caller"], entry["method"], entry["path"].removeprefix("/v1/swarm"), entry["status"])


def test_every_call_for_a_commanders_rights_is_recorded_allowed_or_refused(http: httpx.Client) -> None:
    http.patch("/v1/swarm/batch/policy", json={"batch_size": 3})
    http.patch("/v1/swarm/batch/policy", json={"mixture": {"a": 0.4}})
    http.put("/v1/swarm/job", json={"job": {"engine": "fake", "lr": 0.5}})
    http.post("/v1/swarm/engine/load", json={"step": 99})
    http.post("/v1/swarm/engine/stop", headers=bearer(ROLLOUT))
    http.get(AUDIT, headers=bearer(OBSERVER))
    http.post("/v1/swarm/shutdown", headers=bearer("wrong-0123456789"))
    httpx.post(f"{http.base_url}/v1/swarm/engine/start", content=b"{", timeout=60)
    http.post("/v1/swarm/engine/checkpoint")
    recorded = entries(http)
    assert [shown(entry) for entry in recorded] == [
        ("commander", "PATCH", "/batch/policy", 200),
        ("commander", "PATCH", "/batch/policy", 400),
        ("commander", "PUT", "/job", 409),
        ("commander", "POST", "/engine/load", 404),
        ("rollout", "POST", "/engine/stop", 403),
        ("observer", "GET", "/audit", 403),
        ("unknown", "POST", "/shutdown", 401),
        ("unknown", "POST", "/engine/start", 401),
        ("commander", "POST", "/engine/checkpoint", 200),
    ]
    assert {entry["address"] for entry in recorded} == {"127.0.0.1"}
    times = [entry["at"] for entry in recorded]
    assert times == sorted(times)


def test_what_a_client_or_a_reader_may_do_is_not_audited(http: httpx.Client) -> None:
    begin(http)
    http.get("/v1/swarm/status", headers=bearer(OBSERVER)).raise_for_status()
    assert http.get("/v1/swarm/episodes", headers=bearer(ROLLOUT)).status_code == 403
    assert entries(http) == []


def test_an_entry_names_the_request_and_reading_the_log_is_recorded_too(http: httpx.Client) -> None:
    http.post("/v1/swarm/engine/stop", headers={"x-request-id": "mine-7"}).raise_for_status()
    [first] = entries(http)
    assert first["request_id"] == "mine-7"
    [second] = entries(http, after_id=first["audit_id"])
    assert shown(second) == ("commander", "GET", "/audit", 200)
    assert len(entries(http, limit=1)) == 1


def test_the_log_survives_the_server_and_tells_who_ended_it(start_server: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = start_server(home=home, **TOKENS)
    httpx.post(f"{first.url}/v1/swarm/shutdown", headers=bearer(COMMANDER), timeout=60).raise_for_status()
    first.stop()
    second = start_server(home=home, **TOKENS)
    with httpx.Client(base_url=second.url, timeout=60, headers=bearer(COMMANDER)) as http:
        assert [shown(entry) for entry in entries(http)] == [("commander", "POST", "/shutdown", 202)]


def test_queries_and_bodies_leave_no_trace(http: httpx.Client) -> None:
    http.post("/v1/swarm/engine/stop?note=in-the-query", headers={"x-note": "in-a-header"})
    http.put("/v1/swarm/job", json={"job": {"model": "in-the-body"}})
    text = http.get(AUDIT).text
    assert not any(secret in text for secret in ("in-the-query", "in-a-header", "in-the-body", COMMANDER))


def test_without_tokens_everybody_is_commander_and_audited_as_such(start_server: Any) -> None:
    with httpx.Client(base_url=start_server(JOB).url, timeout=60) as http:
        http.post("/v1/swarm/shutdown", headers={"origin": "https://evil.example"})
        http.patch("/v1/swarm/batch/policy", json={"batch_size": 3})
        assert [shown(entry)[0] for entry in entries(http)] == ["unknown", "commander"]
