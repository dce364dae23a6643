"""Built-in graders that compare a reply with the expected value."""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, cast

from swarm.errors import EnvironmentInvalid

ReplyGrader = Callable[[str, object], bool]
"""Reply and expected value -> whether the reply is right. Raises ValueError for an expected value it cannot use."""

# Numbers as people and models write them: "1,234.5", "-3", "2e-4". Candidates are first cut out as a whole, so that a
# long reply takes linear time and the version "1.2.3" is not read as a number.
_NUMBER_LIKE = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")
_RELATIVE_TOLERANCE = Decimal("1e-6")
_WORKED_ANSWER = "####"
"""The mark between a worked solution and its result in GSM8K."""


def is_exact(reply: str, expected: object) -> bool:
    """Return whether both texts are the same, apart from white space around them."""
    return reply.strip() == str(expected).strip()


def is_number(reply: str, expected: object) -> bool:
    """Return whether the last number of the reply is the expected one, with a relative tolerance of 1e-6."""
    text = str(expected).rpartition(_WORKED_ANSWER)[2]
    wanted, found = last_number(text), last_number(reply)
    if wanted is None:
        raise ValueError(f"{text.strip()[:40]!r} is not a number")
    return found is not None and abs(found - wanted) <= _RELATIVE_TOLERANCE * abs(wanted)


def last_number(text: str) -> Decimal | None:
    """Return the last number in a text, such as 3 in "1,2,3", or None if there is none."""
    for found in reversed(_NUMBER_LIKE.findall(text)):
        whole = found.rstrip(".,")
        for part in (whole, *reversed(whole.split(","))):
            if _NUMBER.fullmatch(part) and (number := _as_decimal(part)) is not None:
                return number
    return None


def _as_decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None


def matches_pattern(reply: str, expected: object) -> bool:
    """Return whether the whole reply matches the expected value, a regular expression."""
    try:
        return re.fullmatch(str(expected), reply.strip()) is not None
    except re.error as error:
        raise ValueError(f"{str(expected)[:40]!r} is not a regular expression: {error}") from None


def is_equal_json(reply: str, expected: object) -> bool:
    """Return whether the reply is JSON for the expected value, which is a JSON value or its text.

    A code fence around the reply is ignored.
    """
    wanted = json.loads(expected) if isinstance(expected, str) else expected
    fenced = re.fullmatch(r"\s*```(?:json)?\s*(.*?)\s*```\s*", reply, re.DOTALL)
    try:
        found: Any = json.loads(fenced.group(1) if fenced else reply)
    except (ValueError, RecursionError):
        return False
    try:
        return _are_equal(found, wanted)
    except RecursionError:
        return False


def _are_equal(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal, where 1 equals 1.0 but true is not a number."""
    if isinstance(first, dict) and isinstance(second, dict):
        ours, theirs = cast(dict[str, Any], first), cast(dict[str, Any], second)
        return ours.keys() == theirs.keys() and all(_are_equal(ours[name], theirs[name]) for name in ours)
    if isinstance(first, list) and isinstance(second, list):
        items, others = cast(list[Any], first), cast(list[Any], second)
        return len(items) == len(others) and all(map(_are_equal, items, others))
    return isinstance(first, bool) == isinstance(second, bool) and first == second


def is_equal_maths(reply: str, expected: object) -> bool:
    """Return whether the reply means the same as the expected formula, in LaTeX or plain text.

    The library math-verify decides. Raises EnvironmentInvalid if it is not installed.
    """
    library = _maths_library()
    # The library's own time limits are alarms, which only the main thread of a process can set.
    wanted = library.parse(str(expected), parsing_timeout=None)
    if not wanted:
        raise ValueError(f"{str(expected)[:40]!r} is not a formula")
    return bool(library.verify(wanted, library.parse(reply, parsing_timeout=None), timeout_seconds=None))


def _maths_library() -> Any:
    """Import math-verify on first use, because the import takes a second and the library is optional."""
    try:
        import math_verify
    except ImportError:
        raise EnvironmentInvalid(
            "the grader maths needs the library math-verify: pip install 'swarm-researcher[environments]'",
            param="grader",
        ) from None
    return math_verify


GRADERS: Mapping[str, ReplyGrader] = MappingProxyType(
    {
        "exact": is_exact,
        "number": is_number,
        "regex": matches_pattern,
        "json": is_equal_json,
        "maths": is_equal_maths,
    }
)


def known_reply(grader: str, expected: object) -> str | None:
    """Return a reply that the grader finds right, or None if none is known, as of graders that are not in this file."""
    if expected is None or grader == "regex" or grader not in GRADERS:
        return None
    return expected if isinstance(expected, str) else json.dumps(expected) if grader == "json" else str(expected)
