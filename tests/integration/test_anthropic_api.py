"""Anthropic's own SDK against a real server whose engine says what a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import BaseModel, TypeAdapter
from tests_support import begin, end, wait_for_state

import swarm.server.http
from swarm.backends.base import Backend, Backends
from swarm.backends.fake import FakeSampler, FakeTrainer, Fault, FaultKind
from swarm.gateway.dialects.anthropic.request import COUNT_FIELDS, MESSAGE_FIELDS
from swarm.gateway.dialects.fields import Handling
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, read_stop_ids, read_tokenizer

USER: Any = {"role": "user", "content": "Hello"}
BODY: dict[str, Any] = {"model": "default", "messages": [USER], "max_tokens": 256}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
# Spaced as no serializer would, with a number that a client may write otherwise.
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Paris",  "days": 2.0}}\n</tool_call>'


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
    opened: list[Any] = field(default_factory=list)

    def sdk(self, **options: Any) -> Anthropic:
        options = {"max_retries": 0, "auth_token": self.episode["api_key"], "api_key": None} | options
        client = Anthropic(base_url=str(self.http.base_url), **options)
        self.opened.append(client)
        return client

    def post(self, route: str = "messages", **body: Any) -> httpx.Response:
        headers = {"x-api-key": self.episode["api_key"]}
        return self.http.post(f"/v1/{route}", headers=headers, json=body)

    def detail(self) -> dict[str, Any]:
        end(self.http, self.episode, task_id="t", reward=1.0)
        return self.http.get(f"/v1/swarm/episodes/{self.episode['episode_id']}").json()


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
    server = start_server(TrainJob(engine="fake", batch_size=100, num_repeat=2))
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        service = Service(http, script, begin(http))
        yield service
        for client in service.opened:
            client.close()


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


def test_a_message_is_what_was_sampled(service: Service) -> None:
    service.script.say("12")
    raw = service.sdk().messages.with_raw_response.create(**BODY, system="Be brief.", stop_sequences=["zzz"])
    message = raw.parse()

    assert Message.model_validate_json(raw.read(), strict=True).to_dict() == message.to_dict()
    assert (message.content[0].to_dict(), message.stop_reason) == ({"type": "text", "text": "12"}, "end_turn")
    assert message.model == service.http.get("/v1/swarm/job").json()["resolved"]["model"]
    assert raw.headers["request-id"] == raw.headers["x-request-id"] == message._request_id
    assert "x-ignored-fields" not in raw.headers
    [turn] = service.detail()["turns"]
    assert turn["messages"] == [{"role": "system", "content": "Be brief."}, USER]
    assert (message.usage.input_tokens, message.usage.output_tokens) == (
        len(turn["prompt_ids"]),
        len(turn["output_ids"]),
    )
    assert turn["params"]["stop"] == ["zzz"]


def test_a_stream_says_the_same(service: Service) -> None:
    service.script.say("one two three")
    with service.sdk().messages.stream(**BODY) as stream:
        texts = list(stream.text_stream)
        message = stream.get_final_message()

    assert len(texts) > 1
    assert "".join(texts) == message.content[0].text == "one two three"
    assert message.stop_reason == "end_turn"
    [turn] = service.detail()["turns"]
    assert (message.usage.input_tokens, message.usage.output_tokens) == (
        len(turn["prompt_ids"]),
        len(turn["output_ids"]),
    )


def test_events_on_the_wire_have_the_shape_of_the_sdk(service: Service) -> None:
    service.script.say(f"Let me see. {CALL}")
    reply = service.post(**BODY, stream=True, tools=[WEATHER])

    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["request-id"]
    shape = TypeAdapter(RawMessageStreamEvent)
    names = []
    for event in reply.text.strip().split("\n\n"):
        name, data = event.split("\n")
        names.append(shape.validate_json(data.removeprefix("data: "), strict=True).type)
        assert name == f"event: {names[-1]}"
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert names.count("content_block_start") == names.count("content_block_stop") == 2


def test_the_async_client_gets_the_same(service: Service) -> None:
    async def ask() -> tuple[Any, Any]:
        async with AsyncAnthropic(base_url=str(service.http.base_url), auth_token=service.episode["api_key"]) as client:
            message = await client.messages.create(**BODY)
            async with client.messages.stream(**BODY) as stream:
                return message, await stream.get_final_message()

    service.script.say("12", "12")
    message, streamed = asyncio.run(asyncio.wait_for(ask(), 30))
    assert message.content[0].text == streamed.content[0].text == "12"


def _ask(client: Anthropic, is_streamed: bool, **body: Any) -> Any:
    if not is_streamed:
        return client.messages.create(**{**BODY, **body})
    with client.messages.stream(**{**BODY, **body}) as stream:
        return stream.get_final_message()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_conversation_with_tools_is_one_training_sequence(service: Service, is_streamed: bool) -> None:
    service.script.say(f"Let me see. {CALL}", f"{CALL}\n{CALL}", "12 degrees")
    client = service.sdk()
    messages: list[Any] = [USER]
    while True:
        message = _ask(client, is_streamed, messages=messages, tools=[WEATHER])
        calls = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == ("tool_use" if calls else "end_turn")
        if not calls:
            break
        assert [(call.name, call.input) for call in calls] == [("weather", {"city": "Paris", "days": 2})] * len(calls)
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "12"} for call in calls]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    detail = service.detail()
    assert message.content[0].text == "12 degrees"
    assert [len(turn["reply"].get("tool_calls", ())) for turn in detail["turns"]] == [1, 2, 0]
    assert continues_exactly(detail)


def test_the_tool_runner_completes_an_episode(service: Service) -> None:
    @beta_tool
    def weather(city: str, days: float) -> str:
        """Of a city."""
        return f"12 degrees in {city}"

    service.script.say(CALL, "12 degrees")
    runner = service.sdk().beta.messages.tool_runner(**BODY, tools=[weather])

    # Which asks for a thread first, and goes on without one as it is told to.
    assert runner.until_done().content[0].text == "12 degrees"
    detail = service.detail()
    assert detail["turns"][1]["messages"][-1]["content"] == "12 degrees in Paris"
    assert continues_exactly(detail)


def test_a_repeated_attempt_gets_the_same_message(service: Service) -> None:
    def attempt(number: int, **body: Any) -> httpx.Response:
        headers = {"x-api-key": service.episode["api_key"], "x-stainless-retry-count": str(number)}
        return service.http.post("/v1/messages", headers=headers, json={**BODY, **body, "tools": [WEATHER]})

    service.script.say(CALL, CALL)
    assert attempt(0).json() == attempt(1).json()
    first, second = attempt(0, stream=True), attempt(1, stream=True)
    assert first.text == second.text
    assert len(service.detail()["turns"]) == 2


def test_a_parsed_output_is_sampled_under_its_schema(service: Service) -> None:
    class City(BaseModel):
        city: str

    service.script.say('{"city": "Paris"}')
    message = service.sdk().messages.parse(**BODY, output_format=City)

    assert message.parsed_output == City(city="Paris")
    [turn] = service.detail()["turns"]
    assert json.loads(turn["params"]["grammar"]["text"])["properties"].keys() == {"city"}


def test_a_stop_sequence_is_named(service: Service) -> None:
    service.script.say("one two three")
    message = service.sdk().messages.create(**BODY, stop_sequences=["xyz", " tw"])

    assert (message.content[0].text, message.stop_reason, message.stop_sequence) == ("one", "stop_sequence", " tw")
    service.script.say("one two three")
    assert service.sdk().messages.create(**{**BODY, "max_tokens": 2}).stop_reason == "max_tokens"


def test_counted_tokens_are_those_of_the_message(service: Service) -> None:
    client = service.sdk()
    prompt: dict[str, Any] = {"model": "default", "messages": [USER], "system": "Be brief.", "tools": [WEATHER]}
    for line in (f"Let me see. {CALL}", "12"):
        counted = client.messages.count_tokens(**prompt)
        service.script.say(line)
        message = client.messages.create(**prompt, max_tokens=256)
        assert counted.input_tokens == message.usage.input_tokens
        results = [
            {"type": "tool_result", "tool_use_id": block.id} for block in message.content if block.type == "tool_use"
        ]
        prompt["messages"] += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    beta = client.beta.messages.count_tokens(model="default", messages=[USER])
    assert 0 < beta.input_tokens < counted.input_tokens
    assert continues_exactly(service.detail())


def test_errors_are_those_of_the_api(service: Service) -> None:
    client = service.sdk()
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}

    def refused(expected: type[anthropic.APIStatusError], sdk: Anthropic = client, **body: Any) -> Any:
        with pytest.raises(expected) as refusal:
            sdk.messages.create(**{**BODY, **body})
        error = refusal.value
        assert ErrorResponse.model_validate(error.body, strict=True).request_id == error.request_id
        return error

    assert refused(anthropic.AuthenticationError, service.sdk(auth_token="sk-swarm-no")).type == "authentication_error"
    error = refused(anthropic.BadRequestError, messages=[{"role": "user", "content": [image]}])
    assert (error.type, "image" in error.message) == ("invalid_request_error", True)
    assert (
        "thinking"
        in refused(
            anthropic.BadRequestError, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000
        ).message
    )
    assert "top_p" in refused(anthropic.BadRequestError, extra_body={"top_p": 0.5}).message
    assert (
        "prompt is too long"
        in refused(anthropic.BadRequestError, messages=[{"role": "user", "content": "Hello " * 9000}]).message
    )
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.post("/v1/messages", body={"model": "default", "messages": [USER]}, cast_to=Message)
    malformed = service.http.post("/v1/messages", headers={"x-api-key": service.episode["api_key"]}, content=b"{")
    assert malformed.json()["error"]["type"] == "invalid_request_error"
    service.detail()
    # Final: the SDK, which repeats a 409 by itself, is told not to.
    assert refused(anthropic.ConflictError, service.sdk(max_retries=3)).type == "invalid_request_error"


def test_without_an_engine_clients_are_asked_to_wait(start_server: Any) -> None:
    with (
        Anthropic(base_url=start_server().url, auth_token="sk-swarm-x", api_key=None, max_retries=0) as client,
        pytest.raises(anthropic.OverloadedError) as refusal,
    ):
        client.messages.create(**BODY)
    assert (refusal.value.type, refusal.value.response.headers["retry-after"]) == ("overloaded_error", "2")


def test_a_stream_that_breaks_off_raises(service: Service) -> None:
    service.script.say("one two three")
    service.script.fail_after(3)

    with (
        pytest.raises(anthropic.APIStatusError) as failure,
        service.sdk().messages.stream(**BODY) as stream,
    ):
        list(stream)
    assert failure.value.type == "api_error"
    assert ErrorResponse.model_validate(failure.value.body, strict=True)


def test_claude_code_keeps_one_training_sequence(service: Service) -> None:
    """The body is that of version 2.1.197, and a field of the future."""
    service.script.say(CALL, "12 degrees")
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>"}, {"type": "text", "text": "Hello"}]},
        {"role": "system", "content": "Available agent types"},
    ]
    headers = {
        "authorization": f"Bearer {service.episode['api_key']}",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,mid-conversation-system-2026-04-07,not-yet-known-2027-01-01",
        "x-claude-code-session-id": "s",
    }
    for number in range(2):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.100; cch={number}a1b2;"},
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        ]
        body = {
            **{"model": "default", "max_tokens": 32000, "stream": True, "metadata": {"user_id": "u"}},
            **{"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "not_yet_known": {"a": 1}},
            **{"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
            **{"system": system, "messages": messages, "tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}}]},
        }
        reply = service.http.post("/v1/messages?beta=true", headers=headers, json=body)
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-ignored-fields"] == "not_yet_known,system.0,thinking"
        events = [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line[:5] == "data:"]
        call = next(each["content_block"] for each in events if each["type"] == "content_block_start")
        if call["type"] == "tool_use":
            written = next(each["delta"]["partial_json"] for each in events if each["type"] == "content_block_delta")
            # JSON.stringify leaves no spaces, and no fraction of a whole number.
            call["input"] = json.loads(written) | {"days": 2}
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": "12", "is_error": False}
            messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    counted = service.http.post(
        "/v1/messages/count_tokens?beta=true", headers=headers, json={"model": "default", "messages": messages}
    )
    assert counted.json()["input_tokens"] > 0
    assert service.http.head("/api/hello").status_code == 404
    listed = service.http.get("/v1/models?limit=1000", headers=headers)
    assert [each["type"] for each in listed.json()["data"]] == ["model"]
    assert continues_exactly(service.detail())


def test_the_model_is_listed_in_the_shape_its_client_knows(service: Service) -> None:
    client = service.sdk()
    [model] = client.models.list(limit=1000)

    assert ModelInfo.model_validate_json(model.to_json()).id == model.id
    assert client.models.retrieve("default").id == model.id
    with pytest.raises(anthropic.NotFoundError) as refusal:
        client.models.retrieve("claude-opus-4-5")
    assert refusal.value.type == "not_found_error"
    headers = {"authorization": f"Bearer {service.episode['api_key']}"}
    assert service.http.get("/v1/models", headers=headers).json()["object"] == "list"


ASKING: dict[str, dict[str, Any]] = {
    "system": {"system": [{"type": "text", "text": "Be brief."}]},
    "tools": {"tools": [WEATHER]},
    "tool_choice": {"tools": [WEATHER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "thinking": {"thinking": {"type": "disabled"}},
    "output_config": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "high"}},
    "output_format": {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    "stop_sequences": {"stop_sequences": ["zzz"]},
    "stream": {"stream": True},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 5},
}
"""By honoured field: what it takes to ask for it."""


@pytest.mark.parametrize(("route", "table"), [("messages", MESSAGE_FIELDS), ("messages/count_tokens", COUNT_FIELDS)])
def test_every_documented_field_is_honoured_or_refused_by_name(service: Service, route: str, table: Any) -> None:
    minimal = {name: value for name, value in BODY.items() if name in table}
    for name, field_ in table.items():
        match field_.handling:
            case Handling.HONOURED:
                reply = service.post(route, **{**minimal, **ASKING.get(name, {name: minimal.get(name)})})
                assert (reply.status_code, reply.headers.get("x-ignored-fields")) == (200, None), (name, reply.text)
            case Handling.LABEL:
                assert service.post(route, **minimal, **{name: "x"}).status_code == 200, name
            case Handling.EVAL_ONLY:
                refusal = service.post(route, **minimal, **ASKING[name])
                assert (refusal.status_code, name in refusal.json()["error"]["message"]) == (400, True)
            case Handling.NEUTRAL_ONLY:
                refusal = service.post(route, **minimal, **{name: {"asked": "for something"}})
                assert (refusal.status_code, name in refusal.json()["error"]["message"]) == (400, True)
                for neutral in field_.neutral:
                    assert service.post(route, **minimal, **{name: neutral}).status_code == 200, name
    unknown = service.post(route, **minimal, zebra=1, **{"añb": 2})
    assert unknown.headers["x-ignored-fields"] == "a\\xf1b,zebra"
