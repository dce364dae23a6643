"""OpenAI's own SDK against the Responses API of a real server whose engine says what a test tells it to."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests_support import begin, end, wait_for_state

import swarm.server.http
from swarm.backends.base import Backend, Backends
from swarm.backends.fake import FakeSampler, FakeTrainer, Fault, FaultKind
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, read_stop_ids, read_tokenizer

pytestmark = pytest.mark.timeout(400)

JOB = TrainJob(engine="fake", batch_size=100, num_repeat=2)
BODY: dict[str, Any] = {"model": "default", "input": "Hello"}
USER: dict[str, Any] = {"role": "user", "content": "Hello"}
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
EVENT = TypeAdapter(ResponseStreamEvent)


class Script:
    """Lines for the sampler to return, in the tokens of the bundled model."""

    def __init__(self) -> None:
        self.sampler: FakeSampler | None = None
        self._lines: deque[str] = deque()
        self._tokenizer = read_tokenizer(BUNDLED_DIRECTORY)
        self._stop_id = min(read_stop_ids(BUNDLED_DIRECTORY, self._tokenizer))

    def say(self, *lines: str) -> None:
        self._lines.extend(lines)

    def fail_after(self, tokens: int) -> None:
        assert self.sampler is not None
        self.sampler.fault = Fault(FaultKind.RAISE, tokens)

    def next_line(self, prompt_ids: Sequence[int]) -> list[int]:
        line = self._lines.popleft() if self._lines else "ok"
        return [*self._tokenizer.encode(line, add_special_tokens=False).ids, self._stop_id]


@dataclass
class Service:
    """A running server with an open episode."""

    http: httpx.Client
    script: Script
    episode: dict[str, Any]
    server: Any
    opened: list[OpenAI] = field(default_factory=list)

    def sdk(self, episode: dict[str, Any] | None = None) -> OpenAI:
        key = (episode or self.episode)["api_key"]
        client = OpenAI(base_url=f"{self.http.base_url}/v1", api_key=key, max_retries=0, timeout=60)
        self.opened.append(client)
        return client

    def post(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.episode['api_key']}", **headers}
        return self.http.post("/v1/responses", headers=headers, json=body)

    def detail(self) -> dict[str, Any]:
        end(self.http, self.episode, task_id="t", reward=1.0)
        return self.http.get(f"/v1/swarm/episodes/{self.episode['episode_id']}").json()

    def close(self) -> None:
        for client in self.opened:
            client.close()
        self.opened.clear()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()

    class ScriptedBackends(Backends):
        def build(self, job: TrainJob, *, is_fresh: bool) -> Backend:
            backend = super().build(job, is_fresh=is_fresh)
            script.sampler = FakeSampler(reply=script.next_line)
            return replace(backend, sampler=script.sampler, trainer=FakeTrainer(script.sampler, job))

    monkeypatch.setattr(swarm.server.http, "Backends", ScriptedBackends)
    return script


@pytest.fixture
def service(script: Script, start_server: Any) -> Iterator[Service]:
    server = start_server(JOB)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        service = Service(http, script, begin(http), server)
        yield service
        service.close()


def continues_exactly(detail: dict[str, Any]) -> bool:
    """Whether each turn goes on from the tokens of the one before, so that all are one training sequence."""
    turns = detail["turns"]
    histories = [turn["prompt_ids"] + turn["output_ids"] for turn in turns]
    return (
        [turn["parent"] for turn in turns[1:]] == [turn["index"] for turn in turns[:-1]]
        and all(
            turn["prompt_ids"][: len(history)] == history for history, turn in zip(histories, turns[1:], strict=False)
        )
        and len(detail["samples"]) == 1
    )


def test_a_response_is_what_was_sampled(service: Service) -> None:
    service.script.say("12")
    raw = service.sdk().responses.with_raw_response.create(
        **BODY, instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=50, safety_identifier="s"
    )
    response = raw.parse()

    assert Response.model_validate_json(raw.http_response.read(), strict=True).to_dict() == response.to_dict()
    assert (response.output_text, response.status, response.metadata) == ("12", "completed", {"a": "b"})
    assert response.model == service.http.get("/v1/swarm/job").json()["resolved"]["model"]
    assert "x-ignored-fields" not in raw.headers
    [turn] = service.detail()["turns"]
    assert turn["messages"] == [{"role": "system", "content": "Be brief."}, USER]
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (
        len(turn["prompt_ids"]),
        len(turn["output_ids"]),
    )
    assert turn["params"]["max_tokens"] == 50


def test_events_are_those_of_the_sdk_and_say_the_same(service: Service) -> None:
    service.script.say("one two three")
    with service.sdk().responses.stream(**BODY) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert len(deltas) > 1
    assert "".join(deltas) == final.output_text == "one two three"

    service.script.say("one two three")
    lines = service.post({**BODY, "stream": True}).text.split("\n\n")
    pairs = [line.removeprefix("event: ").split("\ndata: ") for line in lines if line]
    events = [EVENT.validate_json(data, strict=True) for _, data in pairs]
    assert [event.type for event in events] == [name for name, _ in pairs]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("way", ["items", "dumped", "references", "previous"])
def test_an_agent_goes_on_from_the_very_tokens(service: Service, way: str, is_streamed: bool) -> None:
    service.script.say(f"Let me see.\n{CALL}\n{CALL}", CALL, "12 degrees")
    client = service.sdk()
    settings: dict[str, Any] = {"model": "default", "tools": [WEATHER], "instructions": "Be brief."}
    history: list[Any] = [USER]
    previous: dict[str, Any] = {}
    while True:
        if is_streamed:
            with client.responses.stream(input=history, **settings, **previous) as stream:
                response = stream.get_final_response()
        else:
            response = client.responses.create(input=history, **settings, **previous)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "12"} for call in calls]
        if way == "previous":
            previous, history = {"previous_response_id": response.id}, outputs
        else:
            history = [*history, *_sent_back(response, way), *outputs]
    assert response.output_text == "12 degrees"
    detail = service.detail()
    assert len(detail["turns"]) == 3
    assert continues_exactly(detail)
    call = detail["turns"][0]["reply"]["tool_calls"][0]
    assert call["function"]["arguments"] == ARGUMENTS


def _sent_back(response: Response, way: str) -> list[Any]:
    if way == "items":
        return list(response.output)
    if way == "references":
        return [{"type": "item_reference", "id": item.id} for item in response.output]
    return [
        item.model_dump(exclude={"id", "status", "parsed_arguments"}, exclude_none=True) for item in response.output
    ]


def test_an_item_that_was_referred_to_must_be_there(service: Service) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        service.sdk().responses.create(model="default", input=[{"type": "item_reference", "id": "msg_0"}])
    assert refusal.value.param == "input.0.id"


def test_stored_responses_can_be_fetched_until_they_are_deleted(service: Service) -> None:
    client = service.sdk()
    response = client.responses.create(**BODY, metadata={"a": "b"}, include=["message.output_text.logprobs"])

    assert client.responses.retrieve(response.id, include=["message.output_text.logprobs"]) == response
    client.responses.delete(response.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(response.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(**BODY, previous_response_id=response.id)
    assert refusal.value.param == "previous_response_id"
    assert len(service.detail()["turns"]) == 1


def test_what_cannot_be_done_with_a_stored_response_is_refused(service: Service) -> None:
    client = service.sdk()
    response = client.responses.create(**BODY)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(response.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.retrieve(response.id, stream=True)
    assert refusal.value.param == "stream"


def test_responses_that_are_not_stored_or_of_another_episode_are_not_found(service: Service) -> None:
    client = service.sdk()
    unstored = client.responses.create(**BODY, store=False)
    stored = client.responses.create(**BODY)
    other = service.sdk(begin(service.http))
    for caller, response in ((client, unstored), (other, stored), (other, unstored)):
        with pytest.raises(openai.NotFoundError):
            caller.responses.retrieve(response.id)
        with pytest.raises(openai.BadRequestError):
            caller.responses.create(**BODY, previous_response_id=response.id)
    assert unstored.store is False


def test_responses_outlive_the_server(service: Service, start_server: Callable[..., Any]) -> None:
    response = service.sdk().responses.create(**BODY, instructions="Be brief.", tools=[WEATHER], max_output_tokens=9)
    service.close()
    service.http.close()
    service.server.stop()
    server = start_server(JOB, home=service.server.home)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        later = Service(http, service.script, service.episode, server)
        assert later.sdk().responses.retrieve(response.id) == response
        again = later.sdk().responses.create(
            **BODY, instructions="Be brief.", tools=[WEATHER], previous_response_id=response.id
        )
        assert again.previous_response_id == response.id
        assert continues_exactly(later.detail())
        later.close()


def test_the_same_instructions_again_go_on_and_others_begin_anew(service: Service) -> None:
    client = service.sdk()
    first = client.responses.create(**BODY, instructions="Be brief.")
    second = client.responses.create(**BODY, instructions="Be brief.", previous_response_id=first.id)
    client.responses.create(**BODY, instructions="Be kind.", previous_response_id=second.id)
    turns = service.detail()["turns"]
    assert [turn["parent"] for turn in turns] == [None, 0, None]
    assert [message["role"] for message in turns[2]["messages"]] == ["system", *["user", "assistant"] * 2, "user"]
    assert turns[2]["messages"][0]["content"] == "Be kind."


def test_a_repeated_attempt_gets_the_same_response(service: Service) -> None:
    first = service.post(BODY)
    again = service.post(BODY, **{"x-stainless-retry-count": "1"})
    assert again.json() == first.json()
    assert len(service.detail()["turns"]) == 1


def test_a_stream_that_breaks_off_raises_in_the_sdk(service: Service) -> None:
    service.script.say("one two three four")
    service.script.fail_after(3)
    kinds: list[str] = []
    with pytest.raises(openai.APIError), service.sdk().responses.create(**BODY, stream=True) as events:
        kinds.extend(event.type for event in events)
    assert (kinds[0], kinds[-1]) == ("response.created", "response.failed")


def test_fields_nobody_knows_are_named_and_refusals_name_the_field(service: Service) -> None:
    hosted: Any = {"type": "web_search"}
    raw = service.sdk().responses.with_raw_response.create(**BODY, tools=[hosted], extra_body={"flux": 1})
    assert raw.headers["x-ignored-fields"] == "flux,tools.web_search"
    for fields, param in (
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [{"type": "local_shell"}]}, "tools.0"),
        ({"tools": [hosted], "tool_choice": hosted}, "tool_choice"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"top_p": 0.5}, "top_p"),
    ):
        with pytest.raises(openai.BadRequestError) as refusal:
            service.sdk().responses.create(**BODY, **fields)
        assert refusal.value.param == param
    assert len(service.detail()["turns"]) == 1


def test_logprobs_are_those_that_are_trained_on(service: Service) -> None:
    service.script.say("12")
    response = service.sdk().responses.create(**BODY, include=["message.output_text.logprobs"])
    [turn] = service.detail()["turns"]
    told = [row["logprob"] for row in json.loads(response.to_json())["output"][0]["content"][0]["logprobs"]]
    assert told == turn["logprobs"]
