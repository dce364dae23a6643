"""Kinds of task whose answer is yes or no."""

from __future__ import annotations

from collections.abc import Callable
from operator import gt, lt
from random import Random
from string import ascii_lowercase

from recipes.micro.kinds.base import (
    LIST,
    SENTENCE,
    WORD,
    Item,
    Kind,
    about,
    draw_number,
    draw_numbers,
    draw_sentence,
    draw_word,
    draw_words,
    list_item,
)
from recipes.micro.words import CATEGORIES, COMMON

_TRUTHS = {"True": True, "False": False}


def _is_in_list(rng: Random) -> Item:
    is_in = rng.random() < 0.5
    if rng.random() < 0.6:
        items = draw_words(rng, 2, 7)
        other = rng.choice(COMMON)
    else:
        items = [str(number) for number in draw_numbers(rng, 2, 7)]
        other = str(draw_number(rng))
    asked = rng.choice(items) if is_in else other
    return list_item(items, asked in items, rng, {"a": asked})


def _has_letter(rng: Random) -> Item:
    word = draw_word(rng).lower()
    letter = rng.choice(word if rng.random() < 0.5 else ascii_lowercase)
    return Item(word, letter in word, {"a": letter})


def _has_word(rng: Random) -> Item:
    words = draw_sentence(rng).split()
    asked = rng.choice(words if rng.random() < 0.5 else COMMON)
    return Item(" ".join(words), asked in words, {"a": asked})


def _letter_stands(place: int) -> Callable[[Random], Item]:
    """Return a function that draws a question whether a letter is at this place of a word."""

    def item(rng: Random) -> Item:
        word = draw_word(rng).lower()
        letter = word[place] if rng.random() < 0.5 else rng.choice(word + ascii_lowercase)
        return Item(word, word[place] == letter, {"a": letter})

    return item


def _compared(sign: str, holds: Callable[[int, int], bool]) -> Callable[[Random], Item]:
    def item(rng: Random) -> Item:
        left, right = draw_number(rng), draw_number(rng)
        return Item(f"{left} {sign} {right}", holds(left, right), {"a": str(left), "b": str(right)})

    return item


def _same(rng: Random) -> Item:
    if rng.random() < 0.3:
        left, right = str(draw_number(rng)), str(draw_number(rng))
    else:
        left, right = draw_word(rng), draw_word(rng)
    if rng.random() < 0.3:
        right = "".join(rng.sample(left, len(left)))
    if rng.random() < 0.4:
        right = left
    return Item(f"{left} and {right}", left == right, {"a": left, "b": right})


def _is_sum_right(rng: Random) -> Item:
    left, right = rng.randint(0, 20), rng.randint(0, 20)
    claimed = left + right + (0 if rng.random() < 0.5 else rng.choice((-2, -1, 1, 2, 10)))
    return Item(f"{left} + {right} = {claimed}", claimed == left + right)


def _formula(rng: Random) -> Item:
    left, right = rng.choice(("True", "False")), rng.choice(("True", "False"))
    if rng.random() < 0.2:
        return Item(f"not {left}", not _TRUTHS[left])
    is_and = rng.random() < 0.5
    value = (_TRUTHS[left] and _TRUTHS[right]) if is_and else (_TRUTHS[left] or _TRUTHS[right])
    text = f"{left} {'and' if is_and else 'or'} {right}"
    if rng.random() < 0.25:
        return Item(f"not ({text})", not value)
    return Item(text, value)


def _is_sorted(rng: Random) -> Item:
    numbers = draw_numbers(rng, 2, 5)
    if rng.random() < 0.5:
        numbers.sort()
    return list_item([str(number) for number in numbers], numbers == sorted(numbers), rng)


def _all_same_letters(rng: Random) -> Item:
    """Draw two words, and ask whether one has the same letters as the other."""
    left = draw_word(rng).lower()
    right = "".join(rng.sample(left, len(left)))
    if rng.random() < 0.5:
        place = rng.randrange(len(right))
        right = right[:place] + rng.choice(ascii_lowercase) + right[place + 1 :]
    return Item(f"{left} and {right}", sorted(left) == sorted(right), {"a": left, "b": right})


def _is_category(rng: Random) -> Item:
    category = rng.choice(list(CATEGORIES))
    other = category if rng.random() < 0.5 else rng.choice(list(CATEGORIES))
    return Item(rng.choice(CATEGORIES[other]), other == category, {"a": category})


def _is_palindrome(rng: Random) -> Item:
    half = draw_word(rng).lower()[:3]
    word = half + half[::-1][rng.randint(0, 1) :] if rng.random() < 0.5 else draw_word(rng).lower()
    return Item(word, word == word[::-1])


def _has_repeated_item(rng: Random) -> Item:
    items = draw_words(rng, 2, 5)
    if rng.random() < 0.5:
        items[rng.randrange(len(items))] = rng.choice(items)
    return list_item(items, len(set(items)) < len(items), rng)


KINDS: tuple[Kind, ...] = (
    Kind("is in list", LIST, _is_in_list),
    Kind("has letter", WORD, _has_letter),
    Kind("has word", SENTENCE, _has_word),
    Kind("begins with", WORD, _letter_stands(0)),
    Kind("ends with", WORD, _letter_stands(-1)),
    Kind("same", ("words", "pair"), _same),
    Kind("is larger", ("statement",), _compared(">", gt)),
    Kind("is smaller", ("statement",), _compared("<", lt)),
    Kind("is even", ("number",), about(draw_number, lambda number: number % 2 == 0)),
    Kind("is odd", ("number",), about(draw_number, lambda number: number % 2 == 1)),
    Kind("is sum right", ("statement", "equation"), _is_sum_right),
    Kind("formula", ("expression", "statement"), _formula),
    Kind("is sorted", ("list", "numbers"), _is_sorted),
    Kind("same letters", ("words", "pair"), _all_same_letters),
    Kind("is category", ("word", "thing"), _is_category),
)

HELD_OUT: tuple[Kind, ...] = (
    Kind("is palindrome", WORD, _is_palindrome),
    Kind("has repeated item", LIST, _has_repeated_item),
)
