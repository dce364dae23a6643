"""Model calls longer than anybody waits in silence: slow samplers, samplers that stand still, servers that are gone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import httpx
import openai
import pytest
from scripted_server import Canned, ScriptedServer
from slow_samplers import Pace, letters
from tests_support import begin, wait_for_state
from waiting import wait_until

import swarm.server.http
from swarm import TrainJob
from swarm.errors import EpisodeEnded, RolloutPaused, ServerUnreachable
from swarm.program.attempts import Model
from swarm.tasks.agent import open_http
from swarm.types import KEEP_ALIVE_HEADER

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2)
MAX_WAIT_S = 0.3
KEEP_ALIVE_S = 0.1
"""A silence of 0.4 s is too long for the clients of these tests."""
TOKENS = 40
QUESTION = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def pace() -> Pace:
    """Forty tokens in two seconds: each call is longer than the silence that its client bears."""
    return Pace(token_delay_s=0.05, reply=letters(1000))


@pytest.fixture(scope="module")
def http(start_shared_server: Any, pace: Pace) -> Iterator[httpx.Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swarm.server.http, "Backends", pace.backends())
        server = start_shared_server(JOB, max_wait_s=MAX_WAIT_S)
        with httpx.Client(base_url=server.url, timeout=60) as client:
            wait_for_state(client, "ROLLING")
            yield client


@contextmanager
def stalled(pace: Pace) -> Iterator[None]:
    """Nobody gets a token within the block, as if the worker process stood still."""
    pace.stalled_name = JOB.experiment_name
    try:
        yield
    finally:
        pace.stalled_name = None


@contextmanager
def model_of(url: str, key: str, keep_alive_s: float = KEEP_ALIVE_S) -> Iterator[Model]:
    with open_http(keep_alive_s=keep_alive_s) as http:
        yield Model(f"{url}/v1", key, "default", TOKENS, http)


@contextmanager
def own_model(http: httpx.Client, **body: Any) -> Iterator[tuple[Model, dict[str, Any]]]:
    episode = begin(http, episode_type="eval", **body)
    with model_of(str(http.base_url).rstrip("/"), episode["api_key"]) as model:
        yield model, episode


def post(http: httpx.Client, episode: dict[str, Any], path: str = "chat/completions", **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {episode['api_key']}", **options.pop("headers", {})}
    body = {"model": "default", "messages": QUESTION, "max_tokens": 4, **options}
    return http.post(f"/v1/{path}", headers=headers, json=body)


def calls_in_flight(http: httpx.Client, episode: dict[str, Any]) -> int:
    running = http.get("/v1/swarm/status").json()["running"]
    return sum(each["calls_in_flight"] for each in running if each["episode_id"] == episode["episode_id"])


def test_a_reply_that_takes_longer_than_any_silence_is_waited_for(http: httpx.Client) -> None:
    with own_model(http) as (model, _):
        assert len(model.chat(QUESTION)["content"]) >= TOKENS


def test_a_sampler_that_stands_still_for_longer_than_the_server_waits_is_waited_for(
    http: httpx.Client, pace: Pace
) -> None:
    with own_model(http) as (model, episode), ThreadPoolExecutor() as pool:
        with stalled(pace):
            own = pool.submit(model.chat, QUESTION, max_tokens=4)
            refused = post(http, episode)
            assert not own.done()
        assert own.result(60)["content"]
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "rollout_paused")
    assert float(refused.headers["retry-after"]) > 0


def test_stock_clients_see_no_sign_of_life_and_the_status_of_every_error(http: httpx.Client, pace: Pace) -> None:
    episode = begin(http, episode_type="eval")
    url = str(http.base_url.join("/v1"))
    client = openai.OpenAI(base_url=url, api_key=episode["api_key"], max_retries=0, timeout=60)
    with client, stalled(pace), pytest.raises(openai.InternalServerError) as paused:
        client.chat.completions.create(model="default", messages=QUESTION)  # pyright: ignore[reportArgumentType]
    assert paused.value.status_code == 503
    reply = post(http, episode, max_tokens=TOKENS)
    assert reply.content.startswith(b"{")
    assert int(reply.headers["content-length"]) == len(reply.content)


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_an_error_after_a_sign_of_life_is_named_in_the_body_as_its_api_names_it(
    http: httpx.Client, pace: Pace, path: str
) -> None:
    episode = begin(http, episode_type="eval")
    asked = {"input": "Hello", "messages": None, "max_tokens": None} if path == "responses" else {}
    body = {key: value for key, value in {"messages": QUESTION, "max_tokens": 4, **asked}.items() if value is not None}
    headers = {"authorization": f"Bearer {episode['api_key']}", KEEP_ALIVE_HEADER: "0.1"}
    with (
        stalled(pace),
        http.stream("POST", f"/v1/{path}", headers=headers, json={"model": "default", **body}) as answer,
    ):
        pieces = answer.iter_raw()
        assert (answer.status_code, next(pieces)) == (200, b" ")
        http.post(f"/v1/swarm/episodes/{episode['episode_id']}/abort", json={"reason": "test"}).raise_for_status()
        said = json.loads(b"".join(pieces))
    assert "ended during this call" in said["error"]["message"]


def test_the_end_of_an_episode_ends_its_call_although_no_token_comes(http: httpx.Client, pace: Pace) -> None:
    with stalled(pace), own_model(http) as (model, episode), ThreadPoolExecutor() as pool:
        call = pool.submit(model.chat, QUESTION)
        wait_until(lambda: calls_in_flight(http, episode) == 1)
        http.post(f"/v1/swarm/episodes/{episode['episode_id']}/abort", json={"reason": "test"}).raise_for_status()
        with pytest.raises(EpisodeEnded):
            call.result(60)


def test_an_error_before_the_first_sign_of_life_has_its_status(http: httpx.Client) -> None:
    headers = {KEEP_ALIVE_HEADER: "60"}
    episode = begin(http, episode_type="eval")
    assert post(http, episode, "messages", headers=headers, messages=[]).status_code == 400
    long = [{"role": "user", "content": "word " * 5000}]
    assert post(http, episode, headers=headers, messages=long).status_code == 400
    assert post(http, episode, headers=headers).headers["content-length"]


@pytest.mark.parametrize("value", ["0", "0.01", "61", "nan", "-1", "soon", ""])
def test_an_interval_that_cannot_be_kept_is_refused_by_name(http: httpx.Client, value: str) -> None:
    refused = post(http, begin(http, episode_type="eval"), headers={KEEP_ALIVE_HEADER: value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, KEEP_ALIVE_HEADER)


def test_a_stream_takes_no_interval(http: httpx.Client) -> None:
    refused = post(http, begin(http, episode_type="eval"), headers={KEEP_ALIVE_HEADER: "15"}, stream=True)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, KEEP_ALIVE_HEADER)


def test_a_caller_that_hangs_up_between_two_signs_of_life_ends_the_sampling(http: httpx.Client, pace: Pace) -> None:
    episode = begin(http, episode_type="eval")
    headers = {"authorization": f"Bearer {episode['api_key']}", KEEP_ALIVE_HEADER: "0.1"}
    body = {"model": "default", "messages": QUESTION, "max_tokens": 1000, "ignore_eos": True}
    with http.stream("POST", "/v1/chat/completions", headers=headers, json=body) as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b" "
        assert calls_in_flight(http, episode) == 1
    wait_until(lambda: calls_in_flight(http, episode) == 0)


def on_the_wire(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """The URL of a server that takes connections and does with each what `answer` says."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    held.append(listening.accept()[0])
                    answer(held[-1])
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        for each in held:
            each.close()


BEGUN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n \r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda connection: None, id="accepts and never answers"),
        pytest.param(lambda connection: connection.sendall(BEGUN), id="stops in the middle of an answer"),
        pytest.param(lambda connection: (connection.sendall(BEGUN), connection.close()), id="is killed in mid-call"),
        pytest.param(lambda connection: connection.close(), id="closes the connection"),
    ],
)
def test_a_server_that_is_gone_is_found(answer: Callable[[socket.socket], object]) -> None:
    for url in on_the_wire(answer):
        with model_of(url, "key") as model, pytest.raises(ServerUnreachable):
            model.chat(QUESTION)


def test_an_error_in_a_body_with_status_200_is_raised_by_name() -> None:
    with closing(ScriptedServer()) as server:
        server.script(Canned(200, b'   {"error": {"message": "the weights change", "code": "rollout_paused"}}'))
        with model_of(server.url, "key") as model, pytest.raises(RolloutPaused, match="weights change"):
            model.chat(QUESTION)
        assert server.heard[0].headers[KEEP_ALIVE_HEADER] == "0.1"
