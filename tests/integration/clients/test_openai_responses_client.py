"""What only the Responses API of OpenAI has: items of every form, stored responses, and responses that go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from integration.clients.stage import Observed, Stage
from tests_support import begin, end, wait_for_state

from swarm.job import TrainJob

if TYPE_CHECKING:
    from openai import OpenAI

pytestmark = pytest.mark.timeout(400)

LIMIT_S = 20
LOGPROBS = "message.output_text.logprobs"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Of a city.",
    "parameters": SCHEMA,
    "strict": False,
}
# Spaced as no serializer would.
ARGUMENTS = '{"city":"Paris",  "days": 2.0}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


def client_at(base_url: str, api_key: str) -> OpenAI:
    import openai

    return openai.OpenAI(base_url=base_url, api_key=api_key, timeout=LIMIT_S, max_retries=0)


def client_of(episode: Observed) -> OpenAI:
    return client_at(episode.base_url, episode.api_key)


@pytest.fixture(scope="module")
def openai() -> Any:
    import openai

    return openai


@pytest.mark.parametrize("way", ["items", "references", "previous"])
def test_an_agent_goes_on_from_the_very_tokens(scripted: Stage, way: str) -> None:
    scripted.say(f"Let me see.\n{CALL}\n{CALL}", CALL, "12 degrees")
    with scripted.episode() as episode, client_of(episode) as client:
        settings: dict[str, Any] = {"model": "default", "tools": [WEATHER], "instructions": "Be brief."}
        history: list[Any] = [{"role": "user", "content": "Hello"}]
        previous: dict[str, Any] = {}
        while True:
            response = client.responses.create(input=history, **settings, **previous)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "12"} for call in calls]
            if way == "previous":
                previous, history = {"previous_response_id": response.id}, outputs
            elif way == "references":
                history += [{"type": "item_reference", "id": item.id} for item in response.output] + outputs
            else:
                history += [*response.output, *outputs]
    assert response.output_text == "12 degrees"
    assert (episode.parents, episode.samples) == ([None, 0, 1], 1)
    assert episode.replies[0]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS


def test_logprobs_are_those_of_the_turn(nano: Stage) -> None:
    with nano.episode() as episode, client_of(episode) as client:
        response = client.responses.create(model="default", input="Hello", include=[LOGPROBS], top_logprobs=2)
    rows = [row for item in response.output for part in item.content for row in part.logprobs]
    assert [row.logprob for row in rows] == episode.turns[0].logprobs
    assert {len(row.top_logprobs) for row in rows} == {2}


def test_responses_that_are_not_stored_or_of_another_episode_are_not_gone_on_from(scripted: Stage, openai: Any) -> None:
    with scripted.episode() as episode, client_of(episode) as client, httpx.Client(base_url=scripted.url) as http:
        unstored = client.responses.create(model="default", input="Hello", store=False)
        stored = client.responses.create(model="default", input="Hello")
        other_episode = begin(http)
        with client_at(episode.base_url, other_episode["api_key"]) as other:
            for caller, response in ((client, unstored), (other, stored), (other, unstored)):
                with pytest.raises(openai.BadRequestError) as refusal:
                    caller.responses.create(model="default", input="Hello", previous_response_id=response.id)
                assert refusal.value.param == "previous_response_id"
        http.post(f"/v1/swarm/episodes/{other_episode['episode_id']}/abort", json={"reason": "over"})
    assert unstored.store is False


def test_the_same_instructions_again_go_on_and_others_begin_anew(scripted: Stage) -> None:
    with scripted.episode() as episode, client_of(episode) as client:
        asked: dict[str, Any] = {"model": "default", "input": "Hello"}
        first = client.responses.create(**asked, instructions="Be brief.")
        second = client.responses.create(**asked, instructions="Be brief.", previous_response_id=first.id)
        client.responses.create(**asked, instructions="Be kind.", previous_response_id=second.id)
    assert episode.parents == [None, 0, None]
    messages = episode.turns[2].messages
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert messages[0]["content"] == "Be kind."


def test_responses_outlive_the_server(start_server: Callable[..., Any]) -> None:
    job = TrainJob(engine="fake", batch_size=100, num_repeat=2)
    asked: dict[str, Any] = {"model": "default", "input": "Hello", "instructions": "Be brief.", "tools": [WEATHER]}
    server = start_server(job)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        episode = begin(http)
        with client_at(f"{server.url}/v1", episode["api_key"]) as client:
            response = client.responses.create(**asked, max_output_tokens=9)
    server.stop()
    server = start_server(job, home=server.home)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        with client_at(f"{server.url}/v1", episode["api_key"]) as client:
            again = client.responses.create(**asked, previous_response_id=response.id)
        assert again.previous_response_id == response.id
        end(http, episode, task_id="t", reward=1.0)
        detail = http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json()
    assert [turn["parent"] for turn in detail["turns"]] == [None, 0]
    assert len(detail["samples"]) == 1
