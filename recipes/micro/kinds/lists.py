"""Kinds of task about the items of a list or the words of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from recipes.micro.kinds.base import (
    LIST,
    NUMBERS,
    SENTENCE,
    WORDS,
    Item,
    Kind,
    about,
    about_list,
    as_texts,
    draw_numbers,
    draw_sentence,
    draw_words,
    list_item,
)
from recipes.micro.words import COMMON, ORDINALS


def _items(rng: Random, fewest: int = 2, most: int = 6) -> list[str]:
    if rng.random() < 0.6:
        return draw_words(rng, fewest, most)
    return [*as_texts(draw_numbers(rng, fewest, most))]


def _repeating(rng: Random) -> list[str]:
    """Draw a list in which items recur."""
    few = _items(rng, 2, 3)
    return [rng.choice(few) for _ in range(rng.randint(3, 7))]


def _reverse_words(rng: Random) -> Item:
    words = draw_sentence(rng).split()[: rng.randint(2, 6)]
    return Item(" ".join(words), " ".join(reversed(words)))


def _place_in(items: Sequence[str], rng: Random) -> tuple[int, dict[str, str]]:
    """Draw a place of the list, and return it with its name and number for the wording."""
    place = rng.randrange(min(len(items), len(ORDINALS)))
    name = ORDINALS[place]
    if rng.random() < 0.3:
        name, place = "last", len(items) - 1
    return place, {"k": name, "n": str(place + 1)}


def _item_at(rng: Random) -> Item:
    items = _items(rng, 2, 7)
    place, slots = _place_in(items, rng)
    return list_item(items, items[place], rng, slots)


def _word_at(rng: Random) -> Item:
    words = draw_sentence(rng).split()
    place, slots = _place_in(words, rng)
    return Item(" ".join(words), words[place], slots)


def _words(rng: Random) -> str:
    return " ".join(draw_sentence(rng).split() if rng.random() < 0.5 else draw_words(rng))


def _count_item(rng: Random) -> Item:
    items = _repeating(rng)
    counted = rng.choice(items)
    return list_item(items, str(items.count(counted)), rng, {"a": counted})


def _of_different_lengths(rng: Random) -> list[str]:
    by_length = {len(word): word for word in rng.sample(COMMON, 40)}
    return rng.sample(list(by_length.values()), rng.randint(2, 4))


def _filter_words(rng: Random) -> Item:
    words = draw_words(rng, 3, 6)
    letter = rng.choice(words)[0]
    words = [word if rng.random() < 0.8 else letter + word for word in words]
    return list_item(words, tuple(word for word in words if word[0] == letter) or ("none",), rng, {"a": letter})


def _remove_item(rng: Random) -> Item:
    items = _items(rng, 2, 6)
    removed = rng.choice(items)
    return list_item(items, tuple(item for item in items if item != removed), rng, {"a": removed})


def _replace_item(rng: Random) -> Item:
    items = _items(rng, 2, 5)
    old, new = rng.choice(items), rng.choice(COMMON)
    return list_item(items, tuple(new if item == old else item for item in items), rng, {"a": old, "b": new})


def _replace_word(rng: Random) -> Item:
    words = draw_sentence(rng).split()
    old, new = rng.choice(words), rng.choice(COMMON)
    return Item(" ".join(words), " ".join(new if word == old else word for word in words), {"a": old, "b": new})


def _join(rng: Random) -> Item:
    words = draw_words(rng, 2, 3)
    mark, name = rng.choice((("-", "a dash"), ("", "nothing"), ("_", "an underscore"), ("+", "a plus")))
    return list_item(words, mark.join(words), rng, {"mark": name})


def _first_items(rng: Random) -> Item:
    items = _items(rng, 3, 6)
    count = rng.randint(1, 3)
    return list_item(items, tuple(items[:count]), rng, {"n": str(count)})


def _append_item(rng: Random) -> Item:
    items, more = _items(rng, 2, 4), rng.choice(COMMON)
    return list_item(items, (*items, more), rng, {"a": more})


def _reverse_each(rng: Random) -> Item:
    words = draw_sentence(rng).lower().split()[: rng.randint(2, 4)]
    return Item(" ".join(words), " ".join(word[::-1] for word in words))


def _pick(rng: Random) -> Item:
    items = _items(rng, 2, 6)
    return list_item(items, rng.choice(items), rng)


def _item_after(rng: Random) -> Item:
    items = _items(rng, 3, 6)
    place = rng.randrange(len(items) - 1)
    return list_item(items, items[place + 1], rng, {"a": items[place]})


def _item_before(rng: Random) -> Item:
    items = _items(rng, 3, 6)
    place = rng.randrange(1, len(items))
    return list_item(items, items[place - 1], rng, {"a": items[place]})


def _most_common(rng: Random) -> Item:
    few = _items(rng, 2, 3)
    items = [*few, few[0], few[0]]
    rng.shuffle(items)
    return list_item(items, few[0], rng)


KINDS: tuple[Kind, ...] = (
    Kind(
        "reverse list",
        (*LIST, *WORDS, *NUMBERS),
        about_list(lambda rng: _items(rng, 2, 5), lambda items: tuple(reversed(items))),
    ),
    Kind("reverse words", SENTENCE, _reverse_words),
    Kind("item at", LIST, _item_at),
    Kind("word at", SENTENCE, _word_at),
    Kind("sort words", WORDS, about_list(lambda rng: draw_words(rng, 2, 5), lambda words: tuple(sorted(words)))),
    Kind(
        "sort words down",
        WORDS,
        about_list(lambda rng: draw_words(rng, 2, 4), lambda words: tuple(sorted(words, reverse=True))),
    ),
    Kind("sort numbers", NUMBERS, about_list(draw_numbers, lambda numbers: as_texts(sorted(numbers)))),
    Kind(
        "sort numbers down", NUMBERS, about_list(draw_numbers, lambda numbers: as_texts(sorted(numbers, reverse=True)))
    ),
    Kind("count items", LIST, about_list(lambda rng: _items(rng, 1, 9), lambda items: str(len(items)))),
    Kind("count words", SENTENCE, about(draw_sentence, lambda sentence: str(len(sentence.split())))),
    Kind("count item", LIST, _count_item),
    Kind("initials", (*SENTENCE, "words"), about(_words, lambda text: "".join(word[0] for word in text.split(" ")))),
    Kind("longest", WORDS, about_list(_of_different_lengths, lambda words: max(words, key=len))),
    Kind("shortest", WORDS, about_list(_of_different_lengths, lambda words: min(words, key=len))),
    Kind("filter words", WORDS, _filter_words),
    Kind("remove item", LIST, _remove_item),
    Kind("replace item", LIST, _replace_item),
    Kind("replace word", SENTENCE, _replace_word),
    Kind("join", WORDS, _join),
    Kind("first items", LIST, _first_items),
    Kind("append item", LIST, _append_item),
    Kind("unique", LIST, about_list(_repeating, lambda items: tuple(dict.fromkeys(items)))),
    Kind("reverse each", SENTENCE, _reverse_each),
    Kind("pick", LIST, _pick),
    Kind("item after", LIST, _item_after),
    Kind("item before", LIST, _item_before),
)

HELD_OUT: tuple[Kind, ...] = (
    Kind("second to last", LIST, about_list(lambda rng: _items(rng, 3, 6), lambda items: items[-2])),
    Kind("first and last", LIST, about_list(lambda rng: _items(rng, 3, 6), lambda items: (items[0], items[-1]))),
    Kind("most common", LIST, _most_common),
)
