"""The family calc: a product that is too hard for a small model without its calculator tool."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from operator import add, mul, sub
from random import Random
from types import MappingProxyType
from typing import Any

from swarm.tasks.base import Exchange, Problem, TaskFamily, text_of
from swarm.types import Message, Task, ToolSpec

CALCULATOR: ToolSpec = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}

TOOL_ERROR = "error"
_OPERATORS = MappingProxyType({"+": add, "-": sub, "*": mul})
# Factors of six digits bound the result to twelve digits, which cost nothing.
_EXPRESSION = re.compile(r"\s*([0-9]{1,6})\s*([-+*])\s*([0-9]{1,6})\s*")


def calculate(expression: str) -> str:
    """Return the value of `integer operator integer` as text, or `error` for anything else, without running code."""
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        return TOOL_ERROR
    left, operator, right = match.groups()
    return str(_OPERATORS[operator](int(left), int(right)))


def answer_tool_call(call: Mapping[str, Any]) -> Message:
    """Return the `tool` message for one tool call in the OpenAI shape, with the content `error` for an invalid call."""
    return {"role": "tool", "tool_call_id": str(call.get("id", "")), "content": _call_result(call.get("function"))}


def _call_result(function: Any) -> str:
    try:
        if function["name"] != "calculator":
            return TOOL_ERROR
        arguments = function["arguments"]
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        return calculate(parsed["expression"])
    except (KeyError, TypeError, ValueError):
        return TOOL_ERROR


class CalcExchange(Exchange):
    """An exchange that answers tool calls, and takes a reply without one as the final answer."""

    def respond(self, message: Message) -> tuple[Message, ...] | None:
        calls = message.get("tool_calls")
        if calls:
            return tuple(answer_tool_call(call) for call in calls)
        self.reward = float(text_of(message) == self.task.metadata["answer"])
        return None


class Calc(TaskFamily):
    name = "calc"
    description = "Use a calculator tool to multiply a one- or two-digit number by a two-digit number."
    tools = (CALCULATOR,)
    max_turns = 3
    max_tokens = 48

    def draw(self, rng: Random) -> Problem:
        left = rng.randint(2, 30) if rng.random() < 0.5 else rng.randint(11, 99)
        expression = f"{left}*{rng.randint(11, 99)}"
        return Problem(
            expression, f"What is {expression}?", {"expression": expression, "answer": calculate(expression)}
        )

    def start(self, task: Task) -> Exchange:
        return CalcExchange(task, self.max_turns)
