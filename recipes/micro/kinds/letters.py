"""Kinds of task about the letters of a word or text."""

from __future__ import annotations

from random import Random
from string import ascii_lowercase

from recipes.micro.kinds.base import (
    SENTENCE,
    WORD,
    Item,
    Kind,
    about,
    draw_letters,
    draw_numbers,
    draw_sentence,
    draw_word,
    draw_words,
    join_list,
)
from recipes.micro.words import ORDINALS

VOWELS = "aeiou"


def _text(rng: Random) -> str:
    """Draw a word, a sentence, or a list."""
    luck = rng.random()
    if luck < 0.5:
        return draw_word(rng)
    if luck < 0.7:
        return draw_sentence(rng)
    if luck < 0.85:
        return join_list(draw_words(rng), rng.choice((", ", " ")))
    return join_list([str(number) for number in draw_numbers(rng, 1, 5)], rng.choice((", ", " ")))


def _lower_word(rng: Random) -> str:
    return draw_word(rng).lower()


def _without_vowels(word: str) -> str:
    return "".join(letter for letter in word if letter not in VOWELS) or "nothing"


def _reverse(rng: Random) -> Item:
    word = draw_word(rng) if rng.random() < 0.9 else str(rng.randint(10, 9999))
    return Item(word, word[::-1])


def _upper(rng: Random) -> Item:
    text = draw_word(rng) if rng.random() < 0.7 else draw_sentence(rng)
    return Item(text, text.upper())


def _lower(rng: Random) -> Item:
    text = draw_word(rng) if rng.random() < 0.7 else draw_sentence(rng)
    text = text.upper() if rng.random() < 0.6 else text.title()
    return Item(text, text.lower())


def _letter_at(rng: Random) -> Item:
    word = draw_word(rng)
    place = rng.randrange(min(len(word), len(ORDINALS)))
    name = ORDINALS[place]
    if rng.random() < 0.3:
        name, place = "last", len(word) - 1
    return Item(word, word[place], {"k": name, "n": str(place + 1)})


def _first_letters(rng: Random) -> Item:
    word = draw_word(rng)
    count = rng.randint(1, min(4, len(word)))
    return Item(word, word[:count], {"n": str(count)})


def _last_letters(rng: Random) -> Item:
    word = draw_word(rng)
    count = rng.randint(1, min(4, len(word)))
    return Item(word, word[-count:], {"n": str(count)})


def _replace_letter(rng: Random) -> Item:
    word = draw_word(rng).lower()
    old, new = rng.choice(word), rng.choice(ascii_lowercase)
    return Item(word, word.replace(old, new), {"a": old, "b": new})


def _remove_letter(rng: Random) -> Item:
    word = draw_word(rng).lower() + rng.choice(ascii_lowercase)
    removed = rng.choice(word)
    return Item(word, word.replace(removed, "") or "nothing", {"a": removed})


def _spell(rng: Random) -> Item:
    word = draw_word(rng)
    name, mark = rng.choice((("dashes", "-"), ("spaces", " "), ("commas", ", "), ("hyphens", "-")))
    return Item(word, mark.join(word), {"mark": name})


def _repeat(rng: Random) -> Item:
    word, count = draw_word(rng)[:5], rng.randint(2, 3)
    return Item(word, " ".join([word] * count), {"n": str(count), "times": ("", "", "twice", "three times")[count]})


def _next_letter(rng: Random) -> Item:
    place = rng.randrange(25)
    return Item(ascii_lowercase[place], ascii_lowercase[place + 1])


def _previous_letter(rng: Random) -> Item:
    place = rng.randrange(1, 26)
    return Item(ascii_lowercase[place], ascii_lowercase[place - 1])


def _append(rng: Random) -> Item:
    word, more = draw_word(rng), draw_letters(rng, 1, 2)
    return Item(word, word + more, {"a": more})


def _prepend(rng: Random) -> Item:
    word, more = draw_word(rng), draw_letters(rng, 1, 2)
    return Item(word, more + word, {"a": more})


def _count_letter(rng: Random) -> Item:
    text = rng.choice((draw_word, draw_word, draw_sentence))(rng).lower()
    if rng.random() < 0.4:
        text = "".join(rng.choice(rng.sample(ascii_lowercase, 3)) for _ in range(rng.randint(3, 9)))
    letter = rng.choice(text.replace(" ", "")) if rng.random() < 0.85 else rng.choice(ascii_lowercase)
    return Item(text, str(text.count(letter)), {"a": letter})


KINDS: tuple[Kind, ...] = (
    Kind("copy", ("word", "text", "line"), about(_text, str)),
    Kind("reverse", (*WORD, "letters"), _reverse),
    Kind("upper", (*WORD, "sentence"), _upper),
    Kind("lower", (*WORD, "sentence"), _lower),
    Kind("capitalize", WORD, about(_lower_word, str.capitalize)),
    Kind("letter at", WORD, _letter_at),
    Kind("first letters", WORD, _first_letters),
    Kind("last letters", WORD, _last_letters),
    Kind("replace letter", WORD, _replace_letter),
    Kind("remove letter", WORD, _remove_letter),
    Kind("sort letters", WORD, about(lambda rng: _lower_word(rng)[:6], lambda word: "".join(sorted(word)))),
    Kind("spell", WORD, _spell),
    Kind("repeat", WORD, _repeat),
    Kind("next letter", ("letter",), _next_letter),
    Kind("previous letter", ("letter",), _previous_letter),
    Kind("append", WORD, _append),
    Kind("prepend", WORD, _prepend),
    Kind("length", WORD, about(draw_word, lambda word: str(len(word)))),
    Kind("count letter", (*WORD, *SENTENCE), _count_letter),
)

HELD_OUT: tuple[Kind, ...] = (
    Kind("count vowels", WORD, about(_lower_word, lambda word: str(sum(letter in VOWELS for letter in word)))),
    Kind("remove vowels", WORD, about(_lower_word, _without_vowels)),
    Kind("every second letter", WORD, about(draw_word, lambda word: word[::2])),
    Kind(
        "double letters",
        WORD,
        about(lambda rng: draw_word(rng)[:5], lambda word: "".join(letter * 2 for letter in word)),
    ),
)
