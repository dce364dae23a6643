"""Limits of a reply that depend on the task: how many other replies they would have allowed."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

from researcher.evaluation.readings import fold
from researcher.evaluation.request_parts import Limit, key_of, limits_of, said_by
from swarm.errors import BadRequest
from swarm.grammars import TextGrammar
from swarm.schemas import TurnView
from swarm.types import Grammar, GrammarKind

CANDIDATES = 32
"""The other replies that a limit is tried with."""
LEAST_CANDIDATES = 24
"""The number of them that it must admit. A pattern that leaves nothing but the length admits 16."""
CHANGED_CHARS = 200
MOST_TURNS = 8
"""The requests of an attempt whose limits are tried: those whose replies hold an answer, or else the last ones."""
_WRONG_LETTER = 0.5
_VALUE = re.compile(r'(?<=: ")[^"]+|(?<=:")[^"]+')


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The effect of the limits in one attempt's requests. `names` are the limits that depend on the task.

    `turns` are the numbers of the requests that leave the model too few candidates.
    """

    names: frozenset[str] = frozenset()
    turns: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LimitedAttempt:
    """The requests of an attempt, the answers that its agent gave, and the right one, None if it is not known."""

    turns: Sequence[TurnView]
    given: Sequence[str]
    right: str | None = None

    def holders(self) -> list[int]:
        """Return the numbers of the requests whose reply holds an answer of the agent."""
        wanted = [folded for answer in self.given if (folded := fold(answer))]
        said = [fold(said_by(turn.reply)) for turn in self.turns]
        return [number for number, text in enumerate(said) if any(answer in text for answer in wanted)]


def find_narrowing(attempts: Sequence[LimitedAttempt]) -> list[Narrowing]:
    """Return what the limits do in each attempt.

    A limit that at least half of the other attempts have as well does not depend on the task.
    """
    limits = [[limits_of(turn) for turn in each.turns] for each in attempts]
    used = Counter(key for each in limits for key in {key_of(*item) for found in each for item in found.items()})
    others = len(attempts) - 1
    return [
        _look(index, attempts, [_dependent(found, used, others) for found in limits[index]])
        for index in range(len(attempts))
    ]


def _dependent(limits: Mapping[str, Any], used: Counter[Limit], others: int) -> dict[str, Any]:
    return {name: value for name, value in limits.items() if 2 * (used[key_of(name, value)] - 1) < others}


def _look(index: int, attempts: Sequence[LimitedAttempt], limits: Sequence[Mapping[str, Any]]) -> Narrowing:
    attempt = attempts[index]
    names = frozenset(name for found in limits for name in found)
    if not names:
        return Narrowing()
    elsewhere = [turn for other, each in enumerate(attempts) if other != index for turn in each.turns[:1]]
    tried = attempt.holders()[:MOST_TURNS] or range(len(attempt.turns))[-MOST_TURNS:]
    narrow = frozenset(
        number
        for number in tried
        for name, value in limits[number].items()
        if count_candidates(name, value, attempt, number, elsewhere) < LEAST_CANDIDATES
    )
    return Narrowing(names, narrow)


def is_narrowed(attempt: LimitedAttempt, narrow: frozenset[int]) -> bool:
    """Return whether the model first said an answer of the agent under a limit that left it no choice.

    The model may be made to say again what it has said freely. If no reply holds an answer, each of them counts.
    """
    holders = attempt.holders()
    return holders[0] in narrow if holders else bool(narrow)


def count_candidates(name: str, value: Any, attempt: LimitedAttempt, number: int, others: Sequence[TurnView]) -> int:
    """Return how many of `CANDIDATES` other replies a limit of a request admits.

    A grammar is tried with the reply itself in which single letters of the answer are changed, left out or added, and
    any other limit with the replies to other tasks.
    """
    if name == "grammar":
        return _count_changed(value, attempt, attempt.turns[number])
    if not others:
        return CANDIDATES
    return CANDIDATES * sum(_admits(name, value, other) for other in others) // len(others)


def _admits(name: str, value: Any, turn: TurnView) -> bool:
    """Return whether a limit would have let a reply pass as it is. The last token may be the end of the reply."""
    tokens, text = turn.output_ids, "".join(turn.output_tokens)
    match name:
        case "most tokens":
            return len(tokens) <= value
        case "least tokens":
            return len(tokens) >= value
        case "stop words":
            return not any(word in text for word in value)
        case "stop tokens":
            return not set(tokens[:-1]) & set(value)
        case _:
            raised = {token for token, bias in value if bias > 0}
            lowered = {token for token, bias in value if bias < 0}
            return not lowered & set(tokens) and (not raised or raised >= set(tokens[:-1]))


def _count_changed(value: Mapping[str, str], attempt: LimitedAttempt, turn: TurnView) -> int:
    """Return how many changed replies a grammar admits; 0 for one that cannot be read.

    The changes are made to the reply, and to the right answer in its place as far as the grammar admits it: the least
    number counts.
    """
    texts = dict(zip(turn.output_ids, turn.output_tokens, strict=True))
    try:
        grammar = TextGrammar(Grammar(GrammarKind(value["kind"]), value["text"]), texts)
    except BadRequest:
        return 0
    right = attempt.right or ""
    for reply, is_whole in product(_as_sampled(turn), (True, False)):
        start, end = _place_of_answer(reply, attempt.given)
        admits = partial(_admits_text, grammar, (reply[:start], reply[end:]), is_whole)
        if reply and admits(reply[start:end]):
            spelled = {reply[start:end], right, right.upper(), right.capitalize()} - {""}
            return min(sum(map(admits, _changed(text))) for text in spelled if admits(text))
    return 0


def _admits_text(grammar: TextGrammar, around: tuple[str, str], is_whole: bool, text: str) -> bool:
    return grammar.admits(text.join(around), is_whole=is_whole)


def _as_sampled(turn: TurnView) -> Iterator[str]:
    """Yield the forms of a reply that its grammar may be about: with and without the mark of its end."""
    content: object = turn.reply.get("content")
    if isinstance(content, str) and not turn.reply.get("tool_calls"):
        yield content
    yield "".join(turn.output_tokens[:-1])
    yield "".join(turn.output_tokens)


def _place_of_answer(reply: str, answers: Sequence[str]) -> tuple[int, int]:
    """Return where a reply holds an answer, else where its longest value is, else its beginning and end."""
    for answer in answers:
        signs = [re.escape(sign) for sign in answer[:CHANGED_CHARS] if sign.isalnum()]
        found = [*re.finditer(r"[\W_]*?".join(signs), reply, re.IGNORECASE)] if signs else []
        if found:
            return found[-1].span()
    values = sorted(_VALUE.finditer(reply), key=lambda found: len(found[0]))
    return values[-1].span() if values else (0, len(reply))


def _changed(text: str) -> Iterator[str]:
    """Yield a text with different letters, or with one left out or added; always the same changes."""
    places = [place for place, sign in enumerate(text) if sign.isalnum()] or [0]
    chance = random.Random(0)
    for number in range(CANDIDATES):
        signs = list(text)
        at = chance.choice(places)
        match number % 4:
            case 0:
                signs[at] = _other(signs[at], chance)
            case 1:
                for place in sorted({at, *(each for each in places if chance.random() < _WRONG_LETTER)}):
                    signs[place] = _other(signs[place], chance)
            case 2 if len(places) > 1:
                signs[at] = ""
            case _:
                signs[at] += _other(signs[at], chance)
        yield "".join(signs)


def _other(sign: str, chance: random.Random) -> str:
    """Return another sign of the same kind."""
    kind = digits[1:] if sign.isdigit() else ascii_uppercase if sign.isupper() else ascii_lowercase
    return chance.choice([each for each in kind if each != sign])
