"""The single-turn families: one question and one exact answer."""

from __future__ import annotations

from random import Random

from swarm.tasks.base import Exchange, Problem, TaskFamily, text_of
from swarm.types import Message, Task

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"


def draw_word(rng: Random, shortest: int, longest: int, alphabet: str = LETTERS) -> str:
    """Draw a word, whose length and characters are uniformly distributed."""
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(shortest, longest)))


class ExactAnswer(Exchange):
    """An exchange of one reply, which must equal the task's `answer`."""

    def respond(self, message: Message) -> tuple[Message, ...] | None:
        self.reward = float(text_of(message) == self.task.metadata["answer"])
        return None


class SingleTurnFamily(TaskFamily):
    """A family whose problems carry their `answer`."""

    def start(self, task: Task) -> Exchange:
        return ExactAnswer(task, self.max_turns)


class Reverse(SingleTurnFamily):
    name = "reverse"
    description = "Write a word of three to five letters backwards."

    def draw(self, rng: Random) -> Problem:
        word = draw_word(rng, 3, 5)
        return Problem(word, f"Reverse: {word}", {"answer": word[::-1]})


class Copy(SingleTurnFamily):
    name = "copy"
    description = "Repeat a word of three to five letters, or a number of two to five digits."

    def draw(self, rng: Random) -> Problem:
        word = draw_word(rng, 3, 5) if rng.random() < 0.6 else draw_word(rng, 2, 5, DIGITS)
        return Problem(word, f"Repeat: {word}", {"answer": word})


class Sort(SingleTurnFamily):
    name = "sort"
    description = "Write the letters of a word of three to five letters in alphabetical order."

    def draw(self, rng: Random) -> Problem:
        word = draw_word(rng, 3, 5)
        return Problem(word, f"Sort: {word}", {"answer": "".join(sorted(word))})


class Add(SingleTurnFamily):
    name = "add"
    description = "Add two numbers from 0 to 49 by head."

    def draw(self, rng: Random) -> Problem:
        x, y = rng.randint(0, 49), rng.randint(0, 49)
        return Problem(f"{x}+{y}", f"What is {x}+{y}?", {"answer": str(x + y)})


class Count(SingleTurnFamily):
    name = "count"
    description = "Count how often a letter occurs in a string of four to nine As, Bs and Cs."

    def draw(self, rng: Random) -> Problem:
        word, letter = draw_word(rng, 4, 9, "ABC"), rng.choice("ABC")
        return Problem(f"{letter} in {word}", f"How many {letter} in {word}?", {"answer": str(word.count(letter))})
