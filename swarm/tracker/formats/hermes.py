"""The Hermes format, which Qwen and the bundled models use: `<tool_call>{json}</tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarm.tracker.formats.base import CallStream, Preceding, Scanned, Scanner
from swarm.tracker.formats.json_text import ends_in_string, parse_call
from swarm.tracker.formats.lark import CallForm, forced_grammar, literal, mark
from swarm.tracker.text import overlap
from swarm.types import Grammar, ToolChoice, ToolSpec

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesFormat:
    """The Hermes format. A call without arguments gets the arguments `{}`.

    A call at the end of a reply may lack its closing tag.
    """

    name = "hermes"
    marks = (OPEN, CLOSE)

    def open_stream(self) -> HermesStream:
        return HermesStream()

    def forced_call(
        self, tools: Sequence[ToolSpec], choice: ToolChoice, special_ids: Mapping[str, int], before: str = ""
    ) -> Grammar:
        """Return the grammar of calls in the form of Qwen's templates, one per line."""
        form = CallForm(
            first=mark(OPEN, special_ids),
            before_name=literal('\n{"name": '),
            before_arguments=literal(', "arguments": '),
            behind_arguments=" ".join((literal("}\n"), mark(CLOSE, special_ids))),
            between=" ".join((literal("\n"), mark(OPEN, special_ids))),
        )
        return forced_grammar(form, tools, choice, before)


class HermesStream(CallStream):
    def find_opening(self, text: str, place: Preceding) -> tuple[int, int] | None:
        begin = text.find(OPEN)
        return None if begin < 0 else (begin, begin + len(OPEN))

    def uncertain(self, text: str, place: Preceding) -> int:
        return overlap(text, OPEN)

    def open_scanner(self) -> Scanner:
        return _Tagged()


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
