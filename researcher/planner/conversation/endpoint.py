"""One streamed request to an OpenAI-compatible server, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_OUTPUT_TOKENS = 32_000
"""The most tokens of one answer, thoughts included."""
SILENCE_S = 180.0
"""The longest time without a byte of the answer. Comments that keep a connection alive are bytes too."""

LIMITS = ("max_completion_tokens", "max_tokens")
"""The field for the most tokens of an answer: by its name of today, and by its former one."""
USAGE = "stream_options"
REFUSING = frozenset({400, 404, 422})
"""Statuses of a server that does not know a field of the request."""

Messages = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A tool that the model wants to call; `arguments` is JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The answer of a model to one request.

    `text` is the answer itself, and `reasoning` are the thoughts that the server sent beside it. `usage` are the tokens
    of prompt and answer; None if the server reports none. `is_cut` is true if the answer ended at its limit of tokens.
    """

    text: str
    reasoning: str = ""
    calls: tuple[RequestedCall, ...] = ()
    usage: tuple[int, int] | None = None
    is_cut: bool = False


class LanguageModelServer:
    """The server of one language model."""

    def __init__(self, model: str, base_url: str | None, api_key: str, silence_s: float = SILENCE_S) -> None:
        self.model = model
        self._base_url = base_url
        self._key = api_key
        self._silence_s = silence_s
        self._refused: set[str] = set()

    def send(
        self, messages: Messages, tools: Sequence[dict[str, Any]] = (), *, may_call: bool = True, limit_s: float
    ) -> ModelReply:
        """Return the answer to the messages. Without `may_call`, the tools are named and may not be called.

        The request has a connection of its own, which closes with it, even if nobody waits for it any more. Raises
        TimeoutError after `limit_s`, ValueError for an answer that is no chat completion, OpenAIError and httpx's
        errors.
        """
        deadline = time.monotonic() + limit_s
        fields: dict[str, Any] = {} if not tools else {"tools": list(tools)}
        if tools and not may_call:
            fields["tool_choice"] = "none"
        if limit := next((name for name in LIMITS if name not in self._refused), None):
            fields[limit] = MAX_OUTPUT_TOKENS
        if USAGE not in self._refused:
            fields[USAGE] = {"include_usage": True}
        import openai

        with openai.OpenAI(
            api_key=self._key, base_url=self._base_url, timeout=self._silence_s, max_retries=0
        ) as client:
            create: Any = client.chat.completions.create
            stream = create(model=self.model, messages=list(messages), stream=True, **fields)
            with stream:
                return _collect(stream, deadline)

    def learn(self, error: Exception) -> bool:
        """Return whether the server refused a field that the next request leaves out."""
        if status_of(error) not in REFUSING:
            return False
        known = [next((name for name in LIMITS if name not in self._refused), None), USAGE]
        named = {name for name in known if name and name not in self._refused and name in str(error)}
        self._refused |= named
        return bool(named)


def refuses_tools(error: Exception) -> bool:
    """Return whether a server refused a request because of its tools."""
    return status_of(error) in REFUSING and "tool" in str(error).lower()


def status_of(error: Exception) -> int | None:
    """Return the HTTP status with which a server refused a request; None for another error."""
    import openai

    return error.status_code if isinstance(error, openai.APIStatusError) else None


@dataclass(slots=True)
class _Parts:
    """The pieces of an answer as they come in."""

    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def add(self, delta: Any) -> None:
        self.text.append(_text_of(delta, "content"))
        # Servers name the thoughts differently; none sends both.
        self.reasoning.append(_text_of(delta, "reasoning_content") or _text_of(delta, "reasoning"))
        for piece in getattr(delta, "tool_calls", None) or ():
            index = piece.index if isinstance(piece.index, int) else len(self.calls)
            call = self.calls.setdefault(index, ["", "", ""])
            call[0] = call[0] or piece.id or ""
            if piece.function is not None:
                call[1] += piece.function.name or ""
                call[2] += piece.function.arguments or ""

    def requested(self) -> tuple[RequestedCall, ...]:
        """Return the calls in order; a call without an id gets one, because its result refers to it."""
        named = ((index, call) for index, call in sorted(self.calls.items()) if call[1])
        return tuple(RequestedCall(call[0] or f"call-{index}", call[1], call[2]) for index, call in named)


def _collect(stream: Iterable[Any], deadline: float) -> ModelReply:
    """Return the whole answer of a stream.

    Raises ValueError if it is no chat completion or breaks off, TimeoutError after the deadline.
    """
    parts = _Parts()
    finish, usage = None, None
    for chunk in stream:
        if time.monotonic() > deadline:
            raise TimeoutError("the question took longer than --llm-deadline allows")
        usage = _usage_of(chunk) or usage
        choices: Any = getattr(chunk, "choices", None)
        if not isinstance(choices, list) or not choices:
            continue
        parts.add(choices[0].delta)
        finish = choices[0].finish_reason or finish
    if finish is None:
        raise ValueError("the server's answer is no chat completion, or breaks off")
    return ModelReply(
        "".join(parts.text), "".join(parts.reasoning), parts.requested(), usage, is_cut=finish == "length"
    )


def _text_of(delta: Any, name: str) -> str:
    text = getattr(delta, name, None)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"the server's answer has a {name} that is no text")
    return text or ""


def _usage_of(chunk: Any) -> tuple[int, int] | None:
    used: Any = getattr(chunk, "usage", None)
    tokens = [getattr(used, name, None) for name in ("prompt_tokens", "completion_tokens")]
    if all(isinstance(each, int) and each >= 0 for each in tokens):
        return int(tokens[0] or 0), int(tokens[1] or 0)
    return None
