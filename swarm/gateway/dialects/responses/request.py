"""The request body of POST /v1/responses, checked field by field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from swarm.errors import BadRequest, UnknownParameter
from swarm.gateway.dialects.fields import (
    ANY_MODEL,
    MAX_TOP_LOGPROBS,
    UNTRAINED_SAMPLING,
    AllowedMode,
    CheckedCall,
    FieldTable,
    SamplingBody,
    Strict,
    checked_body,
    honoured,
    json_object_grammar,
    json_schema_grammar,
    labels,
    never,
    only,
    refused,
    shown,
    type_of,
    unknown_fields,
    unsupported,
)
from swarm.gateway.dialects.responses.items import ITEM_TYPES, MAX_ITEMS, InputItem, RecordedResponses, chat_messages
from swarm.gateway.dialects.responses.tools import (
    HOSTED_TYPES,
    TOOL_TYPES,
    ClientCallForm,
    OfferedTools,
    Tool,
)
from swarm.rollout.model_request import Conversation, ModelRequest, SamplingDefaults
from swarm.types import Grammar, Message, ToolChoice, ToolMode

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
EFFORT = "reasoning_effort"
"""The option of chat templates for the effort of reasoning."""

RESPONSE_FIELDS: FieldTable = MappingProxyType(
    honoured("input", note="text, or items: messages of text, tool calls and their outputs, reasoning, references")
    | honoured("model", note=ANY_MODEL)
    | honoured("instructions", "stream", "temperature", "parallel_tool_calls")
    | honoured("max_output_tokens", note="the job's `max_response_length` by default")
    | honoured("previous_response_id", note="of a stored response of the same episode")
    | honoured("store", note="a response that is not stored cannot be referred to; its turn is on record")
    | honoured("tools", note="of type `function`, `custom` or `namespace`; hosted tools are named as ignored")
    | honoured("tool_choice", note="a grammar enforces `required`, one tool, or `allowed_tools` in mode `required`")
    | honoured("text", note="a grammar always enforces `format`; `verbosity` only `medium`")
    | honoured(
        "reasoning", note="`effort` where the model's chat template reads it; `summary` only `auto`: none is made"
    )
    | honoured("include", note="other values than logprobs and encrypted reasoning concern items that never occur")
    | honoured("top_logprobs", note=f"with `include` of `{LOGPROBS}`")
    | honoured("stream_options", note="`include_obfuscation` only false")
    | honoured("seed", "stop", "stop_token_ids", "ignore_eos", "structured_outputs", note="as in vLLM")
    | honoured("chat_template_kwargs", note="as in vLLM; an option that the template does not read is refused")
    | UNTRAINED_SAMPLING
    | labels("metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
    | labels("safety_identifier", "user", "max_tool_calls")
    | refused("service_tier", "auto", "default")
    | refused("truncation", "disabled")
    | refused("background", False)
    | refused("context_management", [])
    | refused("conversation", note="send `previous_response_id`")
    | never("background_options", "prompt", "moderation", "access_programs", "image")
)
"""Every documented field of OpenAI's responses, and those of vLLM's that clients send."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The parts of a response besides the reply. `settings` are those of the request, in the response's shape.

    `forms` has the form of a tool's calls by the name that the model calls it by.
    """

    settings: Mapping[str, Any]
    logprobs: bool = False
    encrypted_reasoning: bool = False
    forms: Mapping[str, ClientCallForm] = field(default_factory=dict[str, ClientCallForm])

    @property
    def has_instructions(self) -> bool:
        return self.settings["instructions"] is not None

    @property
    def is_stored(self) -> bool:
        return self.settings["store"]


@dataclass(frozen=True, slots=True)
class ResponseRequest(CheckedCall["ResponseBody"]):
    """A checked request, with what its response shows besides the reply."""

    shown: Shown


def parse_response_request(
    body: Mapping[str, Any],
    defaults: SamplingDefaults,
    recorded: RecordedResponses,
    reads_option: Callable[[str], bool],
) -> ResponseRequest:
    """Return the checked request of a body.

    `recorded` are the episode's responses so far. `reads_option` returns whether the chat template reads an option.
    Raises BadRequest, or UnknownParameter for a field that cannot be honoured. Both name the field in `param`.
    """
    try:
        checked = checked_body(ResponseBody, body, RESPONSE_FIELDS)
    except BadRequest as error:
        raise _named_as_sent(error) from error
    if checked.effort is not None and not reads_option(EFFORT):
        raise UnknownParameter(
            "reasoning.effort: leave it out, as the model's chat template does not read it", param="reasoning.effort"
        )
    tools = OfferedTools.of(checked.tools or ())
    call = checked.call(defaults, recorded, tools)
    include = checked.include or ()
    shown = Shown(checked.settings(call, tools), LOGPROBS in include, ENCRYPTED_REASONING in include, tools.forms)
    return ResponseRequest(checked, call, unknown_fields(body, RESPONSE_FIELDS, tools.ignored), shown)


def _named_as_sent(error: BadRequest) -> BadRequest:
    """Return the error with the field's path as the client sent it. Pydantic adds the types of items and choices."""
    param = error.param or ""
    sent = _ADDED.sub(r"\1", param)
    return type(error)(error.message.replace(param, sent, 1), param=sent or None)


_ADDED = re.compile(
    rf"((?:^input|\btools)\.\d+|^tool_choice)"
    rf"\.(?:mode|tool|allowed_tools|{'|'.join((*ITEM_TYPES, *TOOL_TYPES))})(?=\.|$)"
)


class _Format(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _schema_if_named(self) -> Self:
        if self.type == "json_schema" and (self.schema_ is None or self.name is None):
            raise PydanticCustomError("missing", "type json_schema needs the fields name and schema")
        return self

    def grammar(self) -> Grammar | None:
        if self.type == "json_schema" and self.schema_ is not None:
            return json_schema_grammar(self.schema_)
        return json_object_grammar() if self.type == "json_object" else None


class _TextSettings(Strict):
    format: _Format | None = None
    verbosity: Annotated[str | None, only("medium")] = None


class _ReasoningSettings(Strict):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Annotated[str | None, only("auto")] = None
    generate_summary: Annotated[str | None, only("auto")] = None
    context: Annotated[str | None, only("auto")] = None
    mode: Annotated[str | None, only("standard")] = None


class _StreamOptions(Strict):
    include_obfuscation: Annotated[bool | None, only(False)] = None


class _ToolReference(Strict):
    type: Literal["function", "custom"]
    name: str = Field(min_length=1)


class _AllowedTools(Strict):
    type: Literal["allowed_tools"]
    mode: AllowedMode
    tools: list[_ToolReference] = Field(min_length=1)


_CHOICE_TYPES = ("function", "custom", "allowed_tools")


def _known_choice(choice: object) -> object:
    kind = type_of(choice)
    if kind in HOSTED_TYPES:
        raise unsupported("nothing here carries out a tool of type {kind}: choose another one", kind=shown(kind))
    if kind is not None and kind not in _CHOICE_TYPES:
        raise unsupported("a choice of type {kind} is not supported: use function or custom", kind=shown(kind))
    return choice


def _choice_kind(choice: object) -> str:
    """Return the type of a tool choice, whether it is JSON or already a model. A plain string is a mode."""
    kind = type_of(choice) or getattr(choice, "type", None)
    if not isinstance(kind, str):
        return "mode"
    return kind if kind == "allowed_tools" else "tool"


Choice = Annotated[
    Annotated[
        Annotated[Literal["none", "auto", "required"], Tag("mode")]
        | Annotated[_ToolReference, Tag("tool")]
        | Annotated[_AllowedTools, Tag("allowed_tools")],
        Discriminator(_choice_kind),
    ],
    BeforeValidator(_known_choice),
]


Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


def _as_items(given: object) -> object:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


_Items = Annotated[list[InputItem], Field(max_length=MAX_ITEMS)]


class ResponseBody(SamplingBody):
    """The fields that are honoured or shown in the response. `RESPONSE_FIELDS` handles the others."""

    input: Annotated[_Items, BeforeValidator(_as_items, json_schema_input_type=str | _Items)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, max_length=256)
    store: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: _TextSettings | None = None
    reasoning: _ReasoningSettings | None = None
    include: list[Include] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, max_length=32)
    max_output_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    stream_options: _StreamOptions | None = None
    metadata: dict[str, str] | None = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _logprobs_if_top(self) -> Self:
        if self.top_logprobs and LOGPROBS not in (self.include or ()):
            raise PydanticCustomError("logprobs", "top_logprobs needs include: ['message.output_text.logprobs']")
        return self

    @property
    def effort(self) -> str | None:
        return self.reasoning.effort if self.reasoning else None

    def call(self, defaults: SamplingDefaults, recorded: RecordedResponses, tools: OfferedTools) -> ModelRequest:
        messages: list[Message] = (
            [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        )
        if self.previous_response_id is not None:
            messages += recorded.conversation(self.previous_response_id)
        messages += chat_messages(self.input or (), recorded)
        if not messages:
            raise BadRequest("input: Field required", param="input")
        options = dict(self.chat_template_kwargs or {})
        if self.effort is not None:
            options[EFFORT] = self.effort
        conversation = Conversation(tuple(messages), tools.specs, options)
        params = self.sampling_params(
            defaults,
            max_tokens=self.max_output_tokens,
            grammar=self.text.format.grammar() if self.text and self.text.format else None,
            top_logprobs=self.top_logprobs or 0,
        )
        return ModelRequest(self.model, (conversation,), params, self._tool_choice())

    def _tool_choice(self) -> ToolChoice:
        parallel = self.parallel_tool_calls is not False
        match self.tool_choice:
            case _ToolReference(name=name):
                return ToolChoice(ToolMode.REQUIRED, (name,), parallel=False)
            case _AllowedTools(tools=tools):
                return ToolChoice(ToolMode.REQUIRED, tuple(tool.name for tool in tools), parallel)
            case mode:
                return ToolChoice(ToolMode(mode or "auto"), (), parallel)

    def settings(self, call: ModelRequest, tools: OfferedTools) -> dict[str, Any]:
        own = {"instructions", "previous_response_id", "max_output_tokens", "max_tool_calls"}
        own |= {"prompt_cache_key", "safety_identifier", "user"}
        choice = self.tool_choice or "auto"
        wanted = (self.text.format if self.text else None) or _Format(type="text")
        return {
            "background": False,
            "service_tier": "default",
            "truncation": "disabled",
            "temperature": call.params.temperature,
            "top_p": call.params.top_p,
            **self.model_dump(include=own),
            "metadata": self.metadata or {},
            "parallel_tool_calls": call.tool_choice.parallel,
            "reasoning": {"effort": self.effort, "summary": self.reasoning.summary if self.reasoning else None},
            "store": self.store is not False,
            "text": {"format": wanted.model_dump(by_alias=True, exclude_none=True), "verbosity": "medium"},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": list(tools.shown),
            "top_logprobs": self.top_logprobs or 0,
        }
