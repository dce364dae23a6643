"""The researcher in a process of its own, resumed whenever it ends in any other way than with its study."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

RESTART_S = 1.0
MAX_OWN_ENDS = 10
"""A process that ends by itself so often will not come to an end."""


class ResearcherProcess:
    """`begin` are the arguments that begin the study in `home`, which the process that takes over resumes. What it says
    on standard error is appended to `log`."""

    def __init__(self, home: Path, log: Path, begin: Sequence[str], env: Mapping[str, str]) -> None:
        self.home = home
        self.log = log
        self.own_ends: list[int] = []
        self._begin = list(begin)
        self._env = {**os.environ, **env}
        self._process: subprocess.Popen[str] | None = None
        self._study_id = ""
        self._killed: set[int] = set()
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep_running, name="researcher", daemon=True)

    @property
    def pid(self) -> int | None:
        """That of the process, None while there is none."""
        with self._lock:
            process = self._process
            return process.pid if process is not None and process.poll() is None else None

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def begun(self, study_id: str) -> None:
        """The study is stored, so that it can be resumed from now on."""
        self._study_id = study_id

    def kill(self) -> bool:
        """kill -9; returns whether there was a process."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                return False
            self._killed.add(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            return True

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the study, which is given up if that takes too long."""
        self._thread.join(timeout_s)
        self.close()

    def close(self) -> None:
        self._is_closed = True
        while self._thread.ident is not None and not self.is_over:
            self.kill()
            self._thread.join(0.2)

    def _keep_running(self) -> None:
        words = self._begin
        while not self._is_closed:
            if self._run(words) == 0 or not self._study_id or len(self.own_ends) > MAX_OWN_ENDS:
                return
            time.sleep(RESTART_S)
            words = ["resume", self._study_id, "--json"]

    def _run(self, words: Sequence[str]) -> int:
        command = [sys.executable, "-m", "researcher.cli", *words, "--home", str(self.home)]
        with self.log.open("a") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=self._env
            )
        with self._lock:
            self._process = process
        process.communicate()
        if process.returncode != 0 and process.pid not in self._killed:
            self.own_ends.append(process.returncode)
        return process.returncode
