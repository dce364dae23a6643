"""What the client makes of answers, refusals and silence: over a real socket, with a server that misbehaves."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
from client_answers import BEGUN, ENDED
from server_processes import free_port

from swarm.client import AsyncSwarmClient, SwarmClient
from swarm.client.exchange import FIRST_PAUSE_S, Server, unreachable
from swarm.errors import (
    BadRequest,
    Conflict,
    EngineFailure,
    EngineNotReady,
    EpisodeEnded,
    NotFound,
    RolloutPaused,
    ServerUnreachable,
    SwarmError,
    TrainingComplete,
    Unauthorized,
    Unavailable,
)
from swarm.types import Task, WorkflowOutput

pytestmark = pytest.mark.anyio

JOB = {"job": {"lr": 0.001}, "resolved": {"lr": 0.001}}
TASK = Task("2+2?", "sum/1")


@pytest.fixture
def client(scripted: Any) -> Any:
    with SwarmClient(scripted.url, client_id="test", timeout=3.0) as client:
        yield client


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "bad_request", BadRequest),
        (401, "unauthorized", Unauthorized),
        (404, "not_found", NotFound),
        (409, "episode_ended", EpisodeEnded),
        (409, "training_complete", TrainingComplete),
        (409, "of_a_newer_server", SwarmError),
        (503, "engine_failure", EngineFailure),
    ],
)
def test_error_becomes_the_same_class_and_is_not_retried(
    scripted: Any, client: Any, refusal: Any, status: int, code: str, expected: type[SwarmError]
) -> None:
    scripted.script(refusal(status, code, "what is wrong"))
    with pytest.raises(expected, match="what is wrong") as raised:
        client.job()
    assert type(raised.value) is expected
    assert len(scripted.heard) == 1


@pytest.mark.parametrize(("status", "code"), [(503, "engine_not_ready"), (507, "ledger_unwritable")])
def test_refusal_is_waited_out_for_as_long_as_the_server_asks(
    scripted: Any, client: Any, refusal: Any, canned: Any, status: int, code: str
) -> None:
    scripted.script(refusal(status, code, retry_after="1"), canned(body=JOB))
    assert client.job().job == {"lr": 0.001}
    first, second = scripted.heard
    assert second.at - first.at >= 1.0


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_refusal_of_a_proxy_in_between_is_retried(scripted: Any, client: Any, canned: Any, status: int) -> None:
    scripted.script(canned(status, b"<html>busy</html>"), canned(body=JOB))
    client.job()
    assert len(scripted.heard) == 2


def test_refusal_beyond_the_deadline_is_raised_as_it_is(scripted: Any, refusal: Any) -> None:
    scripted.script(refusal(503, "engine_not_ready", "still booting"))
    started_at = time.monotonic()
    with SwarmClient(scripted.url, timeout=2.0) as client, pytest.raises(EngineNotReady, match="still booting"):
        client.job()
    assert time.monotonic() - started_at >= 1.9
    assert len(scripted.heard) >= 2


def test_refusal_for_longer_than_the_deadline_is_raised_at_once(scripted: Any, client: Any, refusal: Any) -> None:
    scripted.script(refusal(503, "engine_not_ready", retry_after="60"))
    with pytest.raises(EngineNotReady) as raised:
        client.job()
    assert raised.value.retry_after_s == 60
    assert len(scripted.heard) == 1


def test_refusal_marked_final_is_not_retried(scripted: Any, client: Any, refusal: Any) -> None:
    scripted.script(refusal(503, "unavailable", x_should_retry="false"))
    with pytest.raises(Unavailable):
        client.job()
    assert len(scripted.heard) == 1


def test_answer_of_something_else_names_the_address(scripted: Any, client: Any, canned: Any) -> None:
    scripted.script(canned(404, b"<html>nginx</html>"))
    with pytest.raises(SwarmError, match="without a swarm error"):
        client.job()
    scripted.script(canned(200, b"<html>welcome</html>"))
    with pytest.raises(SwarmError, match="same version"):
        client.job()


def test_server_that_never_answered_is_reported_at_once() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    # Were it waited for, this test would run into its own limit.
    with SwarmClient(url, timeout=600) as client, pytest.raises(ServerUnreachable, match=url):
        client.status()


def test_lost_answer_to_an_end_is_asked_for_again_under_the_same_key(scripted: Any, client: Any, canned: Any) -> None:
    scripted.script(canned(body=JOB), canned(body=None), canned(body=ENDED))
    client.job()
    assert client.end_episode(TASK, "e1", WorkflowOutput(1.0)).state == "completed"
    first, second = scripted.heard[1:]
    assert first.body == second.body
    assert first.body["idempotency_key"] == "e1"
    assert second.at - first.at >= FIRST_PAUSE_S


@pytest.mark.parametrize("lease_s", [30.0, None])
def test_lost_answer_to_a_begin_is_asked_for_again_with_the_same_secret(
    scripted: Any, client: Any, canned: Any, lease_s: float | None
) -> None:
    scripted.script(canned(body=JOB), canned(body=None), canned(body=BEGUN), canned(body=BEGUN))
    client.job()
    assert client.begin_episode(lease_s=lease_s)[0] == "e1"
    client.begin_episode(lease_s=lease_s)
    first, second, other = scripted.heard[1:]
    assert first.body == second.body and first.body["lease_s"] == lease_s
    assert len(first.body["begin_secret"]) >= 22 and first.body["begin_secret"] != other.body["begin_secret"]


def test_begin_outlasts_a_pause_and_asks_the_server_to_hold_it(
    scripted: Any, client: Any, refusal: Any, canned: Any
) -> None:
    paused = refusal(503, "rollout_paused", retry_after="0")
    scripted.script(paused, paused, canned(201, BEGUN, delay_s=0.2))
    episode_id, credentials = client.begin_episode("eval", 77, task_id="sum/1")
    assert episode_id == "e1"
    assert credentials.weight_version == 3
    assert [heard.body["wait_s"] for heard in scripted.heard] == [25.0] * 3
    assert scripted.heard[0].body["episode_type"] == "eval"
    assert scripted.heard[0].body["idle_timeout_s"] == 77
    assert scripted.heard[0].body["client_id"] == "test"


def test_begin_gives_up_after_its_wait_with_the_reason_of_the_server(scripted: Any, client: Any, refusal: Any) -> None:
    scripted.script(refusal(503, "rollout_paused", "weights are changing", retry_after="0"))
    started_at = time.monotonic()
    with pytest.raises(RolloutPaused, match="weights are changing"):
        client.begin_episode(wait_timeout=0.8)
    assert time.monotonic() - started_at >= 0.7
    assert scripted.heard[0].body["wait_s"] == 0.8


def test_credentials_go_through_the_address_that_the_client_uses(scripted: Any, canned: Any) -> None:
    scripted.script(canned(body=BEGUN))
    with SwarmClient(f"{scripted.url}/team/a/") as client:
        _, credentials = client.begin_episode()
    base_url = f"{scripted.url}/team/a/v1"
    assert credentials.base_url == base_url
    assert credentials.path_base_url == f"{scripted.url}/team/a/e/secret/v1"
    assert scripted.heard[0].path == "/team/a/v1/swarm/episodes/begin"
    assert credentials.env() == {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": "secret",
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": "secret",
        "ANTHROPIC_MODEL": credentials.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": credentials.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": credentials.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": credentials.model,
        "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    }
    assert "secret" not in repr(credentials)


def test_token_is_sent_with_every_call(scripted: Any, canned: Any) -> None:
    scripted.script(canned(body=JOB))
    with SwarmClient(scripted.url, "t0ken") as client:
        client.job()
    with SwarmClient(scripted.url) as client:
        client.job()
    assert scripted.heard[0].headers["authorization"] == "Bearer t0ken"
    assert "authorization" not in scripted.heard[1].headers


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "a lot", None])
def test_reward_that_is_no_number_is_refused_before_it_is_sent(scripted: Any, client: Any, reward: Any) -> None:
    with pytest.raises(BadRequest, match="reward"):
        client.end_episode(TASK, "e1", WorkflowOutput(reward))
    assert scripted.heard == []


def test_metadata_that_is_not_json_is_refused_before_it_is_sent(scripted: Any, client: Any) -> None:
    with pytest.raises(BadRequest, match="JSON"):
        client.end_episode(TASK, "e1", WorkflowOutput(1.0, metadata={"model": object()}))
    assert scripted.heard == []


@pytest.mark.parametrize("url", ["", "ftp://host", "http://"])
def test_malformed_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(BadRequest, match="http://127"):
        SwarmClient(url)


@pytest.mark.parametrize("idle", [0, -1, float("nan")])
def test_begin_with_a_bad_timeout_names_the_field(scripted: Any, client: Any, idle: float) -> None:
    with pytest.raises(BadRequest, match="idle_timeout_s"):
        client.begin_episode(discard_episode_timeout=idle)
    with pytest.raises(BadRequest, match="training"):
        client.begin_episode("training")
    assert scripted.heard == []


def test_episode_id_cannot_leave_its_route(scripted: Any, client: Any, refusal: Any) -> None:
    scripted.script(refusal(404, "not_found"))
    with pytest.raises(NotFound):
        client.episode("../../job")
    assert scripted.heard[0].path == "/v1/swarm/episodes/..%2F..%2Fjob"


def test_thirty_two_threads_share_one_client(swarm_double: Any, client: Any) -> None:
    answer = swarm_double.next_answer
    swarm_double.next_answer = lambda heard: replace(answer(heard), delay_s=0.05)
    with ThreadPoolExecutor(32) as pool:
        ends = [pool.submit(client.end_episode, TASK, f"e{n}", WorkflowOutput(float(n))) for n in range(96)]
        assert all(end.result(timeout=60).state == "completed" for end in ends)
    ended = [heard for heard in swarm_double.heard if heard.path.endswith("/end")]
    assert {heard.path.split("/")[4]: heard.body["reward"] for heard in ended} == {f"e{n}": float(n) for n in range(96)}


async def test_async_client_keeps_the_same_rules(scripted: Any, refusal: Any, canned: Any) -> None:
    scripted.script(refusal(503, "rollout_paused", retry_after="0"), canned(body=BEGUN), refusal(409, "conflict"))
    async with AsyncSwarmClient(scripted.url, timeout=3.0) as client:
        episode_id, _ = await client.begin_episode()
        with pytest.raises(Conflict):
            await client.end_episode(TASK, episode_id, WorkflowOutput(1.0))
    assert len(scripted.heard) == 3


def test_only_a_server_that_cannot_be_connected_to_is_one_to_start() -> None:
    server = Server("http://127.0.0.1:9", {}, 1.0)
    refused = unreachable(server, "PUT", "/lease", httpx.ConnectError("refused"))
    silent = unreachable(server, "PUT", "/lease", httpx.ReadTimeout("timed out"))

    assert "swarm start" in str(refused) and "swarm start" not in str(silent)
    assert "PUT /lease (timed out)" in str(silent)
