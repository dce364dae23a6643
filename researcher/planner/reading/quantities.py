"""The numbers of a topic that are no value of a setting: counts, machines, times, years, shares, references.

Place in the flow: topic.py asks for these before it gives the numbers that are left to the settings beside them. What
counts as a quantity is said by the noun beside the number, never by the number. This module knows no settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from researcher.planner.reading.english import FUNCTION_WORDS, QUESTION_WORDS, is_ordinary, word_set

WORDS_FOR_NUMBERS = MappingProxyType(
    {
        "a": 1, "an": 1, "one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
        "eight": 8, "nine": 9, "ten": 10, "twelve": 12, "sixteen": 16, "half an": 0.5,
    }
)  # fmt: skip
_ARTICLES = ("a", "an", "one", "single")
_SEVERAL = "|".join(word for word in WORDS_FOR_NUMBERS if word not in _ARTICLES)
_COUNT = rf"(?<![\w.-])(?P<count>\d+(?:\.\d+)?|(?:{_SEVERAL})(?=[\s-]))"
_COUNT_OR_ONE = rf"(?<![\w.-])(?P<count>\d+(?:\.\d+)?|(?:{_SEVERAL}|{'|'.join(_ARTICLES)})(?=[\s-]))"
"""A study, a step and a run are mostly one of their kind by grammar alone; a GPU or an hour is a quantity."""

GPU_NAMES = (
    r"(?:(?:nvidia |amd )?(?:[ahblv]\d{2,3}|rtx[ -]?\d{4}|t4|l40s?|mi\d{3}x?|gh200|gb200)s?(?: gpus?)?|gpus?"
    r"|graphics cards?)"
)

_KINDS: tuple[tuple[str, str], ...] = (
    ("seeds", rf"{_COUNT}[\s-](?:random )?seeds?\b(?: (?:each|per arm))?"),
    ("seeds", r"\bseeds? ?[=:] ?(?P<count>\d+)"),
    (
        "steps",
        rf"(?<!up )(?<!up of )(?<!up for )(?<!up over ){_COUNT}[\s-](?:training |optimi[sz]er |gradient )?steps?\b"
        r"(?! sizes?)",
    ),
    ("steps", r"\b(?:total_)?steps ?[=:] ?(?P<count>\d+)"),
    ("n_gpu", rf"{_COUNT_OR_ONE}\s?(?:[x×]\s?)?(?:{GPU_NAMES})\b"),
    ("n_gpu", r"\b(?:n_gpu|gpus) ?[=:] ?(?P<count>\d+)"),
    ("hours", rf"{_COUNT_OR_ONE}[\s-]?(?:h|hrs?|hours?)\b(?: of (?:work|compute|time|training))?"),
    ("minutes", rf"{_COUNT}[\s-]?(?:min|minutes?)\b"),
    ("runs", rf"(?:at most |max(?:imum)? (?:of )?|up to |budget of ){_COUNT} (?:training )?runs?\b"),
    ("runs", rf"{_COUNT} runs? (?:at most|in all|in total|budget)\b"),
    (
        "eval_episodes",
        rf"{_COUNT} (?:held-?out|eval(?:uation)?|test|validation) (?:episodes|tasks|problems|questions)\b",
    ),
)  # fmt: skip

_HARMLESS = re.compile(
    r"(?<![\w.])(?:"
    r"(?:19|20)\d\d(?:\s?[-–/]\s?(?:19|20)?\d\d)?(?!\.?\d|\w|e)"
    r"|(?:section|figure|fig\.?|table|tab\.?|chapter|version|appendix|page|p\.|eq\.?|equation|part|idea|option"
    r"|arxiv[: ]?)\s?\d+(?:\.\d+)*(?:v\d+)?"
    r"|\d+(?:\.\d+)?\s?(?:%|percent(?:age points)?\b|percent\b|times\b|x\b|-?fold\b|points?\b)"
    r"|\d+(?:st|nd|rd|th)\b|\bv\d+(?:\.\d+)*|[(\[]\d{1,2}[)\]](?=\s+[A-Za-z])|#\d+"
    r")",
    re.IGNORECASE,
)
"""Years, references, shares and multiples, ordinals, versions and the numbers of a list."""

_COUNTED = re.compile(r"(?<![\w.])\d+(?:\.\d+)?\s+(?P<noun>[A-Za-z][\w-]*)")

_CHOOSES = word_set("""
letter letters word words digit digits character characters turn turns number numbers string strings attempt attempts
tool tools question questions token tokens model models agent agents layer layers parameter parameters
""")
"""Nouns whose number would change the tasks, the model or the program: a study has no say in that."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its noun, as it stands in the topic. `name` is what it counts."""

    name: str
    value: float
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def find_quantities(text: str) -> list[Quantity]:
    """Counts, machines and times, in order, none overlapping; the first kind of the table that matches counts."""
    found: list[Quantity] = []
    for name, pattern in _KINDS:
        for match in re.finditer(pattern, text, re.IGNORECASE):
            item = Quantity(name, _value(match.group("count")), match.group(), match.start())
            if not any(item.start < other.end and other.start < item.end for other in found):
                found.append(item)
    return sorted(found, key=lambda item: item.start)


def find_harmless_numbers(text: str) -> Iterator[tuple[int, int]]:
    """Where numbers stand that ask for nothing: years, shares, references, and counts of ordinary things."""
    for match in _HARMLESS.finditer(text):
        yield match.span()
    for match in _COUNTED.finditer(text):
        noun = match.group("noun").lower()
        if is_ordinary(noun) and noun not in _CHOOSES and noun not in FUNCTION_WORDS | QUESTION_WORDS:
            yield match.span()


def _value(count: str) -> float:
    word = count.lower()
    return float(WORDS_FOR_NUMBERS[word]) if word in WORDS_FOR_NUMBERS else float(count)
