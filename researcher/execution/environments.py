"""The environments of a study: the one that its arms are judged on, and others that arms train on."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from experiments_db import Experiment
from researcher.charter import Charter, StudiedEnvironment
from researcher.errors import EnvironmentBroken, TopicInvalid
from swarm.environments import (
    DrivenEnvironment,
    Environment,
    EnvironmentTask,
    has_own_worker,
    is_bundled,
    load_environment,
    transcript_of,
)
from swarm.environments.server import SOCKET_PREFIX, CallRecord, EnvironmentProcess, RemoteEnvironment, open_environment
from swarm.errors import SandboxUnavailable, SwarmError
from swarm.tasks import Split

LOOKED_AT = 2000
SUSPICIOUS = 3
"""Failed calls in a row, without a correct grade in between, after which an environment is examined."""
RESTS_S = (0.5, 2.0)
"""Seconds to wait before each repeated examination."""


class StudyEnvironments:
    """Environments by name, safe to use from many threads.

    Each is opened at its first use, and all are closed together.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._opened: dict[str, _Opened] = {}

    def open(self, name: str) -> Environment:
        """Return the environment of this name. Raises EnvironmentBroken or SandboxUnavailable if it cannot be used."""
        return self._open(name).environment

    def reference(self, name: str) -> str:
        """Return the reference by which the command of a run reaches the environment; it leads to train tasks only."""
        process = self._open(name).process
        return name if process is None else f"{SOCKET_PREFIX}{process.train_socket}"

    def examine(self, name: str, digest: str = "") -> None:
        """Grade a few fixed replies, in which no program has a part.

        Raises EnvironmentBroken if a reply cannot be graded, or if the environment's digest is not `digest`. Raises
        SandboxUnavailable if the grader has no sandbox to run programs in.
        """
        environment = self._open(name).environment
        if digest not in ("", environment.digest):
            raise EnvironmentBroken(
                f"the environment {environment.name} was changed since the study began, so that its scores could not "
                "be compared: put it back as it was, or begin another study"
            )
        try:
            _examine_patiently(environment)
        except EnvironmentBroken as error:
            if isinstance(environment, RemoteEnvironment):
                environment.give_up(str(error))
            raise EnvironmentBroken(f"{error} (`swarm env check {shlex.quote(name)}` looks at it)") from error

    def check(self) -> None:
        """Examine each environment whose last calls have all failed. Raises EnvironmentBroken, SandboxUnavailable."""
        for name, record in self._records():
            if record.failures >= SUSPICIOUS:
                self.examine(name)

    def failed_since(self, moment: float) -> str:
        """Return why an environment failed since `moment` (monotonic seconds); empty if none did."""
        return next((record.reason for _, record in self._records() if record.failed_at >= moment), "")

    def _records(self) -> list[tuple[str, CallRecord]]:
        with self._lock:
            opened = [(name, each.environment) for name, each in self._opened.items()]
        return [(name, each.record) for name, each in opened if isinstance(each, RemoteEnvironment)]

    def close(self) -> None:
        with self._lock:
            self._stack.close()

    def _open(self, name: str) -> _Opened:
        with self._lock:
            if name not in self._opened:
                self._opened[name] = self._start(name)
            return self._opened[name]

    def _start(self, name: str) -> _Opened:
        if is_bundled(name) or has_own_worker(name):
            return _Opened(self._stack.enter_context(closing(load_environment(name))), None)
        try:
            process = self._stack.enter_context(EnvironmentProcess(name))
        except SandboxUnavailable:
            raise
        except SwarmError as error:
            raise EnvironmentBroken(f"the environment {name} cannot be used: {error.message}") from error
        return _Opened(self._stack.enter_context(RemoteEnvironment(process.evaluator_socket)), process)


@dataclass(frozen=True, slots=True)
class _Opened:
    environment: Environment
    process: EnvironmentProcess | None


def _examine_patiently(environment: Environment) -> None:
    """Examine an environment several times before it counts as broken.

    An environment that asks another service, such as a judge, may fail for a moment only.
    """
    for rest_s in (*RESTS_S, None):
        began = time.monotonic()
        try:
            examine(environment)
            return
        except EnvironmentBroken:
            if rest_s is None or time.monotonic() - began >= environment.time_limit_s:
                raise
            time.sleep(rest_s)


def examine(environment: Environment) -> None:
    """Grade a few fixed replies in one environment. Raises EnvironmentBroken or SandboxUnavailable.

    An environment that drives its own agent grades nothing else, so it is left alone.
    """
    if isinstance(environment, DrivenEnvironment):
        return
    for split in (Split.TRAIN, Split.VALIDATION):
        what = f"list the tasks of {split}"
        try:
            for item in islice(environment.tasks(split), 1):
                for named, reply in _replies(environment, item):
                    what = f"grade {named}"
                    environment.grade(item, transcript_of(environment, item, reply))
        except SandboxUnavailable:
            raise
        except SwarmError as error:
            raise EnvironmentBroken(f"the environment {environment.name} cannot {what}: {error.message}") from error


def _replies(environment: Environment, item: EnvironmentTask) -> Iterator[tuple[str, str]]:
    """Yield replies as models may give them, each after its description; the correct one too if it is known."""
    solution = environment.solution(item)
    if solution is not None:
        yield "the right reply", solution
    yield "a reply that repeats the question", item.task.main_query
    yield "an empty reply", ""


def trained_on(experiment: Experiment, charter: Charter) -> str:
    """Return the reference of the environment that an arm trains on."""
    return experiment.train_environment or charter.environment


def find_held_out(trained: Environment, judged: Environment, splits: Sequence[str], most: int) -> str | None:
    """Return a held-out question of `judged` that is among the train tasks of `trained`; None if there is none.

    The first `LOOKED_AT` train tasks and the first `most` tasks of each held-out split are compared.
    """
    held_out = {item.task.main_query for split in splits for item in islice(judged.tasks(Split(split)), most)}
    questions = (item.task.main_query for item in islice(trained.tasks(Split.TRAIN), LOOKED_AT))
    return next((question for question in questions if question in held_out), None)


def look_at(name: str, option: str = "--env") -> StudiedEnvironment:
    """Return the description of an environment that planners get.

    Raises TopicInvalid for an environment that cannot be used, SandboxUnavailable if its grader runs programs and there
    is no sandbox.
    """
    try:
        with open_environment(name) as environment:
            return StudiedEnvironment(name, environment.name, environment.description, environment.digest)
    except SandboxUnavailable:
        raise
    except SwarmError as error:
        raise TopicInvalid(f"{option}: {error.message}") from error


def name_environments(references: Sequence[str]) -> dict[str, str]:
    """Return a name for each reference: its options if only these differ, else its source and options."""
    sources = {reference.partition("?")[0] for reference in references}
    named: dict[str, str] = {}
    for reference in references:
        source, _, options = reference.partition("?")
        options = options.replace("&", ",")
        short = Path(source).stem if Path(source).exists() else source
        label = options if options and len(sources) == 1 else " ".join(part for part in (short, options) if part)
        named[label if label not in named else reference] = reference
    return named


def count_tasks(environment: Environment, split: str, most: int) -> int:
    """Return how many tasks a split has, counted up to `most`."""
    return sum(1 for _ in islice(environment.tasks(Split(split)), most))
