"""An environment of the library verifiers: its options, its tasks, its agent and its rewards."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swarm.digest import digest_of
from swarm.environments.base import DrivenEnvironment, Environment, EnvironmentTask, Grade, Transcript
from swarm.environments.source import LibrarySource, option_error
from swarm.environments.sources.columns import SPLIT_NAMES, Placed, SplitTasks
from swarm.environments.verifiers.worker import VerifiersWorker
from swarm.errors import EnvironmentFailure, EnvironmentInvalid
from swarm.tasks.base import REPEATS_ENDING_A_PASS, Split, split_of
from swarm.types import Message, Task

PYTHON_VARIABLE = "SWARM_VERIFIERS_PYTHON"
WHOLE = "env."


class AdapterOptions(BaseModel):
    """The options of the adapter itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: Path | None = None
    """Python with verifiers and the package of the environment. Default: SWARM_VERIFIERS_PYTHON."""
    harness: str | None = None
    """Program of the agent. Default: the environment's own, else `null`, which calls the model and its tools and runs
    nothing."""
    runtime: str | None = None
    """Where that program runs: subprocess, docker, podman, ... Default: the environment's own, else subprocess."""
    rollout_seconds: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Time limit of one rollout in seconds; a rollout that takes longer has failed."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens in each answer of the model."""
    train: str | None = None
    """Value of the taskset's own option `split` for the split train. Default: the value of that name, if the taskset
    lists its values; else all tasks are split by hash."""
    validation: str | None = None
    """The same for validation. A split that is not named takes a part of train, by hash."""
    test: str | None = None
    """The same for test."""

    def own_splits(self) -> dict[Split, str]:
        named = {Split.TRAIN: self.train, Split.VALIDATION: self.validation, Split.TEST: self.test}
        return {split: value for split, value in named.items() if value is not None}


def parse_options(given: Mapping[str, str], where: str) -> tuple[AdapterOptions, dict[str, Any]]:
    """Return the adapter's options, and the library's as its block `env`.

    Raises EnvironmentInvalid for options that cannot be read.
    """
    ours = {name: value for name, value in given.items() if name in AdapterOptions.model_fields}
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in ours:
            path = name.removeprefix(WHOLE) if name.startswith(WHOLE) else f"taskset.{name}"
            _put(settings, path.replace("-", "_").split("."), _parsed(name, value))
    try:
        return AdapterOptions.model_validate(ours), settings
    except ValidationError as error:
        raise option_error(error, where, AdapterOptions) from error


def interpreter(options: AdapterOptions) -> Path:
    """Return the Python that has verifiers.

    Raises EnvironmentInvalid if none is named.
    """
    named = options.python or os.environ.get(PYTHON_VARIABLE)
    if not named:
        raise EnvironmentInvalid(
            f"verifiers needs a Python of its own: name it with ?python=PATH or {PYTHON_VARIABLE}",
            param="python",
        )
    return Path(named)


def _put(settings: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        inner = settings.setdefault(name, {})
        if not isinstance(inner, dict):
            raise EnvironmentInvalid(
                f"the options {'.'.join(path)} and {name} exclude each other: keep one", param=name
            )
        settings = cast(dict[str, Any], inner)
    if path[-1] in settings:
        raise EnvironmentInvalid(f"the option {'.'.join(path[1:])} is given twice: leave one out", param=path[-1])
    settings[path[-1]] = value


def _parsed(name: str, value: str) -> object:
    """Return a value as YAML reads it: a number, a boolean, a list."""
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise EnvironmentInvalid(f"the option {name} cannot be read: {error}", param=name) from error


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


def finite_tasks(name: str, sources: Mapping[Split, str], pages: Pages) -> SplitTasks:
    """Read all tasks of a taskset that ends. Raises EnvironmentInvalid for splits that overlap or are empty."""
    named: list[tuple[Split | None, str | None]] = [*sources.items()] or [(None, None)]
    placed = (
        Placed(_as_task(name, source, number, task), own, task.content, task.content)
        for own, source in named
        for number, task in _listed(pages, source)
    )
    return SplitTasks(name, placed, sources)


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


def _as_task(name: str, source: str | None, number: int, task: ListedTask) -> EnvironmentTask:
    answer: dict[str, Any] = {"source": source, "number": number, "key": task.key}
    return EnvironmentTask(Task(task.prompt, f"{name}/{task.key[:DIGITS]}", data_source=name), answer)


OPEN_S = 600.0
"""Time limit in seconds for opening and for listing tasks. The library may download data sets the first time."""
ANSWER_MARGIN_S = 60.0
"""Seconds beyond the time limit of a rollout after which the worker counts as hung."""


class TasksetDescription(BaseModel):
    """The worker's description of the environment.

    `split_values` are the values that the taskset's own option `split` may have.
    """

    versions: dict[str, str]
    sources: list[str]
    split_values: list[str]
    is_endless: bool
    description: str


class Rollout(BaseModel):
    """The outcome of one rollout, where `rewards` are the parts of the reward by name."""

    reward: float
    rewards: dict[str, float | None]
    metrics: dict[str, float | None]
    transcript: list[dict[str, Any]]


class VerifiersSource(LibrarySource):
    """The tasksets of verifiers, written `verifiers:ID?option=value`. The library has an interpreter of its own."""

    library = "verifiers"
    form = "verifiers:ID"
    has_own_worker = True

    def open(self, name: str, options: Mapping[str, str]) -> Environment:
        return VerifiersEnvironment(name.partition(":")[2], options)


class VerifiersEnvironment(DrivenEnvironment):
    def __init__(self, taskset: str, options: Mapping[str, str]) -> None:
        """Start a worker and read the tasks.

        Raises EnvironmentInvalid for options or an interpreter that cannot be used. Raises NotFound if the interpreter
        has no such taskset, and EnvironmentFailure if the library fails.
        """
        self.name = f"verifiers:{taskset}"
        self._options, self._settings = parse_options(options, self.name)
        self._python = interpreter(self._options)
        self._taskset = taskset
        self._lock = threading.Lock()
        self._is_closed = False
        self._worker, opened = self._start()
        try:
            self.description = opened.description or f"The taskset {taskset} of verifiers."
            self.max_tokens = self._options.max_tokens
            self.time_limit_s = self._options.rollout_seconds
            self._identity = digest_of(opened.model_dump())
            plain = self._options.model_dump(exclude={"python"})
            self.digest = digest_of([taskset, plain, self._settings, self._identity])
            self._tasks = self._open_tasks(opened)
        except BaseException:
            self._worker.stop()
            raise

    def tasks(self, split: Split, seed: int = 0) -> Iterator[EnvironmentTask]:
        return self._tasks.tasks(split, seed)

    def run(
        self, task: EnvironmentTask, base_url: str, api_key: str, model: str, max_tokens: int
    ) -> tuple[Transcript, Grade]:
        asked = {
            **task.answer, "base_url": base_url, "api_key": api_key, "model": model, "max_tokens": max_tokens,
        }  # fmt: skip
        try:
            reported = self._live_worker().ask("run", asked, self._options.rollout_seconds + ANSWER_MARGIN_S)
            rollout = Rollout.model_validate(reported)
        except ValidationError as error:
            raise EnvironmentFailure(f"{self.name}: a rollout returned an invalid result: {error}") from error
        messages: list[Message] = [*rollout.transcript]
        details = {"rewards": _as_json(rollout.rewards), "metrics": _as_json(rollout.metrics)}
        return messages, Grade(rollout.reward, rollout.reward >= 1, details)

    def interrupt(self) -> None:
        self._worker.stop()

    def close(self) -> None:
        self._is_closed = True
        self.interrupt()

    def _open_tasks(self, opened: TasksetDescription) -> SplitTasks | EndlessTasks:
        named = self._options.own_splits()
        if opened.is_endless:
            if named:
                raise EnvironmentInvalid(
                    f"{self.name} makes tasks without end, split by hash: leave out the splits", param="train"
                )
            return EndlessTasks(self.name, self._page)
        if named and Split.TRAIN not in named:
            raise EnvironmentInvalid("name the split train as well: train=VALUE", param="train")
        is_chosen = "split" in self._settings.get("taskset", {})
        if is_chosen and named:
            raise EnvironmentInvalid(
                "the option split has no effect beside train, validation and test: leave it out", param="split"
            )
        return finite_tasks(self.name, named or ({} if is_chosen else own_splits(opened.split_values)), self._page)

    def _page(self, source: str | None, start: int) -> Page:
        asked = {"source": source, "start": start, "size": PAGE}
        return Page.model_validate(self._live_worker().ask("tasks", asked, OPEN_S))

    def _live_worker(self) -> VerifiersWorker:
        """Return the worker, or start a new one if it has ended.

        Raises EnvironmentFailure if this environment is closed, or if the new worker opens a different environment.
        """
        with self._lock:
            if self._worker.has_ended and not self._is_closed:
                self._worker, opened = self._start()
                if digest_of(opened.model_dump()) != self._identity:
                    self._worker.stop()
                    raise EnvironmentFailure(f"{self.name} has changed since it was opened: open it again")
            if self._is_closed:
                # It may have been closed while the new worker started.
                self._worker.stop()
                raise EnvironmentFailure(f"{self.name} is closed")
            return self._worker

    def _start(self) -> tuple[VerifiersWorker, TasksetDescription]:
        worker = VerifiersWorker(self._python)
        asked = {
            "id": self._taskset,
            "settings": self._settings,
            **self._options.model_dump(include={"harness", "runtime", "rollout_seconds"}),
        }
        try:
            return worker, TasksetDescription.model_validate(worker.ask("open", asked, OPEN_S))
        except BaseException as error:
            worker.stop()
            if isinstance(error, ValidationError):
                raise EnvironmentFailure(
                    f"{self._python} sent an invalid description of {self.name}: {error}"
                ) from error
            raise


def _as_json(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the values, with None for numbers that JSON cannot write: infinities and NaN."""
    return {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}
