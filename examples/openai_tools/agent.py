"""An agent as anyone would write it with the stock OpenAI SDK: it knows nothing of training."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI

CALCULATOR: Any = {
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
MAX_CALLS = 3


def calculate(arguments: str) -> str:
    """Return the product, sum or difference of two integers, or `error`."""
    try:
        expression = json.loads(arguments)["expression"]
        for sign in "*+-":
            left, found, right = expression.partition(sign)
            if found:
                a, b = int(left), int(right)
                return str({"*": a * b, "+": a + b, "-": a - b}[sign])
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return "error"


def ask(client: OpenAI, question: str, model: str = "default") -> str:
    """Return the model's final answer, after as many calculator calls as it likes (at most MAX_CALLS replies)."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(MAX_CALLS):
        reply = client.chat.completions.create(model=model, messages=messages, tools=[CALCULATOR], max_tokens=48)
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            if call.type == "function":
                result = calculate(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""
