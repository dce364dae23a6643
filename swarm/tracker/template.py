"""Chat templates: the variables that they read, and their rendering as in transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic_core import PydanticSerializationError, to_json

from swarm.types import Message, ToolSpec

_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"})
"""The names that rendering itself provides."""

TEMPLATES_KEPT = 8
"""The most templates that are cached: an engine that starts again usually has the same one."""


class _Generation(Extension):
    """The tag around replies that some templates have. It is parsed here, and has no effect."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(TEMPLATES_KEPT)
def template_options(template: str) -> frozenset[str]:
    """Return the variables that a request may set; none of a template that cannot be read."""
    environment = ImmutableSandboxedEnvironment(extensions=[_Generation, loopcontrols])
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(template))) - _GIVEN
    except TemplateError:
        return frozenset()


def marks_replies(template: str) -> bool:
    """Return whether the template has the tag around replies, inside which names have a scope of their own."""
    return re.search(r"\{%[-+]?\s*generation\b", template) is not None


@lru_cache(TEMPLATES_KEPT)
def compile_template(template: str) -> Template:
    """Return the template with the filters and functions that transformers provides.

    Raise TemplateError if it is invalid.
    """
    # jinja2 does not declare the types of these two.
    environment: Any = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


LONGEST_KEPT = 2**16
"""The most bytes of a conversation whose text is cached."""


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """A conversation to render. Two are equal if their JSON is, down to the order of keys.

    `key` is that JSON. It is None for what is not cached: a long conversation, or one that JSON cannot represent.
    """

    key: bytes | None
    messages: Sequence[Message] = field(compare=False)
    tools: Sequence[ToolSpec] = field(compare=False)
    options: Mapping[str, Any] = field(compare=False)
    generation_prompt: bool = field(compare=False)

    @staticmethod
    def of(
        messages: Sequence[Message], tools: Sequence[ToolSpec], options: Mapping[str, Any], generation_prompt: bool
    ) -> RenderRequest:
        try:
            key = to_json([list(messages), list(tools), dict(options), generation_prompt], inf_nan_mode="constants")
        except (PydanticSerializationError, ValueError):
            return RenderRequest(None, messages, tools, options, generation_prompt)
        return RenderRequest(key if len(key) <= LONGEST_KEPT else None, messages, tools, options, generation_prompt)
