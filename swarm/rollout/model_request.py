"""One model call as the gateway understands it, whatever API it came in by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swarm.types import Message, SamplingParams, ToolChoice, ToolSpec


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Sampling values for the fields that a request leaves out. `stop_token_ids` come from the codec."""

    temperature: float
    top_p: float
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for the model's chat template, in the canonical chat shape. `template_options` go to the template."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    template_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt that no template touches: either `text` or `token_ids` is given."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The prompts to complete, and how to sample. Every prompt is completed `choices` times.

    Completion number i belongs to prompt i // choices. `tool_choice` concerns conversations with tools only.
    """

    model: str
    prompts: tuple[Conversation | RawPrompt, ...]
    params: SamplingParams
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    choices: int = 1
