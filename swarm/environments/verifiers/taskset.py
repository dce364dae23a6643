"""The tasks of a taskset in three splits, identified by their numbers and by digests of their content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from pydantic import BaseModel

from swarm.environments.base import EnvironmentTask
from swarm.environments.sources.task_files import SPLIT_NAMES
from swarm.errors import EnvironmentInvalid
from swarm.tasks.base import REPEATS_ENDING_A_PASS, Split, split_of
from swarm.types import Task

PAGE = 256
HELD_OUT_NAMES = ("eval", "evaluation")
"""Names that tasksets give to the only split that is not train."""
DIGITS = 24


class ListedTask(BaseModel):
    """A task as the worker lists it, where `key` is unique and tasks that ask the same share their `content`."""

    key: str
    content: str
    prompt: str


class Page(BaseModel):
    tasks: list[ListedTask]
    is_last: bool


Pages = Callable[[str | None, int], Page]
"""Source and first number -> a page of tasks. A source is a value of the taskset's option `split`, or None if that is
not set."""


def own_splits(values: list[str]) -> dict[Split, str]:
    """Return the taskset's own value for each split, by their names.

    The result is empty unless it has train and at least one more split.
    """
    named = {SPLIT_NAMES[value.lower()]: value for value in reversed(values) if value.lower() in SPLIT_NAMES}
    held_out = [value for value in values if value.lower() in HELD_OUT_NAMES]
    if held_out:
        named.setdefault(Split.VALIDATION, held_out[0])
    return named if Split.TRAIN in named and len(named) > 1 else {}


class FiniteTasks:
    """The tasks of a taskset that ends, which are all read at first."""

    def __init__(self, name: str, sources: Mapping[Split, str], pages: Pages) -> None:
        """Read all tasks.

        Raises EnvironmentInvalid for splits that overlap or are empty.
        """
        self._name = name
        self._by_split: dict[Split, dict[str, EnvironmentTask]] = {split: {} for split in Split}
        first: dict[str, Split] = {}
        named: list[tuple[Split | None, str | None]] = [*sources.items()] or [(None, None)]
        for own, source in named:
            for number, task in _listed(pages, source):
                split = _split_of(own, task, sources)
                other = first.setdefault(task.content, split)
                if other is not split:
                    raise EnvironmentInvalid(
                        f"{name}: the splits {other} and {split} overlap: both ask {task.prompt[:60]!r}"
                    )
                self._by_split[split].setdefault(task.key, _as_task(name, source, number, task))
        for split, tasks in self._by_split.items():
            if not tasks:
                total = sum(map(len, self._by_split.values()))
                raise EnvironmentInvalid(f"{name}: none of its {total} tasks is in the split {split}: add tasks")

    def tasks(self, split: Split, seed: int) -> Iterator[EnvironmentTask]:
        order = list(self._by_split[split].values())
        Random(f"{self._name}/{split}/{seed}").shuffle(order)
        return iter(order)


class EndlessTasks:
    """Tasks that are made on demand, page by page, where the seed decides the order within a page."""

    def __init__(self, name: str, pages: Pages) -> None:
        self._name = name
        self._pages = pages

    def tasks(self, split: Split, seed: int) -> Iterator[EnvironmentTask]:
        """Yield the tasks of a split, until the taskset ends after all or gives no new tasks."""
        rng = Random(f"{self._name}/{split}/{seed}")
        seen: set[str] = set()
        page: list[EnvironmentTask] = []
        repeats = 0
        for number, task in _listed(self._pages, None):
            repeats = repeats + 1 if task.key in seen else 0
            if repeats == 0 and split_of(task.content) is split:
                page.append(_as_task(self._name, None, number, task))
            seen.add(task.key)
            if (number + 1) % PAGE == 0 or repeats > REPEATS_ENDING_A_PASS:
                rng.shuffle(page)
                yield from page
                page.clear()
            if repeats > REPEATS_ENDING_A_PASS:
                return
        rng.shuffle(page)
        yield from page


def _listed(pages: Pages, source: str | None) -> Iterator[tuple[int, ListedTask]]:
    number = 0
    while True:
        page = pages(source, number)
        for task in page.tasks:
            yield number, task
            number += 1
        if page.is_last:
            return


def _split_of(own: Split | None, task: ListedTask, sources: Mapping[Split, str]) -> Split:
    by_hash = split_of(task.content)
    if own is None or (own is Split.TRAIN and by_hash not in sources):
        return by_hash
    return own


def _as_task(name: str, source: str | None, number: int, task: ListedTask) -> EnvironmentTask:
    answer: dict[str, Any] = {"source": source, "number": number, "key": task.key}
    return EnvironmentTask(Task(task.prompt, f"{name}/{task.key[:DIGITS]}", data_source=name), answer)
