"""The conversation about one question: the model looks with tools, then answers, and is told what is wrong.

Place in the flow: chat.py begins one for each question. It is a small LangGraph of its own, with three nodes:

    model -+-> tools -> model          the model calls tools, within bounds
           +-> answer -+-> model       the answer cannot be used, and the model hears why
                       +-> end

Once the bounds are reached, the model is told to answer now. This module knows nothing of HTTP, money or records.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from prompts import load
from researcher.planner.conversation.endpoint import MAX_OUTPUT_TOKENS, ModelReply, RequestedCall
from researcher.planner.conversation.tool_calls import describe_tools
from researcher.planner.language_model.answers import Unusable
from researcher.planner.tools.base import Toolbox, ToolRefused

logger = logging.getLogger(__name__)

MAX_ANSWERS = 3
"""The number of answers in a conversation; each repetition tells the model the fault of the previous answer."""
MAX_CALLS = 8
"""The tool calls of one turn that are carried out; the model hears that further ones were not."""
_STEPS = 10_000
"""LangGraph's own bound on steps, which the bounds of a conversation never reach."""


class NoUsableAnswer(Exception):
    """A conversation without a usable answer, after which another one may succeed."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a conversation. The messages from index `first_new` on were in no earlier request.

    `seconds` is the time that the model has taken in this conversation so far.
    """

    messages: list[dict[str, Any]]
    first_new: int
    may_call: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The reply to a request, with the tokens and the seconds that it took.

    The reply has calls only if the request allows them.
    """

    reply: ModelReply
    tokens: int
    seconds: float


class _State(TypedDict):
    messages: list[dict[str, Any]]
    first_new: int
    reply: ModelReply
    turns: int
    tokens: int
    seconds: float
    answers: int
    is_done: bool
    answer: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLoop:
    """The bounds and the parts of a conversation about one question.

    `send` makes a request. `parse` raises Unusable for an answer that cannot be used. With `as_json`, tool calls are
    texts. After `max_turns` turns with tools, or `max_tokens` tokens, no more tools are called.
    """

    send: Callable[[Request], Answered]
    parse: Callable[[str], Any]
    toolbox: Toolbox
    as_json: bool
    max_turns: int
    max_tokens: int

    def run(self, question: str) -> Any:
        """Return the parsed answer. Raises NoUsableAnswer, and whatever `send` raises."""
        opening = [_message("system", self._instructions()), _message("user", question)]
        begun: _State = {
            **{"messages": opening, "first_new": 0, "reply": ModelReply(""), "turns": 0, "tokens": 0, "seconds": 0.0},
            **{"answers": 0, "is_done": False, "answer": None},
        }  # pyright: ignore[reportAssignmentType]
        graph = StateGraph(_State)
        graph.add_node("model", self._ask_model)
        graph.add_node("tools", self._call_tools)
        graph.add_node("answer", self._read_answer)
        graph.add_edge(START, "model")
        graph.add_conditional_edges(
            "model", lambda state: "tools" if state["reply"].calls else "answer", ["tools", "answer"]
        )
        graph.add_edge("tools", "model")
        graph.add_conditional_edges("answer", lambda state: END if state["is_done"] else "model", ["model", END])
        # In an empty context, or it would count as a part of the study's own graph and write into its checkpoints.
        ended = contextvars.Context().run(graph.compile().invoke, begun, {"recursion_limit": _STEPS})
        return ended["answer"]

    def _instructions(self) -> str:
        system = load("system")
        if not self.toolbox.tools:
            return system
        if self.as_json:
            return f"{system}\n{load('tools_as_json', tools=describe_tools(self.toolbox), turns=str(self.max_turns))}"
        return f"{system}\n{load('tools', turns=str(self.max_turns))}"

    def _may_call(self, state: _State) -> bool:
        is_within = state["turns"] < self.max_turns and state["tokens"] < self.max_tokens
        return bool(self.toolbox.tools) and is_within

    def _ask_model(self, state: _State) -> dict[str, Any]:
        messages = state["messages"]
        answered = self.send(Request(messages, state["first_new"], self._may_call(state), state["seconds"]))
        return {
            "reply": answered.reply,
            "tokens": state["tokens"] + answered.tokens,
            "seconds": state["seconds"] + answered.seconds,
        }

    def _call_tools(self, state: _State) -> dict[str, Any]:
        reply = state["reply"]
        results = [(call, self._result_of(call)) for call in reply.calls[:MAX_CALLS]]
        results += [
            (call, f"not carried out: a turn has at most {MAX_CALLS} calls") for call in reply.calls[MAX_CALLS:]
        ]
        if self.as_json:
            said = [_message("assistant", reply.text)]
            heard = [_message("user", f"Result of {call.name}:\n\n{result}") for call, result in results]
        else:
            said = [{**_message("assistant", reply.text), "tool_calls": [as_message(call) for call in reply.calls]}]
            heard = [{**_message("tool", result), "tool_call_id": call.id} for call, result in results]
        turned: dict[str, Any] = {"turns": state["turns"] + 1}
        if not self._may_call({**state, **turned}):  # pyright: ignore[reportArgumentType]
            heard.append(_message("user", load("submit")))
        return {**turned, **_extended(state, said, heard)}

    def _result_of(self, call: RequestedCall) -> str:
        try:
            return self.toolbox.call(call.name, call.arguments)
        except ToolRefused as error:
            return f"refused: {error}"
        except Exception as error:  # the boundary: the failure of a tool is data for the model, and ends no study
            logger.exception("the tool %s failed", call.name)
            return f"the tool failed: {type(error).__name__}: {error}"

    def _read_answer(self, state: _State) -> dict[str, Any]:
        reply, answers = state["reply"], state["answers"] + 1
        try:
            return {"answer": self.parse(reply.text), "is_done": True}
        except Unusable as error:
            reason = f"{error}{describe_cut(reply)}"
        if answers >= MAX_ANSWERS:
            raise NoUsableAnswer(f"{MAX_ANSWERS} answers that cannot be used: {reason}")
        told = _extended(state, [_message("assistant", reply.text)], [_message("user", load("retry", reason=reason))])
        return {"answers": answers, **told}


def describe_cut(reply: ModelReply) -> str:
    """Return what to add to the reason why an answer cannot be used: whether it was cut."""
    return f"; the answer was cut at its limit of {MAX_OUTPUT_TOKENS} tokens" if reply.is_cut else ""


def as_message(call: RequestedCall) -> dict[str, Any]:
    """Return a tool call as it stands in an assistant message."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _extended(state: _State, said: list[dict[str, Any]], heard: list[dict[str, Any]]) -> Mapping[str, Any]:
    """Return the messages with those of a turn. What the model said is in the record of its answer already."""
    messages = [*state["messages"], *said]
    return {"messages": [*messages, *heard], "first_new": len(messages)}
