"""What a tool-call format is: how calls look in a completion, and the grammar under which nothing else is said.

Place in the flow: the formats beside this module implement it, registry.py names them, codec.py picks one per model.
Knows nothing of tokens but the names of special ones, and nothing of which tools exist while it reads.
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
    """Splits text into content and calls as it arrives; however it is cut into pushes, the parts are the same.

    Content streams at once, save for what may be the beginning of a call. White space next to calls, and at the end of
    a reply that has some, is dropped. What is not a well-formed call is content, character for character.
    """

    def push(self, text: str) -> list[str | ToolCall]:
        """The parts that are now certain, in order: pieces of content and whole calls."""
        ...

    def finish(self) -> list[str | ToolCall]:
        """The rest, when no more text comes."""
        ...


class ToolFormat(Protocol):
    """One way in which models write calls. `marks` are the tokens that must stay visible in text, special or not."""

    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]: ...

    def open_stream(self) -> ToolStream:
        """A parser for one reply."""
        ...

    def forced_call(
        self, tools: Sequence[ToolSpec], choice: ToolChoice, special_ids: Mapping[str, int], before: str = ""
    ) -> Grammar:
        """The language of replies that call one of `tools`, or several where `choice` allows calls in parallel.

        `tools` are those that may be called. `special_ids` are the ids of those marks which the tokenizer takes for
        special tokens; the others are plain text. `before` is a Lark expression of what precedes the first call.
        Raises BadRequest for a tool whose parameters are no schema of an object.
        """
        ...
