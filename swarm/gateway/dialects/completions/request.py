"""The request body of POST /v1/completions, checked field by field. Its prompts get no chat template."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Self, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from swarm.gateway.dialects.fields import (
    ANY_MODEL,
    MAX_CHOICES,
    UNTRAINED_SAMPLING,
    CheckedCall,
    CompletionsBody,
    FieldTable,
    checked_body,
    honoured,
    labels,
    never,
    refused,
    unknown_fields,
    unsupported,
)
from swarm.rollout.model_request import ModelRequest, RawPrompt, SamplingDefaults

MAX_PROMPTS = 128
MAX_PROMPT_TOKENS = 2**20
"""The most token ids of one prompt; no model served here has a longer context."""

MAX_LOGPROBS = 5
"""OpenAI's limit for this API."""

COMPLETION_FIELDS: FieldTable = MappingProxyType(
    honoured("model", note=ANY_MODEL)
    | honoured("stream", "temperature", "seed", "stop")
    | honoured("prompt", note="text or token ids, or a list of up to 128 prompts")
    | honoured("max_tokens", note="the job's `max_response_length` by default")
    | honoured("n", note="each choice is a turn of its own")
    | honoured("best_of", note="only if it equals `n`")
    | honoured("echo", note="not together with `logprobs`")
    | honoured("logprobs", note="0 to 5")
    | honoured("stream_options", note="`include_usage`")
    | honoured("response_format", note="as in vLLM; a grammar always enforces `json_object` and `json_schema`")
    | honoured("return_token_ids", "return_tokens_as_token_ids", "stop_token_ids", "ignore_eos", note="as in vLLM")
    | honoured("structured_outputs", note="as in vLLM")
    | UNTRAINED_SAMPLING
    | labels("user", "request_id", "session_id", "cache_salt", "stream_interval")
    | refused("suffix", "")
    | refused("add_special_tokens", False, note="none is ever added to the prompt")
    | refused("skip_special_tokens", True)
    | refused("spaces_between_special_tokens", True)
    | refused("include_stop_str_in_output", False)
    | refused("use_beam_search", False)
    | refused("length_penalty", 1)
    | refused("bad_words", [])
    | refused("priority", 0)
    | refused("thinking_token_budget", -1)
    | refused("watermarking", False)
    | refused("routed_experts_prompt_start", 0)
    | refused("return_token_offsets", False)
    | refused("return_mm_kwargs", True)
    | refused("vllm_xargs", {})
    | never("truncate_prompt_tokens", "truncation_side", "allowed_token_ids", "prompt_logprobs")
    | never("logprob_token_ids", "prompt_embeds", "repetition_detection", "kv_transfer_params")
    | never("ec_transfer_params")
)
"""Every documented field of OpenAI's completions and of vLLM's."""


def parse_completion_request(body: Mapping[str, Any], defaults: SamplingDefaults) -> CheckedCall[CompletionBody]:
    """Return the checked request of a body.

    Raises BadRequest, or UnknownParameter for a field that cannot be honoured. Both name the field in `param`.
    """
    checked = checked_body(CompletionBody, body, COMPLETION_FIELDS)
    return CheckedCall(checked, checked.call(defaults), unknown_fields(body, COMPLETION_FIELDS))


def raw_prompts(given: object) -> object:
    """Return the prompts of a body that has one prompt or a list. Raises PydanticCustomError for anything else."""
    if not isinstance(given, list):
        return (_raw_prompt(given),)
    items = cast("list[object]", given)
    # A list of integers is one prompt of token ids; any other list holds several prompts.
    if items and type(items[0]) is int:
        return (_raw_prompt(items),)
    if not 0 < len(items) <= MAX_PROMPTS:
        raise PydanticCustomError(
            "prompts", "a list may have 1 to {limit} prompts, not {count}", {"limit": MAX_PROMPTS, "count": len(items)}
        )
    return tuple(_raw_prompt(item) for item in items)


def _raw_prompt(given: object) -> RawPrompt:
    if isinstance(given, str):
        if not given:
            raise PydanticCustomError("empty", "an empty prompt has no token to continue: send some text")
        return RawPrompt(text=given)
    if not isinstance(given, list):
        raise PydanticCustomError("prompt", "a prompt is a string or a list of token ids")
    return RawPrompt(token_ids=token_ids(cast("list[object]", given)))


def token_ids(given: list[object]) -> tuple[int, ...]:
    """Return the list as token ids. Raises PydanticCustomError if an entry is no token id or the list is too long."""
    if not 0 < len(given) <= MAX_PROMPT_TOKENS:
        raise PydanticCustomError(
            "tokens", "send 1 to {limit} token ids, not {count}", {"limit": MAX_PROMPT_TOKENS, "count": len(given)}
        )
    ids = tuple(each for each in given if type(each) is int and 0 <= each < 2**31)
    if len(ids) < len(given):
        raise PydanticCustomError("token", "token ids must be whole numbers from 0 to 2147483647")
    return ids


_Text = Annotated[str, Field(min_length=1)]
_TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=MAX_PROMPT_TOKENS)]
_Prompt = _Text | _TokenIds
_Prompts = Annotated[list[_Prompt], Field(min_length=1, max_length=MAX_PROMPTS)]


class CompletionBody(CompletionsBody):
    """The honoured fields of the body. `COMPLETION_FIELDS` handles the others.

    `logprobs` is the number of likeliest tokens to name beside each sampled one, or None for no logprobs at all. With
    `return_tokens_as_token_ids`, tokens are written `token_id:N`.
    """

    prompt: Annotated[tuple[RawPrompt, ...], BeforeValidator(raw_prompts, json_schema_input_type=_Prompt | _Prompts)]
    best_of: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    return_tokens_as_token_ids: bool | None = None

    @field_validator("best_of")
    @classmethod
    def _no_hidden_choices(cls, best_of: int | None, info: Any) -> int | None:
        if best_of is not None and best_of != (info.data.get("n") or 1):
            raise unsupported("the server samples only completions that it returns: leave it out, or send the same n")
        return best_of

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise unsupported("echo and logprobs exclude each other, as the prompt was not sampled: send one of them")
        return self

    def call(self, defaults: SamplingDefaults) -> ModelRequest:
        params = self.sampling_params(
            defaults,
            max_tokens=self.max_tokens,
            grammar=self.format_grammar,
            top_logprobs=self.logprobs or 0,
        )
        return ModelRequest(self.model, self.prompt, params, choices=self.n or 1)
