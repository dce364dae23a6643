"""The reasoning of a model before its reply, found by its marks while the text arrives.

Place in the flow: between the detokenizer and the tool calls; calls inside reasoning are not calls. This module knows
nothing of tokens or templates but the marks in them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from swarm.tracker.formats.lark import mark
from swarm.tracker.text import overlap


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


NONE = "none"

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
