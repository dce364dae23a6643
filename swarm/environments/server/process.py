"""An environment server as a child: started, waited for, started again when it dies, ended.

Place in the flow: commands and the researcher open environments with `open_environment`. The bundled families are our
own code and are opened in this process; everything else may hang, crash or need an interpreter of its own.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from swarm.environments.base import Environment
from swarm.environments.registry import has_own_worker, interpreter_of, is_bundled, load_environment
from swarm.environments.server.main import EVALUATOR_SOCKET, TRAIN_SOCKET
from swarm.environments.server.remote import GONE_FILE, RemoteEnvironment
from swarm.errors import EnvironmentFailure, SwarmError, error_class
from swarm.processes.announcement import NoAnnouncement, await_announcement
from swarm.processes.child import Child, child_environment

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
WATCH_S = 0.05
SOCKET_PREFIX = "unix:"
"""Before the path of a socket that an environment server listens on already."""
MAX_USELESS_STARTS = 3
"""A server that ends so often before it is ready will not get better."""


@contextmanager
def open_environment(name: str) -> Generator[Environment]:
    """The environment of this name, in a process of its own unless it is bundled; or the one behind `unix:SOCKET`.

    Raises NotFound or EnvironmentInvalid as `load_environment` does, EnvironmentFailure if its process does not start.
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
    """An environment server that is started again whenever it dies, until this is closed."""

    def __init__(self, name: str) -> None:
        """Raises NotFound or EnvironmentInvalid for an environment that cannot be used, EnvironmentFailure if its
        process does not start."""
        # A socket's path may have no more than a hundred characters.
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
        """That of the supervisor of the server; another one after each start."""
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
            logger.warning("the environment %s ended with code %s and is started again", self._name, self._child.poll())
            self._child.stop()
            try:
                self._child = self._start()
                useless = 0
            except SwarmError as error:
                useless += 1
                logger.error("the environment %s did not start again: %s", self._name, error)
                if useless == MAX_USELESS_STARTS:
                    said = f"{self._name} is not started again: {' '.join(str(error).split())}"
                    (self._folder / GONE_FILE).write_text(said, encoding="utf-8")
                    return

    def _start(self) -> Child:
        """Raises what the environment is refused for, EnvironmentFailure if there is no sign of life.

        One that is killed as it starts is started again: that says nothing of the environment.
        """
        for _ in range(MAX_USELESS_STARTS - 1):
            try:
                return self._start_once()
            except NoAnnouncement as silence:
                if not silence.was_killed or self._closed.is_set():
                    raise self._not_started(silence) from silence
                logger.warning("the environment %s was killed as it started and is started again", self._name)
        try:
            return self._start_once()
        except NoAnnouncement as silence:
            raise self._not_started(silence) from silence

    def _start_once(self) -> Child:
        """Raises NoAnnouncement, or what the environment is refused for."""
        self.starts += 1
        out, errors = self._folder / f"stdout-{self.starts}", self._folder / "stderr.log"
        module = "swarm.environments.server.main"
        python = interpreter_of(self._name)
        argv = [python or sys.executable, "-m", module, self._name, str(self._folder)]
        # The code is the person's own, and a judge that grades needs the key that stands in an environment variable.
        environment = {**os.environ, **child_environment()}
        environment.pop("SWARM_TOKEN", None)
        if python is not None:
            # Packages of this interpreter are none of the other's.
            environment.pop("PYTHONPATH", None)
        child = Child(argv, env=environment, cwd=Path.cwd(), out=out, errors=errors)
        try:
            announced = await_announcement(child, out, errors, START_TIMEOUT_S, is_given_up=self._closed.is_set)
        except NoAnnouncement:
            child.stop()
            raise
        return self._started(child, announced)

    def _not_started(self, silence: NoAnnouncement) -> EnvironmentFailure:
        python = interpreter_of(self._name)
        hint = f": install swarm-researcher in {python}" if python and "No module named" in str(silence) else ""
        return EnvironmentFailure(f"the process of the environment {self._name} did not start: {silence}{hint}")

    def _started(self, child: Child, said: dict[str, Any]) -> Child:
        failure = said.get("error")
        if failure is None:
            return child
        child.stop()
        raise error_class(failure["code"])(str(failure["message"]))
