"""Which numbers of a topic are values of a setting: those that stand at its name, and no others.

Place in the flow: topic.py gives it the places of the settings that take numbers, after counts have been taken out. A
list of numbers belongs to a setting if it follows its name ("lr 1e-3 or 1e-2", "lr of 1e-3"), if the name follows it
("16 rollouts per task", "0.01 as learning rate"), or if it is set off by a colon, a comma or a word of comparison and
no noun follows ("Which lr is best: 1e-3 or 1e-2?"). Everything else is left over. This module knows no setting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from researcher.planner.reading.english import FUNCTION_WORDS, QUESTION_WORDS

_POWER = r"10\s?(?:\^|\*\*)\s?[-−]?\d+"
NUMBER = rf"(?<![\w.^])[-−]?(?:{_POWER}|(?:\d+\.?\d*|\.\d+)(?:\s?[×x*·]\s?{_POWER}|[eE][-−+]?\d+)?)(?![\w^]|\.\d|\s?%)"
_JOINT = r"[\s,;/&]*(?:\b(?:or|and|versus|to|against)\b|\bvs\b\.?)?[\s,;/&]*"
_NUMBERS = re.compile(rf"{NUMBER}(?:{_JOINT}{NUMBER})*")
_LINK = re.compile(
    r"(?:[\s:=(\[{]|\b(?:of|is|are|at|from|between|to|as|be|values?|set|equal|penalty|penalties|term|bonus|loss"
    r"|e\.g\.|say|either)(?![\w]))*",
    re.IGNORECASE,
)
_LINK_BACK = re.compile(
    r"\s*(?:(?:as|for|of)\s+)?(?:an?\s+|the\s+|my\s+|our\s+)?(?:(?:better|best|right)\s+)?", re.IGNORECASE
)
_SET_OFF = re.compile(r"(?:[,:;(–—-]|\b(?:e\.g\.|say|either|namely|among|of|between))\s*$", re.IGNORECASE)
_COMPARED = re.compile(
    r"(?:\b(?:than|to|against|versus|vs\.?|or|and|with|instead of|over))\s*$", re.IGNORECASE
)  # fmt: skip
_SENTENCE_END = re.compile(r"[.?!](?:\s|$)")
_NEXT_WORD = re.compile(r"\s*([A-Za-z][\w'-]*)")
_UNIT = re.compile(
    r"\s*(?:%|percent|times|x\b|-?fold|decimals?|digits?|different|distinct|values?|levels?|orders?|students?|people"
    r"|reasons?|ways?|arms?|letters?|words?|turns?|papers?|years?|days?|weeks?|months?)",
    re.IGNORECASE,
)
_AFTER = FUNCTION_WORDS | QUESTION_WORDS


class Place(Protocol):
    """Where a setting is named in the topic, and the numbers found for it."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def following(self) -> list[float]: ...
    @property
    def leading(self) -> list[float]: ...


def attach_numbers(text: str, places: Sequence[Place]) -> list[tuple[int, int]]:
    """Add to each place its numbers; returns where in the text those stand."""
    taken: list[tuple[int, int]] = []
    for match in _NUMBERS.finditer(text):
        numbers = [parse_number(item) for item in re.findall(NUMBER, match.group())]
        before = next((place for place in reversed(places) if place.end <= match.start()), None)
        after = next((place for place in places if place.start >= match.end()), None)
        gap = "" if before is None else text[before.end : match.start()]
        if after is not None and _LINK_BACK.fullmatch(text[match.end() : after.start]):
            if before is not None and _LINK.fullmatch(gap) and text[match.end() : after.start].strip():
                before.following.extend(numbers)
            else:
                after.leading.extend(numbers)
        elif before is not None and _belongs(before, gap, text[match.end() :], numbers):
            before.following.extend(numbers)
        else:
            continue
        taken.append(match.span())
    return taken


def _belongs(place: Place, gap: str, rest: str, numbers: Sequence[float]) -> bool:
    """Whether numbers after a name, with `gap` between and `rest` behind them, are values of what it names."""
    if _UNIT.match(rest):
        return False
    if _LINK.fullmatch(gap):
        return True
    if _SENTENCE_END.search(gap):
        return False
    following = _NEXT_WORD.match(rest)
    if following is not None and following.group(1).lower() not in _AFTER:
        return False
    has_values = bool(place.leading or place.following)
    if has_values and _COMPARED.search(gap):
        return True
    return bool(_SET_OFF.search(gap)) and (len(numbers) > 1 or has_values)


def parse_number(text: str) -> float:
    """The value of what `NUMBER` matches."""
    text = text.replace("−", "-")
    if power := re.fullmatch(r"(-?)(?:([\d.]+)\s?[×x*·]\s?)?10\s?(?:\^|\*\*)\s?(-?\d+)", text):
        return float(f"{power.group(1)}{power.group(2) or 1}e{power.group(3)}")
    return float(text)
