"""Kinds of task about a short text: counts, owners, comparisons, steps and choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

from recipes.micro.kinds.base import Item, Kind, draw_letters, draw_number
from recipes.micro.words import ADJECTIVES, CATEGORIES, COMMON, DAYS, MONTHS, NAMES

_THINGS = ("apples", "books", "coins", "balls", "pens", "cards", "stones", "eggs", "cakes", "keys", "shirts", "stamps")
_COMPARED = (("taller", "tallest"), ("older", "oldest"), ("faster", "fastest"), ("stronger", "strongest"))


def _small(rng: Random) -> int:
    return rng.randint(1, 9 if rng.random() < 0.6 else 30)


def _gain(rng: Random) -> Item:
    name, thing, had, more = rng.choice(NAMES), rng.choice(_THINGS), _small(rng), _small(rng)
    story = rng.choice(
        (
            f"{name} has {had} {thing}. {name} gets {more} more.",
            f"{name} has {had} {thing} and {rng.choice(('buys', 'finds', 'gets', 'makes'))} {more} more.",
            f"There are {had} {thing} in a box. {name} puts {more} more {thing} into it.",
            f"{name} had {had} {thing}. A friend gave {name} {more} {thing}.",
        )
    )
    return Item(story, str(had + more), {"name": name, "thing": thing})


def _loss(rng: Random) -> Item:
    name, thing, kept, lost = rng.choice(NAMES), rng.choice(_THINGS), _small(rng), _small(rng)
    had = kept + lost
    story = rng.choice(
        (
            f"{name} has {had} {thing}. {name} {rng.choice(('loses', 'sells', 'gives away'))} {lost} of them.",
            f"{name} had {had} {thing} and {rng.choice(('lost', 'sold', 'gave away', 'broke'))} {lost}.",
            f"There were {had} {thing} on the table. {name} took {lost} away.",
        )
    )
    return Item(story, str(kept), {"name": name, "thing": thing})


def _groups(rng: Random) -> Item:
    name, thing, boxes, each = rng.choice(NAMES), rng.choice(_THINGS), rng.randint(2, 9), rng.randint(1, 9)
    place = rng.choice(("boxes", "bags", "rows", "pages", "baskets"))
    story = f"{name} has {boxes} {place} with {each} {thing} {rng.choice(('each', 'in each'))}."
    return Item(story, str(boxes * each), {"name": name, "thing": thing})


def _both(rng: Random) -> Item:
    first, second = rng.sample(NAMES, 2)
    thing, left, right = rng.choice(_THINGS), _small(rng), _small(rng)
    story = f"{first} has {left} {thing}. {second} has {right} {thing}."
    return Item(story, str(left + right), {"name": first, "other": second, "thing": thing})


def _by_count(names: Sequence[str], choose: Callable[[Sequence[int]], int], rng: Random) -> Item:
    """Draw a text that tells how much each person has, and ask who has most, or least."""
    thing, counts = rng.choice(_THINGS), rng.sample(range(1, 30), 3)[: len(names)]
    story = " ".join(f"{name} has {count} {thing}." for name, count in zip(names, counts, strict=True))
    return Item(story, names[counts.index(choose(counts))], {"thing": thing})


def _owner(rng: Random) -> Item:
    names = rng.sample(NAMES, rng.randint(2, 6))
    things = rng.sample([word for words in CATEGORIES.values() for word in words], len(names))
    verb = rng.choice(("has a", "likes the", "owns a", "wants a", "sees the", "bought a"))
    facts = [f"{name} {verb} {thing}." for name, thing in zip(names, things, strict=True)]
    asked = rng.randrange(len(names))
    return Item(" ".join(facts), names[asked], {"verb": verb, "thing": things[asked]})


def _owned(rng: Random) -> Item:
    names = rng.sample(NAMES, rng.randint(2, 5))
    colours = rng.sample(CATEGORIES["colour"], len(names))
    thing = rng.choice(("hat", "car", "house", "ball", "coat", "door", "bag"))
    facts = [f"{name} has a {colour} {thing}." for name, colour in zip(names, colours, strict=True)]
    asked = rng.randrange(len(names))
    return Item(" ".join(facts), colours[asked], {"name": names[asked], "thing": thing})


def _value_of_key(rng: Random) -> Item:
    keys = rng.sample("abcdefghijklmnopqrstuvwxyz", rng.randint(2, 5))
    values = [str(draw_number(rng)) if rng.random() < 0.7 else draw_letters(rng, 1, 3) for _ in keys]
    equals, between = rng.choice((" = ", "=", ": ", " is ")), rng.choice((", ", "; ", "\n"))
    story = between.join(f"{key}{equals}{value}" for key, value in zip(keys, values, strict=True))
    asked = rng.randrange(len(keys))
    return Item(story, values[asked], {"a": keys[asked]})


def _most_of(rng: Random) -> Item:
    """Draw an order of two or three people, given by its neighbours, and ask who is first."""
    names = rng.sample(NAMES, rng.randint(2, 3))
    more, most = rng.choice(_COMPARED)
    facts = [f"{left} is {more} than {right}." for left, right in pairwise(names)]
    rng.shuffle(facts)
    return Item(" ".join(facts), names[0], {"most": most})


def _neighbour(step: int) -> Callable[[Random], Item]:
    """Return a function that draws a question for the day or month `step` places later."""

    def item(rng: Random) -> Item:
        names = DAYS if rng.random() < 0.6 else MONTHS
        place = rng.randrange(len(names))
        unit = "day" if names is DAYS else "month"
        return Item(names[place], names[(place + step) % len(names)], {"unit": unit})

    return item


def _day_in_days(rng: Random) -> Item:
    place, days = rng.randrange(7), rng.randint(1, 7)
    return Item(DAYS[place], DAYS[(place + days) % 7], {"n": str(days)})


def _flips(rng: Random) -> Item:
    """Draw a text about a thing with two states that is switched now and then, and ask for its state."""
    states = rng.choice((("on", "off"), ("open", "closed"), ("up", "down"), ("left", "right"), ("black", "white")))
    thing = rng.choice(("lamp", "door", "card", "box", "sign", "coin"))
    state = rng.randint(0, 1)
    story = f"A {thing} is {states[state]}."
    for _ in range(rng.randint(0, 3)):
        is_changed = rng.random() < 0.6
        state ^= is_changed
        actor = rng.choice(NAMES)
        story += f" {actor} changes it." if is_changed else f" {actor} does not change it."
    return Item(story, states[state], {"thing": thing, "one": states[0], "two": states[1]})


def _category(rng: Random) -> Item:
    names = rng.sample(list(CATEGORIES), rng.randint(2, 4))
    options = [rng.choice(CATEGORIES[name]) for name in names]
    asked = rng.randrange(len(names))
    return Item(", ".join(options), options[asked], {"a": names[asked]})


def _odd_one_out(rng: Random) -> Item:
    usual, other = rng.sample([name for name in CATEGORIES if len(CATEGORIES[name]) >= 6], 2)
    options = [*rng.sample(CATEGORIES[usual], 3), rng.choice(CATEGORIES[other])]
    odd = options[-1]
    rng.shuffle(options)
    return Item(", ".join(options), odd)


def _option(rng: Random) -> Item:
    """Draw a sum with lettered answers to choose from."""
    left, right = rng.randint(0, 20), rng.randint(0, 20)
    options = rng.sample(range(max(0, left + right - 6), left + right + 7), 3)
    place = rng.randrange(4)
    if left + right in options:
        options[options.index(left + right)] = left + right + 9
    options.insert(place, left + right)
    letters = rng.choice(("ABCD", "abcd", "1234"))
    mark, between = rng.choice((") ", ": ", ". ")), rng.choice((" ", "\n", ", "))
    listed = between.join(f"{letter}{mark}{option}" for letter, option in zip(letters, options, strict=True))
    return Item(f"What is {left} + {right}?", letters[place], {"options": listed})


def _word_of_options(rng: Random) -> Item:
    """Draw a text about one of several options, and ask which one."""
    options = rng.sample(COMMON, rng.randint(2, 4))
    asked = rng.choice(options)
    name = rng.choice(NAMES)
    story = f"{name} looks for a {rng.choice(ADJECTIVES)} {asked}."
    return Item(story, asked, {"options": " or ".join(options), "name": name})


def _difference(rng: Random) -> Item:
    first, second = rng.sample(NAMES, 2)
    thing, left, more = rng.choice(_THINGS), _small(rng), rng.randint(1, 9)
    story = f"{first} has {left + more} {thing}. {second} has {left} {thing}."
    return Item(story, str(more), {"name": first, "other": second, "thing": thing})


KINDS: tuple[Kind, ...] = (
    Kind("gain", ("story",), _gain),
    Kind("loss", ("story",), _loss),
    Kind("groups", ("story",), _groups),
    Kind("both", ("story",), _both),
    Kind("has more", ("story",), lambda rng: _by_count(rng.sample(NAMES, rng.randint(2, 3)), max, rng)),
    Kind("owner", ("story",), _owner),
    Kind("owned", ("story",), _owned),
    Kind("value of key", ("story",), _value_of_key),
    Kind("most of", ("story",), _most_of),
    Kind("next day", ("day",), _neighbour(1)),
    Kind("previous day", ("day",), _neighbour(-1)),
    Kind("day in days", ("day",), _day_in_days),
    Kind("flips", ("story",), _flips),
    Kind("category", ("words", "options"), _category),
    Kind("odd one out", ("words", "options"), _odd_one_out),
    Kind("option", ("question",), _option),
    Kind("word of options", ("story",), _word_of_options),
)

HELD_OUT: tuple[Kind, ...] = (
    Kind("difference", ("story",), _difference),
    Kind("has fewest", ("story",), lambda rng: _by_count(rng.sample(NAMES, 3), min, rng)),
)
