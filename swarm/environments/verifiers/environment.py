"""An environment of the library verifiers: its tasks, its agent and its rewards."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from swarm.digest import digest_of
from swarm.environments.base import DrivenEnvironment, Environment, EnvironmentTask, Grade, Transcript
from swarm.environments.source import LibrarySource
from swarm.environments.verifiers.options import interpreter, parse_options
from swarm.environments.verifiers.taskset import PAGE, EndlessTasks, FiniteTasks, Page, own_splits
from swarm.environments.verifiers.worker import VerifiersWorker
from swarm.errors import EnvironmentFailure, EnvironmentInvalid
from swarm.tasks.base import Split
from swarm.types import Message

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

    def _open_tasks(self, opened: TasksetDescription) -> FiniteTasks | EndlessTasks:
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
        return FiniteTasks(self.name, named or ({} if is_chosen else own_splits(opened.split_values)), self._page)

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
