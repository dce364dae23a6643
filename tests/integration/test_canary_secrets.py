"""Canaries: tokens, episode keys and secret headers given to a server appear in nothing that it keeps or tells."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import httpx
import yaml
from server_processes import serving
from tests_support import begin, chat, end, run_batch, wait_for_state, wait_for_step

JOB = {"engine": "fake", "batch_size": 1, "num_repeat": 2, "drain_timeout_s": 2, "stop_rule": "any_client_agrees"}
SECRETS = {name: f"canary-{name}-8c1f0e77d2" for name in ("commander", "rollout", "observer", "wrong", "header")}
VARIABLES = {
    "SWARM_TOKEN": SECRETS["commander"],
    "SWARM_ROLLOUT_TOKEN": SECRETS["rollout"],
    "SWARM_OBSERVER_TOKEN": SECRETS["observer"],
}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {SECRETS[name]}"}


def use_every_part(http: httpx.Client) -> list[str]:
    """Allowed, refused and malformed calls, all with a secret header. Returns the episode keys that were seen."""
    http.headers.update({**bearer("commander"), "x-secret": SECRETS["header"], "cookie": f"s={SECRETS['header']}"})
    wait_for_state(http, "ROLLING")
    ended, running, aborted = begin(http), begin(http, client_id="laptop", lease_s=30), begin(http)
    end(http, ended, task_id="t", reward=1.0, call=True)
    chat(http, running, "Hello")
    http.post(f"/v1/swarm/episodes/{aborted['episode_id']}/abort", json={"reason": "gone"}).raise_for_status()
    run_batch(http, tasks=1, repeats=2)
    http.post("/v1/swarm/batch/agree", json={"client_id": "laptop"}).raise_for_status()
    wait_for_step(http, 1)
    keys = [episode["api_key"] for episode in (ended, running, aborted)]
    for key in [*keys, *SECRETS.values()]:
        given = {"authorization": f"Bearer {key}"}
        chatting = {"messages": "Hi", "model": "other"}
        assert http.post("/v1/chat/completions", json=chatting, headers=given).status_code >= 400
        http.post("/v1/chat/completions", content=b"{", headers=given)
        http.post("/v1/swarm/episodes/begin", json={"lease_s": key}, headers=given)
        http.patch("/v1/swarm/batch/policy", json={"token": key, "mixture": {"math": key}}, headers=given)
        http.put("/v1/swarm/job", json={"job": {"lr": key}}, headers=given)
        http.post("/v1/swarm/engine/load", json={"step": 99}, headers=given)
        http.get("/v1/swarm/events", params={"limit": 0, "token": key}, headers=given)
        http.get("/v1/swarm/audit", params={"token": key}, headers=given)
        http.get("/v1/swarm/status", headers={"x-api-key": key, "x-request-id": f"{key}!"})
        for path in ("v1/models/unknown", "v1/models/", "v1/nothing", "v1/swarm/status", "v1/chat/completions"):
            assert key not in http.get(f"/e/{key}/{path}").text
    for name in SECRETS:
        http.post("/v1/swarm/engine/checkpoint", headers=bearer(name))
    return keys


def everything_told(http: httpx.Client) -> dict[str, str]:
    told = {
        path: http.get(path, headers=bearer("commander")).text
        for path in (
            "/v1/swarm/status",
            "/v1/swarm/job",
            "/v1/swarm/events?limit=1000",
            "/v1/swarm/audit?limit=1000",
            "/v1/swarm/metrics",
            "/v1/swarm/batches",
            "/v1/swarm/tasks",
            "/v1/swarm/batch/policy",
            "/v1/swarm/episodes?limit=1000",
            "/metrics",
            "/ready",
            "/openapi.json",
        )
    }
    for episode in json.loads(told["/v1/swarm/episodes?limit=1000"])["episodes"]:
        path = f"/v1/swarm/episodes/{episode['episode_id']}"
        told[path] = http.get(path, headers=bearer("commander")).text
    return told


def test_no_secret_is_kept_or_told(tmp_path: Path) -> None:
    home, job, log = tmp_path / "home", tmp_path / "job.yaml", tmp_path / "log"
    job.write_text(yaml.safe_dump(JOB))
    with (
        log.open("wb") as errors,
        serving(home, "--job", str(job), "--verbose", stderr=errors, env={**os.environ, **VARIABLES}) as (
            server,
            http,
            announced,
        ),
    ):
        secrets = [*SECRETS.values(), *use_every_part(http)]
        told = everything_told(http)
        server.send_signal(signal.SIGTERM)
        assert server.stdout is not None
        printed = f"{announced}{server.stdout.read()}".encode()
        server.wait(timeout=30)
    assert json.loads(told["/v1/swarm/audit?limit=1000"])["entries"]
    kept = {str(file): file.read_bytes() for file in [log, *home.rglob("*")] if file.is_file()}
    assert home / "ledger.db" in map(Path, kept)
    for where, content in {**kept, "stdout": printed, **{path: text.encode() for path, text in told.items()}}.items():
        leaked = [secret for secret in secrets if secret.encode() in content]
        assert not leaked, f"{where} holds {leaked}"
