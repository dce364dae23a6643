"""The tool-call formats of Hermes, Llama 3 and Mistral by name, and the choice of a model's format."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from swarm.errors import BadRequest
from swarm.tracker.formats.base import Preceding, Scanned, Scanner, ToolFormat
from swarm.tracker.formats.json_text import JsonExtent, ends_in_string, parse_arguments, parse_call, parse_calls
from swarm.tracker.formats.lark import CallForm, literal, mark
from swarm.tracker.text import overlap
from swarm.types import ToolSpec

_HERMES_OPEN = "<tool_call>"
_HERMES_CLOSE = "</tool_call>"


class HermesFormat(ToolFormat):
    """The Hermes format. A call without arguments gets the arguments `{}`.

    A call at the end of a reply may lack its closing tag. A forced call has the form of Qwen's templates, one per line.
    """

    name = "hermes"
    marks = (_HERMES_OPEN, _HERMES_CLOSE)

    def open_scanner(self) -> Scanner:
        return _TaggedCall()

    def call_form(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int]) -> CallForm:
        return CallForm(
            first=mark(_HERMES_OPEN, special_ids),
            before_name=literal('\n{"name": '),
            before_arguments=literal(', "arguments": '),
            behind_arguments=" ".join((literal("}\n"), mark(_HERMES_CLOSE, special_ids))),
            between=" ".join((literal("\n"), mark(_HERMES_OPEN, special_ids))),
        )


class _TaggedCall:
    def __init__(self) -> None:
        self._searched = 0
        self._quoted: int | None = None

    def scan(self, text: str) -> Scanned | None:
        while (begin := text.find(_HERMES_CLOSE, self._searched)) >= 0:
            body, end = text[:begin], begin + len(_HERMES_CLOSE)
            if call := parse_call(body):
                return Scanned([call], end)
            if not ends_in_string(body):
                return Scanned([], self._quoted or end)
            # An argument quotes the tag, or the JSON is broken: only the text after it can tell.
            self._quoted, self._searched = self._quoted or end, end
        self._searched = max(self._searched, len(text) - len(_HERMES_CLOSE) + 1)
        return None

    def finish(self, text: str) -> Scanned:
        call = parse_call(text)
        return Scanned([call], len(text)) if call else Scanned([], self._quoted or len(text))


_PYTHON_TAG = "<|python_tag|>"

_TAGGED = re.compile(rf"{re.escape(_PYTHON_TAG)}\s*(?=\{{)")
_AT_START = re.compile(rf"\s*((?:{re.escape(_PYTHON_TAG)}\s*)?)(?=\{{)")
_BEHIND_CALL = re.compile(rf"\s*(;?\s*(?:{re.escape(_PYTHON_TAG)}\s*)?)(?=\{{)")


class Llama3Format(ToolFormat):
    """The Llama 3 format.

    A call opens the reply, or comes after another call, or after the tag that Llama may put before it. A call must have
    parameters, so that a JSON answer that happens to have a name is not a call. A forced call has no tag, which Llama
    reserves for its built-in tools.
    """

    name = "llama3_json"
    marks = (_PYTHON_TAG,)

    def open_scanner(self) -> Scanner:
        return _BareCall()

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
        begin = text.rstrip().rfind(_PYTHON_TAG)
        if begin >= 0 and not text[begin + len(_PYTHON_TAG) :].strip():
            tagged = len(text) - begin
        else:
            tagged = overlap(text, _PYTHON_TAG)
        rest = text[: len(text) - tagged].strip()
        return len(text) if rest == ";" and place is Preceding.BEHIND_CALL else tagged


class _BareCall:
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


_MISTRAL_OPEN = "[TOOL_CALLS]"
_CALL_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"
LONGEST_HEADER = 256
"""The most characters between the mark and the arguments. A longer text is content and need not wait for more."""

_BARE_NAME = re.compile(r"[^\s\[\]{}]+")
_HEADER = re.compile(
    rf"\s*({_BARE_NAME.pattern})\s*(?:{re.escape(_CALL_ID)}[^\s\[{{]*\s*)?(?:{re.escape(_ARGUMENTS)}\s*)?"
)
_ARRAY = re.compile(r"\s*\[\s*[{\]]")


class MistralFormat(ToolFormat):
    """Mistral's formats, both of which it reads.

    A forced call has the newer form if the tokenizer has the mark before arguments.
    """

    name = "mistral"
    marks = (_MISTRAL_OPEN, _CALL_ID, _ARGUMENTS)

    def open_scanner(self) -> Scanner:
        return _ListedCalls()

    def call_form(self, tools: Sequence[ToolSpec], special_ids: Mapping[str, int]) -> CallForm:
        form = _newer_form(special_ids) if _ARGUMENTS in special_ids else _array_form(special_ids)
        unfit = next((tool for tool in tools if not _BARE_NAME.fullmatch(str(tool["function"]["name"]))), None)
        if form.is_bare and unfit is not None:
            raise BadRequest(
                f"tools: this model cannot call {unfit['function']['name']!r}: name it without blanks and brackets",
                param="tools",
            )
        return form


def _array_form(special_ids: Mapping[str, int]) -> CallForm:
    return CallForm(
        first=f"{mark(_MISTRAL_OPEN, special_ids)} {literal(' [')}",
        before_name=literal('{"name": '),
        before_arguments=literal(', "arguments": '),
        behind_arguments=literal("}"),
        between=literal(", "),
        last=literal("]"),
    )


def _newer_form(special_ids: Mapping[str, int]) -> CallForm:
    opening = mark(_MISTRAL_OPEN, special_ids)
    return CallForm(
        first=opening,
        before_name="",
        before_arguments=mark(_ARGUMENTS, special_ids),
        behind_arguments="",
        between=opening,
        is_bare=True,
    )


class _ListedCalls:
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
    cuts = range(len(text), max(-1, len(text) - len(_CALL_ID)), -1)
    open_cuts = [cut for cut in cuts if any(each.startswith(text[cut:]) for each in (_CALL_ID, _ARGUMENTS))]
    return not any(_HEADER.fullmatch(text[:cut]) for cut in open_cuts)


_HERMES, _LLAMA3, _MISTRAL = HermesFormat(), Llama3Format(), MistralFormat()
TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType({each.name: each for each in (_HERMES, _LLAMA3, _MISTRAL)})
_SIGNS = tuple((each.marks[0], each) for each in (_HERMES, _MISTRAL, _LLAMA3))
# Llama 3.2's template describes its format to the model in these words alone.
_LLAMA3_WORDS = '{"name": function name, "parameters":'


def tool_format(template: str, vocabulary: Collection[str]) -> ToolFormat:
    """Return the format that a chat template shows, else the format whose tokens the vocabulary has, else Hermes.

    The template comes first: models are tuned from each other, so a vocabulary may contain another format's tokens.
    """
    for sign, form in (*_SIGNS, (_LLAMA3_WORDS, _LLAMA3)):
        if sign in template:
            return form
    return next((form for sign, form in reversed(_SIGNS) if sign in vocabulary), _HERMES)
