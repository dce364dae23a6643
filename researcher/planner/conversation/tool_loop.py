"""The conversation about one question: the model looks with tools, then answers, and hears what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prompts import load
from researcher.planner.conversation.endpoint import MAX_OUTPUT_TOKENS, ModelReply, RequestedCall
from researcher.planner.language_model.answers import Unusable
from researcher.planner.tools.base import Toolbox, ToolRefused

logger = logging.getLogger(__name__)

MAX_ANSWERS = 3
"""The number of answers in a conversation; each repetition tells the model the fault of the previous answer."""
MAX_CALLS = 8
"""The tool calls of one turn that are carried out; the model hears that further ones were not."""


class NoUsableAnswer(Exception):
    """A conversation without a usable answer, after which another one may succeed."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(slots=True, kw_only=True)
class ToolLoop:
    """A conversation about one question, with its bounds and its progress.

    `send` asks for the reply to the messages, and adds the tokens and seconds that the reply took. The reply has calls
    only if the model `may_call` tools. `parse` raises Unusable for an answer that cannot be used. After `max_turns`
    turns with tools, or `max_tokens` tokens, no more tools are called. The messages from index `first_new` on were in
    no earlier request.
    """

    send: Callable[[ToolLoop], ModelReply]
    parse: Callable[[str], Any]
    toolbox: Toolbox
    max_turns: int
    max_tokens: int
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    first_new: int = 0
    turns: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def may_call(self) -> bool:
        return bool(self.toolbox.tools) and self.turns < self.max_turns and self.tokens < self.max_tokens

    def run(self, question: str) -> Any:
        """Return the parsed answer. Raises NoUsableAnswer, and whatever `send` raises."""
        self.messages = [_message("system", self._instructions()), _message("user", question)]
        answers = 0
        while True:
            reply = self.send(self)
            if reply.calls:
                self._call_tools(reply)
                continue
            answers += 1
            try:
                return self.parse(reply.text)
            except Unusable as error:
                reason = f"{error}{describe_cut(reply)}"
            if answers >= MAX_ANSWERS:
                raise NoUsableAnswer(f"{MAX_ANSWERS} answers that cannot be used: {reason}")
            self._extend(_message("assistant", reply.text), [_message("user", load("retry", reason=reason))])

    def _instructions(self) -> str:
        system = load("system")
        if not self.toolbox.tools:
            return system
        return f"{system}\n{load('tools', turns=str(self.max_turns))}"

    def _call_tools(self, reply: ModelReply) -> None:
        results = [(call, self._result_of(call)) for call in reply.calls[:MAX_CALLS]]
        results += [
            (call, f"not carried out: a turn has at most {MAX_CALLS} calls") for call in reply.calls[MAX_CALLS:]
        ]
        said = {**_message("assistant", reply.text), "tool_calls": [as_message(call) for call in reply.calls]}
        heard = [{**_message("tool", result), "tool_call_id": call.id} for call, result in results]
        self.turns += 1
        if not self.may_call:
            heard.append(_message("user", load("submit")))
        self._extend(said, heard)

    def _result_of(self, call: RequestedCall) -> str:
        try:
            return self.toolbox.call(call.name, call.arguments)
        except ToolRefused as error:
            return f"refused: {error}"
        except Exception as error:  # the boundary: the failure of a tool is data for the model, and ends no study
            logger.exception("the tool %s failed", call.name)
            return f"the tool failed: {type(error).__name__}: {error}"

    def _extend(self, said: dict[str, Any], heard: list[dict[str, Any]]) -> None:
        """Add the messages of a turn. What the model said is in the record of its answer already."""
        self.messages = [*self.messages, said, *heard]
        self.first_new = len(self.messages) - len(heard)


def describe_cut(reply: ModelReply) -> str:
    """Return what to add to the reason why an answer cannot be used: whether it was cut."""
    return f"; the answer was cut at its limit of {MAX_OUTPUT_TOKENS} tokens" if reply.is_cut else ""


def as_message(call: RequestedCall) -> dict[str, Any]:
    """Return a tool call as it stands in an assistant message."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
