"""A job with an `eval_env` is scored by its server: by nothing but its settings, and on nothing but what is offered."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests_support import run_batch, wait_for_state, wait_for_step

from swarm import SwarmClient, TrainJob
from swarm.config import ServerConfig
from swarm.environments.scaffold import write_scaffold
from swarm.errors import JobInvalid

pytestmark = pytest.mark.timeout(400)

JOB = TrainJob(
    engine="fake", batch_size=1, num_repeat=2, drain_timeout_s=1, total_steps=2, eval_every=1, eval_episodes=4,
    eval_env="reverse",
)  # fmt: skip


def wait_until(reached: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, f"not within a minute: {what}"
        time.sleep(0.05)


def evaluators(url: str) -> list[int]:
    """The processes that score this server, without those that watch over them."""
    found: list[int] = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "--follow" in words and url in words and "supervise.py" not in " ".join(words):
            found.append(process.pid)
    return found


def train_to_the_end(http: httpx.Client) -> None:
    for step in (1, 2):
        run_batch(http, tasks=1, repeats=2, name=f"step-{step}")
        wait_for_step(http, step)
    wait_for_state(http, "COMPLETE")


def states(client: SwarmClient) -> list[tuple[int, str, int | None]]:
    return [(each.step, each.state, each.scored) for each in client.evaluations()]


SCORED = [(0, "done", 4), (1, "done", 4), (2, "done", 4)]


def test_a_setting_of_the_job_alone_brings_the_curve(start_server: Any) -> None:
    url = start_server().url
    with httpx.Client(base_url=url, timeout=60) as http, SwarmClient(url) as client:
        job = JOB.model_dump(mode="json", exclude_defaults=True)
        assert http.put("/v1/swarm/job", json={"job": job}).status_code == 200
        assert http.post("/v1/swarm/engine/start").status_code == 202
        wait_for_state(http, "ROLLING")
        train_to_the_end(http)
        wait_until(lambda: states(client) == SCORED, "all scores")
        # It ends with the job; one that gets more steps is scored again.
        wait_until(lambda: not evaluators(url), "the end of the evaluator")
        client.auto_sync_train_config_and_start_engine(JOB.model_copy(update={"total_steps": 3}))
        run_batch(http, tasks=1, repeats=2, name="more")
        wait_until(lambda: states(client) == [*SCORED, (3, "done", 4)], "the score of the last step")


def test_an_evaluator_that_is_killed_is_started_again_and_ends_with_the_engine(start_server: Any) -> None:
    url = start_server(JOB.model_copy(update={"total_steps": None}), rollout_token="rollout-0123456789",
                       token="commander-0123456789").url  # fmt: skip
    with SwarmClient(url, "commander-0123456789") as client:
        wait_until(lambda: states(client) == SCORED[:1], "the first score")
        [pid] = evaluators(url)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: evaluators(url) not in ([], [pid]), "another evaluator")
        with httpx.Client(base_url=url, timeout=60, headers={"authorization": "Bearer commander-0123456789"}) as http:
            run_batch(http, tasks=1, repeats=2, name="first")
        wait_until(lambda: states(client) == SCORED[:2], "the next score")
        client.stop_engine()
        # Its supervisor is gone by now; the kernel ends the process behind it.
        wait_until(lambda: not evaluators(url), "the end of the evaluator")


def test_an_environment_that_the_server_offers_is_named_by_the_job(start_server: Any, tmp_path: Path) -> None:
    write_scaffold(tmp_path / "longer")
    server = start_server(JOB.model_copy(update={"eval_env": "words"}), eval_envs=(f"words={tmp_path / 'longer'}",))
    with httpx.Client(base_url=server.url, timeout=60) as http, SwarmClient(server.url) as client:
        wait_for_state(http, "ROLLING")
        train_to_the_end(http)
        wait_until(lambda: states(client) == SCORED, "all scores")


@pytest.mark.parametrize("name", ["/etc", "unix:/run/socket", "verifiers:ID", "words?a=b", "reverse?a=b"])
def test_another_environment_is_refused_by_name_and_not_opened(start_shared_server: Any, name: str) -> None:
    url = start_shared_server(eval_envs=("words=runs/words",)).url
    with SwarmClient(url) as client, pytest.raises(JobInvalid, match="offers no environment") as refusal:
        client.auto_sync_train_config_and_start_engine(JOB.model_copy(update={"eval_env": name}))
    assert refusal.value.param == "eval_env" and "use one of words, reverse" in refusal.value.message
    with SwarmClient(url) as client, pytest.raises(JobInvalid, match="offers no environment"):
        client.launch("key", JOB.model_copy(update={"eval_env": name}))


def test_where_the_offered_environment_is_broken_training_goes_on_and_the_event_says_why(
    start_server: Any, tmp_path: Path
) -> None:
    job = JOB.model_copy(update={"eval_env": "words", "eval_timeout_s": 0.5})
    with SwarmClient(start_server(job, eval_envs=(f"words={tmp_path / 'gone'}",)).url) as client:
        with httpx.Client(base_url=client.url, timeout=60) as http:
            wait_for_state(http, "ROLLING")
            train_to_the_end(http)
        wait_until(lambda: any(event.kind == "evaluator.failed" for event in client.past_events()), "the event")
        assert [state for _, state, _ in states(client)] == ["abandoned"] * 3
        [failed, *_] = [event.detail for event in client.past_events() if event.kind == "evaluator.failed"]
        assert failed["exit_code"] > 0 and "there is no environment" in failed["reason"]


def test_environments_are_offered_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_EVAL_ENVS", "words=runs/words, sums=sums.jsonl?grader=number")
    assert ServerConfig.from_environment().eval_envs == ("words=runs/words", "sums=sums.jsonl?grader=number")
    with pytest.raises(JobInvalid, match="write NAME=ENVIRONMENT"):
        ServerConfig.from_environment(eval_envs=("runs/words",))


def test_a_server_that_is_killed_takes_its_evaluator_along_and_its_successor_brings_another(
    server_process: Any, start_server: Any
) -> None:
    server = server_process()
    with SwarmClient(server.url) as client:
        client.auto_sync_train_config_and_start_engine(JOB)
        wait_until(lambda: states(client) == SCORED[:1], "the first score")
        [pid] = evaluators(server.url)
        server.kill()
        wait_until(lambda: not psutil.pid_exists(pid), "the end of the evaluator")
        start_server(home=server.home, port=server.port)
        with httpx.Client(base_url=server.url, timeout=60) as http:
            wait_for_state(http, "ROLLING")
            train_to_the_end(http)
        wait_until(lambda: states(client) == SCORED, "all scores")
