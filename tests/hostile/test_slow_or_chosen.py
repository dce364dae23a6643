"""Slowness of the server has an attempt made again. Slowness that a program makes, or waits for, has not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from slow_samplers import Pace, letters
from tests_support import begin, wait_for_state
from waiting import wait_until

import swarm.server.http
from swarm import SwarmClient, TrainJob
from swarm.backends.fake import FakeSampler
from swarm.environments import load_environment
from swarm.program import Program, measure
from swarm.program.gates import until_rest

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, episode_timeout_s=4)
MAX_WAIT_S = 0.5
PATIENCE_S = 2.5
"""The time after which the stock clients of these tests hang up."""
STARVED = 4
"""Calls for so many tokens get none while others get theirs."""


@pytest.fixture
def pace() -> Pace:
    return Pace(token_delay_s=0.05, reply=letters(1000))


@pytest.fixture
def url(start_server: Any, pace: Pace, monkeypatch: pytest.MonkeyPatch) -> str:
    generate = FakeSampler.generate

    async def generate_long_ones(engine: FakeSampler, name: str, prompt_ids: Any, params: Any) -> Any:
        if params.max_tokens == STARVED:
            await engine._require_running().stopped.wait()
        async for delta in generate(engine, name, prompt_ids, params):
            yield delta

    monkeypatch.setattr(FakeSampler, "generate", generate_long_ones)
    monkeypatch.setattr(swarm.server.http, "Backends", pace.backends())
    return start_server(JOB, max_wait_s=MAX_WAIT_S).url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        wait_for_state(client, "ROLLING")
        yield client


def ask(base_url: str, key: str, timeout: float = 60.0, **options: Any) -> httpx.Response:
    """One call of a stock client, which knows no signs of life."""
    body = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, **options}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{base_url}/chat/completions", headers=headers, json=body, timeout=timeout)


def failures_of(http: httpx.Client, episode: dict[str, Any]) -> int:
    view = http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()["episode"]
    return view["usage"]["system_failures"]


def give_up(episode: dict[str, Any], **options: Any) -> None:
    with pytest.raises(httpx.ReadTimeout):
        ask(episode["base_url"], episode["api_key"], **{"timeout": PATIENCE_S, **options})


def in_flight(http: httpx.Client) -> int:
    return http.get("/v1/swarm/status").json()["calls_in_flight"]


@pytest.mark.parametrize(
    ("others", "counted"),
    [
        pytest.param([{}], 1, id="one call each"),
        pytest.param([{"n": 4}], 0, id="another attempt of the client fills the server"),
    ],
)
def test_a_call_without_a_turn_counts_unless_agents_of_the_client_ask_for_more_than_one_at_once(
    http: httpx.Client, others: list[dict[str, Any]], counted: int
) -> None:
    starved, *busy = (begin(http, episode_type="eval") for _ in range(1 + len(others)))
    with ThreadPoolExecutor() as pool:
        calls = [
            pool.submit(ask, each["base_url"], each["api_key"], **options)
            for each, options in zip(busy, others, strict=True)
        ]
        wait_until(lambda: in_flight(http))
        refused = ask(starved["base_url"], starved["api_key"], max_tokens=STARVED)
        assert (refused.status_code, failures_of(http, starved)) == (503, counted)
        assert all(call.result(60).is_success for call in calls)


def test_hanging_up_on_a_server_that_gives_no_token_counts_also_while_it_waits(http: httpx.Client, pace: Pace) -> None:
    pace.token_delay_s = 100.0
    episode = begin(http, episode_type="eval")
    with httpx.Client(timeout=60) as patient, ThreadPoolExecutor() as pool:
        headers = {"authorization": f"Bearer {episode['api_key']}", "x-swarm-keep-alive": "0.5"}
        body = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": STARVED}
        pool.submit(patient.post, f"{episode['base_url']}/chat/completions", headers=headers, json=body)
        wait_until(lambda: failures_of(http, episode) == 1)
        http.post(f"/v1/swarm/episodes/{episode['episode_id']}/abort", json={"reason": "test"}).raise_for_status()


def test_hanging_up_on_a_server_that_samples_does_not_count(http: httpx.Client) -> None:
    """The program may have waited for a long reply on purpose."""
    episode = begin(http, episode_type="eval")
    give_up(episode, max_tokens=1000)
    wait_until(lambda: not in_flight(http))
    assert failures_of(http, episode) == 0


def test_hanging_up_at_once_does_not_count(http: httpx.Client) -> None:
    episode = begin(http, episode_type="eval")
    give_up(episode, max_tokens=STARVED, timeout=MAX_WAIT_S / 2)
    wait_until(lambda: not in_flight(http))
    assert failures_of(http, episode) == 0


def scored(url: str, agent: Callable[..., Any]) -> Any:
    with SwarmClient(url) as client:
        until_rest(client)
        return measure(client, load_environment("reverse"), Program("asks", agent), episodes=1)


def test_an_attempt_at_its_deadline_is_made_again_if_the_server_kept_it_waiting(url: str, pace: Pace) -> None:
    def wait_then_answer(task: Any, model: Any, session: Any) -> Any:
        if pace.stalled_name is None:
            return model.chat(session.messages)
        try:
            return model.chat(session.messages)
        finally:
            pace.stalled_name = None

    pace.stalled_name = JOB.experiment_name
    result = scored(url, wait_then_answer)
    assert (result.n, result.broken, result.failures, len(result.repeats)) == (1, (), (), 1)


@pytest.mark.parametrize("is_asking", [False, True])
def test_an_attempt_at_its_deadline_is_the_programs_fault_if_it_sleeps(url: str, is_asking: bool) -> None:
    def sleep(task: Any, model: Any, session: Any) -> Any:
        if is_asking:
            model.chat(session.messages)
        time.sleep(JOB.episode_timeout_s + 1)
        return "late"

    result = scored(url, sleep)
    assert (result.n, result.mean, len(result.broken), result.repeats) == (1, 0.0, 1, ())
