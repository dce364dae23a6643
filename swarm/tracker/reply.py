"""The assistant message of one completion, built while its tokens arrive, by the rules of its model and request.

Place in the flow: the detokenizer (text.py) comes first, then reasoning, then tool calls. The result is the message
that the gateway sends and the turn records. The syntax of a model is chosen when its codec is loaded. It gives the
rules for each request, and the grammar that a forced call needs. This module knows nothing of HTTP, and of no format of
calls or reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from swarm.errors import BadRequest
from swarm.job import ReasoningParser, ToolParser
from swarm.tracker.formats.base import ToolCall, ToolFormat
from swarm.tracker.formats.registry import TOOL_FORMATS, tool_format
from swarm.tracker.reasoning import REASONING_FORMATS, ReasoningFormat, ReasoningStream, reasoning_format
from swarm.tracker.text import TextStream
from swarm.types import Grammar, ReasoningPart, ReplyPart, TextPart, ToolCallPart, ToolChoice, ToolMode, ToolSpec

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """The rules for reading a reply. Without `calls` or `reasoning`, those parts are text.

    A reply that `is_inside` begins inside the reasoning. With `one_call` it ends with the first call, whatever text
    comes after that.
    """

    calls: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    is_inside: bool = False
    one_call: bool = False


class ReplyStream:
    """A reply in progress: `push` takes token ids and returns the parts that are certain.

    After `finish`, `message` is whole.
    """

    def __init__(self, open_text: Callable[[], TextStream], rules: ReplyRules, *, turn_index: int) -> None:
        self._text = open_text()
        self._open_text = open_text
        self._rules = rules
        self._turn_index = turn_index
        self._shown: list[str] = []
        self._parser = ReplyParser(rules, turn_index)

    def push(self, token_ids: Sequence[int]) -> list[ReplyPart]:
        """Return pieces of reasoning and content, and whole tool calls, in order."""
        return self._parser.push(self._seen(self._text.push(token_ids)))

    def finish(self) -> list[ReplyPart]:
        """Return the remaining parts; no more tokens come."""
        return self._parser.push(self._seen(self._text.finish())) + self._parser.finish()

    def is_exact(self, output_ids: Sequence[int]) -> bool:
        """Return whether the returned parts match `output_ids`, decoded and read at once. Call it after `finish`."""
        text = self._open_text().whole(output_ids)
        if text != "".join(self._shown):
            return False
        at_once = ReplyParser(self._rules, self._turn_index)
        at_once.push(text)
        at_once.finish()
        return at_once.message == self.message

    @property
    def message(self) -> dict[str, Any]:
        """The message so far. `content` is None if there are tool calls and no text."""
        return self._parser.message

    def _seen(self, text: str) -> str:
        if text:
            self._shown.append(text)
        return text


class ReplyParser:
    """A parser of text into the parts of a reply. The message does not depend on how the text is cut into pushes."""

    def __init__(self, rules: ReplyRules, turn_index: int) -> None:
        self._one_call = rules.one_call
        self._turn_index = turn_index
        self._reasoning = ReasoningStream(rules.reasoning, is_inside=rules.is_inside) if rules.reasoning else None
        self._calls = rules.calls.open_stream() if rules.calls else None
        self._content: list[str] = []
        self._reasons: list[str] = []
        self._called: list[dict[str, Any]] = []

    def push(self, text: str) -> list[ReplyPart]:
        reasoning, behind = self._reasoning.push(text) if self._reasoning else ("", text)
        return self._keep(reasoning, self._split(behind))

    def finish(self) -> list[ReplyPart]:
        reasoning, behind = self._reasoning.finish() if self._reasoning else ("", "")
        return self._keep(reasoning, self._split(behind) + (self._calls.finish() if self._calls else []))

    @property
    def message(self) -> dict[str, Any]:
        content, reasoning = "".join(self._content), "".join(self._reasons)
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if self._called else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._called:
            message["tool_calls"] = list(self._called)
        return message

    def _split(self, text: str) -> list[str | ToolCall]:
        if self._calls:
            return self._calls.push(text)
        return [text] if text else []

    def _keep(self, reasoning: str, rest: Sequence[str | ToolCall]) -> list[ReplyPart]:
        parts: list[ReplyPart] = []
        if reasoning:
            self._reasons.append(reasoning)
            parts.append(ReasoningPart(reasoning))
        for part in rest:
            if self._one_call and self._called:
                break
            if isinstance(part, str):
                self._content.append(part)
                parts.append(TextPart(part))
                continue
            function = {"name": part.name, "arguments": part.arguments}
            identity = call_id(self._turn_index, len(self._called))
            self._called.append({"id": identity, "type": "function", "function": function})
            parts.append(ToolCallPart(identity, part.name, part.arguments))
        return parts


def call_id(turn_index: int, call_index: int) -> str:
    """Return the id of a tool call, unique in its episode.

    It has nine letters and digits, the only form that Mistral's templates accept.
    """
    return "call" + _base36(turn_index, 3) + _base36(call_index, 2)


def _base36(number: int, width: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.rjust(width, "0")


@dataclass(frozen=True, slots=True)
class ReplySyntax:
    """The formats of one model. `mark_ids` are the marks that are tokens.

    `special_ids` are those marks that the tokenizer calls special.
    """

    calls: ToolFormat
    reasoning: ReasoningFormat | None
    mark_ids: Mapping[str, int]
    special_ids: Mapping[str, int]

    @classmethod
    def of(
        cls,
        template: str,
        added_tokens: Mapping[str, int],
        special_ids: frozenset[int],
        tool_parser: ToolParser,
        reasoning_parser: ReasoningParser,
    ) -> ReplySyntax:
        """Return the syntax with the named formats, or with those found in template and vocabulary."""
        calls = tool_format(template, added_tokens) if tool_parser == "auto" else TOOL_FORMATS[tool_parser]
        if reasoning_parser == "auto":
            reasoning = reasoning_format(template, added_tokens)
        else:
            reasoning = REASONING_FORMATS.get(reasoning_parser)
        marks = (*calls.marks, *(reasoning.marks if reasoning else ()))
        mark_ids = {each: added_tokens[each] for each in marks if each in added_tokens}
        return cls(calls, reasoning, mark_ids, {text: each for text, each in mark_ids.items() if each in special_ids})

    def is_inside(self, prompt: str) -> bool:
        """Return whether a reply to this prompt, or to one with this ending, begins inside the reasoning."""
        return self.reasoning is not None and self.reasoning.is_open(prompt)

    def rules(self, tools: Sequence[ToolSpec], choice: ToolChoice, *, is_inside: bool) -> ReplyRules:
        """Return the rules for reading a reply. Without tools, or if none may be called, it has no calls."""
        calls = self.calls if tools and choice.mode is not ToolMode.NONE else None
        return ReplyRules(calls, self.reasoning, is_inside, one_call=not choice.parallel)

    def forced_grammar(self, tools: Sequence[ToolSpec], choice: ToolChoice, *, is_inside: bool) -> Grammar | None:
        """Return the grammar of replies that call a tool, with reasoning allowed before it; None if none is forced.

        Raise BadRequest for a named tool that is not among the tools, or if there are none.
        """
        if choice.mode is not ToolMode.REQUIRED:
            return None
        by_name = {str(tool["function"]["name"]): tool for tool in tools}
        if not by_name:
            raise BadRequest("tool_choice: there is no tool to call: send tools", param="tool_choice")
        for name in choice.names:
            if name not in by_name:
                known = ", ".join(by_name)
                raise BadRequest(f"tool_choice: no tool is named {name!r}: there are {known}", param="tool_choice")
        allowed = [by_name[name] for name in dict.fromkeys(choice.names or by_name)]
        if self.reasoning is None:
            return self.calls.forced_call(allowed, choice, self.special_ids)
        before = "reasoning" if is_inside else "reasoning?"
        grammar = self.calls.forced_call(allowed, choice, self.special_ids, before)
        rules = self.reasoning.lark_rules(self.special_ids, is_inside=is_inside)
        return replace(grammar, text=grammar.text + rules)
