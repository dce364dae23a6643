"""Plain HTTP calls that several suites make: what a client in any language would send. And how long properties are
looked at."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx
from hypothesis import settings

from swarm import Credentials

WAIT_S = 240.0
"""How long a state is waited for that comes in seconds: far beyond what a machine with other work takes."""


def examples(usual: int) -> int:
    """How many examples of a property that by default has so many: the profile scales them as it does all others."""
    return max(1, usual * settings.default.max_examples // 100)  # pyright: ignore[reportOptionalMemberAccess]


def begin(http: httpx.Client, **body: Any) -> dict[str, Any]:
    reply = http.post("/v1/swarm/episodes/begin", json=body)
    assert reply.status_code == 201, reply.text
    return reply.json()


def chat(http: httpx.Client, episode: dict[str, Any], messages: str | list[Any], **body: Any) -> dict[str, Any]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    reply = http.post(
        "/v1/chat/completions",
        headers={"authorization": f"Bearer {episode['api_key']}"},
        json={"model": "default", "messages": messages, **body},
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


def ask(credentials: Credentials, text: str = "hi", **body: Any) -> httpx.Response:
    """One model call of an episode, by its credentials alone."""
    reply = httpx.post(
        f"{credentials.base_url}/chat/completions",
        headers={"authorization": f"Bearer {credentials.api_key}"},
        json={"model": "default", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **body},
        timeout=60,
    )
    assert reply.status_code == 200, reply.text
    return reply


def end(
    http: httpx.Client, episode: dict[str, Any], *, task_id: str, reward: float, call: bool = False, **more: Any
) -> dict[str, Any]:
    if call:
        chat(http, episode, f"Solve {task_id}")
    body = {"task_id": task_id, "reward": reward, **more}
    reply = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/end", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def run_batch(
    http: httpx.Client,
    *,
    tasks: int,
    repeats: int,
    name: str = "task",
    named: Sequence[str] = (),
    tells_task: bool = False,
) -> None:
    """Rewards are 0 and 1 in turn; those that are `named` a little more for each name. With `tells_task` the server
    hears of the task when an episode begins."""
    for task in range(tasks):
        for repeat in range(repeats):
            reward = float(repeat % 2)
            more = {"rewards": {each: reward + 0.3 * place for place, each in enumerate(named)}} if named else {}
            begun = begin(http, **({"task_id": f"{name}-{task}"} if tells_task else {}))
            end(http, begun, task_id=f"{name}-{task}", reward=reward, call=True, **more)


def wait_for_state(http: httpx.Client, state: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
    return _wait(http, lambda status: status["state"] == state, f"state {state}", timeout_s)


def wait_for_step(http: httpx.Client, step: int, timeout_s: float = WAIT_S) -> dict[str, Any]:
    return _wait(
        http,
        lambda status: status["step"] >= step and status["state"] in {"ROLLING", "COMPLETE"},
        f"step {step}",
        timeout_s,
    )


def wait_for_waiting_begins(http: httpx.Client, number: int, timeout_s: float = WAIT_S) -> dict[str, Any]:
    return _wait(http, lambda status: status["pool"]["waiting_begins"] == number, f"{number} waiting begins", timeout_s)


def _wait(http: httpx.Client, reached: Any, what: str, timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while True:
        status = http.get("/v1/swarm/status").json()
        if reached(status):
            return status
        assert status["state"] != "FAILED", status["reason"]
        assert time.monotonic() < deadline, f"no {what} within {timeout_s} s: {status}"
        time.sleep(0.02)
