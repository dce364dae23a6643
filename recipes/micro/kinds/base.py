"""The type of a kind of task, and the functions that draw its numbers, words and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from string import ascii_lowercase, ascii_uppercase
from typing import TypeVar

from recipes.micro.words import ADJECTIVES, COMMON, NAMES, NOUNS, VERBS, WHOLE_WORDS

T = TypeVar("T")

Answer = str | bool | tuple[str, ...]
"""A text, a truth value, or the items of a list."""


@dataclass(frozen=True, slots=True)
class Item:
    """The content of one question.

    `list_style` is the way in which the subject is written, if it is a list.
    """

    subject: str
    answer: Answer
    slots: Mapping[str, str] = field(default_factory=dict[str, str])
    list_style: str = ", "


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of task: its name, the nouns for its subject, and the function that draws an item."""

    name: str
    nouns: tuple[str, ...]
    draw: Callable[[Random], Item]


def about(draw: Callable[[Random], T], answer: Callable[[T], Answer]) -> Callable[[Random], Item]:
    """Return a function that draws an item about one thing, with an answer that depends on this thing alone."""

    def item(rng: Random) -> Item:
        subject = draw(rng)
        return Item(str(subject), answer(subject))

    return item


def about_list(
    draw: Callable[[Random], Sequence[T]], answer: Callable[[Sequence[T]], Answer]
) -> Callable[[Random], Item]:
    """Return a function that draws an item about a list, with an answer that depends on this list alone."""

    def item(rng: Random) -> Item:
        items = draw(rng)
        return list_item([str(each) for each in items], answer(items), rng)

    return item


WORD = ("word", "word", "string", "text")
LIST = ("list", "list", "items", "sequence")
WORDS = ("words", "list", "list of words", "items")
NUMBERS = ("numbers", "list", "list of numbers", "integers")
SENTENCE = ("sentence", "text", "line")
LIST_STYLES = (", ", ", ", ", ", " ", "[, ]", '["]', "['']", ",", "\n", "; ")


def join_list(items: Sequence[str], style: str) -> str:
    """Return a list as text; `style` is a separator, or brackets with or without quotation marks."""
    if style == "[, ]":
        return f"[{', '.join(items)}]"
    if style == '["]':
        return "[" + ", ".join(f'"{item}"' for item in items) + "]"
    if style == "['']":
        return "[" + ", ".join(f"'{item}'" for item in items) + "]"
    return style.join(items)


def draw_number(rng: Random, largest: int = 99) -> int:
    """Draw a number, mostly a small one."""
    luck = rng.random()
    top = 9 if luck < 0.5 else 20 if luck < 0.75 else 99 if luck < 0.95 else 999
    return rng.randint(0, min(top, largest))


def draw_letters(rng: Random, shortest: int = 2, longest: int = 7) -> str:
    """Draw a made-up string, sometimes of few different letters, sometimes in capitals or with digits."""
    alphabet = rng.choice((ascii_lowercase, ascii_lowercase, ascii_uppercase, ascii_lowercase + "0123456789"))
    if rng.random() < 0.3:
        alphabet = rng.sample(alphabet, rng.randint(2, 4))
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(shortest, longest)))


def draw_word(rng: Random) -> str:
    """Draw a common word, a made-up one, or a word of instructions, sometimes capitalized or in capitals."""
    luck = rng.random()
    if luck < 0.3:
        return draw_letters(rng)
    if luck < 0.35:
        return rng.choice(NAMES)
    word = rng.choice(COMMON if luck < 0.8 else WHOLE_WORDS)
    luck = rng.random()
    return word.upper() if luck < 0.1 else word.capitalize() if luck < 0.2 else word


def draw_words(rng: Random, fewest: int = 2, most: int = 6) -> list[str]:
    """Draw different lower-case words."""
    count = rng.randint(fewest, most)
    if rng.random() < 0.15:
        return rng.sample(ascii_lowercase, count)
    return rng.sample(COMMON if rng.random() < 0.8 else WHOLE_WORDS, count)


def draw_numbers(rng: Random, fewest: int = 2, most: int = 6) -> list[int]:
    """Draw different numbers, including negative ones in some lists."""
    top = rng.choice((9, 9, 20, 50, 99, 999))
    low = -top if rng.random() < 0.15 else 0
    return rng.sample(range(low, top + 1), rng.randint(fewest, most))


def as_texts(numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(str(number) for number in numbers)


def draw_sentence(rng: Random) -> str:
    """Draw a plain sentence of four to twelve words without its full stop."""
    who = rng.choice(
        (rng.choice(NAMES), f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}", f"the {rng.choice(NOUNS)}")
    )
    what = rng.choice((f"a {rng.choice(NOUNS)}", f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"))
    tail = rng.choice(
        (
            "",
            "",
            f" in the {rng.choice(NOUNS)}",
            f" with a {rng.choice(NOUNS)}",
            f" before the {rng.choice(NOUNS)} was {rng.choice(ADJECTIVES)}",
        )
    )
    sentence = f"{who} {rng.choice(VERBS)} {what}{tail}"
    return sentence[0].upper() + sentence[1:] if rng.random() < 0.7 else sentence


def list_item(items: Sequence[str], answer: Answer, rng: Random, slots: Mapping[str, str] | None = None) -> Item:
    """Return an item about a list that is written in a random style."""
    style = rng.choice(LIST_STYLES)
    if style == " " and any(" " in item for item in items):
        style = ", "
    return Item(join_list(items, style), answer, slots or {}, style)
