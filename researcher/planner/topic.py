"""Reads a topic without a language model: the task family it is about and the factors it wants compared.

Place in the flow: the `rules` planner calls `parse_topic` in frame and in plan. What a factor can be set to stands in
factors.py; this module only finds mentions and values in the text. It knows nothing of designs, servers or scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from researcher.errors import TopicInvalid
from researcher.planner.factors import ALGORITHMS, FACTORS, Factor, FactorSpec, Level, algorithm_level, number_level

LONGEST_TOPIC = 4000
"""Characters; a topic is a question, not a document."""

# An unambiguous name of a family is looked for first: "adding a KL term to word reversal" is about reversal.
_CLEAR_TASKS = (
    ("calc", r"calc|calculators?|tool[- ]?(?:use|using|calls?|calling)|tools|function[- ]calling|multiplication"),
    ("guess", r"guess(?:ing)?(?:[- ]games?)?|number game|higher[ /-]lower"),
    ("chain", r"running totals?|chain(?:ed)? (?:task|sums?|additions?|arithmetic)|chain(?=[ ]*(?:$|[?.,;:!]))"),
    ("reverse", r"reverse|reversals?|reversing|reversed|backwards?"),
    ("sort", r"sort(?:ing|ed)?(?! of\b)|alphabetical(?:ly)?"),
    ("copy", r"copy|copying|copies|echo(?:ing)?"),
    ("count", r"counting|count (?:letters?|task)|letter[- ]count(?:s|ing)?"),
    ("add", r"additions?|add (?:numbers?|task)|adding (?:two )?numbers|arithmetic|sums"),
)
_LOOSE_TASKS = (("count", r"counts?"), ("add", r"add|adding|sum"), ("chain", r"chain(?![- ]of[- ]thoughts?)"))

_NUMBER = r"(?<![\w.^])[-−]?(?:10(?:\^|\*\*)[-−]?\d+|(?:\d+\.?\d*|\.\d+)(?:[eE][-−+]?\d+)?)(?![\w^]|\.\d)"
_JOINT = r"[\s,;/&]*(?:\b(?:or|and|vs\.?|versus|to|against)\b)?[\s,;/&]*"
_NUMBERS = re.compile(rf"{_NUMBER}(?:{_JOINT}{_NUMBER})*")
_SEEDS = re.compile(r"\b(\d+) (?:random )?seeds?\b", re.IGNORECASE)
_PLURAL = re.compile(
    r"(?:sizes|rates|temperatures|coefficients|coefs|weights|strengths|ratios|ranges|decays)$", re.IGNORECASE
)
_LINK = re.compile(r"[\s:=(\[]*(?:of|is|at|in|from|to|as)?[\s:=(\[]*")
_STEPS = re.compile(r"\b(\d+) (?:training |optimi[sz]er )?steps?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ParsedTopic:
    """What a topic says. `task` is None and `factors` is empty where it says nothing known.

    `other_tasks` were named after the first one. `algorithm` is the one algorithm a topic takes for granted while it
    compares something else.
    """

    text: str
    task: str | None
    other_tasks: tuple[str, ...]
    factors: tuple[Factor, ...]
    algorithm: Level | None
    seeds: int | None
    steps: int | None


def parse_topic(text: str) -> ParsedTopic:
    """Raises TopicInvalid for an empty or overlong topic, and for a value that its setting cannot take."""
    text = " ".join(text.split())
    if not text:
        raise TopicInvalid("the topic is empty: say what to study, such as 'Does group size matter for word reversal?'")
    if len(text) > LONGEST_TOPIC:
        raise TopicInvalid(f"the topic has {len(text)} characters, at most {LONGEST_TOPIC} are read: shorten it")
    tasks = _find_tasks(text)
    factors = list(_find_factors(text))
    algorithms = _find_algorithms(text)
    algorithm = None
    if len(algorithms) > 1 or (len(algorithms) == 1 and not factors and algorithms[0].name != "grpo"):
        levels = algorithms if len(algorithms) > 1 else (algorithm_level("grpo"), *algorithms)
        factors = [factor for factor in factors if factor.name != "algorithm"]
        factors.append(Factor(name="algorithm", levels=tuple(levels), explicit=True))
    elif algorithms:
        algorithm = algorithms[0]
    return ParsedTopic(
        text=text,
        task=tasks[0] if tasks else None,
        other_tasks=tasks[1:],
        factors=tuple(factors),
        algorithm=algorithm,
        seeds=_find_count(_SEEDS, text),
        steps=_find_count(_STEPS, text),
    )


def _find_tasks(text: str) -> tuple[str, ...]:
    """Names of the families in order of their first mention."""
    for table in (_CLEAR_TASKS, _LOOSE_TASKS):
        found = [
            (match.start(), name)
            for name, pattern in table
            if (
                match := re.search(
                    rf"\b(?:{pattern})\b" if not pattern.endswith(")") else rf"\b(?:{pattern})", text, re.I
                )
            )
        ]
        if found:
            return tuple(name for _, name in sorted(found))
    return ()


def _find_count(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match.group(1)) if match else None


@dataclass(frozen=True, slots=True)
class _Mention:
    """Where a factor is named, and the numbers that stand after it and directly before it."""

    spec: FactorSpec
    start: int
    end: int
    is_plural: bool
    following: list[float] = field(default_factory=list[float])
    leading: list[float] = field(default_factory=list[float])


def _find_mentions(text: str) -> list[_Mention]:
    """Every mention of a factor; where two overlap, the longer one is meant ("KL coefficient", not "KL")."""
    every = [
        _Mention(spec, match.start(), match.end(), bool(_PLURAL.search(match.group())))
        for spec in FACTORS
        for match in re.finditer(rf"\b(?:{spec.pattern})", text, re.IGNORECASE)
    ]
    every.sort(key=lambda mention: (mention.start - mention.end, mention.start))
    chosen: list[_Mention] = []
    for mention in every:
        if not any(mention.start < other.end and other.start < mention.end for other in chosen):
            chosen.append(mention)
    return sorted(chosen, key=lambda mention: mention.start)


def _find_factors(text: str) -> Iterator[Factor]:
    mentions = _find_mentions(text)
    _assign_numbers(text, mentions)
    by_name: dict[str, list[_Mention]] = {}
    for mention in mentions:
        by_name.setdefault(mention.spec.name, []).append(mention)
    for name, same in by_name.items():
        if name == "use_kl_loss" and "kl_loss_coef" in by_name:
            # Both set the same thing; the coefficient says more.
            continue
        yield _make_factor(text, same[0].spec, same)


def _make_factor(text: str, spec: FactorSpec, mentions: list[_Mention]) -> Factor:
    numbers = _values(mentions) if spec.numeric else []
    if numbers and spec.name == "use_kl_loss":
        spec = next(other for other in FACTORS if other.name == "kl_loss_coef")
    if numbers:
        levels = tuple(number_level(spec, number) for number in numbers)
        if len(levels) == 1 and spec.default is not None:
            usual = number_level(spec, spec.default)
            levels = (usual, *levels) if levels != (usual,) else spec.grid
        return Factor(spec.name, levels, explicit=True, note=spec.note, base=spec.base)
    named = tuple(
        level for level in spec.named if re.search(rf"(?<![\w-]){re.escape(level.name)}(?![\w-])", text, re.I)
    )
    if len(named) == 1:
        # A single named value is compared with the usual one.
        named = (spec.named[0], *named) if named[0] != spec.named[0] else ()
    return Factor(spec.name, named or spec.grid, explicit=bool(named), note=spec.note, base=spec.base)


def _values(mentions: list[_Mention]) -> list[float]:
    """The distinct numbers given for one factor, without a count such as the 3 of "3 learning rates"."""
    following = [number for mention in mentions for number in mention.following]
    leading = [number for mention in mentions for number in mention.leading]
    is_count = len(leading) == 1 and mentions[0].is_plural
    return list(dict.fromkeys(following if is_count else leading + following))


def _assign_numbers(text: str, mentions: list[_Mention]) -> None:
    """A list belongs to the mention it directly precedes, else to the last one before it, else to the next."""
    counted = [match.span() for pattern in (_SEEDS, _STEPS) for match in pattern.finditer(text)]
    numeric = [mention for mention in mentions if mention.spec.numeric]
    for match in _NUMBERS.finditer(text):
        if any(start <= match.start() < end for start, end in counted):
            continue
        numbers = [_parse_number(item) for item in re.findall(_NUMBER, match.group())]
        before = next((mention for mention in reversed(numeric) if mention.end <= match.start()), None)
        after = next((mention for mention in numeric if mention.start >= match.end()), None)
        touches_before = before is not None and _LINK.fullmatch(text[before.end : match.start()]) is not None
        touches_after = after is not None and not text[match.end() : after.start].strip()
        if after is not None and (before is None or (touches_after and not touches_before)):
            after.leading.extend(numbers)
        elif before is not None:
            before.following.extend(numbers)


def _parse_number(text: str) -> float:
    text = text.replace("−", "-")
    if power := re.fullmatch(r"(-?)10(?:\^|\*\*)(-?\d+)", text):
        return float(f"{power.group(1)}1e{power.group(2)}")
    return float(text)


def _find_algorithms(text: str) -> list[Level]:
    """The algorithms named, in order; longer names first, so that Dr.GRPO is not GRPO."""
    found: list[tuple[int, str]] = []
    rest = text
    for name, pattern in ALGORITHMS:
        for match in re.finditer(rf"(?<![\w+]){pattern}(?![\w+])", rest, re.IGNORECASE):
            found.append((match.start(), name))
            rest = rest[: match.start()] + " " * len(match.group()) + rest[match.end() :]
    return [algorithm_level(name) for name in dict.fromkeys(name for _, name in sorted(found))]
