"""The formats of numbers, verdicts and names, the same wherever a result is stated."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from experiments_db import number_as_text

MISSING = "n/a"
DIGITS = 3
"""Digits after the point of a score, a difference and a p value."""
LEAST = 0.5 * 10**-DIGITS
"""The smallest difference that print shows; nothing is called better or worse by less."""
ROUNDING = 1e-9
"""The difference below which two scores are equal, because scores are ratios of small integers."""

_MARKDOWN_SPECIAL = re.compile(r"([\\`*_\[\]{}|#~$!])")
_SPACE = re.compile(r"\s+")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def format_score(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value + 0.0:.{DIGITS}f}"


def format_difference(value: float | None) -> str:
    """Return a difference with enough digits to show that it is not 0."""
    if value is None or not math.isfinite(value):
        return MISSING
    if ROUNDING < abs(value) < LEAST:
        return f"{value:+.1g}"
    return f"{0.0 if abs(value) < LEAST else value:+.{DIGITS}f}"


def format_p(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return MISSING
    return "<0.001" if value < 0.001 else f"{value:.{DIGITS}f}"


def describe_p(value: float | None) -> str:
    """Return a p value in a sentence, never as 0."""
    written = format_p(value)
    if written == MISSING:
        return "no p value"
    return f"p < {written[1:]}" if written.startswith("<") else f"p = {written}"


def format_interval(low: float | None, high: float | None, *, signed: bool = False) -> str:
    write = format_difference if signed else format_score
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    return f"{write(low)} to {write(high)}"


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return number_as_text(value)
    return value if isinstance(value, str) else json.dumps(value)


def format_time(seconds: float | None) -> str:
    return MISSING if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_amount(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def format_share(value: float | None) -> str:
    """Return a share in percent, rounded down, so that nothing below a bound is shown as the bound."""
    return MISSING if value is None or not math.isfinite(value) else f"{int(100 * value + ROUNDING)} %"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def count_kinds(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items())


def join_names(names: Iterable[str]) -> str:
    """Return names as a list in a sentence; names with a comma of their own are parted by semicolons."""
    *first, last = names
    between = "; " if any("," in name for name in (*first, last)) else ", "
    return f"{between.join(first)}{';' if between == '; ' else ''} and {last}" if first else last


def escape_markdown(value: object) -> str:
    """Return text on one line that Markdown shows literally, in a table cell or elsewhere."""
    line = _SPACE.sub(" ", str(value)).translate(_ENTITIES)
    return _MARKDOWN_SPECIAL.sub(r"\\\1", line)
