"""How one model writes reasoning and tool calls: what its replies are read by, and what forces a call.

Place in the flow: made once per model by codec.py from its chat template and vocabulary, or as the job says. Knows
nothing of messages, and of tokens only the ids of the marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from swarm.config import ReasoningParser, ToolParser
from swarm.errors import BadRequest
from swarm.tracker.formats.base import ToolFormat
from swarm.tracker.formats.registry import TOOL_FORMATS, tool_format
from swarm.tracker.reasoning import REASONING_FORMATS, ReasoningFormat, reasoning_format
from swarm.tracker.reply import ReplyRules
from swarm.types import Grammar, ToolChoice, ToolMode, ToolSpec


@dataclass(frozen=True, slots=True)
class ReplySyntax:
    """`mark_ids` are those marks that are tokens; `special_ids` those of them that the tokenizer calls special."""

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
        """The named formats, or those found in template and vocabulary."""
        calls = tool_format(template, added_tokens) if tool_parser == "auto" else TOOL_FORMATS[tool_parser]
        if reasoning_parser == "auto":
            reasoning = reasoning_format(template, added_tokens)
        else:
            reasoning = REASONING_FORMATS.get(reasoning_parser)
        marks = (*calls.marks, *(reasoning.marks if reasoning else ()))
        mark_ids = {each: added_tokens[each] for each in marks if each in added_tokens}
        return cls(calls, reasoning, mark_ids, {text: each for text, each in mark_ids.items() if each in special_ids})

    def is_inside(self, prompt: str) -> bool:
        """Whether a reply to this prompt, or to one that ends like this, begins inside the reasoning."""
        return self.reasoning is not None and self.reasoning.is_open(prompt)

    def rules(self, tools: Sequence[ToolSpec], choice: ToolChoice, *, is_inside: bool) -> ReplyRules:
        """How to read a reply. Without tools, or if none may be called, it has no calls."""
        calls = self.calls if tools and choice.mode is not ToolMode.NONE else None
        return ReplyRules(calls, self.reasoning, is_inside, one_call=not choice.parallel)

    def forced_grammar(self, tools: Sequence[ToolSpec], choice: ToolChoice, *, is_inside: bool) -> Grammar | None:
        """The language of replies that call a tool, the model's reasoning before it allowed; None if none is forced.

        Raises BadRequest for a named tool that is not among the tools, or if there are none.
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
