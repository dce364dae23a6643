"""What an attempt may spend and what it has spent, by the server's own record: seeds, limits, usage, faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server_processes import ServerProcess
from slow_samplers import Pace, letters
from tests_support import begin, chat, end, wait_for_state

import swarm.server.http
from swarm import SwarmClient, Task, TrainJob, WorkflowOutput
from swarm.backends.fake import FakeSampler
from swarm.errors import AttemptLimit

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, temperature=0.7, drain_timeout_s=2)
EVAL = {"episode_type": "eval"}


@pytest.fixture
def url(start_server: Any) -> str:
    return start_server(JOB).url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        wait_for_state(client, "ROLLING")
        yield client


def text(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["message"]["content"])


def post(http: httpx.Client, episode: dict[str, Any], content: str = "Hello", **body: Any) -> httpx.Response:
    key = {"authorization": f"Bearer {episode['api_key']}"}
    asked = {"model": "default", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **body}
    return http.post("/v1/chat/completions", headers=key, json=asked)


def refused(http: httpx.Client, episode: dict[str, Any], **body: Any) -> str:
    reply = post(http, episode, **body)
    assert reply.status_code == 403, reply.text
    return str(reply.json()["error"]["code"])


def usage_of(http: httpx.Client, episode: dict[str, Any]) -> dict[str, Any]:
    return http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()["episode"]["usage"]


def test_the_same_seed_again_gives_the_same_draws_and_each_call_others(http: httpx.Client) -> None:
    draws = [
        [text(chat(http, episode, "Hello")) for _ in range(3)]
        for episode in (begin(http, **EVAL, sampling_seed=seed) for seed in (5, 5, 6))
    ]
    assert draws[0] == draws[1]
    assert len({*draws[0], *draws[2]}) == 6


def test_a_seed_or_temperature_that_a_call_names_is_its_own(http: httpx.Client) -> None:
    episode = begin(http, **EVAL, sampling_seed=5, temperature=0.25)
    chat(http, episode, "Hello", seed=1, temperature=1.5)
    chat(http, episode, "Hello", top_p=0.5, top_k=4, min_p=0.1)
    turns = http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()["turns"]
    assert [turn["params"]["temperature"] for turn in turns] == [1.5, 0.25]
    assert turns[0]["params"]["seed"] == 1
    usage = end(http, episode, task_id="t", reward=1.0)["usage"]
    assert (usage["temperatures"], usage["top_p"], usage["top_k"]) == ([0.25, 1.5], [0.5], [4])
    assert usage["other_sampling"] == ["min_p=0.1"]


def test_choices_of_one_call_differ_though_they_share_the_seed_of_the_episode(http: httpx.Client) -> None:
    reply = chat(http, begin(http, **EVAL, sampling_seed=5), "Hello", n=4)
    assert len({choice["message"]["content"] for choice in reply["choices"]}) == 4


def test_a_call_beyond_the_calls_of_an_episode_is_refused_however_it_is_asked_for(http: httpx.Client) -> None:
    episode = begin(http, max_calls=3)
    chat(http, episode, "Hello", n=2)
    assert refused(http, episode, n=2) == "attempt_limit"
    chat(http, episode, "Hello again")
    assert refused(http, episode) == "attempt_limit"
    usage = end(http, episode, task_id="t", reward=1.0)["usage"]
    assert (usage["calls"], usage["limited"], usage["system_failures"]) == (3, True, 0)


def test_the_last_call_is_cut_where_the_tokens_of_an_episode_end_and_the_next_one_refused(http: httpx.Client) -> None:
    episode = begin(http, **EVAL, max_tokens=10)
    first = chat(http, episode, "Hello", max_tokens=6, ignore_eos=True)
    assert not usage_of(http, episode)["limited"]
    cut = chat(http, episode, "Hello", max_tokens=6, ignore_eos=True)
    assert [reply["usage"]["completion_tokens"] for reply in (first, cut)] == [6, 4]
    assert cut["choices"][0]["finish_reason"] == "length"
    assert refused(http, episode) == "attempt_limit"
    usage = end(http, episode, task_id="t", reward=1.0)["usage"]
    assert (usage["calls"], usage["sampled_tokens"], usage["limited"]) == (2, 10, True)


def test_calls_at_once_cannot_spend_more_than_the_episode_has(http: httpx.Client) -> None:
    episode = begin(http, **EVAL, max_tokens=40, max_calls=6)

    def ask(number: int) -> int:
        return post(http, episode, f"Hello {number}", max_tokens=16, ignore_eos=True).status_code

    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(ask, range(12)))
    usage = end(http, episode, task_id="t", reward=1.0)["usage"]
    assert set(replies) == {200, 403}
    assert usage["sampled_tokens"] <= 40
    assert usage["calls"] == replies.count(200) <= 6


def test_the_record_counts_what_was_sampled_and_tells_it_again(http: httpx.Client) -> None:
    episode = begin(http)
    replies = [chat(http, episode, "Hello", temperature=1.0), chat(http, episode, "Hello there")]
    receipt = end(http, episode, task_id="t", reward=1.0)
    usage = receipt["usage"]
    for name, theirs in (("prompt_tokens", "prompt_tokens"), ("sampled_tokens", "completion_tokens")):
        assert usage[name] == sum(reply["usage"][theirs] for reply in replies)
    assert (usage["calls"], usage["temperatures"], usage["limited"]) == (2, [0.7, 1.0], False)
    assert usage["seconds"] >= 0
    assert usage_of(http, episode) == usage
    assert end(http, episode, task_id="t", reward=1.0) == {**receipt, "replayed": True}


def test_an_aborted_episode_says_what_it_spent(http: httpx.Client) -> None:
    episode = begin(http, **EVAL)
    chat(http, episode, "Hello")
    view = http.post(f"/v1/swarm/episodes/{episode['episode_id']}/abort", json={"reason": "raised"}).json()
    assert (view["usage"]["calls"], view["usage"]["system_failures"]) == (1, 0)
    assert view["usage"]["sampled_tokens"] > 0


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Pace:
    pace = Pace(token_delay_s=0.05, reply=letters(1000))
    monkeypatch.setattr(swarm.server.http, "Backends", pace.backends())
    return pace


def test_a_call_that_gets_no_token_is_a_fault_of_the_system_and_counts_nothing(start_server: Any, pace: Pace) -> None:
    pace.stalled_name = JOB.experiment_name
    server = start_server(JOB, max_wait_s=0.2)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        episode = begin(http, **EVAL, max_calls=1)
        assert post(http, episode, max_tokens=4).status_code == 503
        pace.stalled_name = None
        pace.token_delay_s = 0.0
        chat(http, episode, "Hello", max_tokens=4)
        usage = end(http, episode, task_id="t", reward=1.0)["usage"]
    assert (usage["calls"], usage["limited"], usage["system_failures"]) == (1, False, 1)


def test_a_call_that_gets_no_turn_beside_others_is_no_fault_of_the_system(
    start_server: Any, pace: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may send so many calls that the engine leaves one of them waiting."""
    generate = FakeSampler.generate

    async def generate_long_ones_first(engine: FakeSampler, name: str, prompt_ids: Any, params: Any) -> Any:
        if params.max_tokens == 4:
            await asyncio.sleep(3600)
        async for delta in generate(engine, name, prompt_ids, params):
            yield delta

    monkeypatch.setattr(FakeSampler, "generate", generate_long_ones_first)
    server = start_server(JOB, max_wait_s=1.0)
    with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor() as pool:
        wait_for_state(http, "ROLLING")
        episode = begin(http, **EVAL)
        long = pool.submit(chat, http, episode, "Hello", max_tokens=60)
        refused = post(http, episode, max_tokens=4)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "rollout_paused")
        long.result(60)
        usage = end(http, episode, task_id="t", reward=1.0)["usage"]
    assert (usage["calls"], usage["system_failures"]) == (1, 0)


def test_tokens_of_a_stream_that_nobody_read_to_its_end_count(start_server: Any, pace: Pace) -> None:
    """An agent that leaves its streams open and answers has spent what was sampled all the same."""
    server = start_server(JOB)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        episode = begin(http, **EVAL, max_calls=1)
        key = {"authorization": f"Bearer {episode['api_key']}"}
        body = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
        body |= {"max_tokens": 1000, "ignore_eos": True, "temperature": 0.1}
        with http.stream("POST", "/v1/chat/completions", headers=key, json=body) as stream:
            next(stream.iter_lines())
            assert refused(http, episode) == "attempt_limit"
            usage = end(http, episode, task_id="t", reward=1.0)["usage"]
        assert (usage["calls"], usage["temperatures"], usage["limited"]) == (1, [0.1], True)
        assert 0 < usage["sampled_tokens"] < 1000
        assert usage["prompt_tokens"] > 0
        assert usage_of(http, episode) == usage


def test_the_answer_to_an_end_says_how_much_of_the_graded_replies_the_model_wrote(http: httpx.Client) -> None:
    def share(replies: list[str], **body: Any) -> Any:
        episode = begin(http, **EVAL)
        answer = text(chat(http, episode, "Hello"))
        graded = [reply.replace("ANSWER", answer) for reply in replies]
        receipt = end(http, episode, task_id="t", reward=1.0, replies=graded)
        assert (
            http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()["episode"]["model_share"]
            == (receipt["model_share"])
        )
        return receipt["model_share"]

    assert share(["ANSWER"]) == 1.0
    assert share(["ANSWER", '{"answer": "ANSWER"}']) == 1.0
    assert share(["12345"]) == 0.0
    assert share([]) is None


def test_the_client_passes_everything_on_and_raises_by_name(url: str) -> None:
    task = Task("question", "t")
    with SwarmClient(url) as client, httpx.Client(timeout=60) as http:
        with client.open_episode(task, "eval", sampling_seed=3, temperature=0.5, max_calls=1, max_tokens=99) as episode:
            key = {"authorization": f"Bearer {episode.credentials.api_key}"}
            body = {"model": "default", "messages": [{"role": "user", "content": "Hello"}]}
            first, second = (
                http.post(f"{episode.credentials.base_url}/chat/completions", headers=key, json=body) for _ in range(2)
            )
            episode.output = WorkflowOutput(1.0, replies=(text(first.json()),))
        assert second.json()["error"]["code"] == AttemptLimit.code
        assert episode.receipt is not None
        assert (episode.receipt.model_share, episode.receipt.usage.calls) == (1.0, 1)
        view = client.episode(episode.episode_id).episode
        assert (view.sampling_seed, view.temperature, view.max_calls, view.max_tokens) == (3, 0.5, 1, 99)
        with pytest.raises(KeyError), client.open_episode(task, "eval") as failing:
            raise KeyError("the agent's own fault")
        assert failing.receipt is None
        given_up = client.episode(failing.episode_id).episode
        assert (given_up.state, given_up.outcome, given_up.usage.calls) == ("aborted", "client_error:KeyError", 0)


def test_seeds_limits_and_counts_outlive_the_server_which_counts_its_death_as_its_own_fault(
    server_process: Callable[..., ServerProcess],
) -> None:
    server = server_process()
    with httpx.Client(base_url=server.url, timeout=60) as http, SwarmClient(server.url) as client:
        client.auto_sync_train_config_and_start_engine(JOB)
        whole = begin(http, **EVAL, sampling_seed=11)
        expected = [text(chat(http, whole, "Hello")) for _ in range(3)]
        episode = begin(http, **EVAL, sampling_seed=11, max_calls=3, temperature=0.7)
        before = [text(chat(http, episode, "Hello"))]
        server.kill()
        server.start()
        wait_for_state(http, "ROLLING")
        after = [text(chat(http, episode, "Hello")) for _ in range(2)]
        assert before + after == expected
        assert refused(http, episode) == "attempt_limit"
        usage = end(http, episode, task_id="t", reward=1.0)["usage"]
    assert (usage["calls"], usage["limited"], usage["system_failures"]) == (3, True, 1)
