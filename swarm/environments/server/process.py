"""An environment server as a child process: start it, wait for it, restart it when it dies, and end it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from swarm.environments.base import Environment
from swarm.environments.registry import has_own_worker, interpreter_of, is_bundled, load_environment
from swarm.environments.server.main import EVALUATOR_SOCKET, TRAIN_SOCKET
from swarm.environments.server.remote import GONE_FILE, RemoteEnvironment
from swarm.errors import EnvironmentFailure, SwarmError, error_class
from swarm.processes.child import Child, NoAnnouncement, await_announcement, child_environment, python_module

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
WATCH_S = 0.05
SOCKET_PREFIX = "unix:"
"""Prefix of a name that is the path of a running environment server's socket."""
MAX_USELESS_STARTS = 3
"""Failed starts in a row after which the server is not restarted."""


@contextmanager
def open_environment(name: str) -> Generator[Environment]:
    """Open the environment called `name` for the block, in its own process unless it is bundled.

    The name `unix:SOCKET` stands for an environment server that is running already.

    Raises NotFound or EnvironmentInvalid as `load_environment` does, and EnvironmentFailure if the process does not
    start.
    """
    if is_bundled(name) or has_own_worker(name):
        with closing(load_environment(name)) as environment:
            yield environment
        return
    if name.startswith(SOCKET_PREFIX):
        with RemoteEnvironment(Path(name.removeprefix(SOCKET_PREFIX))) as environment:
            yield environment
        return
    with (
        EnvironmentProcess(name) as process,
        RemoteEnvironment(process.evaluator_socket) as environment,
    ):
        yield environment


class EnvironmentProcess:
    """An environment server that is restarted whenever it dies, until `close` is called."""

    def __init__(self, name: str) -> None:
        """Start the server.

        Raises NotFound or EnvironmentInvalid for an environment that cannot be used, and EnvironmentFailure if its
        process does not start.
        """
        # The path of a Unix socket is limited to about a hundred characters.
        self._folder = Path(tempfile.mkdtemp(prefix="swarm-env-"))
        self._name = name
        self._closed = threading.Event()
        self.starts = 0
        try:
            self._child = self._start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._watcher = threading.Thread(target=self._watch, name=f"environment {name}", daemon=True)
        self._watcher.start()

    def __enter__(self) -> EnvironmentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def train_socket(self) -> Path:
        return self._folder / TRAIN_SOCKET

    @property
    def evaluator_socket(self) -> Path:
        return self._folder / EVALUATOR_SOCKET

    @property
    def pid(self) -> int:
        """The process id of the server's supervisor, which changes with every start."""
        return self._child.pid

    def close(self) -> None:
        self._closed.set()
        self._watcher.join()
        self._child.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        useless = 0
        while not self._closed.is_set():
            if self._child.poll() is None:
                self._closed.wait(WATCH_S)
                continue
            logger.warning("the environment %s ended with code %s and is restarted", self._name, self._child.poll())
            self._child.stop()
            try:
                self._child = self._start()
                useless = 0
            except SwarmError as error:
                useless += 1
                logger.error("the environment %s could not be restarted: %s", self._name, error)
                if useless == MAX_USELESS_STARTS:
                    reason = f"{self._name} could not be restarted: {' '.join(str(error).split())}"
                    (self._folder / GONE_FILE).write_text(reason, encoding="utf-8")
                    return

    def _start(self) -> Child:
        """Start the server, and try again if it is killed as it starts.

        A kill says nothing about the environment. Raises the error that the environment reports, or EnvironmentFailure
        if it reports nothing.
        """
        for left in reversed(range(MAX_USELESS_STARTS)):
            try:
                return self._start_once()
            except NoAnnouncement as silence:
                if not left or not silence.was_killed or self._closed.is_set():
                    raise self._not_started(silence) from silence
                logger.warning("the environment %s was killed as it started and is restarted", self._name)
        raise AssertionError("the last start returns or raises")

    def _start_once(self) -> Child:
        """Start the server once.

        Raises NoAnnouncement, or the error that the environment reports.
        """
        self.starts += 1
        out, errors = self._folder / f"stdout-{self.starts}", self._folder / "stderr.log"
        module = "swarm.environments.server.main"
        python = interpreter_of(self._name)
        argv = python_module(module, self._name, str(self._folder), python=python)
        # The code is the user's own, and the grader judge reads its key from an environment variable.
        environment = {**os.environ, **child_environment()}
        environment.pop("SWARM_TOKEN", None)
        if python is not None:
            # The other interpreter must not import the packages of this one.
            environment.pop("PYTHONPATH", None)
        child = Child(argv, env=environment, cwd=Path.cwd(), out=out, errors=errors)
        try:
            announced = await_announcement(child, out, errors, START_TIMEOUT_S, is_given_up=self._closed.is_set)
        except NoAnnouncement:
            child.stop()
            raise
        if (failure := announced.get("error")) is not None:
            child.stop()
            raise error_class(failure["code"])(str(failure["message"]))
        return child

    def _not_started(self, silence: NoAnnouncement) -> EnvironmentFailure:
        python = interpreter_of(self._name)
        hint = f": install swarm-researcher in {python}" if python and "No module named" in str(silence) else ""
        return EnvironmentFailure(f"the process of the environment {self._name} did not start: {silence}{hint}")
