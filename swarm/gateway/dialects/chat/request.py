"""The request body of POST /v1/chat/completions, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from swarm.gateway.dialects.fields import (
    ANY_MODEL,
    MAX_TOP_LOGPROBS,
    UNTRAINED_SAMPLING,
    AllowedMode,
    CheckedCall,
    CompletionsBody,
    FieldTable,
    Strict,
    checked_body,
    honoured,
    joined_text,
    labels,
    never,
    refused,
    shown,
    unknown_fields,
    unsupported,
)
from swarm.rollout.model_request import Conversation, ModelRequest, SamplingDefaults
from swarm.tracker.conversation import canonical_message
from swarm.types import ToolChoice, ToolMode

MAX_TOOL_CALLS = 1000
MAX_MESSAGES = 100_000
MAX_TOOLS = 1000

CHAT_FIELDS: FieldTable = MappingProxyType(
    honoured("model", note=ANY_MODEL)
    | honoured("messages", "stream", "temperature", "seed", "stop", "logprobs", "top_logprobs")
    | honoured("max_completion_tokens", note="the job's `max_response_length` by default")
    | honoured("max_tokens", note="the older name of `max_completion_tokens`")
    | honoured("n", note="each choice is a turn of its own")
    | honoured("stream_options", note="`include_usage`")
    | honoured("tools", note="of type `function`")
    | honoured("tool_choice", note="a grammar enforces `required`, one function, or `allowed_tools` in mode `required`")
    | honoured("parallel_tool_calls")
    | honoured("response_format", note="a grammar always enforces `json_object` and `json_schema`")
    | honoured("reasoning_effort", note="where the model's chat template reads it; refused by name elsewhere")
    | honoured("return_token_ids", "stop_token_ids", "ignore_eos", "structured_outputs", note="as in vLLM")
    | honoured("chat_template_kwargs", note="as in vLLM; an option that the template does not read is refused")
    | UNTRAINED_SAMPLING
    | labels("metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
    | labels("safety_identifier", "store", "user")
    | refused("service_tier", "auto", "default")
    | refused("verbosity", "medium")
    | refused("modalities", ["text"])
    | refused("functions", [], note="send `tools`")
    | refused("function_call", "auto", "none", note="send `tool_choice`")
    | refused("add_generation_prompt", True)
    | refused("continue_final_message", False)
    | refused("echo", False)
    | never("audio", "web_search_options", "moderation", "chat_template")
)
"""Every documented field of OpenAI's chat completions, and those of vLLM's that clients send."""


def parse_chat_request(body: Mapping[str, Any], defaults: SamplingDefaults) -> CheckedCall[ChatBody]:
    """Return the checked request of a body.

    Raises BadRequest, or UnknownParameter for a field that cannot be honoured. Both name the field in `param`.
    """
    checked = checked_body(ChatBody, body, CHAT_FIELDS)
    return CheckedCall(checked, checked.call(defaults), unknown_fields(body, CHAT_FIELDS))


class _TextPart(Strict):
    type: Literal["text"]
    text: str


Content = Annotated[str, BeforeValidator(joined_text("text"), json_schema_input_type=str | list[_TextPart])]


class _Function(Strict):
    name: str = Field(min_length=1)
    arguments: str


class _ToolCall(Strict):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Function


class _Message(Strict):
    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: list[_ToolCall] | None = Field(default=None, max_length=MAX_TOOL_CALLS)
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @model_validator(mode="after")
    def _content_unless_assistant(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise PydanticCustomError("missing", "a message with the role {role} needs content", {"role": self.role})
        return self


class _Named(Strict):
    name: str = Field(min_length=1)


class _ToolReference(Strict):
    type: Literal["function"]
    function: _Named


class _AllowedTools(Strict):
    mode: AllowedMode
    tools: list[_ToolReference] = Field(min_length=1)


class _AllowedChoice(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: _AllowedTools


class ChatBody(CompletionsBody):
    """The honoured fields of the body. `CHAT_FIELDS` handles the others."""

    messages: list[_Message] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=MAX_TOOLS, fail_fast=True)
    tool_choice: Literal["auto", "none", "required"] | _ToolReference | _AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = Field(default=None, max_length=32)
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, max_length=32)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)

    @field_validator("tools")
    @classmethod
    def _functions_only(cls, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        for tool in tools or ():
            if tool.get("type") != "function":
                raise unsupported("tools of type {kind} are not supported: use function", kind=shown(tool.get("type")))
            function: object = tool.get("function")
            name: object = cast("dict[str, object]", function).get("name") if isinstance(function, dict) else None
            if not isinstance(name, str) or not name:
                raise PydanticCustomError("name", "every tool needs a function with a name")
        return tools

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise PydanticCustomError("limits", "max_tokens and max_completion_tokens differ: send one of them")
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("logprobs", "top_logprobs needs logprobs: true")
        return self

    def call(self, defaults: SamplingDefaults) -> ModelRequest:
        options = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            options["reasoning_effort"] = self.reasoning_effort
        conversation = Conversation(
            tuple(canonical_message(message.model_dump()) for message in self.messages),
            tuple(self.tools or ()),
            options,
        )
        params = self.sampling_params(
            defaults,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            grammar=self.format_grammar,
            top_logprobs=self.top_logprobs or 0,
        )
        return ModelRequest(self.model, (conversation,), params, self._tool_choice(), self.n or 1)

    def _tool_choice(self) -> ToolChoice:
        parallel = self.parallel_tool_calls is not False
        match self.tool_choice:
            case _ToolReference() as named:
                return ToolChoice(ToolMode.REQUIRED, (named.function.name,), parallel=False)
            case _AllowedChoice() as allowed:
                names = tuple(tool.function.name for tool in allowed.allowed_tools.tools)
                return ToolChoice(ToolMode.REQUIRED, names, parallel)
            case mode:
                return ToolChoice(ToolMode(mode or "auto"), (), parallel)
