"""The interface of a tool-call format, and the split of text into content and calls as it arrives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from swarm.tracker.formats.lark import CallForm
from swarm.tracker.text import overlap
from swarm.types import ToolSpec


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is the JSON text of an object, as the model wrote it."""

    name: str
    arguments: str


class Preceding(Enum):
    """The text before a position: only white space, other text, or a call (and white space)."""

    START = auto()
    TEXT = auto()
    BEHIND_CALL = auto()


@dataclass(frozen=True, slots=True)
class Scanned:
    """The text after an opening: this many characters are these calls or, without calls, content."""

    calls: Sequence[ToolCall]
    used: int


class Scanner(Protocol):
    """A reader of the text after one opening. `text` is all of it so far, so it only grows."""

    def scan(self, text: str) -> Scanned | None:
        """Return the result, or None while more text is needed.

        The result must not depend on how much of the later text has arrived.
        """
        ...

    def finish(self, text: str) -> Scanned:
        """Return the result; no more text comes."""
        ...


class ToolFormat(ABC):
    """One way in which models write calls. `marks` are the tokens that must stay visible in text, special or not.

    A call opens with the first mark, unless the format says otherwise.
    """

    name: str
    marks: tuple[str, ...]

    @abstractmethod
    def open_scanner(self) -> Scanner:
        """Return a scanner for the text after an opening."""

    @abstractmethod
    def call_form(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int]) -> CallForm:
        """Return the form of forced calls of these tools. Raise BadRequest for a tool that the model cannot call.

        `special_ids` are the ids of the marks that the tokenizer treats as special tokens; the other marks are text.
        """

    def find_opening(self, text: str, place: Preceding) -> tuple[int, int] | None:
        """Return where the first opening in `text` begins and ends."""
        begin = text.find(self.marks[0])
        return None if begin < 0 else (begin, begin + len(self.marks[0]))

    def uncertain(self, text: str, place: Preceding) -> int:
        """Return how many characters at the end of a text without an opening may begin one, white space aside."""
        return overlap(text, self.marks[0])


class CallStream:
    """A splitter of text into content and calls as it arrives.

    The parts do not depend on how the text is cut into pushes. Content streams at once, except for text that may begin
    a call. White space next to calls, and at the end of a reply with calls, is dropped. A call that is not well-formed
    is content, character for character.
    """

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._buffer = ""
        self._place = Preceding.START
        self._gap = ""
        self._opening = ""
        self._scanner: Scanner | None = None
        self._has_content = False
        self._has_calls = False

    def push(self, text: str) -> list[str | ToolCall]:
        """Return the parts that are now certain, in order: pieces of content and whole calls."""
        self._buffer += text
        parts: list[str | ToolCall] = []
        while True:
            if self._scanner is None and not self._open(parts):
                return parts
            assert self._scanner is not None
            scanned = self._scanner.scan(self._buffer)
            if scanned is None:
                return parts
            parts.extend(self._settle(scanned))

    def finish(self) -> list[str | ToolCall]:
        """Return the remaining parts; no more text comes."""
        parts: list[str | ToolCall] = []
        while self._scanner is not None:
            parts.extend(self._settle(self._scanner.finish(self._buffer)))
            parts.extend(self.push(""))
        rest, self._buffer = self._buffer, ""
        return parts + self._content(rest if rest.strip() or not self._has_calls else "")

    def _open(self, parts: list[str | ToolCall]) -> bool:
        """Pass content on, up to the next opening; return False if there is none yet."""
        text = self._buffer
        found = self._form.find_opening(text, self._place)
        if found is None:
            certain = text[: len(text) - self._form.uncertain(text, self._place)].rstrip()
            self._buffer = text[len(certain) :]
            parts.extend(self._content(certain))
            return False
        begin, end = found
        content = text[:begin].rstrip()
        self._gap, self._opening, self._buffer = text[len(content) : begin], text[begin:end], text[end:]
        parts.extend(self._content(content))
        self._scanner = self._form.open_scanner()
        return True

    def _settle(self, scanned: Scanned) -> list[str | ToolCall]:
        used, self._buffer = self._buffer[: scanned.used], self._buffer[scanned.used :]
        self._scanner = None
        if not scanned.calls:
            return self._content(self._gap + self._opening + used)
        self._has_calls, self._place = True, Preceding.BEHIND_CALL
        return list(scanned.calls)

    def _content(self, text: str) -> list[str | ToolCall]:
        if self._has_calls and not self._has_content:
            text = text.lstrip()
        if not text:
            return []
        self._has_content, self._place = True, Preceding.TEXT
        return [text]
