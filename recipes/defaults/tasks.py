"""The environments of the sweep: the eight bundled ones for nano, and ten of a user's kind for micro."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

BUNDLED = ("reverse", "copy", "sort", "add", "count", "calc", "guess", "chain")
REASONING_GYM: Mapping[str, str] = {
    "courses": "reasoning_gym:course_schedule?min_num_courses=3&max_num_courses=4&min_cycle_length=3"
    "&max_cycle_length=3",
    "backward": "reasoning_gym:spell_backward?max_word_len=4",
    "letters": "reasoning_gym:letter_counting?min_words=2&max_words=5",
    "isomorphic": "reasoning_gym:isomorphic_strings?max_string_length=3",
    "leap-year": "reasoning_gym:calendar_arithmetic?tasks=[is_leap_year]",
}
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
NAMES = ["Ann", "Ben", "Carla", "Dan", "Eva", "Finn", "Gina", "Hugo"]
THINGS = ["lamp", "chair", "cup", "book", "pen", "bag", "coat", "plate", "clock", "ball"]
DEPARTMENTS: Mapping[str, tuple[str, ...]] = {
    "billing": ("was charged twice", "cannot pay the bill", "wants the money back", "got a wrong price"),
    "delivery": ("waits for a parcel", "got a broken box", "wants it sent to another street", "got it too late"),
    "account": ("forgot the password", "cannot log in", "wants a new user name", "is locked out"),
}
ROWS = 2000

Row = tuple[str, str]


def appointment(rng: random.Random) -> Row:
    month = rng.choice(MONTHS)
    when = f"{rng.randint(1, 28)} {month} at {rng.randint(8, 17)}:30"
    return f"{rng.choice(NAMES)} has an appointment on {when}. Which month?", month


def change(rng: random.Random) -> Row:
    paid = rng.choice((10, 20))
    price = rng.randint(1, paid - 1)
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    return f"{name} buys a {thing} for {price} and pays with {paid}. How much change is that?", str(paid - price)


def ticket(rng: random.Random) -> Row:
    department = rng.choice(list(DEPARTMENTS))
    who = f"{rng.choice(NAMES)} ({rng.randint(100, 999)})"
    names = ", ".join(DEPARTMENTS)
    return f"{who} {rng.choice(DEPARTMENTS[department])}. Which department: {names}?", department


def owner(rng: random.Random) -> Row:
    (first, second), (one, other) = rng.sample(NAMES, 2), rng.sample(THINGS, 2)
    asked, answer = rng.choice(((one, first), (other, second)))
    age = rng.randint(2, 99)
    return f"{first} owns a {one}, {age} days old, and {second} owns a {other}. Who owns the {asked}?", answer


def total(rng: random.Random) -> Row:
    thing, name = rng.choice(THINGS), rng.choice(NAMES)
    had, got = rng.randint(1, 9), rng.randint(1, 9)
    return f"{name} has {had} {thing} cards and gets {got} more. How many is that?", str(had + got)


MADE: Mapping[str, Callable[[random.Random], Row]] = {
    "appointments": appointment, "change": change, "tickets": ticket, "owners": owner, "sums": total,
}  # fmt: skip


def write_environment(name: str, folder: Path) -> str:
    """Write the tasks of one made environment as JSONL, and return its source."""
    rng, rows = random.Random(0), dict[str, str]()
    while len(rows) < ROWS:
        question, answer = MADE[name](rng)
        rows[question] = answer
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    lines = [json.dumps({"question": question, "answer": answer}) for question, answer in rows.items()]
    path.write_text("\n".join(lines) + "\n")
    return f"{path}?query=question&answer=answer&grader=exact"


def source_of(name: str, folder: Path) -> str:
    """Return the source of an environment of the sweep, which is written to `folder` if it is a made one."""
    if name in MADE:
        return write_environment(name, folder)
    return REASONING_GYM.get(name, name)
