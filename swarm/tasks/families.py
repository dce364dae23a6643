"""The task families: single questions, a guessing game, a running total, and products by a calculator tool."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from operator import add, mul, sub
from random import Random
from types import MappingProxyType
from typing import Any

from swarm.errors import NotFound
from swarm.tasks.base import Exchange, Problem, TaskFamily, stable_digest, text_of, user_message
from swarm.types import Message, Task, ToolSpec

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


LARGEST_SECRET = 12


class GuessExchange(Exchange):
    """An exchange that answers a wrong guess with `higher` or `lower`; a reply that is not a number ends the game."""

    def respond(self, message: Message) -> tuple[Message, ...] | None:
        secret: int = self.task.metadata["secret"]
        text = text_of(message)
        if text == str(secret):
            self.reward = 1.0
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 4):
            return None
        return (user_message("higher" if int(text) < secret else "lower"),)


class Guess(TaskFamily):
    """A game to find a secret number within four guesses, which always suffice to halve 1..12 down to one.

    Twelve secrets cannot be split into disjoint sets that need the same skill. So each game has a round code, whose
    hash determines the secret. The held-out rounds are therefore never played in training, and a model cannot learn
    their secrets by heart. The game itself is the same in every split.
    """

    name = "guess"
    description = "Guess a secret number from 1 to 12 within four guesses, from the hints higher and lower."
    max_turns = 4
    max_tokens = 4

    def draw(self, rng: Random) -> Problem:
        code = draw_word(rng, 3, 3)
        secret = 1 + stable_digest(f"secret of round {code}") % LARGEST_SECRET
        query = f"Round {code}: guess my number from 1 to {LARGEST_SECRET}."
        return Problem(code, query, {"secret": secret})

    def start(self, task: Task) -> Exchange:
        return GuessExchange(task, self.max_turns)


class ChainExchange(Exchange):
    """An exchange that asks for the next sum whatever the reply was, and judges only the last total."""

    def respond(self, message: Message) -> tuple[Message, ...] | None:
        terms: list[int] = self.task.metadata["terms"]
        if self.turns + 1 < len(terms):
            return (user_message(f"Add {terms[self.turns + 1]}."),)
        self.reward = float(text_of(message) == str(sum(terms)))
        return None


class Chain(TaskFamily):
    name = "chain"
    description = "Keep a running total over three turns; only the last total counts."
    max_turns = 3
    max_tokens = 4

    def draw(self, rng: Random) -> Problem:
        terms = [rng.randint(1, 9) for _ in range(self.max_turns + 1)]
        return Problem("+".join(map(str, terms)), f"What is {terms[0]}+{terms[1]}?", {"terms": terms})

    def start(self, task: Task) -> Exchange:
        return ChainExchange(task, self.max_turns)


CALCULATOR: ToolSpec = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}

TOOL_ERROR = "error"
_OPERATORS = MappingProxyType({"+": add, "-": sub, "*": mul})
# Factors of six digits bound the result to twelve digits, which cost nothing.
_EXPRESSION = re.compile(r"\s*([0-9]{1,6})\s*([-+*])\s*([0-9]{1,6})\s*")


def calculate(expression: str) -> str:
    """Return the value of `integer operator integer` as text, or `error` for anything else, without running code."""
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        return TOOL_ERROR
    left, operator, right = match.groups()
    return str(_OPERATORS[operator](int(left), int(right)))


def answer_tool_call(call: Mapping[str, Any]) -> Message:
    """Return the `tool` message for one tool call in the OpenAI shape, with the content `error` for an invalid call."""
    return {"role": "tool", "tool_call_id": str(call.get("id", "")), "content": _call_result(call.get("function"))}


def _call_result(function: Any) -> str:
    try:
        if function["name"] != "calculator":
            return TOOL_ERROR
        arguments = function["arguments"]
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        return calculate(parsed["expression"])
    except (KeyError, TypeError, ValueError):
        return TOOL_ERROR


class CalcExchange(Exchange):
    """An exchange that answers tool calls, and takes a reply without one as the final answer."""

    def respond(self, message: Message) -> tuple[Message, ...] | None:
        calls = message.get("tool_calls")
        if calls:
            return tuple(answer_tool_call(call) for call in calls)
        self.reward = float(text_of(message) == self.task.metadata["answer"])
        return None


class Calc(TaskFamily):
    name = "calc"
    description = "Use a calculator tool to multiply a one- or two-digit number by a two-digit number."
    tools = (CALCULATOR,)
    max_turns = 3
    max_tokens = 48

    def draw(self, rng: Random) -> Problem:
        left = rng.randint(2, 30) if rng.random() < 0.5 else rng.randint(11, 99)
        expression = f"{left}*{rng.randint(11, 99)}"
        return Problem(
            expression, f"What is {expression}?", {"expression": expression, "answer": calculate(expression)}
        )

    def start(self, task: Task) -> Exchange:
        return CalcExchange(task, self.max_turns)


TASK_FAMILIES: Mapping[str, TaskFamily] = MappingProxyType(
    {family.name: family for family in (Reverse(), Copy(), Sort(), Add(), Count(), Calc(), Guess(), Chain())}
)


def task_family(name: str) -> TaskFamily:
    """Return the family called `name`.

    Raises NotFound for an unknown name, and lists the known ones.
    """
    try:
        return TASK_FAMILIES[name]
    except KeyError:
        names = ", ".join(TASK_FAMILIES)
        raise NotFound(f"unknown task family {name!r}; choose one of: {names}", param="task") from None
