"""Reads the claims in a planner's prose: what earlier versions stored, and the reason that goes with a decision.

Place in the flow: `claims.py` asks for the claims of a text and checks them. The reader is conservative: a sentence in
which it finds no claim becomes an opinion, which `claims.py` prints only if it states nothing. Since a claim that is
true is printed in words of our own, a sentence that is misread can be lost but cannot bring a falsehood in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from researcher.types import Claim, ClaimKind, Measured

_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(\[]|\S+=)|\n+")
_CLAUSES = re.compile(r";|,?\s+(?:and|but|while|whereas)\s+(?!not\b)|,\s+(?:while|whereas)\s+")
_ARM = re.compile(r"<(\d+)>")
# A number stands alone: not part of a name such as seed-3 or nano2, but the value in 95%.
_NUMBER = re.compile(r"(?<![\w.<])[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+−]?\d{1,2})?(?![\w>]|\.\d)(?:\s?(%))?")
_BETTER = re.compile(r"\b(?:beats?|outperforms?|better than|higher than|above|exceeds?|ahead of|wins against)\b", re.I)
_WORSE = re.compile(r"\b(?:worse than|lower than|below|loses to|behind|under)\b", re.I)
_MEAN = re.compile(
    r"\b(?:reach(?:es|ed)?|mean|scor(?:es?|ed|ing)|averag(?:es?|ed|ing)|attains?|achiev(?:es?|ed))\b", re.I
)
_BEST = re.compile(r"\b(?:is|was|ranks|comes out) (?:the )?(?:best|first|highest|winner)\b", re.I)
_EQUAL = re.compile(r"\b(?:equal|equivalent|the same)\b.*\bwithin\b", re.I)
_FAILED = re.compile(r"(\d+) (?:of|out of) (?:the |its |all )?(\d+) runs?\b.*\bfail", re.I)
_HALF_WIDTH = re.compile(r"±|\+/-|half[- ]width|half the width", re.I)
_P_VALUE = re.compile(r"\bp(?:[- ]value)?\s*(?:=|is|of)", re.I)
_NOT_SIGNIFICANT = re.compile(r"\b(?:not|no|without|nor|never|isn't|hardly)\b[^.;]*\bsignifican|\binsignifican", re.I)
_SIGNIFICANT = re.compile(r"\bsignifican", re.I)
_BEFORE = re.compile(r"\bbefore (?:any )?training\b|\bbefore it\b|\buntrained\b", re.I)
_TEST = re.compile(r"\b(?:sealed|test) (?:split|set|score)\b", re.I)
_RANKING = re.compile(r"\b(?:ranking|ranked|order)\b", re.I)


def read_claims(text: str, names: Sequence[str], baseline: str) -> Iterator[Claim]:
    """The claims in `text` about the arms called `names`; one opinion for each sentence that has none."""
    for sentence in (part.strip() for part in _SENTENCES.split(text)):
        if sentence:
            found = list(_read_sentence(_Sentence.mark(sentence, names, baseline)))
            yield from found or [Claim(ClaimKind.OPINION, text=sentence)]


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence in which each arm's name is a mark `<index>`, so that its digits are no numbers."""

    text: str
    names: tuple[str, ...]

    @classmethod
    def mark(cls, sentence: str, names: Sequence[str], baseline: str) -> _Sentence:
        listed = tuple(names)
        for name in sorted(listed, key=len, reverse=True):
            pattern = rf"(?<![\w=.+<-])[`'\"]?{re.escape(name)}[`'\"]?(?![\w=+-]|\.\d)"
            sentence = re.sub(pattern, f"<{listed.index(name)}>", sentence)
        if baseline in listed:
            mark = f"<{listed.index(baseline)}>"
            sentence = re.sub(rf"\bthe baseline(?: {mark})?", mark, sentence, flags=re.IGNORECASE)
        return cls(sentence, listed)

    def arms(self, text: str) -> list[str]:
        return [self.names[int(match.group(1))] for match in _ARM.finditer(text)]


def _read_sentence(sentence: _Sentence) -> Iterator[Claim]:
    significant = _read_significance(sentence.text)
    if _RANKING.search(sentence.text) and len(arms := sentence.arms(sentence.text)) > 1:
        yield Claim(ClaimKind.RANKING, arms=tuple(arms))
        return
    if _EQUAL.search(sentence.text) and len(arms := sentence.arms(sentence.text)) == 2 and _numbers(sentence.text):
        yield Claim(ClaimKind.EQUAL, arm=arms[0], other=arms[1], number=_numbers(sentence.text)[-1])
        return
    subject: str | None = None
    for clause in _CLAUSES.split(sentence.text):
        arms = sentence.arms(clause)
        # "lr=0.1 reaches 0.9 and beats lr=0.2": the second clause has the subject of the first.
        has_subject = bool(arms) and not (subject and re.match(r"\s*(?:\w+ )?(?:beats?|outperforms?|is|was)\b", clause))
        subject = arms[0] if has_subject else subject
        others = arms[1:] if has_subject else arms
        yield from _read_clause(clause, subject, others[0] if others else None, significant)


def _read_clause(clause: str, arm: str | None, other: str | None, significant: bool | None) -> Iterator[Claim]:
    numbers = _numbers(clause)
    number = abs(numbers[-1]) if numbers else None
    measured = _read_measured(clause)
    if failed := _FAILED.search(clause):
        yield Claim(ClaimKind.FAILED, arm=arm, number=float(failed.group(1)), of=int(failed.group(2)))
    elif arm is None:
        return
    elif _HALF_WIDTH.search(clause) and number is not None:
        yield Claim(ClaimKind.HALF_WIDTH, arm=arm, other=other, measured=measured, number=number)
    elif other is not None and _P_VALUE.search(clause) and number is not None and not _BETTER.search(clause):
        yield Claim(ClaimKind.P_VALUE, arm=arm, other=other, number=number)
    elif other is not None and (better := _BETTER.search(clause) or _WORSE.search(clause)):
        kind = ClaimKind.BETTER if _BETTER.fullmatch(better.group()) else ClaimKind.WORSE
        yield Claim(kind, arm=arm, other=other, measured=measured, number=number, significant=significant)
    elif _BEST.search(clause) and number is None:
        yield Claim(ClaimKind.BEST, arm=arm)
    elif other is None and _MEAN.search(clause) and len(numbers) == 1:
        yield Claim(ClaimKind.MEAN, arm=arm, measured=measured, number=numbers[0])


def _read_significance(text: str) -> bool | None:
    if _NOT_SIGNIFICANT.search(text):
        return False
    return True if _SIGNIFICANT.search(text) else None


def _read_measured(text: str) -> Measured:
    if _BEFORE.search(text):
        return Measured.BEFORE
    return Measured.TEST if _TEST.search(text) else Measured.AFTER


def _numbers(text: str) -> list[float]:
    """The numbers in a text, a percentage as the fraction it is."""
    found: list[float] = []
    for match in _NUMBER.finditer(text):
        digits = match.group().rstrip("% ").replace(",", "").replace("−", "-")
        value = float(digits)
        found.append(round(value / 100, 12) if match.group(1) else value)
    return found
