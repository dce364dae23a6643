"""Demonstrations that repeat held-out tasks of an environment, which a score would find learned by heart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from swarm.demonstrations import Demonstration
from swarm.environments.base import Environment
from swarm.tasks.base import Split
from swarm.types import Message

LOOKED_AT = 2000
"""Tasks of each split that demonstrations are compared with. Scores take fewer, and an environment may have endless
ones."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """A demonstration, by its number from 1, that repeats a held-out task."""

    number: int
    split: Split
    task_id: str


def find_overlaps(environment: Environment, demonstrations: Sequence[Demonstration]) -> list[Overlap]:
    """Return the demonstrations in which a message asks what a task of the split validation or test asks.

    Case and white space make no difference, nor do lines before and after the question. A question that a train task
    asks as well is no held-out one: tasks of several turns may all begin with the same message.
    """
    held_out: dict[str, tuple[Split, str]] = {}
    for split in (Split.VALIDATION, Split.TEST):
        for each in islice(environment.tasks(split), LOOKED_AT):
            held_out.setdefault(_plain(each.task.main_query), (split, each.task.task_id))
    for each in islice(environment.tasks(Split.TRAIN), LOOKED_AT):
        held_out.pop(_plain(each.task.main_query), None)
    held_out.pop("", None)
    found: list[Overlap] = []
    for number, demonstration in enumerate(demonstrations, start=1):
        asked = (part for message in demonstration.messages for part in _parts(message))
        repeated = next((held_out[part] for part in asked if part in held_out), None)
        if repeated is not None:
            found.append(Overlap(number, *repeated))
    return found


def text_of(message: Message) -> str:
    """Return the text of a message, whose content may be a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        return "\n".join(str(part["text"]) for part in parts if "text" in part)
    return content if isinstance(content, str) else ""


def _parts(message: Message) -> Iterator[str]:
    """Yield the texts that may be a task's question: all of it, its lines, what follows a line or ends with it."""
    if message.get("role") == "assistant":
        return
    lines = [plain for line in text_of(message).splitlines() if (plain := _plain(line))]
    for place, line in enumerate(lines):
        yield line
        yield " ".join(lines[place:])
        yield " ".join(lines[: place + 1])
        # An agent may put words before the question, as in "Think: ...".
        _, colon, rest = line.partition(": ")
        if colon:
            yield " ".join([rest, *lines[place + 1 :]])


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
