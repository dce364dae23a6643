"""Built-in graders of few lines: a reply and what was expected, to whether the reply is right.

Place in the flow: grading.py looks one up by the name that the user chose. This module knows nothing of tasks, files or
transcripts.
"""

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

# "1,234.5", "-3", "2e-4": what people and models write as numbers, thousands separated by commas or not. First what may
# be one is cut out as a whole, so that a long reply takes linear time and a version "1.2.3" is not read as a number.
_NUMBER_LIKE = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")
_RELATIVE_TOLERANCE = Decimal("1e-6")
_WORKED_ANSWER = "####"
"""What GSM8K puts between a worked solution and its result."""


def is_exact(reply: str, expected: object) -> bool:
    """The same text, but for blanks around it."""
    return reply.strip() == str(expected).strip()


def is_number(reply: str, expected: object) -> bool:
    """The last number of the reply is the expected one, to a millionth of it."""
    text = str(expected).rpartition(_WORKED_ANSWER)[2]
    wanted, said = last_number(text), last_number(reply)
    if wanted is None:
        raise ValueError(f"{text.strip()[:40]!r} is no number")
    return said is not None and abs(said - wanted) <= _RELATIVE_TOLERANCE * abs(wanted)


def last_number(text: str) -> Decimal | None:
    """The last number in a text, None if there is none. In "1,2,3" it is 3."""
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
    """The expected value is a regular expression, which the whole reply matches."""
    try:
        return re.fullmatch(str(expected), reply.strip()) is not None
    except re.error as error:
        raise ValueError(f"{str(expected)[:40]!r} is no regular expression: {error}") from None


def is_equal_json(reply: str, expected: object) -> bool:
    """The reply is JSON for the expected value, which is JSON itself or its text. Fences of the reply are ignored."""
    wanted = json.loads(expected) if isinstance(expected, str) else expected
    fenced = re.fullmatch(r"\s*```(?:json)?\s*(.*?)\s*```\s*", reply, re.DOTALL)
    try:
        said: Any = json.loads(fenced.group(1) if fenced else reply)
    except (ValueError, RecursionError):
        return False
    try:
        return _are_equal(said, wanted)
    except RecursionError:
        return False


def _are_equal(first: Any, second: Any) -> bool:
    """Equal as JSON: 1 is 1.0, true is no number."""
    if isinstance(first, dict) and isinstance(second, dict):
        ours, theirs = cast(dict[str, Any], first), cast(dict[str, Any], second)
        return ours.keys() == theirs.keys() and all(_are_equal(ours[name], theirs[name]) for name in ours)
    if isinstance(first, list) and isinstance(second, list):
        items, others = cast(list[Any], first), cast(list[Any], second)
        return len(items) == len(others) and all(map(_are_equal, items, others))
    return isinstance(first, bool) == isinstance(second, bool) and first == second


def is_equal_maths(reply: str, expected: object) -> bool:
    """The reply means the same as the expected formula: LaTeX or plain, by the library math-verify.

    Raises EnvironmentInvalid if the library is not installed.
    """
    library = _maths_library()
    # Its own time limits are alarms, which only the main thread of a process can set.
    wanted = library.parse(str(expected), parsing_timeout=None)
    if not wanted:
        raise ValueError(f"{str(expected)[:40]!r} is no formula")
    return bool(library.verify(wanted, library.parse(reply, parsing_timeout=None), timeout_seconds=None))


def _maths_library() -> Any:
    """Imported here: it takes a second, and only those who asked for it have it."""
    try:
        import math_verify
    except ImportError:
        raise EnvironmentInvalid(
            "grader maths needs the library math-verify: pip install 'swarm-researcher[environments]'", param="grader"
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


PYTHON_TESTS, JUDGE = "python_tests", "judge"
"""The graders that take more than a reply and an answer: grading.py builds them."""


def reply_grader(name: str) -> ReplyGrader:
    """Raises EnvironmentInvalid, listing the names there are."""
    try:
        return GRADERS[name]
    except KeyError:
        names = ", ".join([*GRADERS, PYTHON_TESTS, JUDGE])
        raise EnvironmentInvalid(
            f"unknown grader {name!r}: use {names}, or a folder with a grade.py", param="grader"
        ) from None


def known_reply(grader: str, expected: object) -> str | None:
    """A reply that the grader finds right; None where none is known."""
    if expected is None or grader in ("regex", PYTHON_TESTS, JUDGE):
        return None
    return expected if isinstance(expected, str) else json.dumps(expected) if grader == "json" else str(expected)
