"""The environments of a study: the one that its arms are judged on, and others that arms train on.

Place in the flow: session.py owns them; the evaluator measures on one, and the command of a run gets `reference`. A
bundled environment is opened wherever it is used; any other has a process of its own, whose socket for programs gives
out train tasks alone. This module knows nothing of runs or scores.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from experiments_db import Experiment
from researcher.errors import TopicInvalid
from researcher.types import Charter, StudiedEnvironment
from swarm.environments import Environment, load_environment
from swarm.environments.registry import has_own_worker, is_bundled
from swarm.environments.server import RemoteEnvironment, open_environment
from swarm.environments.server.process import SOCKET_PREFIX, EnvironmentProcess
from swarm.errors import SwarmError
from swarm.tasks import Split

LOOKED_AT = 2000


class StudyEnvironments:
    """Used by many threads; each is opened when it is first asked for, all are closed with the study's work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._opened: dict[str, _Opened] = {}

    def open(self, name: str) -> Environment:
        """The environment of this name. Raises NotFound, EnvironmentInvalid or EnvironmentFailure if it cannot be
        used."""
        return self._open(name).environment

    def reference(self, name: str) -> str:
        """What the command of a run is given as its environment: it leads to train tasks alone."""
        process = self._open(name).process
        return name if process is None else f"{SOCKET_PREFIX}{process.train_socket}"

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
        process = self._stack.enter_context(EnvironmentProcess(name))
        return _Opened(self._stack.enter_context(RemoteEnvironment(process.evaluator_socket)), process)


@dataclass(frozen=True, slots=True)
class _Opened:
    environment: Environment
    process: EnvironmentProcess | None


def trained_on(experiment: Experiment, charter: Charter) -> str:
    """The name of the environment that an arm trains on."""
    return experiment.train_environment or charter.environment or charter.task


def find_held_out(trained: Environment, judged: Environment, splits: Sequence[str], most: int) -> str | None:
    """A question that is among the first `LOOKED_AT` train tasks of one environment and among the first `most` of a
    held-out split of the other; None if there is none."""
    held_out = {item.task.main_query for split in splits for item in islice(judged.tasks(Split(split)), most)}
    questions = (item.task.main_query for item in islice(trained.tasks(Split.TRAIN), LOOKED_AT))
    return next((question for question in questions if question in held_out), None)


def look_at(name: str, option: str = "--env") -> StudiedEnvironment:
    """What planners are told of an environment. Raises TopicInvalid for one that cannot be used."""
    try:
        with open_environment(name) as environment:
            return StudiedEnvironment(name, environment.name, environment.description)
    except SwarmError as error:
        raise TopicInvalid(f"{option}: {error.message}") from error


def name_environments(references: Sequence[str]) -> dict[str, str]:
    """What each is called in a study: its options where these alone are different, else its source and options."""
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
    """How many tasks a split has, counted up to `most`."""
    return sum(1 for _ in islice(environment.tasks(Split(split)), most))
