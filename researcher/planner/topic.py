"""Reads a topic without a language model: what it asks, of which factors, on what, and what in it is not understood.

Place in the flow: the `rules` planner calls `parse_topic` in frame and in plan, the settings of a study are completed
from it. What a factor can be set to stands in factors.py. A topic is read in this order, and what one step has read is
taken out before the next: names that nothing stands for (reading/foreign.py), environments, counts
(reading/quantities.py), factors with the numbers beside them, algorithms. Every word that is left has to be ordinary
(reading/account.py), or it is not understood. This module knows nothing of designs, servers or scores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from experiments_db import number_as_text
from researcher.errors import TopicInvalid
from researcher.planner.factors import ALGORITHMS, FACTORS, Factor, FactorSpec, Level, algorithm_level, number_level
from researcher.planner.reading.account import find_unread
from researcher.planner.reading.baseline import mark_baselines
from researcher.planner.reading.environments import find_environments
from researcher.planner.reading.foreign import Kind, Part, find_foreign
from researcher.planner.reading.goals import ComparedAt, Goal, find_compared_at, find_goals, find_share
from researcher.planner.reading.numbers import attach_numbers
from researcher.planner.reading.quantities import WORDS_FOR_NUMBERS, Quantity, find_quantities

LONGEST_TOPIC = 4000
"""Characters; a topic is a question, not a document."""

_PLURAL = re.compile(
    r"(?:sizes|rates|temperatures|coefficients|coefs|weights|strengths|ratios|ranges|decays)$", re.IGNORECASE
)
_MULTIPLE = re.compile(
    r"(?:(?P<count>\d+(?:\.\d+)?)(?:\s?[x×]|[\s-](?:times|fold))|(?P<word>twice|double|triple|half))"
    r"(?:\s+(?:the|as|a|an|larger|higher|bigger|smaller|lower|large|usual|default|of))*\s*$",
    re.IGNORECASE,
)
_WARMUP_STEPS = re.compile(r"(warm[-_ ]?up[^.?!;]{0,20}?\d)(\s+(?:training )?steps?)\b", re.IGNORECASE)
"""The unit of a warmup is no number of training steps."""
_MULTIPLES = {"twice": 2.0, "double": 2.0, "triple": 3.0, "half": 0.5}
_LEADING_WORD = re.compile(rf"\b({'|'.join(WORDS_FOR_NUMBERS)})\s+$", re.IGNORECASE)
_CITED = re.compile(r"(?<![\w+])[A-Z][\w.+-]+(?:'s)? (?:papers?|authors?|reports?|blog(?: post)?)\b")
"""A name that stands for what was written about it: nothing is to be trained with it."""
_SEVERAL_STEPS = re.compile(
    r"(?<!up )(?<!ups )(?<!up of )(?<!up for )(?<![\w.])"
    r"(\d+(?:(?:\s*,\s*(?:or |and )?|\s+(?:or|and|vs\.?|versus|to|against)\s+)\d+)+)[\s-](?:training )?steps?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ParsedTopic:
    """What a topic says. `task` is a bundled environment, `environment` a reference to another one; both are None and
    `factors` is empty where it says nothing known.

    `algorithm` and `model` are taken for granted while something else is compared. `compared_at` is None where the
    topic leaves it open, `amount` is how many tokens or seconds of it each run gets. `not_understood` are the parts
    that nothing stands for.
    """

    text: str
    task: str | None
    environment: str | None
    factors: tuple[Factor, ...]
    algorithm: Level | None
    model: str | None
    goals: tuple[Goal, ...]
    compared_at: ComparedAt | None
    amount: float | None
    quantities: tuple[Quantity, ...]
    not_understood: tuple[Part, ...]

    @property
    def seeds(self) -> int | None:
        return self._count("seeds")

    @property
    def steps(self) -> int | None:
        return self._count("steps")

    @property
    def n_gpu(self) -> int | None:
        return self._count("n_gpu")

    @property
    def max_runs(self) -> int | None:
        return self._count("runs")

    @property
    def eval_episodes(self) -> int | None:
        return self._count("eval_episodes")

    @property
    def max_hours(self) -> float | None:
        hours_of = {"hours": 1.0, "minutes": 1 / 60}
        hours = [item.value * hours_of[item.name] for item in self.quantities if item.name in hours_of]
        return sum(hours) if hours else None

    def _count(self, name: str) -> int | None:
        return next((int(item.value) for item in self.quantities if item.name == name), None)


def parse_topic(text: str) -> ParsedTopic:
    """Raises TopicInvalid for an empty or overlong topic, and for a value that its setting cannot take."""
    text = " ".join(text.split())
    if not text:
        raise TopicInvalid("the topic is empty: say what to study, such as 'Does group size matter for word reversal?'")
    if len(text) > LONGEST_TOPIC:
        raise TopicInvalid(f"the topic has {len(text)} characters, at most {LONGEST_TOPIC} are read: shorten it")
    return _Reader(text).read()


@dataclass(slots=True)
class _Mention:
    """Where a factor is named, and the numbers that stand after it and directly before it."""

    spec: FactorSpec
    start: int
    end: int
    is_plural: bool
    following: list[float] = field(default_factory=list[float])
    leading: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class _Reader:
    """The reading of one topic. `rest` is the text with spaces where it has been read, so that places stay the same."""

    text: str
    rest: str = ""
    not_understood: list[Part] = field(default_factory=list[Part])

    def read(self) -> ParsedTopic:
        self.rest = self.text
        goals = find_goals(self.text)
        self._take_out([match.span() for match in _CITED.finditer(self.rest)])
        places = find_environments(self.rest)
        self._take_environment(places.unknown)
        self._take_out(places.read)
        compared_at, amount = self._read_compared_at()
        self._take_out([match.span(2) for match in _WARMUP_STEPS.finditer(self.rest)])
        step_levels = self._read_step_levels()
        for part in _worth_naming(self.rest):
            self.not_understood.append(part)
            self._take_out([(part.start, part.end)])
        quantities = find_quantities(self.rest)
        self._take_out([(item.start, item.end) for item in quantities])
        factors = [*self._read_factors(goals), *step_levels]
        factors, algorithm = self._read_algorithms(factors)
        factors, model = _take_for_granted(factors, self.text)
        if not factors and Goal.DIVERGES in goals:
            factors = [_climb(_spec_of("lr"))]
        self.not_understood += find_unread(self.rest, self.text)
        return ParsedTopic(
            text=self.text,
            task=places.task,
            environment=places.reference,
            factors=tuple(mark_baselines(self.text, factors)),
            algorithm=algorithm,
            model=model,
            goals=goals,
            compared_at=compared_at,
            amount=amount,
            quantities=tuple(quantities),
            not_understood=tuple(sorted(self.not_understood, key=lambda part: part.start)),
        )

    def _take_out(self, spans: Sequence[tuple[int, int]]) -> None:
        for start, end in spans:
            self.rest = self.rest[:start] + " " * (end - start) + self.rest[end:]

    def _take_environment(self, parts: Sequence[Part]) -> None:
        self.not_understood.extend(parts)
        self._take_out([(part.start, part.end) for part in parts])

    def _read_compared_at(self) -> tuple[ComparedAt | None, float | None]:
        """At what arms are to be equal, and how much of it each run gets, where the topic says that."""
        share = find_share(self.rest)
        if share is not None:
            self._take_out([share.span])
        found = find_compared_at(self.rest)
        for unit, match in found[1:]:
            remedy = f"arms are compared at equal {found[0][0]} or at equal {unit}, not at both: leave one of them out"
            self.not_understood.append(Part(match.group().strip(), match.start(), Kind.COMPARISON, remedy))
        self._take_out([match.span() for _, match in found])
        unit = found[0][0] if found else share.unit if share else None
        return unit, share.amount if share is not None and share.unit is unit else None

    def _read_step_levels(self) -> list[Factor]:
        """ "20 or 40 steps" are values, where "40 steps" is how long every arm trains."""
        match = _SEVERAL_STEPS.search(self.rest)
        if match is None:
            return []
        self._take_out([match.span()])
        spec = _spec_of("total_steps")
        numbers = dict.fromkeys(float(number) for number in re.findall(r"\d+", match.group(1)))
        return [_factor(spec, tuple(number_level(spec, number) for number in numbers), explicit=True)]

    def _read_factors(self, goals: tuple[Goal, ...]) -> list[Factor]:
        mentions = _find_mentions(self.rest)
        self._take_out(attach_numbers(self.rest, [mention for mention in mentions if mention.spec.numeric]))
        self._attach_words(mentions)
        before = self.rest
        self._take_out([(mention.start, mention.end) for mention in mentions])
        by_name: dict[str, list[_Mention]] = {}
        for mention in mentions:
            by_name.setdefault(mention.spec.name, []).append(mention)
        # Both set the same thing; the coefficient says more.
        if "kl_loss_coef" in by_name:
            by_name.pop("use_kl_loss", None)
        made = [self._make_factor(before, same[0].spec, same, goals) for same in by_name.values()]
        return list({factor.name: factor for factor in reversed(made)}.values())[::-1]

    def _attach_words(self, mentions: list[_Mention]) -> None:
        """Numbers in words directly before a name, and multiples of its usual value: "10x the learning rate"."""
        for mention in mentions:
            head = self.rest[: mention.start]
            if not mention.spec.numeric or mention.leading or mention.is_plural:
                continue
            if (match := _MULTIPLE.search(head)) and mention.spec.default:
                by = _MULTIPLES.get((match.group("word") or "").lower()) or float(match.group("count"))
                shrinks = re.search(r"smaller|lower", match.group(), re.IGNORECASE)
                usual = mention.spec.default
                mention.leading.extend([usual, float(number_as_text(usual / by if shrinks else usual * by))])
                self._take_out([match.span()])
            elif match := _LEADING_WORD.search(head):
                word = match.group(1).lower()
                if WORDS_FOR_NUMBERS[word] > 1:
                    mention.leading.append(float(WORDS_FOR_NUMBERS[word]))
                    self._take_out([match.span()])

    def _make_factor(self, text: str, spec: FactorSpec, mentions: list[_Mention], goals: tuple[Goal, ...]) -> Factor:
        numbers = _values(mentions) if spec.numeric else []
        if numbers and spec.name == "use_kl_loss":
            spec = _spec_of("kl_loss_coef")
        if numbers:
            levels = tuple(number_level(spec, number) for number in numbers)
            if len(levels) == 1 and spec.default is not None:
                usual = number_level(spec, spec.default)
                levels = (usual, *levels) if levels != (usual,) else spec.grid
            return _factor(spec, levels, explicit=True)
        if Goal.DIVERGES in goals and spec.ladder:
            return _climb(spec)
        if Goal.NEEDED in goals and spec.off is not None and spec.default is not None:
            return _factor(spec, (number_level(spec, spec.default), number_level(spec, spec.off)), explicit=True)
        named = self._find_named(text, spec)
        if len(named) == 1:
            # A single named value is compared with the usual one.
            named = (spec.named[0], *named) if named[0] != spec.named[0] else ()
        return _factor(spec, named or spec.grid, explicit=bool(named))

    def _find_named(self, text: str, spec: FactorSpec) -> tuple[Level, ...]:
        found: list[Level] = []
        for level in spec.named:
            for match in re.finditer(rf"(?<![\w-]){re.escape(level.name)}(?![\w-])", text, re.IGNORECASE):
                self._take_out([match.span()])
                found.append(level)
        return tuple(level for level in spec.named if level in found)

    def _read_algorithms(self, factors: list[Factor]) -> tuple[list[Factor], Level | None]:
        algorithms = self._find_algorithms()
        if len(algorithms) > 1 or (len(algorithms) == 1 and not factors and algorithms[0].name != "grpo"):
            levels = algorithms if len(algorithms) > 1 else [algorithm_level("grpo"), *algorithms]
            factors = [factor for factor in factors if factor.name != "algorithm"]
            return [*factors, Factor(name="algorithm", levels=tuple(levels), explicit=True)], None
        return factors, algorithms[0] if algorithms else None

    def _find_algorithms(self) -> list[Level]:
        """The algorithms named, in order; longer names first, so that Dr.GRPO is not GRPO."""
        found: list[tuple[int, str]] = []
        for name, pattern in ALGORITHMS:
            for match in re.finditer(rf"(?<![\w+]){pattern}(?![\w+])", self.rest, re.IGNORECASE):
                found.append((match.start(), name))
                self._take_out([match.span()])
        return [algorithm_level(name) for name in dict.fromkeys(name for _, name in sorted(found))]


def _worth_naming(text: str) -> list[Part]:
    """The foreign parts, without those that only stand beside the name of a factor: "PPO clipping" is a factor."""
    mentions = [match.span() for spec in FACTORS for match in _matches(spec, text)]
    return [
        part
        for part in find_foreign(text)
        if not any(start <= part.start and part.end <= end and end - start > len(part.text) for start, end in mentions)
    ]


def _matches(spec: FactorSpec, text: str) -> list[re.Match[str]]:
    return list(re.finditer(rf"(?<![\w])(?:{spec.pattern})(?!\w)", text, re.IGNORECASE))


def _find_mentions(text: str) -> list[_Mention]:
    """Every mention of a factor; where two overlap, the longer one is meant ("KL coefficient", not "KL")."""
    every = [
        _Mention(spec, match.start(), match.end(), bool(_PLURAL.search(match.group())))
        for spec in FACTORS
        for match in _matches(spec, text)
    ]
    every.sort(key=lambda mention: (mention.start - mention.end, mention.start))
    chosen: list[_Mention] = []
    for mention in every:
        if not any(mention.start < other.end and other.start < mention.end for other in chosen):
            chosen.append(mention)
    return sorted(chosen, key=lambda mention: mention.start)


def _spec_of(name: str) -> FactorSpec:
    return next(spec for spec in FACTORS if spec.name == name)


def _factor(spec: FactorSpec, levels: tuple[Level, ...], *, explicit: bool) -> Factor:
    return Factor(spec.name, levels, explicit, note=spec.note, base=spec.base)


def _climb(spec: FactorSpec) -> Factor:
    """The values that a search for where training diverges goes through."""
    return _factor(spec, tuple(number_level(spec, value) for value in spec.ladder), explicit=False)


def _take_for_granted(factors: list[Factor], text: str) -> tuple[list[Factor], str | None]:
    """A model that is named beside other factors is what they are studied with, unless two are named."""
    named = next((factor for factor in factors if factor.name == "model"), None)
    if named is None or len(factors) == 1:
        return factors, None
    said = [level for level in named.levels if re.search(rf"\b{level.name}\b", text, re.IGNORECASE)]
    if len(said) != 1:
        return factors, None
    return [replace(factor) for factor in factors if factor is not named], said[0].name


def _values(mentions: list[_Mention]) -> list[float]:
    """The distinct numbers given for one factor, without a count such as the 3 of "3 learning rates"."""
    following = [number for mention in mentions for number in mention.following]
    leading = [number for mention in mentions for number in mention.leading]
    is_count = len(leading) == 1 and mentions[0].is_plural
    return list(dict.fromkeys(following if is_count else leading + following))
