"""Demonstrations for the warm-up: conversations on tasks of the train split, right or plausibly wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

from swarm.tasks import Split, TaskFamily, task_family
from swarm.tasks.families import DIGITS, LARGEST_SECRET, LETTERS
from swarm.types import Message, Task, ToolSpec

ANSWERS_BY_HEAD = (100, 9999)
"""Range of the wrong numbers that a bad demonstration gives for a product."""


@dataclass(frozen=True, slots=True)
class Demo:
    """One conversation that ends with an assistant message."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


Player = Callable[[Task, Sequence[Message], Random, float], Message]
"""Task, messages so far, rng and quality -> the assistant's next message."""


def demonstrate(family: TaskFamily, task: Task, rng: Random, quality: float) -> Demo:
    """Play one attempt at `task` to its end."""
    exchange = family.open(task)
    messages = list(exchange.messages)
    play = _PLAYERS[family.name]
    while True:
        message = play(task, messages, rng, quality)
        messages.append(message)
        following = exchange.reply(message)
        if following is None:
            return Demo(tuple(messages), family.tools)
        messages.extend(following)


def stream_demos(shares: Mapping[str, float], rng: Random, quality: Callable[[str], float]) -> Iterator[Demo]:
    """Yield demonstrations of the families named in `shares` without end, in these proportions.

    `quality` returns the quality for a family's name, and is called for each demonstration.
    """
    families = {name: task_family(name) for name in shares}
    streams = {name: family.stream(Split.TRAIN, rng.getrandbits(32)) for name, family in families.items()}
    names, weights = list(shares), list(shares.values())
    while True:
        name = rng.choices(names, weights)[0]
        yield demonstrate(families[name], next(streams[name]), rng, quality(name))


def _say(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _near_number(number: int, rng: Random) -> str:
    return str(max(0, number + rng.choice((-10, -3, -2, -1, 1, 2, 3, 10))))


def _near_word(answer: str, rng: Random) -> str:
    """Return the answer with its characters shuffled, or with one of them replaced."""
    characters = list(answer)
    if rng.random() < 0.5:
        rng.shuffle(characters)
    else:
        place = rng.randrange(len(characters))
        characters[place] = rng.choice(DIGITS if characters[place] in DIGITS else LETTERS)
    return "".join(characters)


def _play_word(task: Task, messages: Sequence[Message], rng: Random, quality: float) -> Message:
    answer: str = task.metadata["answer"]
    if rng.random() < quality:
        return _say(answer)
    question_word = task.main_query.rpartition(" ")[2]
    return _say(question_word if rng.random() < 0.35 else _near_word(answer, rng))


def _play_add(task: Task, messages: Sequence[Message], rng: Random, quality: float) -> Message:
    answer: str = task.metadata["answer"]
    return _say(answer if rng.random() < quality else _near_number(int(answer), rng))


def _play_count(task: Task, messages: Sequence[Message], rng: Random, quality: float) -> Message:
    return _say(task.metadata["answer"] if rng.random() < quality else str(rng.randint(0, 5)))


def _play_calc(task: Task, messages: Sequence[Message], rng: Random, quality: float) -> Message:
    """Play one turn; a bad attempt answers without the calculator, misuses it, or does not report its result."""
    if messages[-1]["role"] == "tool":
        result: str = messages[-1]["content"]
        return _say(result if rng.random() < 0.5 + quality / 2 else str(rng.randint(*ANSWERS_BY_HEAD)))
    luck = 1.0 if rng.random() < quality else rng.random()
    if luck < 0.5:
        return _say(str(rng.randint(*ANSWERS_BY_HEAD)))
    expression: str = task.metadata["expression"]
    if luck < 0.9:
        other = f"{rng.randint(11, 99)}*{rng.randint(11, 99)}"
        expression = rng.choice((expression.replace("*", "+"), expression[:-1], other))
    return _call_calculator(expression)


def _call_calculator(expression: str) -> Message:
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    call: dict[str, Any] = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _play_guess(task: Task, messages: Sequence[Message], rng: Random, quality: float) -> Message:
    """Play one turn; a good guess respects the hints, and a bad one ignores them."""
    lowest, highest = 1, LARGEST_SECRET
    for guess, hint in zip(messages[1::2], messages[2::2], strict=True):
        number = int(guess["content"])
        if hint["content"] == "higher":
            lowest = max(lowest, number + 1)
        else:
            highest = min(highest, number - 1)
    if rng.random() >= quality:
        lowest, highest = 1, LARGEST_SECRET
    return _say(str(rng.randint(lowest, highest)))


def _play_chain(task: Task, messages: Sequence[Message], rng: Random, quality: float) -> Message:
    questions = [message["content"] for message in messages if message["role"] == "user"]
    total = sum(int(term) for question in questions for term in re.findall(r"[0-9]+", question))
    return _say(str(total) if rng.random() < 0.5 + quality / 2 else _near_number(total, rng))


_PLAYERS: Mapping[str, Player] = MappingProxyType(
    {
        "reverse": _play_word,
        "copy": _play_word,
        "sort": _play_word,
        "add": _play_add,
        "count": _play_count,
        "calc": _play_calc,
        "guess": _play_guess,
        "chain": _play_chain,
    }
)
