"""Llama 3's JSON calls: a reply that is `{"name": ..., "parameters": {...}}`, or several of these separated by `;`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from swarm.tracker.formats.base import Preceding, Scanned, Scanner, ToolFormat
from swarm.tracker.formats.json_text import JsonExtent, parse_call
from swarm.tracker.formats.lark import CallForm, literal
from swarm.tracker.text import overlap
from swarm.types import ToolSpec

PYTHON_TAG = "<|python_tag|>"

_TAGGED = re.compile(rf"{re.escape(PYTHON_TAG)}\s*(?=\{{)")
_AT_START = re.compile(rf"\s*((?:{re.escape(PYTHON_TAG)}\s*)?)(?=\{{)")
_BEHIND_CALL = re.compile(rf"\s*(;?\s*(?:{re.escape(PYTHON_TAG)}\s*)?)(?=\{{)")


class Llama3Format(ToolFormat):
    """The Llama 3 format.

    A call opens the reply, or comes after another call, or after the tag that Llama may put before it. A call must have
    parameters, so that a JSON answer that happens to have a name is not a call. A forced call has no tag, which Llama
    reserves for its built-in tools.
    """

    name = "llama3_json"
    marks = (PYTHON_TAG,)

    def open_scanner(self) -> Scanner:
        return _Object()

    def call_form(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int]) -> CallForm:
        return CallForm(
            first="",
            before_name=literal('{"name": '),
            before_arguments=literal(', "parameters": '),
            behind_arguments=literal("}"),
            between=literal("; "),
        )

    def find_opening(self, text: str, place: Preceding) -> tuple[int, int] | None:
        if place is not Preceding.TEXT:
            bare = (_AT_START if place is Preceding.START else _BEHIND_CALL).match(text)
            if bare is not None:
                return bare.span(1)
        tagged = _TAGGED.search(text)
        return tagged.span() if tagged else None

    def uncertain(self, text: str, place: Preceding) -> int:
        """Return the length of a beginning of the tag, or of the whole tag while the text after it is missing."""
        begin = text.rstrip().rfind(PYTHON_TAG)
        if begin >= 0 and not text[begin + len(PYTHON_TAG) :].strip():
            tagged = len(text) - begin
        else:
            tagged = overlap(text, PYTHON_TAG)
        rest = text[: len(text) - tagged].strip()
        return len(text) if rest == ";" and place is Preceding.BEHIND_CALL else tagged


class _Object:
    def __init__(self) -> None:
        self._extent = JsonExtent()

    def scan(self, text: str) -> Scanned | None:
        end = self._extent.find_end(text)
        if end is None:
            return None
        call = parse_call(text[:end], keys=("parameters", "arguments"), default=None)
        return Scanned([] if call is None else [call], end)

    def finish(self, text: str) -> Scanned:
        return Scanned([], len(text))
