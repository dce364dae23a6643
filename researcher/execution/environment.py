"""The environment that a study is on: opened once, and how the programs of its runs reach it.

Place in the flow: session.py owns it; the evaluator measures on it, and the command of a run gets `reference`. A
bundled environment is opened wherever it is used; any other has a process of its own, whose socket for programs gives
out train tasks alone. This module knows nothing of arms, runs or scores.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from itertools import islice

from researcher.errors import ResearchError, TopicInvalid
from researcher.types import StudiedEnvironment
from swarm.environments import Environment, load_environment
from swarm.environments.registry import has_own_worker, is_bundled
from swarm.environments.server import RemoteEnvironment, open_environment
from swarm.environments.server.process import SOCKET_PREFIX, EnvironmentProcess
from swarm.errors import SwarmError
from swarm.tasks import Split


class StudyEnvironment:
    """Used by many threads; opened when it is first asked for, closed with the study's work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._opened: tuple[str, Environment] | None = None
        self._process: EnvironmentProcess | None = None

    def open(self, name: str) -> Environment:
        """The environment of this name. Raises NotFound, EnvironmentInvalid or EnvironmentFailure if it cannot be
        used, ResearchError if the study is on another one."""
        with self._lock:
            if self._opened is None:
                self._opened = name, self._start(name)
            if self._opened[0] != name:
                raise ResearchError(f"the study is on {self._opened[0]}, not on {name}")
            return self._opened[1]

    def reference(self, name: str) -> str:
        """What the command of a run is given as its environment: it leads to train tasks alone."""
        self.open(name)
        return name if self._process is None else f"{SOCKET_PREFIX}{self._process.train_socket}"

    def close(self) -> None:
        with self._lock:
            self._stack.close()

    def _start(self, name: str) -> Environment:
        if is_bundled(name) or has_own_worker(name):
            return self._stack.enter_context(closing(load_environment(name)))
        self._process = self._stack.enter_context(EnvironmentProcess(name))
        return self._stack.enter_context(RemoteEnvironment(self._process.evaluator_socket))


def look_at(name: str) -> StudiedEnvironment:
    """What planners are told of an environment. Raises TopicInvalid for one that cannot be used."""
    try:
        with open_environment(name) as environment:
            return StudiedEnvironment(name, environment.name, environment.description)
    except SwarmError as error:
        raise TopicInvalid(f"--env: {error.message}") from error


def count_tasks(environment: Environment, split: str, most: int) -> int:
    """How many tasks a split has, counted up to `most`."""
    return sum(1 for _ in islice(environment.tasks(Split(split)), most))
