"""The assistant message of one completion, built while its tokens arrive: reasoning first, then text and tool calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from swarm.errors import BadRequest
from swarm.job import ReasoningParser, ToolParser
from swarm.tracker.formats.base import CallStream, ToolCall, ToolFormat
from swarm.tracker.formats.lark import forced_grammar, mark
from swarm.tracker.formats.registry import TOOL_FORMATS, tool_format
from swarm.tracker.text import TextStream, overlap
from swarm.types import Grammar, ReasoningPart, ReplyPart, TextPart, ToolCallPart, ToolChoice, ToolMode, ToolSpec


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning between two marks, at the very beginning of a reply."""

    name: str
    opening: str
    closing: str

    @property
    def marks(self) -> tuple[str, str]:
        return self.opening, self.closing

    def is_open(self, prompt: str) -> bool:
        """Return whether a reply to this prompt begins inside the reasoning."""
        return prompt.rstrip().endswith(self.opening)

    def written(self, reasoning: str, content: str) -> str:
        """Return reasoning and content as models write them."""
        return f"{self.opening}\n{reasoning}\n{self.closing}\n\n{content}"

    def lark_rules(self, special_ids: Mapping[str, int], *, is_inside: bool) -> str:
        """Return the rules of a Lark grammar for `reasoning` before a forced call."""
        opening, closing = mark(self.opening, special_ids), mark(self.closing, special_ids)
        if self.closing in special_ids:
            escaped = re.escape(self.closing).replace("/", r"\/")
            body = f"REASONING? {closing}"
            rule = rf"REASONING: /(?s:.+)/ & ~/(?s:.*){escaped}(?s:.*)/"
        else:
            body = "reasoned"
            rule = f"reasoned[suffix={closing}]: /(?s:.*)/"
        start = body if is_inside else f"{opening} {body}"
        return f"reasoning: {start} BLANKS?\n{rule}\nBLANKS: /[ \\n]{{1,9}}/\n"


class ReasoningStream:
    """A splitter of text into reasoning and the rest. Both do not depend on how the text is cut into pushes.

    White space next to the marks is dropped. Reasoning without an end is reasoning. A reply that does not begin with
    the opening mark, white space aside, has no reasoning and passes through character for character.
    """

    def __init__(self, form: ReasoningFormat, *, is_inside: bool) -> None:
        self._form = form
        self._buffer = ""
        self._is_decided = is_inside
        self._is_inside = is_inside
        self._has_reasoning = False
        self._is_behind = False

    def push(self, text: str) -> tuple[str, str]:
        """Return the reasoning, and the text after it, that are now certain."""
        self._buffer += text
        if not self._is_decided:
            self._decide()
        if not self._is_decided:
            return "", ""
        reasoning = self._push_reasoning() if self._is_inside else ""
        return reasoning, "" if self._is_inside else self._push_text()

    def finish(self) -> tuple[str, str]:
        """Return the remaining reasoning and text; no more text comes."""
        rest, self._buffer = self._buffer, ""
        if self._is_inside:
            return (rest if rest.strip() else ""), ""
        return "", "" if self._is_behind else rest

    def _decide(self) -> None:
        start, opening = self._buffer.lstrip(), self._form.opening
        if start.startswith(opening):
            self._buffer = start[len(opening) :]
            self._is_inside = self._is_decided = True
        elif not opening.startswith(start):
            self._is_decided = True

    def _push_reasoning(self) -> str:
        if not self._has_reasoning:
            self._buffer = self._buffer.lstrip()
        before, closed, rest = self._buffer.partition(self._form.closing)
        if closed:
            self._buffer, self._is_inside, self._is_behind = rest, False, True
            return before.rstrip()
        certain = before[: len(before) - overlap(before, self._form.closing)].rstrip()
        self._buffer = before[len(certain) :]
        self._has_reasoning = self._has_reasoning or bool(certain)
        return certain

    def _push_text(self) -> str:
        if self._is_behind:
            self._buffer = self._buffer.lstrip()
            self._is_behind = not self._buffer
        text, self._buffer = self._buffer, ""
        return text


_THINK = ReasoningFormat("think", "<think>", "</think>")
_MISTRAL = ReasoningFormat("mistral", "[THINK]", "[/THINK]")

REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType({"think": _THINK, "mistral": _MISTRAL})


def reasoning_format(template: str, vocabulary: Collection[str]) -> ReasoningFormat | None:
    """Return the format whose closing mark the chat template shows or the vocabulary has; None for a model without."""
    for known in (template, vocabulary):
        for form in REASONING_FORMATS.values():
            if form.closing in known:
                return form
    return None


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
        self._calls = CallStream(rules.calls) if rules.calls else None
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
        form = self.calls.call_form(allowed, self.special_ids)
        if self.reasoning is None:
            return forced_grammar(form, allowed, choice)
        grammar = forced_grammar(form, allowed, choice, "reasoning" if is_inside else "reasoning?")
        rules = self.reasoning.lark_rules(self.special_ids, is_inside=is_inside)
        return replace(grammar, text=grammar.text + rules)
