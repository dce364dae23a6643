"""Procedural data sets of the library reasoning-gym as environments."""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import yaml

from swarm.digest import digest_of
from swarm.environments.base import Environment, EnvironmentTask, Grade, Transcript, final_reply
from swarm.environments.source import LibrarySource
from swarm.errors import EnvironmentInvalid
from swarm.spelling import did_you_mean
from swarm.tasks.base import REPEATS_ENDING_A_PASS, Split, split_of
from swarm.types import Task

SIZE = 1_000_000
"""Number of tasks in a data set, each of which is made on demand."""
JUNK = "?"
"""A wrong answer. Some data sets pay a little for any answer; that amount counts as 0 here."""
REMEMBERED = 4096

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_OWN = frozenset({"seed", "size"})


class ReasoningGymSource(LibrarySource):
    """The data sets of reasoning-gym, written `reasoning_gym:NAME?option=value`."""

    library = "reasoning_gym"
    form = "reasoning_gym:NAME"

    def open(self, name: str, options: Mapping[str, str]) -> Environment:
        return ReasoningGymEnvironment(name.partition(":")[2], options)


class ReasoningGymEnvironment(Environment):
    def __init__(self, dataset: str, options: Mapping[str, str]) -> None:
        """Open the data set.

        Raises EnvironmentInvalid if the library is not installed, has no such data set, or refuses the options.
        """
        self._dataset, self._options = dataset, _parsed(options)
        self.name = f"reasoning_gym:{dataset}"
        self.description = f"The data set {dataset} of reasoning-gym."
        self._made = lru_cache(maxsize=8)(self._make)
        self._entry = lru_cache(maxsize=REMEMBERED)(self._make_entry)
        self._made(0)
        self.digest = digest_of([dataset, self._options, version("reasoning-gym")])

    def tasks(self, split: Split, seed: int = 0) -> Iterator[EnvironmentTask]:
        """Yield the tasks of a split, until a thousand tasks in a row are repetitions."""
        seen: set[str] = set()
        repeats = 0
        for number in range(SIZE):
            question = str(self._entry(seed, number)["question"])
            if question in seen:
                repeats += 1
                if repeats > REPEATS_ENDING_A_PASS:
                    return
                continue
            repeats = 0
            seen.add(question)
            if split_of(question) is split:
                task = Task(question, f"{self.name}/{digest_of(question)}", data_source=self.name)
                yield EnvironmentTask(task, {"seed": seed, "number": number})

    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        reply = final_reply(transcript)
        tagged = _TAGGED.findall(reply)
        details: dict[str, Any] = {}
        paid = self._score(task, tagged[-1].strip() if tagged else reply, details)
        floor = self._score(task, JUNK, {})
        score = paid if floor >= 1 else max(0.0, (paid - floor) / (1 - floor))
        return Grade(score, paid >= 1, {"paid": paid, **details})

    def solution(self, task: EnvironmentTask) -> str | None:
        answer = self._entry(task.answer["seed"], task.answer["number"]).get("answer")
        return None if answer is None else str(answer)

    def _score(self, task: EnvironmentTask, reply: str, details: dict[str, Any]) -> float:
        """Return the score that the data set gives a reply.

        Some of its graders fail on text that does not look like an answer. That scores 0 and is noted in `details`.
        """
        seed, number = task.answer["seed"], task.answer["number"]
        try:
            return float(self._made(seed).score_answer(answer=reply, entry=self._entry(seed, number)))
        except Exception as error:  # noqa: BLE001 - the boundary: an error of the library is data of the grade
            details["error"] = f"{type(error).__name__}: {error}"
            return 0.0

    def _make_entry(self, seed: int, number: int) -> Mapping[str, Any]:
        return self._made(seed)[number]

    def _make(self, seed: int) -> Any:
        factory = _library()
        if self._dataset not in factory.DATASETS:
            hint = did_you_mean(self._dataset, list(factory.DATASETS))
            raise EnvironmentInvalid(f"reasoning-gym has no data set {self._dataset!r}{hint}", param="env")
        known = [each.name for each in fields(factory.DATASETS[self._dataset][1]) if each.name not in _OWN]
        if unknown := next((option for option in self._options if option not in known), None):
            raise EnvironmentInvalid(
                f"{self.name}: there is no option {unknown}; there are: {', '.join(sorted(known))}", param=unknown
            )
        try:
            return factory.create_dataset(self._dataset, seed=seed, size=SIZE, **self._options)
        except (TypeError, ValueError, AssertionError) as error:
            raise EnvironmentInvalid(f"reasoning-gym refuses the options of {self._dataset}: {error}") from error


def _library() -> Any:
    try:
        from reasoning_gym import factory
    except ImportError:
        raise EnvironmentInvalid(
            "reasoning-gym is not installed: pip install 'swarm-researcher[environments]'", param="env"
        ) from None
    return factory


def _parsed(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options with their values read as YAML: numbers, booleans, lists."""
    if taken := sorted(_OWN & options.keys()):
        raise EnvironmentInvalid(f"the environment sets the option {taken[0]} itself: leave it out", param="env")
    try:
        return {name: yaml.safe_load(value) for name, value in options.items()}
    except yaml.YAMLError as error:
        raise EnvironmentInvalid(f"an option of the environment cannot be read: {error}", param="env") from error
