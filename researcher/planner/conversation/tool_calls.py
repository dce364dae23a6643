"""Tool calls as JSON in a model's text, for servers that have no tool calls of their own.

Place in the flow: chat.py describes the tools in the prompt with these, and finds the call in an answer. This module
knows nothing of HTTP or of what a tool does.
"""

from __future__ import annotations

import json

from researcher.planner.conversation.endpoint import RequestedCall
from researcher.planner.language_model.answers import Unusable, find_object, has_program
from researcher.planner.tools.base import Toolbox


def describe_tools(toolbox: Toolbox) -> str:
    """Return one line per tool: its name, what it shows, and the JSON schema of its arguments."""
    return "\n".join(
        f"- {tool.name}: {tool.description} Arguments: {json.dumps(tool.arguments.model_json_schema()['properties'])}"
        for tool in toolbox.tools.values()
    )


def find_call(text: str) -> RequestedCall | None:
    """Return the tool call in an answer, or None if the answer is one to the question."""
    if has_program(text):
        return None
    try:
        found = find_object(text)
    except Unusable:
        return None
    name = found.get("tool")
    if not isinstance(name, str) or not found.keys() <= {"tool", "arguments"}:
        return None
    return RequestedCall("", name, json.dumps(found.get("arguments", {})))
