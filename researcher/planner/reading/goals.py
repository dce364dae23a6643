"""What a topic wants to know of its factors, and at what the arms are to be equal.

Place in the flow: topic.py asks for both; asked.py lays arms out by the one, equal_amounts.py by the other. This module
knows the words alone, neither factors nor jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Goal(StrEnum):
    """What is asked of the factors. Without any of these, it is which difference each of them makes."""

    BEST = "best"
    MATTERS_MORE = "matters_more"
    INTERACTION = "interaction"
    DIVERGES = "diverges"
    NEEDED = "needed"


class ComparedAt(StrEnum):
    """What every arm gets the same amount of."""

    EPISODES = "episodes"
    STEPS = "steps"
    TOKENS = "tokens"
    TIME = "time"


_GOALS: tuple[tuple[Goal, str], ...] = (
    (
        Goal.BEST,
        r"\b(?:best|optimal|optimum|ideal)\b(?! of\b)(?!-of)|\bright (?:settings?|values?|choice|size)"
        r"|\bhow (?:large|big|small|high|low|many|much) should",
    ),
    (
        Goal.MATTERS_MORE,
        r"\bmatters? (?:the )?(?:more|most)\b|\b(?:more|most) (?:important|influential|sensitive)\b"
        r"|\b(?:bigger|biggest|larger|largest|stronger|strongest) (?:effect|impact|influence)\b",
    ),
    (Goal.INTERACTION, r"\binteract\w*|\binterplay\b|\bdepends? (?:up)?on\b|\bdependence (?:up)?on\b"),
    (
        Goal.DIVERGES,
        r"\bdiverg\w*|\b(?:becomes?|gets?|is|goes) unstable\b|\binstabilit\w+|\bblows? up\b|\bexplod\w*|\bcollaps\w*",
    ),
    (
        Goal.NEEDED,
        r"\b(?:needed|necessary|required)\b|\bdo (?:we|i|you) (?:really )?need\b|\bget rid of\b|\bworks? without\b",
    ),
)

_SAME = r"(?:equal|same|matched|fixed|identical|constant)"
_UNITS: tuple[tuple[ComparedAt, str], ...] = (
    (ComparedAt.TOKENS, r"tokens?(?: budgets?| counts?)?"),
    (
        ComparedAt.TIME,
        r"(?:wall[- ]?clock|training|run(?:ning)?)?[- ]?time(?: budgets?)?|wall[- ]?clock|compute(?: budgets?)?|seconds"
        r"|minutes|hours",
    ),
    (ComparedAt.EPISODES, r"episodes?|rollouts?|samples?|completions?|trajectories|data"),
    (ComparedAt.STEPS, r"(?:training |optimi[sz]er |gradient )?(?:steps?|updates?|iterations?)"),
)


def _patterns(unit: str) -> str:
    place = r"(?:\b(?:at|for|with|under|given|on|in) )?(?:an? |the )?"
    amount = r"(?:(?:number|amount|budget|count|total)s? of )?(?:training |generated )?"
    return (
        rf"{place}\b{_SAME} {amount}(?:{unit})\b|\b(?:iso|matched)[- ](?:{unit})\b|\b(?:{unit})[- ]matched\b"
        rf"|\bfor (?:an? |the )?given (?:{unit})\b"
    )


_COMPARED_AT = tuple((unit, re.compile(_patterns(words), re.IGNORECASE)) for unit, words in _UNITS)


_SHARE = re.compile(
    r"(?:\b(?:at|for|with|of) )?(?<![\w.])(?P<number>\d[\d,]*(?:\.\d+)?)\s?(?P<factor>k|m|thousand|million)?\s?"
    r"(?P<unit>tokens?|seconds?|s|minutes?|min|hours?|h)\b (?:of training )?(?:each|per run|per arm|for each|a run)\b",
    re.IGNORECASE,
)
_FACTORS = {"": 1.0, "k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Share:
    """What each run gets: so many tokens, or so many seconds of training. `span` is where the topic says it."""

    unit: ComparedAt
    amount: float
    span: tuple[int, int]


def find_share(text: str) -> Share | None:
    match = _SHARE.search(text)
    if match is None:
        return None
    number = float(match.group("number").replace(",", "")) * _FACTORS[(match.group("factor") or "").lower()]
    unit = match.group("unit").lower()
    if unit.startswith("token"):
        return Share(ComparedAt.TOKENS, number, match.span())
    return Share(ComparedAt.TIME, number * _SECONDS[unit[0]], match.span())


def find_goals(text: str) -> tuple[Goal, ...]:
    """In the order of `Goal`'s table."""
    return tuple(goal for goal, pattern in _GOALS if re.search(pattern, text, re.IGNORECASE))


def find_compared_at(text: str) -> tuple[tuple[ComparedAt, re.Match[str]], ...]:
    """Every unit at whose equal amount the topic wants arms compared, with the words that say so."""
    return tuple((unit, match) for unit, pattern in _COMPARED_AT if (match := pattern.search(text)))
