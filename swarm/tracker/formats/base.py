"""The interface of a tool-call format: how calls look in a completion, and the grammar that forces a call.

Place in the flow: the formats beside this module implement it, registry.py names them, codec.py picks one per model.
This module knows nothing of tokens but the names of special ones. While it reads, it does not know which tools exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from swarm.types import Grammar, ToolChoice, ToolSpec


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is the JSON text of an object, as the model wrote it."""

    name: str
    arguments: str


class ToolStream(Protocol):
    """A splitter of text into content and calls as it arrives.

    The parts do not depend on how the text is cut into pushes. Content streams at once, except for text that may begin
    a call. White space next to calls, and at the end of a reply with calls, is dropped. A call that is not well-formed
    is content, character for character.
    """

    def push(self, text: str) -> list[str | ToolCall]:
        """Return the parts that are now certain, in order: pieces of content and whole calls."""
        ...

    def finish(self) -> list[str | ToolCall]:
        """Return the remaining parts; no more text comes."""
        ...


class ToolFormat(Protocol):
    """One way in which models write calls. `marks` are the tokens that must stay visible in text, special or not."""

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]: ...

    def open_stream(self) -> ToolStream:
        """Return a parser for one reply."""
        ...

    def forced_call(
        self, tools: Sequence[ToolSpec], choice: ToolChoice, special_ids: Mapping[str, int], before: str = ""
    ) -> Grammar:
        """Return the grammar of replies that call one of `tools`, or several where `choice` allows parallel calls.

        `tools` are those that may be called. `special_ids` are the ids of the marks that the tokenizer treats as
        special tokens; the other marks are plain text. `before` is a Lark expression for the text before the first
        call. Raise BadRequest for a tool whose parameters are not the schema of an object.
        """
        ...
