"""The Hermes format, which Qwen and the bundled models use: `<tool_call>{json}</tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarm.tracker.formats.base import Scanned, Scanner, ToolFormat
from swarm.tracker.formats.json_text import ends_in_string, parse_call
from swarm.tracker.formats.lark import CallForm, literal, mark
from swarm.types import ToolSpec

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesFormat(ToolFormat):
    """The Hermes format. A call without arguments gets the arguments `{}`.

    A call at the end of a reply may lack its closing tag. A forced call has the form of Qwen's templates, one per line.
    """

    name = "hermes"
    marks = (OPEN, CLOSE)

    def open_scanner(self) -> Scanner:
        return _Tagged()

    def call_form(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int]) -> CallForm:
        return CallForm(
            first=mark(OPEN, special_ids),
            before_name=literal('\n{"name": '),
            before_arguments=literal(', "arguments": '),
            behind_arguments=" ".join((literal("}\n"), mark(CLOSE, special_ids))),
            between=" ".join((literal("\n"), mark(OPEN, special_ids))),
        )


class _Tagged:
    def __init__(self) -> None:
        self._searched = 0
        self._quoted: int | None = None

    def scan(self, text: str) -> Scanned | None:
        while (begin := text.find(CLOSE, self._searched)) >= 0:
            body, end = text[:begin], begin + len(CLOSE)
            if call := parse_call(body):
                return Scanned([call], end)
            if not ends_in_string(body):
                return Scanned([], self._quoted or end)
            # An argument quotes the tag, or the JSON is broken: only the text after it can tell.
            self._quoted, self._searched = self._quoted or end, end
        self._searched = max(self._searched, len(text) - len(CLOSE) + 1)
        return None

    def finish(self, text: str) -> Scanned:
        call = parse_call(text)
        return Scanned([call], len(text)) if call else Scanned([], self._quoted or len(text))
