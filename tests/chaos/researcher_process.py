"""The researcher in a process of its own, resumed whenever it ends in any other way than with its study.

Place in the flow: deployment.py starts one per study; the injector kills it. It is what a unit of systemd with
`Restart=on-failure` would be. It knows nothing of what the study is about.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RESTART_S = 1.0
MAX_OWN_ENDS = 10
"""A process that ends by itself so often will not come to an end."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of the process before its study was finished. `at` is of the monotonic clock; `said` is its last line
    on standard error."""

    at: float
    code: int
    was_killed: bool
    said: str


class ResearcherProcess:
    """`begin` are the arguments that begin the study in `home`, which the process that takes over resumes. What it says
    on standard error is appended to `log`."""

    def __init__(self, home: Path, log: Path, begin: Sequence[str], env: Mapping[str, str]) -> None:
        self.home = home
        self.log = log
        self.ends: list[End] = []
        self.finished_at: float | None = None
        self.output = ""
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
    def has_begun(self) -> bool:
        return self._thread.ident is not None

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def begun(self, study_id: str) -> None:
        """The study is stored, so that it can be resumed from now on."""
        self._study_id = study_id

    def kill(self) -> int | None:
        """kill -9; returns the process that was hit, None if there was none."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                return None
            self._killed.add(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            return process.pid

    def wait(self, timeout_s: float) -> bool:
        """Whether the study came to an end, or was given up, within the time."""
        self._thread.join(timeout_s)
        return self.is_over

    def close(self) -> None:
        self._is_closed = True
        while not self.is_over:
            self.kill()
            self._thread.join(0.2)

    def _keep_running(self) -> None:
        words = self._begin
        while not self._is_closed:
            code = self._run(words)
            if code == 0:
                self.finished_at = time.monotonic()
                return
            if not self._study_id or sum(not end.was_killed for end in self.ends) > MAX_OWN_ENDS:
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
        self.output, _ = process.communicate()
        if process.returncode != 0:
            was_killed = process.pid in self._killed
            self.ends.append(End(time.monotonic(), process.returncode, was_killed, self._last_line()))
        return process.returncode

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else ""
