"""What a planner may look at before it answers: tools with names, checked arguments and a text as result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from researcher.planner.texts import clip, describe_invalid

MAX_RESULT_CHARS = 12_000
"""The longest result of one tool call. A longer one is cut in the middle, and says so."""


class ToolArguments(BaseModel):
    """The arguments of a tool; a field that the tool does not know is refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolRefused(Exception):
    """A tool call that cannot be carried out; the planner sees the message."""


@dataclass(frozen=True, slots=True)
class PlannerTool:
    """One tool. `call` gets validated arguments and returns a text; it raises ToolRefused."""

    name: str
    description: str
    arguments: type[ToolArguments]
    call: Callable[[Any], str]


class Toolbox:
    """The tools of one study, by name. A result of more than `max_chars` characters is cut."""

    def __init__(self, tools: Sequence[PlannerTool], *, max_chars: int = MAX_RESULT_CHARS) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._max_chars = max_chars

    def as_functions(self) -> list[dict[str, Any]]:
        """Return the tools as function tools of the chat completions API."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.arguments.model_json_schema(),
                },
            }
            for tool in self.tools.values()
        ]

    def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Return the result of a tool, cut to the longest result.

        `arguments` are JSON as text, or as a mapping. Raises ToolRefused for an unknown tool or invalid arguments.
        """
        tool = self.tools.get(name)
        if tool is None:
            raise ToolRefused(f"there is no tool {name!r}; there are: {', '.join(sorted(self.tools))}")
        try:
            given = json.loads(arguments or "{}") if isinstance(arguments, str) else dict(arguments)
            checked = tool.arguments.model_validate(given)
        except ValidationError as error:
            raise ToolRefused(f"{name}: {describe_invalid(error, 'the arguments')}") from error
        except (ValueError, RecursionError) as error:
            raise ToolRefused(f"{name}: the arguments are no JSON object: {error}") from error
        return clip(tool.call(checked), self._max_chars)


NO_TOOLS = Toolbox(())
