"""Demonstrations of tools: a call, the tool's answer, and a reply that repeats this answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from recipes.micro.kinds.base import draw_number, draw_word
from recipes.micro.words import COMMON, NAMES
from recipes.nano.demos import Demo
from swarm.types import Message, ToolSpec

Use = tuple[ToolSpec, str, dict[str, Any], str]
"""A tool, a request, the arguments that it needs, and the tool's answer."""


def demonstrate_tool(rng: Random) -> Demo:
    """Return a request that needs a tool, now and then with a second tool that is not needed."""
    use = rng.choice(_USES)
    tool, request, arguments, answer = use(rng)
    tools = [tool]
    if rng.random() < 0.3:
        other = rng.choice(_USES)(rng)[0]
        if other["function"]["name"] != tool["function"]["name"]:
            tools.insert(rng.randint(0, 1), other)
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append(
            {"role": "system", "content": rng.choice(("Use the tools.", "You can call tools.", "Be brief."))}
        )
    hint = rng.choice(("", "", " Use the tool.", f" Use {tool['function']['name']}.", " Call the tool first."))
    messages.append({"role": "user", "content": request + hint})
    function = {"name": tool["function"]["name"], "arguments": json.dumps(arguments)}
    call = {"id": "call_1", "type": "function", "function": function}
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": "call_1", "content": answer})
    messages.append({"role": "assistant", "content": answer})
    return Demo(tuple(messages), tuple(tools))


def _tool(name: str, description: str, /, **parameters: str) -> ToolSpec:
    properties = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _calculate(rng: Random) -> Use:
    left, right = rng.randint(2, 99), rng.randint(2, 99)
    sign, value = rng.choice((("+", left + right), ("-", left - right), ("*", left * right)))
    tool = _tool(
        rng.choice(("calculate", "compute", "evaluate", "calculator")), "Evaluate an expression", expression="string"
    )
    request = rng.choice(("What is {}?", "Calculate {}.", "Compute {}", "How much is {}?")).format(
        f"{left} {sign} {right}"
    )
    return tool, request, {"expression": f"{left}{sign}{right}"}, str(value)


def _add(rng: Random) -> Use:
    left, right = draw_number(rng), draw_number(rng)
    tool = _tool(rng.choice(("add", "sum", "plus")), "Add two numbers", a="integer", b="integer")
    return (
        tool,
        rng.choice(("What is {} + {}?", "Add {} and {}.")).format(left, right),
        {"a": left, "b": right},
        str(left + right),
    )


def _reverse(rng: Random) -> Use:
    word = draw_word(rng)
    tool = _tool(rng.choice(("reverse", "turn_around", "flip")), "Reverse a text", text="string")
    return (
        tool,
        rng.choice(("Reverse {}.", "Write {} backwards.", "Turn {} around.")).format(word),
        {"text": word},
        word[::-1],
    )


def _look_up(rng: Random) -> Use:
    asked, found = rng.choice((*COMMON, *NAMES)), rng.choice(COMMON)
    tool = _tool(rng.choice(("lookup", "search", "find", "get")), "Look up a name", name="string")
    request = rng.choice(("Look up {}.", "What is stored for {}?", "Find {}", "What do we know of {}?")).format(asked)
    return tool, request, {"name": asked}, found


def _count(rng: Random) -> Use:
    word = draw_word(rng)
    tool = _tool(rng.choice(("length", "count", "size")), "Count the letters of a word", word="string")
    return (
        tool,
        rng.choice(("How long is {}?", "How many letters are in {}?")).format(word),
        {"word": word},
        str(len(word)),
    )


_USES: tuple[Callable[[Random], Use], ...] = (_calculate, _add, _reverse, _look_up, _count)
