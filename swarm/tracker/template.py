"""Chat templates: the variables that they read, their rendering as in transformers, and a cache of rendered texts."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
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


MAX_CHARS = 4 * 2**20
"""The most characters of all cached texts together."""


class RenderedTexts:
    """The texts used last. Two requests are the same if their JSON is, down to the order of keys."""

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._chars = 0
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        # Episodes are decoded for display in other threads.
        self._lock = threading.Lock()

    def get(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        options: Mapping[str, object],
        *,
        generation_prompt: bool,
        render: Callable[[], str],
    ) -> str:
        """Return the cached text, or cache and return the result of `render`. Raise what `render` raises."""
        try:
            asked = to_json([list(messages), list(tools), dict(options), generation_prompt], inf_nan_mode="constants")
        except (PydanticSerializationError, ValueError):
            # JSON cannot represent everything that a request may ask a template to render.
            return render()
        key = hashlib.blake2b(asked, digest_size=16).digest()
        with self._lock:
            text = self._texts.get(key)
            if text is not None:
                self._texts.move_to_end(key)
                return text
        text = render()
        self._remember(key, text)
        return text

    def _remember(self, key: bytes, text: str) -> None:
        with self._lock:
            if key in self._texts or len(text) > self._max_chars:
                return
            self._texts[key] = text
            self._chars += len(text)
            while self._chars > self._max_chars:
                _, forgotten = self._texts.popitem(last=False)
                self._chars -= len(forgotten)
