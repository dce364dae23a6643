"""Tools that an agent answers questions with, and the tasks and the reward of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from swarm import Task

THINGS = (
    "apple",
    "bread",
    "chair",
    "door",
    "egg",
    "fish",
    "glass",
    "hat",
    "key",
    "lamp",
    "milk",
    "paper",
    "ring",
    "rice",
)
NAMES = (
    "anna",
    "ben",
    "carl",
    "dora",
    "emma",
    "frank",
    "george",
    "helen",
    "ida",
    "john",
    "kate",
    "lucy",
    "mary",
    "tom",
)
STORED = (
    "blue",
    "cold",
    "dark",
    "east",
    "gold",
    "green",
    "high",
    "house",
    "river",
    "south",
    "table",
    "water",
    "west",
    "wood",
)


def _drawn(*asked: str) -> int:
    """Return a number that follows from the words and that nobody knows without the tool."""
    return int.from_bytes(sha256(" ".join(asked).encode()).digest()[:4])


def find(name: str) -> str:
    """Look up a name."""
    return STORED[_drawn(name) % len(STORED)]


def lookup(name: str) -> str:
    """Look up a name."""
    return find(name)


def get(key: str) -> str:
    """Get what is stored for a key."""
    return find(key)


def stock(item: str) -> str:
    """Count the pieces of an item in stock."""
    return str(_drawn(item) % 90 + 10)


def distance(start: str, end: str) -> str:
    """Measure the distance between two places."""
    return str(_drawn(start, end) % 90 + 10)


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def price(number: int) -> str:
    """Look up the price of an article."""
    return str(_drawn(str(number)) % 90 + 10)


@dataclass(frozen=True, slots=True)
class Use:
    """A tool, a question that needs it, and the words or numbers that the question is asked about."""

    tool: Callable[..., str]
    question: str
    asked: tuple[tuple[Any, ...], ...]

    def tasks(self, split: str) -> Iterator[Task]:
        """Yield the tasks of a split, train or validation. Every fifth thing asked about is held out."""
        for number, arguments in enumerate(self.asked):
            if (number % 5 == 0) == (split == "validation"):
                yield Task(self.question.format(*arguments), metadata={"answer": self.tool(*arguments)})


_NUMBERS = tuple((number,) for number in range(100, 300))
_WORDS = tuple((f"{name} {thing}",) for name, thing in itertools.product(NAMES, THINGS))
USES = {
    use.tool.__name__: use
    for use in (
        Use(find, "Find {}", _WORDS),
        Use(lookup, "Look up {}.", _WORDS),
        Use(get, "What is stored for {}?", _WORDS),
        Use(stock, "How many of {} are in stock?", _WORDS),
        Use(price, "What does article {} cost?", _NUMBERS),
        Use(add, "What is {} + {}?", tuple(itertools.product(range(11, 25), range(31, 45)))),
        Use(distance, "How far is it from {} to {}?", tuple(itertools.product(NAMES, THINGS))),
    )
}


def reward(task: Task, answer: str) -> float:
    """Return 1 for the very answer, else 0."""
    return float(answer.strip() == task.metadata["answer"])
