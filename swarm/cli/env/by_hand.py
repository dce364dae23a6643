"""A person as the agent, whose lines of input are the replies.

Place in the flow: `swarm env play` uses it when no model plays. Input comes from a terminal or a pipe. The module knows
nothing of graders, models or how messages are shown.

    a line             a reply
    << ... .           a reply of several lines, or one that begins with a slash
    /call NAME {...}   a reply that calls a tool
    /solution          shows a right reply
    an empty line      ends the attempt, as do the end of input and /quit
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swarm.errors import BadRequest

if TYPE_CHECKING:
    from swarm.program import RecordedSession
    from swarm.types import Message, ToolSpec

BEGIN, END = "<<", "."
HINT = f"each line is a reply, an empty one ends the attempt; several lines stand between {BEGIN} and {END}"
HINT_OF_SOLUTION = "/solution shows a right one"


@dataclass(frozen=True, slots=True)
class Hand:
    """A person who plays an episode.

    `read` takes a prompt and returns the next line, or None at the end of input. `tell` shows a text to the person
    only. `solution` returns a right reply, if there is one.
    """

    read: Callable[[str], str | None]
    tell: Callable[[str], None]
    solution: Callable[[], str | None]

    def play(self, session: RecordedSession) -> None:
        """Reply until the attempt is over or the person ends it."""
        while not session.is_over and (message := self._next_reply(session)) is not None:
            session.reply(message)

    def _next_reply(self, session: RecordedSession) -> Message | None:
        while True:
            line = self.read("assistant")
            if line is None or line.strip() in {"", "/quit"}:
                return None
            if line.strip() == BEGIN:
                return {"content": self._several_lines()}
            if not line.startswith("/"):
                return {"content": line}
            command, _, rest = line.strip().partition(" ")
            if command == "/call":
                if (message := self._tool_call(session, rest)) is not None:
                    return message
            elif command == "/solution":
                solution = self.solution()
                self.tell("no right reply is known" if solution is None else solution)
            else:
                self.tell(f"no command {command}; a reply that begins with / stands between {BEGIN} and {END}")

    def _several_lines(self) -> str:
        lines: list[str] = []
        while (line := self.read("")) is not None and line.strip() != END:
            lines.append(line)
        return "\n".join(lines)

    def _tool_call(self, session: RecordedSession, text: str) -> Message | None:
        name, _, written = text.strip().partition(" ")
        names = [tool_name(tool) for tool in session.tools]
        if name not in names:
            self.tell(f"there is no tool {name!r}: there is {', '.join(names) or 'none'}")
            return None
        arguments: Any = None
        with suppress(ValueError, RecursionError):
            arguments = json.loads(written or "{}")
        if not isinstance(arguments, dict):
            self.tell(f'the arguments of a call are a JSON object: /call {name} {{"argument": "value"}}')
            return None
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {"tool_calls": [{"id": f"call-{session.turns}", "type": "function", "function": function}]}


def tool_name(tool: ToolSpec) -> str:
    return str(tool.get("function", {}).get("name", ""))


def tool_signature(tool: ToolSpec) -> str:
    """Return the line that calls the tool, such as `/call NAME {"argument": ...}`."""
    properties: dict[str, Any] = tool.get("function", {}).get("parameters", {}).get("properties", {})
    arguments = ", ".join(f"{json.dumps(name)}: ..." for name in properties)
    return f"/call {tool_name(tool)} {{{arguments}}}"


def read_line(prompt: str) -> str | None:
    """Return the next line of standard input, or None at its end. On a terminal, show the prompt and allow editing.

    Raise BadRequest if the input is not text.
    """
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            # The import alone makes the arrow keys edit the line. Some platforms lack the module.
            with suppress(ImportError):
                __import__("readline")
            return input(prompt)
        line = sys.stdin.readline()
    except EOFError:
        sys.stdout.write("\n")
        return None
    except UnicodeDecodeError as error:
        raise BadRequest(f"the input is not text: {error.reason}") from error
    return line.rstrip("\r\n") if line else None
