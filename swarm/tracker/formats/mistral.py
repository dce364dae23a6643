"""Mistral's calls: `[TOOL_CALLS] [{json}, ...]`, and `[TOOL_CALLS]name[ARGS]{json}` of newer models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from swarm.errors import BadRequest
from swarm.tracker.formats.base import Scanned, Scanner, ToolFormat
from swarm.tracker.formats.json_text import JsonExtent, parse_arguments, parse_calls
from swarm.tracker.formats.lark import CallForm, literal, mark
from swarm.types import ToolSpec

OPEN = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGUMENTS = "[ARGS]"
LONGEST_HEADER = 256
"""The most characters between the mark and the arguments. A longer text is content and need not wait for more."""

_BARE_NAME = re.compile(r"[^\s\[\]{}]+")
_HEADER = re.compile(
    rf"\s*({_BARE_NAME.pattern})\s*(?:{re.escape(CALL_ID)}[^\s\[{{]*\s*)?(?:{re.escape(ARGUMENTS)}\s*)?"
)
_ARRAY = re.compile(r"\s*\[\s*[{\]]")


class MistralFormat(ToolFormat):
    """Mistral's formats, both of which it reads.

    A forced call has the newer form if the tokenizer has the mark before arguments.
    """

    name = "mistral"
    marks = (OPEN, CALL_ID, ARGUMENTS)

    def open_scanner(self) -> Scanner:
        return _Behind()

    def call_form(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int]) -> CallForm:
        form = _newer_form(special_ids) if ARGUMENTS in special_ids else _array_form(special_ids)
        unfit = next((tool for tool in tools if not _BARE_NAME.fullmatch(str(tool["function"]["name"]))), None)
        if form.is_bare and unfit is not None:
            raise BadRequest(
                f"tools: this model cannot call {unfit['function']['name']!r}: name it without blanks and brackets",
                param="tools",
            )
        return form


def _array_form(special_ids: Mapping[str, int]) -> CallForm:
    return CallForm(
        first=f"{mark(OPEN, special_ids)} {literal(' [')}",
        before_name=literal('{"name": '),
        before_arguments=literal(', "arguments": '),
        behind_arguments=literal("}"),
        between=literal(", "),
        last=literal("]"),
    )


def _newer_form(special_ids: Mapping[str, int]) -> CallForm:
    opening = mark(OPEN, special_ids)
    return CallForm(
        first=opening,
        before_name="",
        before_arguments=mark(ARGUMENTS, special_ids),
        behind_arguments="",
        between=opening,
        is_bare=True,
    )


class _Behind:
    """The text after the mark: an array of calls, or a name and its arguments."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._begin = 0
        self._extent: JsonExtent | None = None

    def scan(self, text: str) -> Scanned | None:
        if self._extent is None:
            self._begin_value(text)
        if self._extent is None:
            return Scanned([], 0) if _is_hopeless(text) else None
        end = self._extent.find_end(text)
        if end is None:
            return None
        value = text[self._begin : end]
        if self._name is None:
            return Scanned(parse_calls(value), end)
        call = parse_arguments(self._name, value)
        return Scanned([] if call is None else [call], end)

    def finish(self, text: str) -> Scanned:
        return Scanned([], 0 if self._extent is None else len(text))

    def _begin_value(self, text: str) -> None:
        """Find out where the JSON begins, and the name before it unless it is an array."""
        head = text[: LONGEST_HEADER + 1]
        header = _HEADER.match(head)
        if _ARRAY.match(head):
            self._begin = head.index("[")
        elif header is not None and head.startswith("{", header.end()):
            self._name, self._begin = header.group(1), header.end()
        else:
            return
        self._extent = JsonExtent(self._begin)


def _is_hopeless(text: str) -> bool:
    """Return whether no continuation of `text` begins a value."""
    if len(text) > LONGEST_HEADER:
        return True
    if not text.strip() or re.fullmatch(r"\s*\[\s*", text):
        return False
    # The end may be the beginning of a mark.
    cuts = range(len(text), max(-1, len(text) - len(CALL_ID)), -1)
    open_cuts = [cut for cut in cuts if any(each.startswith(text[cut:]) for each in (CALL_ID, ARGUMENTS))]
    return not any(_HEADER.fullmatch(text[:cut]) for cut in open_cuts)
