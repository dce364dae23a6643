"""Random sequences of calls, ends, aborts, timeouts and restarts: the server does what the contract's model does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from faults.episode_model import BATCH_SIZE, NUM_REPEAT, Contract, Episode
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from swarm.job import TrainJob

SAMPLE = 24
WHOLE = 2_000
STEPS = 25
LIMIT_S = 60.0
BRIEF_S = 0.1

WHICH = st.integers(0, 10_000)
TASKS = st.sampled_from(["a", "b", "c"])
REWARDS = st.sampled_from([0.0, 1.0])


class Host:
    """A server in a thread, which can be shut down and started anew on the same home."""

    def __init__(self, start_server: Callable[..., Any], home: Path) -> None:
        self._start_server = start_server
        self._home = home
        self.seeds = itertools.count(1)
        self.start()

    def start(self) -> None:
        self._server = self._start_server(home=self._home)
        self.http = httpx.Client(base_url=self._server.url, timeout=LIMIT_S)

    def stop(self) -> None:
        self.http.close()
        self._server.stop()

    def begin_job(self) -> None:
        """A job of its own for every sequence: nothing of the one before counts."""
        job = TrainJob(
            engine="fake",
            batch_size=BATCH_SIZE,
            num_repeat=NUM_REPEAT,
            drain_timeout_s=0.02,
            group_timeout_s=3600,
            stall_timeout_s=3600,
            seed=next(self.seeds),
        )
        self.http.post("/v1/swarm/engine/stop").raise_for_status()
        self.http.put(
            "/v1/swarm/job", json={"job": job.model_dump(mode="json", exclude_defaults=True)}
        ).raise_for_status()
        self.http.post("/v1/swarm/engine/start").raise_for_status()
        self.wait_until(lambda status: status["state"] == "ROLLING")

    def wait_until(self, is_reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while not is_reached(status := self.http.get("/v1/swarm/status").json()):
            assert time.monotonic() < deadline, status
            time.sleep(0.002)
        return status


class EpisodeMachine(RuleBasedStateMachine):
    """The same steps for the model and for `host`."""

    host: Host

    def __init__(self) -> None:
        super().__init__()
        self.model = Contract()
        self.host.begin_job()

    @rule(kind=st.sampled_from(["train", "train", "train", "eval"]), brief=st.integers(0, 5))
    def begin(self, kind: str, brief: int) -> None:
        body = {"episode_type": kind, "idle_timeout_s": BRIEF_S if brief == 0 else 600, "wait_s": 0}
        begun = self.post("begin", body)
        places, most = self.model.places(), self.model.running("train")
        least = most - sum(each.brief and each.state == "running" for each in self.model.episodes)
        if begun.status_code == 503:
            assert kind == "train", begun.text
            assert most >= places, begun.text
            return
        assert begun.status_code == 201, begun.text
        assert kind == "eval" or least < places
        answer = begun.json()
        assert answer["weight_version"] == self.model.version
        self.model.episodes.append(Episode(answer["episode_id"], answer["api_key"], kind, brief == 0))

    @precondition(lambda self: self.steady())
    @rule(which=WHICH)
    def call(self, which: int) -> None:
        episode = self.pick(which)
        answer = self.host.http.post(
            "/v1/chat/completions",
            json={"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
            headers={"authorization": f"Bearer {episode.key}"},
        )
        self.compare(answer, self.model.call(episode))

    @precondition(lambda self: self.steady())
    @rule(which=WHICH, task=TASKS, reward=REWARDS)
    def end(self, which: int, task: str, reward: float) -> None:
        episode = self.pick(which)
        expected = self.model.end(episode, task, reward)
        answer = self.post(f"{episode.episode_id}/end", {"task_id": task, "reward": reward})
        self.compare(answer, None if expected == "replayed" else expected)
        if answer.status_code == 200:
            assert answer.json()["replayed"] is (expected == "replayed")

    @precondition(lambda self: self.steady())
    @rule(which=WHICH)
    def abort(self, which: int) -> None:
        episode = self.pick(which)
        answer = self.post(f"{episode.episode_id}/abort", {"reason": "on purpose"})
        self.compare(answer, self.model.abort(episode))

    @precondition(lambda self: self.steady())
    @rule(which=WHICH, reward=REWARDS)
    def revise(self, which: int, reward: float) -> None:
        episode = self.pick(which)
        if episode.state == "completed":
            # The record of the first end stands: repeating it with the revised reward would be another result.
            return
        answer = self.post(f"{episode.episode_id}/reward", {"reward": reward, "reason": "looked again"})
        self.compare(answer, self.model.revise(episode, reward))

    @precondition(lambda self: any(episode.brief and episode.state == "running" for episode in self.model.episodes))
    @rule()
    def expire(self) -> None:
        brief = self.model.expire()
        self.host.wait_until(lambda status: status["failures"].get("idle_timeout", 0) >= self.expired())
        for episode in brief:
            self.agree_on(episode)

    @precondition(lambda self: self.model.episodes)
    @rule(chance=st.integers(0, 3))
    def restart(self, chance: int) -> None:
        if chance:
            return
        self.host.stop()
        self.host.start()

    @invariant()
    def same_step_pool_and_running(self) -> None:
        groups = self.model.groups()
        present = self.host.wait_until(lambda status: status["state"] == "ROLLING" and self.is_counted(status))
        pool = present["pool"]
        assert present["weight_version"] == self.model.version
        assert pool["episodes"] == sum(len(group) for group in groups)
        assert pool["tasks"] == sum(len(group) == NUM_REPEAT for group in groups)

    def teardown(self) -> None:
        for episode in self.model.episodes:
            if not (episode.brief and episode.state == "running"):
                self.agree_on(episode)

    def steady(self) -> bool:
        return any(not episode.brief or episode.state == "expired" for episode in self.model.episodes)

    def pick(self, which: int) -> Episode:
        """Mostly a running one: most of what there is to try, it offers."""
        eligible = [item for item in self.model.episodes if not item.brief or item.state == "expired"]
        running = [item for item in eligible if item.state == "running"]
        chosen = running if running and which % 4 else eligible
        return chosen[which % len(chosen)]

    def expired(self) -> int:
        return sum(episode.state == "expired" for episode in self.model.episodes)

    def is_counted(self, status: dict[str, Any]) -> bool:
        """Brief episodes may end at any moment: only the others are counted exactly."""
        brief = sum(item.brief and item.state == "running" for item in self.model.episodes)
        running = status["pool"]["running_train"] + status["pool"]["running_eval"]
        expected = self.model.running("train") + self.model.running("eval")
        return status["step"] == self.model.version and expected - brief <= running <= expected

    def agree_on(self, episode: Episode) -> None:
        seen = self.host.http.get(f"/v1/swarm/episodes/{episode.episode_id}").json()["episode"]
        assert (seen["state"], seen["turns"], seen["reward"]) == (episode.state, episode.turns, episode.reward)
        assert set(seen["weight_versions"]) == episode.versions
        if episode.outcome is not None:
            assert seen["outcome"] == episode.outcome

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.host.http.post(f"/v1/swarm/episodes/{path}", json=body)

    def compare(self, answer: httpx.Response, expected: str | None) -> None:
        code = None if answer.status_code == 200 else answer.json()["error"]["code"]
        assert code == expected, answer.text


def hold_against_the_model(start_server: Callable[..., Any], home: Path, runs: int) -> None:
    host = Host(start_server, home)
    try:
        run_state_machine_as_test(
            type("HostedMachine", (EpisodeMachine,), {"host": host}),
            settings=settings(
                max_examples=runs,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        host.stop()


@pytest.mark.timeout(400)
def test_random_sequences_do_what_the_contract_says(start_server: Callable[..., Any], tmp_path: Path) -> None:
    hold_against_the_model(start_server, tmp_path, SAMPLE)


@pytest.mark.faults
@pytest.mark.timeout(7200)
def test_two_thousand_random_sequences_do_what_the_contract_says(
    start_server: Callable[..., Any], tmp_path: Path
) -> None:
    hold_against_the_model(start_server, tmp_path, WHOLE)
