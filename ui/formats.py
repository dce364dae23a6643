"""Values as text for people: numbers, times, and text from outside that must not become markup."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from experiments_db import number_as_text

MISSING = "–"
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|$~:^&\"'=])")
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
# Halves of surrogate pairs cannot be sent to a browser, and these marks turn the direction of the text around them.
_UNSHOWABLE = re.compile("[\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_UNTIPPED = re.compile(r"[\\\"'`\u2028\u2029]")
_BACKTICKS = re.compile(r"`+")


def is_missing(value: object) -> bool:
    """Return whether there is no value: None, or a number that is not finite."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def order_of(value: Any) -> tuple[bool, float, str]:
    """Return what to sort levels of a setting by: numbers by size, and then all else by its text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return False, float(value), ""
    return True, 0.0, str(value)


def score(value: float | None) -> str:
    """Return a score with three decimals, the precision of everything measured here."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.3f}"


def change(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:+.3f}"


def delta(value: float | None) -> str | int | None:
    """Return a change for `st.metric`, which shows 0, but not "+0.000", as no change."""
    if value is None or not math.isfinite(value):
        return None
    return change(value) if round(value, 3) else 0


def probability(value: float | None) -> str:
    if value is None:
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: 2 d 4 h, 3 h 12 min, 4 min 7 s, 12 s."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    rest = max(0, round(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def moment(seconds: float | None) -> str:
    """Return a time in UTC, to the minute."""
    return MISSING if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%M:%S")


def count(number: float, noun: str) -> str:
    return f"{number:,g} {noun}" if number == 1 else f"{number:,g} {noun}s"


def size(octets: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if octets < 1024:
            return f"{octets:.0f} {unit}" if unit == "B" else f"{octets:.1f} {unit}"
        octets /= 1024
    return f"{octets:.1f} GiB"


def setting(value: Any) -> str:
    """Return a value of a job or a factor as YAML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, float):
        return number_as_text(value)
    return str(value)


def settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={setting(value)}" for name, value in values.items()) or MISSING


def plain(text: str) -> str:
    """Return text from outside for Markdown, with all markup escaped and control characters dropped."""
    return _MARKUP.sub(r"\\\1", " ".join(printable(text).split()))


def name(text: str) -> str:
    """Return a name from outside as a code span, in which nothing is markup."""
    cleaned = " ".join(printable(text).split()) or " "
    fence = "`" * (max((len(run) for run in _BACKTICKS.findall(cleaned)), default=0) + 1)
    pad = " " if cleaned[0] == "`" or cleaned[-1] == "`" else ""
    return f"{fence}{pad}{cleaned}{pad}{fence}"


def printable(text: str) -> str:
    """Return the text without control characters and terminal colours; line breaks and tabs stay.

    A character that cannot be sent to a browser, or that turns the direction of text, becomes its number.
    """
    return _UNSHOWABLE.sub(_number, _CONTROLS.sub("", text.replace("\r\n", "\n")))


def _number(character: re.Match[str]) -> str:
    return f"<U+{ord(character[0]):04X}>"


def tip(text: str) -> str:
    """Return a text from outside as the title of an axis or in a tooltip, which Vega reads as part of an expression."""
    return " ".join(_UNTIPPED.sub(" ", printable(text)).split()) or MISSING


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
