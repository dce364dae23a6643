"""The share of an episode's graded replies that the served model wrote."""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from swarm.schemas import MAX_REPLIES
from swarm.types import Turn

RUN = 8
MAX_WRITTEN = 1_000_000
"""The most characters of the model's texts that are compared: the latest ones."""
INLINE = 5_000
"""The most characters compared on the event loop; more would delay the calls of others."""

_MARKUP = re.compile(r"</?[A-Za-z][^<>]{0,100}>|\\[A-Za-z]+|```\w*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NO_FRACTION = re.compile(r"(?<=\d)\.0+(?![\d.])")
_APART = re.compile(r"(?<=\b[A-Za-z])[ -]+(?=[A-Za-z]\b)")
"""What stands between letters that are written one by one."""
_WORD = re.compile(
    # Scripts without blanks between words: Thai, Lao, Khmer, kana, Han.
    r"[\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]|\d+|[^\W\d_]+"
)

Words = tuple[str, ...]


async def share_of_model(replies: Sequence[str], turns: Iterable[Turn]) -> float | None:
    """Return the share of `replies` that the model wrote in `turns`, from 0 to 1.

    The share is over the characters of all words. Return None where the replies have no words.

    Replies and turns are compared as words. Markup, the keys of a JSON object, letter case, punctuation and the form of
    a number (`1,000`, `42.0`) do not count, nor do blanks between single letters (`A B C`). So an agent may take an
    answer out of a longer text, strip it or wrap it.

    A line of up to `RUN` words, or one value of a JSON object, counts wholly or not at all. It counts if the model
    wrote these words one after the other. In a longer line, a word counts if it stands in a run of `RUN` words that the
    model wrote. So another answer gets no credit for ending in a sentence of the model.
    """
    written = [text for turn in turns for text in _texts_of(turn)]
    if sum(map(len, replies)) + sum(map(len, written)) <= INLINE:
        return share_written(replies, written)
    return await asyncio.to_thread(share_written, replies, written)


def share_written(replies: Sequence[str], written: Sequence[str]) -> float | None:
    """Return the same as `share_of_model`, given the texts that the model wrote."""
    considered, beyond = _first(replies, MAX_REPLIES)
    latest, _ = _first(list(reversed(written)), MAX_WRITTEN)
    units = [unit for text in considered for unit in _units(text)]
    total = sum(map(_size, units)) + beyond
    if not total:
        return None
    texts = [variant for text in latest for variant in _variants(text)]
    present = _found({run for unit in units for run in _runs(unit)}, texts)
    return sum(_credit(unit, present) for unit in units) / total


def _texts_of(turn: Turn) -> Iterator[str]:
    """Yield what the model wrote in a turn: its reply, its reasoning, and the arguments of its tool calls."""
    reply = turn.reply
    for text in (reply.get("content"), reply.get("reasoning_content")):
        if isinstance(text, str) and text:
            yield text
    for call in reply.get("tool_calls") or ():
        yield str(call["function"]["arguments"])


def _first(texts: Sequence[str], limit: int) -> tuple[list[str], int]:
    """Return the texts up to `limit` characters in all, and how many characters are left out."""
    kept: list[str] = []
    left = limit
    for text in texts:
        kept.append(text[:left])
        left -= len(kept[-1])
    return kept, sum(map(len, texts)) - (limit - left)


def _units(text: str) -> Iterator[Words]:
    """Yield the words of each value of a JSON text, or of each line of another text.

    A value or line without words gives its punctuation instead.
    """
    values = _json_values(text)
    lines = _MARKUP.sub("\n", text).splitlines() if values is None else values
    for line in lines:
        if words := _words(line) or _signs(line):
            yield words


def _variants(text: str) -> Iterator[Words]:
    """Yield the words of a model's text: with its markup, without it, and of each value of its JSON."""
    plain = _MARKUP.sub(" ", text)
    yield _words(text)
    yield _words(_APART.sub("", text))
    if plain != text:
        yield _words(plain)
    if (values := _json_values(text)) is not None:
        yield from map(_words, values)
    yield _signs(text)


def _words(text: str) -> Words:
    return tuple(_WORD.findall(_NO_FRACTION.sub("", _THOUSANDS.sub("", _normal(text)))))


def _signs(text: str) -> Words:
    """Return the signs of a line that has no word."""
    return tuple(sign for sign in _normal(text) if not (sign.isalnum() or sign.isspace()))


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _json_values(text: str) -> list[str] | None:
    """Return the strings, numbers and constants in a JSON object or array, without its keys.

    Return None for any other text.
    """
    stripped = _MARKUP.sub("", text).strip() if text.lstrip().startswith("```") else text.strip()
    if not stripped.startswith(("{", "[")):
        return None
    try:
        return list(_leaves(json.loads(stripped, parse_int=str, parse_float=str)))
    except (ValueError, RecursionError):
        return None


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _leaves(each)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def _runs(unit: Words) -> Iterator[Words]:
    """Yield the runs of words that decide on a unit: the unit itself, or every run of `RUN` words in it."""
    length = min(RUN, len(unit))
    return (unit[start : start + length] for start in range(len(unit) - length + 1))


def _found(runs: set[Words], texts: Sequence[Words]) -> set[Words]:
    """Return the runs that occur in one of the texts."""
    found: set[Words] = set()
    for length in {len(run) for run in runs}:
        for text in texts:
            found |= runs.intersection(text[start : start + length] for start in range(len(text) - length + 1))
    return found


def _credit(unit: Words, present: set[Words]) -> int:
    """Return how many characters of a unit the model wrote."""
    end = credit = 0
    for start, run in enumerate(_runs(unit)):
        if run in present:
            # Runs overlap: each word counts once.
            credit += _size(unit[max(start, end) : start + len(run)])
            end = start + len(run)
    return credit


def _size(words: Sequence[str]) -> int:
    return sum(map(len, words))
