"""The request bodies of POST /v1/messages and POST /v1/messages/count_tokens, checked field by field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from swarm.errors import UnknownParameter
from swarm.gateway.dialects.anthropic.messages import (
    MAX_MESSAGES,
    MessageBody,
    RecordedReplies,
    TextBlocks,
    chat_messages,
    declared_defaults,
    has_redacted_thinking,
    system_messages,
)
from swarm.gateway.dialects.fields import (
    ANY_MODEL,
    AskedTemperature,
    CheckedCall,
    FieldTable,
    Number,
    StopStrings,
    Strict,
    StrictBody,
    checked_body,
    eval_only,
    honoured,
    json_schema_grammar,
    labels,
    never,
    refused,
    shown,
    unknown_fields,
    unsupported,
)
from swarm.rollout.model_request import Conversation, ModelRequest, SamplingDefaults
from swarm.types import Grammar, SamplingParams, ToolChoice, ToolMode, ToolSpec

MIN_THINKING_TOKENS = 1024
THINKING_OPTION = "enable_thinking"
EFFORT_OPTION = "reasoning_effort"
"""The options of chat templates that `thinking` and `output_config.effort` set."""

_PROMPT_FIELDS: FieldTable = MappingProxyType(
    honoured("model", note=ANY_MODEL)
    | honoured("messages", note="blocks of type text, tool_use, tool_result, thinking and redacted_thinking")
    | honoured("system", note="blocks are joined in order; Claude Code's attribution is left out and named as ignored")
    | honoured("tools", note="`custom`; `strict` where `tool_choice` forces a call; hosted ones are named as ignored")
    | honoured("tool_choice", note="a grammar enforces `any` and `tool`")
    | honoured("thinking", note="if the chat template has a switch for it; otherwise `enabled` is refused by name")
    | honoured("output_config", note="a grammar enforces `format`; `effort` if the chat template reads it")
    | honoured("output_format", note="the older name of `output_config.format`")
    | labels("cache_control", "user_profile_id", "workspace_id", "betas")
    | refused("speed", "standard")
    | refused("context_management", {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
    | refused("mcp_servers", [])
    | never("compaction", "billing_policy")
)
"""The fields that both routes document."""

COUNT_FIELDS: FieldTable = _PROMPT_FIELDS
"""Every documented field of Anthropic's token counting, betas included."""

MESSAGE_FIELDS: FieldTable = MappingProxyType(
    {**_PROMPT_FIELDS}
    | honoured("max_tokens", "stop_sequences", "stream")
    | honoured("temperature", note="the job's by default")
    | eval_only("top_p", "top_k")
    | labels("metadata", "diagnostics")
    | refused("service_tier", "auto", "standard_only")
    | refused("inference_geo", "global")
    | refused("fallbacks", [])
    | never("container", "fallback_credit_token", "thread")
)
"""Every documented field of Anthropic's messages, betas and those of earlier versions included."""


Switches = Callable[[str], bool]
"""Returns whether the model's chat template reads an option of this name."""


def parse_message_request(
    body: Mapping[str, Any], defaults: SamplingDefaults, replies: RecordedReplies, switches: Switches
) -> CheckedCall[MessagesBody]:
    """Return the checked request of a messages body. `replies` are those of the episode so far.

    Raises BadRequest, or UnknownParameter for a field that cannot be honoured. Both name the field in `param`.
    """
    checked = checked_body(MessagesBody, body, MESSAGE_FIELDS)
    conversation, ignored = checked.conversation(replies, switches)
    call = ModelRequest(checked.model, (conversation,), checked.sampling(defaults), checked.choice())
    return CheckedCall(checked, call, unknown_fields(body, MESSAGE_FIELDS, ignored))


@dataclass(frozen=True, slots=True)
class CountRequest:
    """A prompt whose tokens are to be counted."""

    model: str
    conversation: Conversation
    ignored_fields: tuple[str, ...]


def parse_count_request(body: Mapping[str, Any], replies: RecordedReplies, switches: Switches) -> CountRequest:
    """Return the checked request of a count_tokens body. `replies` are those of the episode so far.

    Raises BadRequest, or UnknownParameter for a field that cannot be honoured. Both name the field in `param`.
    """
    checked = checked_body(PromptBody, body, COUNT_FIELDS)
    conversation, ignored = checked.conversation(replies, switches)
    return CountRequest(checked.model, conversation, unknown_fields(body, COUNT_FIELDS, ignored))


class _Thinking(Strict):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(default=None, ge=MIN_THINKING_TOKENS, lt=2**31)
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _with_budget(self) -> Self:
        if self.type == "enabled" and self.budget_tokens is None:
            raise PydanticCustomError("missing", "thinking of type enabled needs budget_tokens")
        return self


class _Format(Strict):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class _OutputConfig(Strict):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: _Format | None = None
    task_budget: object = None

    @field_validator("task_budget")
    @classmethod
    def _no_budget(cls, budget: object) -> object:
        if budget is not None:
            raise unsupported("a task budget cannot be honoured: leave it out")
        return budget


_HOSTED = re.compile(r"(web_search|web_fetch|code_execution|tool_search_tool_(regex|bm25)|computer)(_[0-9]{8})?")
"""Types of tools that Anthropic carries out, or that only its models are trained for."""


def _known_tool(tool: object) -> object:
    """Return a tool of the client as it is, and of a hosted tool its type and name alone."""
    fields = cast("dict[str, object]", tool) if isinstance(tool, dict) else {}
    kind = fields.get("type")
    if isinstance(kind, str) and _HOSTED.fullmatch(kind):
        return {"type": kind, "name": fields.get("name", kind), "input_schema": {}}
    if kind is not None and kind != "custom":
        raise unsupported("tools of type {kind} are not supported: send custom tools", kind=shown(kind))
    return cast(object, tool)


class _Tool(Strict):
    type: str | None = None
    name: str = Field(min_length=1)
    input_schema: dict[str, Any]
    description: str | None = None
    input_examples: list[dict[str, Any]] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None

    @property
    def is_hosted(self) -> bool:
        return self.type not in {None, "custom"}

    @field_validator("defer_loading", "allowed_callers")
    @classmethod
    def _direct(cls, asked: object) -> object:
        if asked and asked != ["direct"]:
            raise unsupported("this server has no tool that could load or call another one: leave it out")
        return asked

    def spec(self) -> ToolSpec:
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.input_schema
        if self.input_examples:
            function["input_examples"] = self.input_examples
        return {"type": "function", "function": function}

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults that the schema declares for parameters."""
        return declared_defaults(self.input_schema)


class _ToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.type == "tool" and not self.name:
            raise PydanticCustomError("missing", "tool_choice of type tool needs a name")
        return self

    @property
    def is_forced(self) -> bool:
        return self.type in {"any", "tool"}


class PromptBody(StrictBody):
    """The honoured fields of which a prompt is made. The field table handles the others."""

    model: str = Field(min_length=1)
    messages: list[MessageBody] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: TextBlocks | None = None
    tools: list[Annotated[_Tool, BeforeValidator(_known_tool)]] | None = None
    tool_choice: _ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: _Format | None = None

    @field_validator("messages")
    @classmethod
    def _no_prefill(cls, messages: list[MessageBody]) -> list[MessageBody]:
        if messages[-1].role == "assistant":
            raise unsupported(
                "this server does not support assistant message prefill: the conversation must end with a user message"
            )
        return messages

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = {tool.name for tool in self._offered}
        forced = self.tool_choice if self.tool_choice is not None and self.tool_choice.is_forced else None
        if forced is not None and forced.name in {tool.name for tool in self.tools or () if tool.is_hosted}:
            raise unsupported("nothing here carries out the tool {name}: choose another one", name=shown(forced.name))
        if forced is not None and (forced.name or next(iter(names), None)) not in names:
            raise PydanticCustomError("tool_choice", "tool_choice forces a call of a tool that is not in tools: add it")
        if forced is None and any(tool.strict for tool in self.tools or ()):
            raise unsupported("strict tools are supported only if tool_choice is any or tool: leave strict out")
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            raise PydanticCustomError("format", "output_format and output_config.format exclude each other: send one")
        return self

    def conversation(self, replies: RecordedReplies, switches: Switches) -> tuple[Conversation, tuple[str, ...]]:
        """Return the prompt, and the names of the parts of the body that have no effect on it."""
        system, ignored = system_messages(self.system)
        if has_redacted_thinking(self.messages):
            ignored.append("messages.redacted_thinking")
        options, without_effect = self._template_options(switches)
        tools = self._offered
        messages = (*system, *chat_messages(self.messages, replies, {tool.name: tool.defaults for tool in tools}))
        hosted = dict.fromkeys(f"tools.{tool.type}" for tool in self.tools or () if tool.is_hosted)
        conversation = Conversation(messages, tuple(tool.spec() for tool in tools), options)
        return conversation, (*ignored, *without_effect, *hosted)

    @property
    def _offered(self) -> list[_Tool]:
        """The tools that the model is offered."""
        return [tool for tool in self.tools or () if not tool.is_hosted]

    def choice(self) -> ToolChoice:
        if self.tool_choice is None:
            return ToolChoice()
        parallel = not self.tool_choice.disable_parallel_tool_use
        match self.tool_choice.type:
            case "any":
                return ToolChoice(ToolMode.REQUIRED, (), parallel)
            case "tool":
                return ToolChoice(ToolMode.REQUIRED, (self.tool_choice.name or "",), parallel)
            case mode:
                return ToolChoice(ToolMode(mode), (), parallel)

    def _template_options(self, switches: Switches) -> tuple[dict[str, Any], Sequence[str]]:
        """Return the options for the chat template, and the names of the fields without effect.

        Raises UnknownParameter for an option that the chat template does not read.
        """
        options: dict[str, Any] = {}
        without_effect: list[str] = []
        thinking, has_switch = self.thinking, switches(THINKING_OPTION)
        if thinking is not None and has_switch:
            options[THINKING_OPTION] = thinking.type != "disabled"
            if thinking.budget_tokens is not None:
                without_effect.append("thinking.budget_tokens")
        elif thinking is not None and thinking.type == "enabled":
            raise UnknownParameter(
                "thinking: the model's chat template cannot switch it on: send adaptive or disabled", param="thinking"
            )
        elif thinking is not None and thinking.type == "adaptive":
            without_effect.append("thinking")
        effort = None if self.output_config is None else self.output_config.effort
        if effort is not None and switches(EFFORT_OPTION):
            options[EFFORT_OPTION] = effort
        elif effort not in {None, "high"}:
            raise UnknownParameter(
                "output_config.effort: the model's chat template does not read it: leave it out, or send high",
                param="output_config.effort",
            )
        return options, without_effect


class MessagesBody(PromptBody):
    """The honoured fields of a messages body: those of the prompt and those of sampling."""

    max_tokens: int = Field(ge=1, lt=2**31)
    stop_sequences: StopStrings | None = None
    stream: bool | None = None
    temperature: AskedTemperature | None = Field(default=None, ge=0, le=1)
    top_p: Number | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _within_budget(self) -> Self:
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            raise PydanticCustomError("budget", "thinking.budget_tokens must be less than max_tokens")
        return self

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"

    def sampling(self, defaults: SamplingDefaults) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            stop=tuple(self.stop_sequences or ()),
            stop_token_ids=defaults.stop_token_ids,
            grammar=self._grammar(),
        )

    def _grammar(self) -> Grammar | None:
        asked = self.output_format or (self.output_config.format if self.output_config else None)
        return None if asked is None else json_schema_grammar(asked.schema_)
