"""One logical call is one turn, whatever the network does to the attempts of stock clients."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from faulty_proxy import Attempt, Fault, FaultyProxy
from slow_samplers import Pace, letters
from tests_support import begin, chat, end, wait_for_state, wait_for_step
from waiting import wait_until

import swarm.server.http
from swarm.job import TrainJob
from swarm.types import FinishReason

if TYPE_CHECKING:
    import openai

JOB = TrainJob(engine="fake", batch_size=1000, max_response_length=256)
CLIENT_TIMEOUT_S = 2.5
"""Longer than a reply takes here, shorter than the proxy holds one."""

LONG = 200
"""Tokens of a reply that takes seconds."""

STEPS_UNTIL_NOTICED = 3
"""The server hears of a cut from the network, a moment after it happened; then at most the present step is finished."""

FAULTY_ATTEMPTS = 2
CLEAN = (Fault.NONE, Fault.TWICE, Fault.AGAIN)
WITHOUT_LOSS_OF_REQUESTS = tuple(fault for fault in Fault if fault is not Fault.LOSE_REQUEST)


@dataclass(frozen=True)
class Scene:
    """A server behind a proxy, and one train episode on it."""

    http: httpx.Client
    proxy: FaultyProxy
    episode: dict[str, Any]

    @property
    def access(self) -> dict[str, Any]:
        """What any client of the model is told."""
        return {"base_url": f"{self.proxy.url}/v1", "api_key": self.episode["api_key"]}

    def detail(self) -> dict[str, Any]:
        return self.http.get(f"/v1/swarm/episodes/{self.episode['episode_id']}").json()

    def turns(self) -> list[dict[str, Any]]:
        return self.detail()["turns"]


def storm(seed: int, faults: tuple[Fault, ...] = tuple(Fault)) -> Callable[[Attempt], Fault]:
    """The first attempts meet any fault, later ones just copies: stock clients give up after the third."""
    generator = random.Random(seed)

    def choose(attempt: Attempt) -> Fault:
        return generator.choice(faults if attempt.retry_count < FAULTY_ATTEMPTS else CLEAN)

    return choose


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Pace:
    pace = Pace(token_delay_s=0.01)
    monkeypatch.setattr(swarm.server.http, "Backends", pace.backends())
    return pace


@pytest.fixture
def stage(start_server: Any, pace: Pace) -> Iterator[Callable[..., Scene]]:
    """Opens a scene on a server of its own."""
    with ExitStack() as stack:

        def open_scene(choose: Callable[[Attempt], Fault], **options: Any) -> Scene:
            server = start_server(JOB)
            http = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
            wait_for_state(http, "ROLLING")
            proxy = stack.enter_context(FaultyProxy(server.url, choose, **options).running())
            return Scene(http, proxy, begin(http, idle_timeout_s=60))

        yield open_scene


def ask(model: openai.OpenAI, prompt: str, **options: Any) -> str:
    reply = model.chat.completions.create(model="default", messages=[{"role": "user", "content": prompt}], **options)
    return reply.choices[0].message.content or ""


def continue_text(model: openai.OpenAI, prompt: str, **options: Any) -> str:
    return model.completions.create(model="default", prompt=prompt, **options).choices[0].text


def listen(model: openai.OpenAI, prompt: str, **options: Any) -> str:
    with model.chat.completions.create(
        model="default", messages=[{"role": "user", "content": prompt}], stream=True, **options
    ) as stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def listen_to_text(model: openai.OpenAI, prompt: str, **options: Any) -> str:
    with model.completions.create(model="default", prompt=prompt, stream=True, **options) as stream:
        return "".join(chunk.choices[0].text for chunk in stream)


Ask = Callable[..., str]


def ask_all(scene: Scene, work: list[tuple[Ask, str]], *, is_named: bool = False) -> list[str]:
    """Every call by a client of its own, eight at a time. A stream that broke in the middle has no reply."""
    import httpx2
    import openai

    def carry_out(number: int) -> str:
        call, prompt = work[number]
        headers = {"idempotency-key": f"call-{number}"} if is_named else None
        with openai.OpenAI(**scene.access, timeout=CLIENT_TIMEOUT_S, max_retries=4) as model:
            try:
                return call(model, prompt, extra_headers=headers)
            except (openai.APIError, httpx2.TransportError):
                return ""

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(carry_out, range(len(work))))


def text_of(turn: dict[str, Any]) -> str:
    return turn["messages"][-1]["content"]


def check(scene: Scene, prompts: list[str], replies: list[str]) -> None:
    """As many turns that are no orphans as there were calls, their replies those that were heard, and they alone
    are trained."""
    wait_until(lambda: not calls_in_flight(scene))
    assert scene.proxy.differing == []
    detail = scene.detail()
    finished = [turn for turn in detail["turns"] if turn["finish_reason"] != FinishReason.ABORT]
    assert Counter(map(text_of, finished)) == Counter(prompts)
    on_record = {(text_of(turn), turn["reply"]["content"]) for turn in finished}
    assert {(prompt, reply) for prompt, reply in zip(prompts, replies, strict=True) if reply} <= on_record
    trained = {index for sample in detail["samples"] for index in sample["turn_indices"]} - {-1}
    assert trained == {turn["index"] for turn in finished}


def calls_in_flight(scene: Scene) -> int:
    running = scene.http.get("/v1/swarm/status").json()["running"]
    return sum(each["calls_in_flight"] for each in running)


def test_one_call_is_one_turn_whatever_happens_to_its_attempts(stage: Any) -> None:
    scene = stage(storm(seed=1), stamps_all=True)
    kinds = (ask, continue_text, listen, listen_to_text)
    work = [(kinds[number % 4], f"call {number}") for number in range(32)]
    replies = ask_all(scene, work)
    assert set(scene.proxy.met) > {Fault.LOSE_REPLY, Fault.BREAK_OFF, Fault.DELAY, Fault.TWICE}
    check(scene, [prompt for _, prompt in work], replies)
    unanswered = [call for (call, _), reply in zip(work, replies, strict=True) if not reply]
    assert set(unanswered) <= {listen, listen_to_text}, "only a stream can break once its reply has begun"


def test_equal_calls_at_once_are_as_many_turns(stage: Any) -> None:
    scene = stage(storm(seed=2, faults=WITHOUT_LOSS_OF_REQUESTS))
    prompts = [f"group {number // 4}" for number in range(24)]
    replies = ask_all(scene, [(ask, prompt) for prompt in prompts])
    check(scene, prompts, replies)


def test_calls_that_their_caller_named_are_told_apart_whatever_is_lost(stage: Any) -> None:
    scene = stage(storm(seed=3), stamps_all=True)
    prompts = [f"group {number // 4}" for number in range(24)]
    replies = ask_all(scene, [(ask, prompt) for prompt in prompts], is_named=True)
    check(scene, prompts, replies)
    finished = [turn for turn in scene.turns() if turn["finish_reason"] != FinishReason.ABORT]
    assert Counter(turn["reply"]["content"] for turn in finished) == Counter(replies)


def test_a_stream_cut_in_the_middle_stops_the_engine_within_a_step(stage: Any, pace: Pace) -> None:
    import openai

    pace.reply = letters(LONG)
    scene = stage(lambda attempt: Fault.NONE)
    with openai.OpenAI(**scene.access, timeout=60, max_retries=0) as model:
        stream = model.completions.create(model="default", prompt="Once", stream=True, max_tokens=LONG)
        heard = "".join(next(stream).choices[0].text for _ in range(4))
        at_cut = sum(pace.steps.values())
        stream.close()
    wait_until(lambda: not calls_in_flight(scene))
    assert sum(pace.steps.values()) <= at_cut + STEPS_UNTIL_NOTICED
    [turn] = scene.turns()
    assert (turn["finish_reason"], len(turn["output_ids"])) == (FinishReason.ABORT, sum(pace.steps.values()))
    assert turn["reply"]["content"].startswith(heard)
    assert scene.detail()["samples"] == []


@pytest.mark.parametrize("is_named", [False, True])
def test_a_retry_after_a_restart_hears_what_was_recorded(start_server: Any, pace: Pace, is_named: bool) -> None:
    import openai

    servers = [start_server(JOB)]
    with ExitStack() as stack:

        def choose(attempt: Attempt) -> Fault:
            if attempt.retry_count == 0:
                return Fault.LOSE_REPLY
            servers[0].stop()
            servers.append(start_server(JOB, home=servers[0].home))
            proxy.server_url = servers[-1].url
            return Fault.NONE

        proxy = stack.enter_context(FaultyProxy(servers[0].url, choose).running())
        with httpx.Client(base_url=servers[0].url, timeout=60) as http:
            wait_for_state(http, "ROLLING")
            episode = begin(http, idle_timeout_s=60)
        headers = {"idempotency-key": "mine"} if is_named else None
        with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=episode["api_key"], timeout=30) as model:
            reply = model.completions.create(model="default", prompt="Once", n=2, logprobs=0, extra_headers=headers)
        with httpx.Client(base_url=servers[-1].url, timeout=60) as http:
            turns = http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()["turns"]
    assert len(servers) == 2
    assert sorted(pace.steps) == [f"{turns[0]['call_id']}-{choice}" for choice in range(2)], "sampled once"
    assert [choice.text for choice in reply.choices] == [turn["reply"]["content"] for turn in turns]
    assert reply.id == f"cmpl-{turns[0]['call_id']}"
    assert [choice.logprobs.token_logprobs for choice in reply.choices] == [turn["logprobs"] for turn in turns]


def ask_anthropic(url: str, key: str) -> str:
    import anthropic

    messages: Any = [{"role": "user", "content": "hi"}]
    with (
        anthropic.Anthropic(base_url=url, api_key=key) as client,
        client.messages.stream(model="default", max_tokens=LONG, messages=messages) as stream,
    ):
        return "".join(stream.text_stream)


def test_stock_clients_are_held_over_a_weight_update(start_server: Any, pace: Pace) -> None:
    """A stream that has begun goes on with the new weights, and calls that come meanwhile are answered by them."""
    import openai

    pace.update_s, pace.reply = 3.0, letters(LONG)
    server = start_server(TrainJob(engine="fake", batch_size=1, num_repeat=2, max_response_length=LONG))
    with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(5) as pool:
        wait_for_state(http, "ROLLING")
        access = {"base_url": f"{server.url}/v1"}
        episodes = [begin(http, episode_type="eval", idle_timeout_s=300) for _ in range(5)]
        clients = [openai.OpenAI(**access, api_key=each["api_key"]) for each in episodes[:4]]
        running = clients[0].completions.create(model="default", prompt="Once", stream=True, max_tokens=LONG)
        heard = [next(running).choices[0].text]
        for reward in (0.0, 1.0):
            episode = begin(http)
            chat(http, episode, "hi", max_tokens=1)
            end(http, episode, task_id="task", reward=reward)
        wait_for_state(http, "TRAINING")
        rest = pool.submit(lambda: [chunk.choices[0].text for chunk in running])
        kinds = (ask, listen, continue_text)
        asked = [pool.submit(kind, client, "hi") for kind, client in zip(kinds, clients[1:], strict=True)]
        asked.append(pool.submit(ask_anthropic, server.url, episodes[4]["api_key"]))
        replies = [each.result(timeout=60) for each in asked]
        wait_for_step(http, 1)
        heard += rest.result(timeout=30)
        turns = [http.get(f"/v1/swarm/episodes/{each['episode_id']}").json()["turns"] for each in episodes]
        for client in clients:
            client.close()
    assert [len(of_episode) for of_episode in turns] == [1] * 5
    assert set(turns[0][0]["weight_versions"]) == {0, 1}
    assert "".join(heard) == turns[0][0]["reply"]["content"]
    assert [turn["reply"]["content"] for [turn] in turns[1:]] == replies
    assert {version for [turn] in turns[1:] for version in turn["weight_versions"]} == {1}
    assert {turn["attempt"] for [turn] in turns} == {0}, "it waited, it was not sent away"
