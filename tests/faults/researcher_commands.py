"""The researcher's commands in processes of their own, for tests that kill them by their ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from experiments_db import ExperimentStore, StoreError, open_store
from swarm.processes.child import process_start

TIMEOUT_S = 1200.0


class ResearcherCommands:
    """The commands of one study, whose files lie in `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.database = home / "research.db"
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command; what it says on standard error is appended to a file."""
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "stderr.log").open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "researcher.cli", *arguments, "--home", str(self.home)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._started.append(process)
        return process

    def finish(self, *arguments: str) -> str:
        """Run a command to its end and return what it printed. It must end with 0."""
        return self.await_end(self.start(*arguments))

    def await_end(self, process: subprocess.Popen[str]) -> str:
        """Wait for the end of a command and return what it printed. It must end with 0."""
        out, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, f"{out[-2000:]}\n{self.messages()[-2000:]}"
        return out

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            process.kill()
            process.communicate(timeout=10)

    def messages(self) -> str:
        """Return what all commands have said on standard error."""
        return (self.home / "stderr.log").read_text()

    def await_state(
        self, process: subprocess.Popen[str], what: str, is_so: Callable[[ExperimentStore, str], bool]
    ) -> None:
        """Wait until the study is in a state. `is_so` gets the store and the study's id."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self._holds(is_so):
            assert process.poll() is None, f"it ended by itself: {self.messages()[-2000:]}"
            assert time.monotonic() < deadline, f"no {what}: {self.messages()[-2000:]}"
            time.sleep(0.2)

    def await_event(self, process: subprocess.Popen[str], kind: str, count: int = 1) -> None:
        """Wait until the study has so many events of a kind."""

        def has_events(store: ExperimentStore, study_id: str) -> bool:
            return Counter(event.kind for event in store.list_events(study_id, limit=None))[kind] >= count

        self.await_state(process, kind, has_events)

    def end(self, process: subprocess.Popen[str], number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a command and wait for its end."""
        os.kill(process.pid, number)
        process.communicate(timeout=TIMEOUT_S)

    def children(self) -> list[int]:
        """Return the processes of this host that work for the study."""
        found: list[int] = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    command = (folder / "cmdline").read_bytes().decode(errors="replace")
                    where = os.readlink(folder / "cwd")
                except OSError:
                    continue
                if (str(self.home) in command or str(self.home) in where) and process_start(int(folder.name)):
                    found.append(int(folder.name))
        return found

    def _holds(self, is_so: Callable[[ExperimentStore, str], bool]) -> bool:
        try:
            with open_store(self.database, read_only=True) as store:
                studies = store.list_studies()
                return bool(studies) and is_so(store, studies[0].id)
        except StoreError:
            # Not there yet, or just being made.
            return False
