"""What a POST /v1/chat/completions body asks for, checked field by field.

Place in the flow: the edge, between HTTP and tracker, on the way in; chat_reply.py is the way out. A field falls into
one of four kinds: honoured, refused by name because it cannot be honoured, without effect on sampling, or unknown.
Knows nothing of tokens or episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from swarm.errors import BadRequest, UnknownParameter
from swarm.tracker.conversation import canonical_message
from swarm.types import Message, SamplingParams, ToolSpec

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000
MAX_TOOL_CALLS = 1000
MAX_NAMED_FIELDS = 32
MAX_SHOWN_CHARACTERS = 80

NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "n": (1,),
        "top_logprobs": (0,),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "logit_bias": ({},),
        "parallel_tool_calls": (True,),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "moderation": (),
        "functions": ([],),
        "function_call": ("auto", "none"),
        "min_p": (0,),
        "min_tokens": (0,),
        "repetition_penalty": (1,),
        "ignore_eos": (False,),
        "stop_token_ids": ([],),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "structured_outputs": (),
    }
)
"""Documented fields of OpenAI and vLLM that cannot be honoured, with the values at which they ask for nothing."""

FIELDS_WITHOUT_EFFECT = frozenset(
    {
        "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort",
        "safety_identifier", "service_tier", "store", "user", "verbosity",
    }
)  # fmt: skip
"""Documented fields that address OpenAI's own service or models and change nothing about sampling here."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What applies where a request is silent. `stop_token_ids` is the codec's."""

    temperature: float
    top_p: float
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked request. `ignored_fields` names the body's fields that nobody knows, in printable ASCII."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    tool_choice: Literal["auto", "none"]
    params: SamplingParams
    stream: bool
    include_usage: bool
    logprobs: bool
    return_token_ids: bool
    ignored_fields: tuple[str, ...]

    @property
    def callable_tools(self) -> tuple[ToolSpec, ...]:
        """The tools whose calls are parsed out of the reply: none with tool_choice "none"."""
        return self.tools if self.tool_choice == "auto" else ()


def parse_chat_request(body: Mapping[str, Any], defaults: SamplingDefaults) -> ChatRequest:
    """Raises BadRequest, or UnknownParameter for what cannot be honoured, naming the field in `param`."""
    if not isinstance(cast(object, body), Mapping):
        raise BadRequest("the body must be a JSON object")
    _refuse_unsupported(body)
    try:
        checked = _ChatBody.model_validate(dict(body))
    except ValidationError as error:
        raise _one_line(error) from error
    known = _ChatBody.model_fields.keys() | NEUTRAL_VALUES.keys() | FIELDS_WITHOUT_EFFECT
    options = checked.stream_options
    return ChatRequest(
        model=checked.model,
        messages=tuple(canonical_message(message.model_dump()) for message in checked.messages),
        tools=tuple(checked.tools or ()),
        tool_choice=checked.tool_choice or "auto",
        params=checked.sampling_params(defaults),
        stream=bool(checked.stream),
        include_usage=options is not None and bool(options.include_usage),
        logprobs=bool(checked.logprobs),
        return_token_ids=bool(checked.return_token_ids),
        ignored_fields=_named(body.keys() - known),
    )


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name, neutral in NEUTRAL_VALUES.items():
        value = body.get(name)
        if value is None or any(value == allowed for allowed in neutral):
            continue
        # Without tools there is nothing to call in parallel.
        if name == "parallel_tool_calls" and not body.get("tools"):
            continue
        allowed = f"only {' or '.join(repr(value) for value in neutral)} is" if neutral else "it is not"
        raise UnknownParameter(f"{name} cannot be honoured: {allowed} supported by this server", param=name)


def _named(fields: Iterable[str]) -> tuple[str, ...]:
    """Field names as a response header can carry them, and how many more there are."""
    names = sorted(fields)
    shown = [ascii(name)[1:-1][:MAX_SHOWN_CHARACTERS] for name in names[:MAX_NAMED_FIELDS]]
    return (*shown, f"and {len(names) - MAX_NAMED_FIELDS} more") if len(names) > MAX_NAMED_FIELDS else tuple(shown)


def _shown(value: object) -> str:
    return repr(value)[:MAX_SHOWN_CHARACTERS]


def _joined_text(content: object) -> object:
    """Text parts as one string. Raises naming the first part of another type."""
    if not isinstance(content, list):
        return content
    texts: list[str] = []
    for part in cast("list[object]", content):
        kind: object = cast("dict[str, object]", part).get("type") if isinstance(part, dict) else None
        text: object = cast("dict[str, object]", part).get("text") if isinstance(part, dict) else None
        if kind != "text":
            raise PydanticCustomError(
                "unsupported", "content parts of type {kind} are not supported: send text", {"kind": _shown(kind)}
            )
        if not isinstance(text, str):
            raise PydanticCustomError("text", "a text part needs a string in its field text")
        texts.append(text)
    return "".join(texts)


def _as_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


Content = Annotated[str, BeforeValidator(_joined_text)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStrings = Annotated[list[StopString], BeforeValidator(_as_list), Field(max_length=MAX_STOP_STRINGS)]


class _Strict(BaseModel):
    """A JSON number is never read from a string, nor the other way round; further fields are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Function(_Strict):
    name: str = Field(min_length=1)
    arguments: str


class _ToolCall(_Strict):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Function


class _Message(_Strict):
    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: list[_ToolCall] | None = Field(default=None, max_length=MAX_TOOL_CALLS)
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _content_unless_assistant(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise PydanticCustomError("missing", "a message with the role {role} needs content", {"role": self.role})
        return self


class _StreamOptions(_Strict):
    include_usage: bool | None = None


class _ChatBody(BaseModel):
    """The fields that are honoured; the rest of the body is judged by name."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str = Field(min_length=1)
    messages: list[_Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: StopStrings | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _supported_choice(cls, choice: object) -> object:
        if choice not in (None, "auto", "none"):
            raise PydanticCustomError("unsupported", "only auto and none are supported by this server")
        return choice

    @field_validator("tools")
    @classmethod
    def _functions_only(cls, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        for tool in tools or ():
            if tool.get("type") != "function":
                raise PydanticCustomError(
                    "unsupported",
                    "tools of type {kind} are not supported: use function",
                    {"kind": _shown(tool.get("type"))},
                )
            function: object = tool.get("function")
            name: object = cast("dict[str, object]", function).get("name") if isinstance(function, dict) else None
            if not isinstance(name, str) or not name:
                raise PydanticCustomError("name", "every tool needs a function with a name")
        return tools

    @model_validator(mode="after")
    def _one_token_limit(self) -> Self:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise PydanticCustomError("limits", "max_tokens and max_completion_tokens differ: send one of them")
        return self

    def sampling_params(self, defaults: SamplingDefaults) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_completion_tokens or self.max_tokens or defaults.max_tokens,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            # vLLM's clients say -1 for off.
            top_k=max(self.top_k or 0, 0),
            seed=self.seed,
            stop=tuple(self.stop or ()),
            stop_token_ids=defaults.stop_token_ids,
        )


_RANGE_ERRORS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"})


def _one_line(error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False)[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    refused = first["type"] == "unsupported" or first["type"] in _RANGE_ERRORS
    got = f" (got {_shown(first['input'])})" if first["type"] in _RANGE_ERRORS else ""
    message = f"{param}: {first['msg']}{got}" if param else first["msg"]
    return (UnknownParameter if refused else BadRequest)(message, param=param)
