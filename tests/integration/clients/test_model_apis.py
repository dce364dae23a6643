"""The libraries of OpenAI and Anthropic against a running server: what holds for each API of model calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import httpx
import pytest
from integration.clients.stage import Observed, Stage, open_stage
from pydantic import BaseModel, ConfigDict

from swarm.job import TrainJob

pytestmark = pytest.mark.timeout(400)

LIMIT_S = 20
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
CALL_RED = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>'
CALL_GREEN = '<tool_call>\n{"name": "paint", "arguments": {"colour": "green"}}\n</tool_call>'


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "green"]
    is_sure: bool


@dataclass(frozen=True)
class Said:
    """A reply. `back` is what goes on the history, `calls` are the tool calls by id, `tokens` those of the usage."""

    text: str
    calls: dict[str, Any]
    back: list[Any]
    model: str
    tokens: tuple[int, int]


def user(text: str) -> Any:
    return {"role": "user", "content": text}


class ChatApi:
    """OpenAI's chat completions."""

    ROUTE = "chat/completions"
    UNTRAINED: ClassVar[Any] = {"top_p": 0.5}
    TOOL: ClassVar[Any] = {
        "type": "function",
        "function": {"name": "paint", "description": "Paint a wall", "parameters": SCHEMA},
    }
    FORCED: ClassVar[Any] = ["required", {"type": "function", "function": {"name": "paint"}}]

    def __init__(self, **options: Any) -> None:
        import openai

        self.client: Any = openai.OpenAI(timeout=LIMIT_S, **options)

    @classmethod
    def of(cls, episode: Observed) -> ChatApi:
        return cls(base_url=cls.base(episode.base_url), api_key=episode.api_key)

    @classmethod
    def base(cls, url: str) -> str:
        return url

    def __enter__(self) -> ChatApi:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    @property
    def calls(self) -> Any:
        return self.client.chat.completions

    def asked(self, history: list[Any], fields: dict[str, Any]) -> dict[str, Any]:
        return {"model": "default", "messages": history, **fields}

    def ask(self, history: list[Any], **fields: Any) -> Said:
        return self.said(self.calls.create(**self.asked(history, fields)))

    def ask_streamed(self, history: list[Any], **fields: Any) -> Said:
        with self.calls.stream(**self.asked(history, fields)) as stream:
            return self.said(self.final(stream))

    def final(self, stream: Any) -> Any:
        return stream.get_final_completion()

    def parse(self, history: list[Any]) -> tuple[Any, Said]:
        reply = self.calls.parse(**self.asked(history, {"response_format": Verdict}))
        return reply.choices[0].message.parsed, self.said(reply)

    def results(self, calls: dict[str, Any]) -> list[Any]:
        return [{"role": "tool", "tool_call_id": call, "content": "done"} for call in calls]

    def said(self, reply: Any) -> Said:
        message = reply.choices[0].message
        calls = {call.id: json.loads(call.function.arguments) for call in message.tool_calls or []}
        usage = (reply.usage.prompt_tokens, reply.usage.completion_tokens) if reply.usage else (0, 0)
        back = [message.model_dump(exclude_none=True, exclude={"parsed"})]
        return Said(message.content or "", calls, back, reply.model, usage)


class ResponsesApi(ChatApi):
    """OpenAI's responses."""

    ROUTE = "responses"
    TOOL: ClassVar[Any] = {
        "type": "function",
        "name": "paint",
        "description": "Paint a wall",
        "strict": True,
        "parameters": SCHEMA,
    }
    FORCED: ClassVar[Any] = ["required", {"type": "function", "name": "paint"}]

    @property
    def calls(self) -> Any:
        return self.client.responses

    def asked(self, history: list[Any], fields: dict[str, Any]) -> dict[str, Any]:
        return {"model": "default", "input": history, **fields}

    def final(self, stream: Any) -> Any:
        return stream.get_final_response()

    def parse(self, history: list[Any]) -> tuple[Any, Said]:
        response = self.calls.parse(**self.asked(history, {"text_format": Verdict}))
        return response.output_parsed, self.said(response)

    def results(self, calls: dict[str, Any]) -> list[Any]:
        return [{"type": "function_call_output", "call_id": call, "output": "done"} for call in calls]

    def said(self, reply: Any) -> Said:
        calls = {item.call_id: json.loads(item.arguments) for item in reply.output if item.type == "function_call"}
        back = [item.model_dump(exclude={"parsed_arguments", "status"}, exclude_none=True) for item in reply.output]
        usage = (reply.usage.input_tokens, reply.usage.output_tokens)
        return Said(reply.output_text, calls, back, reply.model, usage)


class MessagesApi(ChatApi):
    """Anthropic's messages."""

    ROUTE = "messages"
    UNTRAINED: ClassVar[Any] = {"extra_body": {"top_k": 5}}
    TOOL: ClassVar[Any] = {"name": "paint", "description": "Paint a wall", "input_schema": SCHEMA}
    FORCED: ClassVar[Any] = [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "paint"}]

    def __init__(self, **options: Any) -> None:
        import anthropic

        self.client: Any = anthropic.Anthropic(timeout=LIMIT_S, **options)

    @classmethod
    def base(cls, url: str) -> str:
        return url.removesuffix("/v1")

    @property
    def calls(self) -> Any:
        return self.client.messages

    def asked(self, history: list[Any], fields: dict[str, Any]) -> dict[str, Any]:
        return {"model": "default", "max_tokens": 400, "messages": history, **fields}

    def final(self, stream: Any) -> Any:
        return stream.get_final_message()

    def parse(self, history: list[Any]) -> tuple[Any, Said]:
        message = self.calls.parse(**self.asked(history, {"output_format": Verdict}))
        return message.parsed_output, self.said(message)

    def results(self, calls: dict[str, Any]) -> list[Any]:
        results = [{"type": "tool_result", "tool_use_id": call, "content": "done"} for call in calls]
        return [{"role": "user", "content": results}]

    def said(self, reply: Any) -> Said:
        text = "".join(block.text for block in reply.content if block.type == "text")
        calls = {block.id: block.input for block in reply.content if block.type == "tool_use"}
        back = [{"role": "assistant", "content": reply.content}]
        return Said(text, calls, back, reply.model, (reply.usage.input_tokens, reply.usage.output_tokens))


APIS = (ChatApi, ResponsesApi, MessagesApi)
Api = type[ChatApi]
each_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.ROUTE)


def way_of(client: ChatApi, is_streamed: bool) -> Callable[..., Said]:
    return client.ask_streamed if is_streamed else client.ask


@each_api
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_conversation_is_recorded_as_one_line_of_tokens(nano: Stage, api: Api, is_streamed: bool) -> None:
    with nano.episode() as episode, api.of(episode) as own:
        ask = way_of(own, is_streamed)
        first = ask([user("Reverse: ABC")], **({} if is_streamed else {"extra_body": {"temperature": 0}}))
        second = ask([user("Reverse: ABC"), *first.back, user("Reverse: XY")])
    assert episode.parents == [None, 0]
    assert [first.text, second.text] == [reply["content"] for reply in episode.replies]
    for said, turn in zip((first, second), episode.turns, strict=True):
        assert said.model == "nano"
        assert said.tokens in {(0, 0), (len(turn.prompt_ids), len(turn.output_ids))}
        assert is_streamed or said.tokens != (0, 0)


@each_api
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_agent_calls_tools_and_goes_on_with_what_they_said(scripted: Stage, api: Api, is_streamed: bool) -> None:
    scripted.say(f"Let me see.\n{CALL_RED}\n{CALL_GREEN}", "Both are painted.")
    with scripted.episode() as episode, api.of(episode) as own:
        history = [user("Paint both walls.")]
        first = way_of(own, is_streamed)(history, tools=[api.TOOL])
        last = own.ask([*history, *first.back, *own.results(first.calls)], tools=[api.TOOL])
    assert list(first.calls.values()) == [{"colour": "red"}, {"colour": "green"}]
    assert (first.text, last.text) == ("Let me see.", "Both are painted.")
    assert (episode.parents, episode.samples) == ([None, 0], 1)


@each_api
@pytest.mark.parametrize("number", [0, 1], ids=["any", "named"])
def test_a_model_that_must_call_a_tool_calls_it(nano: Stage, api: Api, number: int) -> None:
    with nano.episode() as episode, api.of(episode) as own:
        parallel = {} if api is MessagesApi else {"parallel_tool_calls": False}
        said = own.ask([user("Which colour?")], tools=[api.TOOL], tool_choice=api.FORCED[number], **parallel)
    [given] = said.calls.values()
    assert given["colour"] in {"red", "green"}
    assert [call["function"]["name"] for call in episode.replies[0]["tool_calls"]] == ["paint"]


@each_api
def test_parse_returns_the_object_that_the_grammar_allowed(nano: Stage, api: Api) -> None:
    with nano.episode() as episode, api.of(episode) as own:
        verdict, _ = own.parse([user("Which colour?")])
    assert verdict == Verdict.model_validate_json(episode.replies[0]["content"])


@each_api
def test_a_refused_field_raises_the_library_s_own_error_and_leaves_no_turn(nano: Stage, api: Api) -> None:
    import anthropic
    import openai

    with nano.episode() as episode, api.of(episode) as own:
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match=r"top_[pk]"):
            own.ask([user("Hello")], **api.UNTRAINED)
        own.ask([user("Hello")])
    assert len(episode.turns) == 1


@each_api
def test_a_field_that_nobody_knows_and_a_model_that_is_not_there_are_named(nano: Stage, api: Api) -> None:
    with nano.episode(ignored=frozenset({"flux", "model"})) as episode, api.of(episode) as own:
        said = own.ask([user("Reverse: AB")], model="gpt-4o", extra_body={"flux": 1})
        assert own.ask_streamed([user("Reverse: AB")], model="any").model == "nano"
    assert (said.text, said.model) == (episode.replies[0]["content"], "nano")


@each_api
def test_the_environment_of_an_episode_is_all_that_a_client_needs(
    nano: Stage, monkeypatch: pytest.MonkeyPatch, api: Api
) -> None:
    with nano.episode() as episode:
        for name, value in episode.credentials.env().items():
            monkeypatch.setenv(name, value)
        with api() as own:
            said = own.ask([user("Reverse: AB")])
    assert said.text == episode.replies[0]["content"]


@each_api
def test_an_episode_that_is_named_by_its_path_needs_no_key(nano: Stage, api: Api) -> None:
    with nano.episode() as episode, api(base_url=api.base(episode.credentials.path_base_url), api_key="none") as own:
        own.ask([user("Hello")])
    assert len(episode.turns) == 1


@pytest.mark.parametrize("api", [ChatApi, MessagesApi], ids=lambda api: api.ROUTE)
def test_who_asks_about_a_model_is_told_the_truth(nano: Stage, api: Api) -> None:
    import anthropic
    import openai

    with nano.episode() as episode, api.of(episode) as own:
        assert [model.id for model in own.client.models.list()] == [own.client.models.retrieve("nano").id] == ["nano"]
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError), match="serves 'nano'"):
            own.client.models.retrieve("gpt-4o")
        own.ask([user("Hello")])


@each_api
def test_a_repeated_attempt_gets_the_same_reply(scripted: Stage, api: Api) -> None:
    body = {"model": "default", "max_tokens": 64, "messages": [user("Hello")]}
    if api is ResponsesApi:
        body = {"model": "default", "input": "Hello"}

    def attempt(number: int) -> Any:
        headers = {"authorization": f"Bearer {episode.api_key}", "x-stainless-retry-count": str(number)}
        return httpx.post(f"{episode.base_url}/{api.ROUTE}", json=body, headers=headers, timeout=LIMIT_S).json()

    scripted.say("12")
    with scripted.episode(is_smooth=False) as episode:
        assert attempt(0) == attempt(1)
    assert [reply["content"] for reply in episode.replies] == ["12"]


@each_api
def test_a_stream_that_breaks_off_raises(tmp_path: Path, api: Api) -> None:
    import anthropic
    import openai

    with open_stage(tmp_path, TrainJob(engine="fake")) as stage:
        stage.say("one two three four")
        stage.fail_after(3)
        with api.of(stage.begin()) as own, pytest.raises((openai.APIError, anthropic.APIError), match="fake fault"):
            own.ask_streamed([user("Hello")])


def test_several_choices_are_several_turns(nano: Stage) -> None:
    with nano.episode() as episode, ChatApi.of(episode) as own:
        reply = own.calls.create(model="default", messages=[user("Reverse: ABC")], n=3, seed=5)
    assert [choice.message.content for choice in reply.choices] == [each["content"] for each in episode.replies]
    assert {turn.call_id for turn in episode.turns} == {reply.id.removeprefix("chatcmpl-")}


def test_tools_made_of_models_are_parsed_back_into_them(scripted: Stage) -> None:
    import openai

    class Weather(BaseModel):
        city: str

    scripted.say('<tool_call>\n{"name": "Weather", "arguments": {"city": "Zürich"}}\n</tool_call>')
    with scripted.episode() as episode, ChatApi.of(episode) as own:
        reply = own.calls.parse(
            model="default", messages=[user("Weather?")], tools=[openai.pydantic_function_tool(Weather)]
        )
    [call] = reply.choices[0].message.tool_calls
    assert call.function.parsed_arguments == Weather(city="Zürich")
    assert episode.turns[0].tools[0]["function"]["strict"] is True
