"""The request body of POST /v1/generate: a text and how many tokens to continue it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import Field

from swarm.gateway.dialects.fields import FieldTable, SamplingBody, checked_body, honoured, refused, unknown_fields
from swarm.rollout.model_request import ModelRequest, RawPrompt, SamplingDefaults

GENERATE_FIELDS: FieldTable = MappingProxyType(
    honoured("model", "inputs", "max_new_tokens", "temperature", "seed") | refused("stream", False)
)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    call: ModelRequest
    ignored_fields: tuple[str, ...]
    stream: bool = False


class GenerateBody(SamplingBody):
    model: str = "default"
    inputs: str = Field(min_length=1)
    max_new_tokens: int | None = Field(default=None, ge=1, lt=2**31)


def parse_generate_request(body: Mapping[str, Any], defaults: SamplingDefaults) -> GenerateRequest:
    checked = checked_body(GenerateBody, body, GENERATE_FIELDS)
    params = checked.sampling_params(defaults, max_tokens=checked.max_new_tokens)
    call = ModelRequest(checked.model, (RawPrompt(text=checked.inputs),), params)
    return GenerateRequest(call, unknown_fields(body, GENERATE_FIELDS))
