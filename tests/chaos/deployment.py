"""One study left alone: two servers, a language model, and a researcher, each started again when it dies."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from llm_replies.server import ReplyServer
from server_processes import ServerProcess, free_port

from chaos.clock import Clock, compile_library
from chaos.researcher_process import ResearcherProcess
from chaos.storage import SmallDisk
from chaos.study import REPLIES, ChaosStudy
from experiments_db import StoreError, open_store
from swarm import SwarmClient, SwarmError

SERVERS = 2
DISK_MB = 768
MIN_FREE_GB = 0.05
HANG_S = 8.0
"""How long the language model keeps a call that gets no answer."""
BEGIN_TIMEOUT_S = 240.0
START_AGAIN_S = 1.0
WATCHED_S = 0.2


class Deployment:
    """Everything of one study lies under `folder`. With `is_hostile` its disk is small and its clocks can be moved."""

    def __init__(self, folder: Path, study: ChaosStudy, *, is_hostile: bool) -> None:
        self.folder = folder
        self.study = study
        self.study_id = ""
        self.stopping = threading.Event()
        self.disk = SmallDisk(folder / "disk", DISK_MB)
        self.clocks: dict[str, Clock] = {}
        folder.mkdir(parents=True)
        if is_hostile:
            self.disk.mount()
            library = compile_library(folder)
            if library is not None:
                self.clocks = {name: Clock(folder / f"{name}.clock", library) for name in self._hosts()}
        study.write(folder)
        self.model = ReplyServer(folder / REPLIES, by_iteration=True, hang_s=HANG_S)
        self.servers = [
            ServerProcess(self.disk.path / name, free_port(), env=self._env(name)) for name in self._hosts()[1:]
        ]
        words = study.words(folder, [server.url for server in self.servers], MIN_FREE_GB)
        env = {"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": self.model.url, **self._env("researcher")}
        self.researcher = ResearcherProcess(self.home, folder / "researcher.log", words, env)
        self._keepers: list[threading.Thread] = []

    @property
    def home(self) -> Path:
        """Of the researcher."""
        return self.disk.path / "research"

    @property
    def database(self) -> Path:
        return self.home / "research.db"

    def __enter__(self) -> Self:
        try:
            self.model.__enter__()
            for server in self.servers:
                server.start()
            self.researcher.start()
            self._await_study()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_again(self, server: ServerProcess, pause_s: float) -> None:
        """After the pause, and as often as it takes; returns at once."""
        keeper = threading.Thread(target=self._keep_starting, args=(server, pause_s), daemon=True)
        self._keepers.append(keeper)
        keeper.start()

    def settle(self) -> None:
        """Wait until all servers run again."""
        for keeper in self._keepers:
            keeper.join()

    def launches(self) -> list[str]:
        """The keys of all runs that the servers have launched, by their ledgers, as often as they stand there."""
        keys: list[str] = []
        for server in self.servers:
            with SwarmClient(server.url) as client:
                keys += [str(event.detail["key"]) for event in client.past_events() if "key" in event.detail]
        return keys

    def close(self) -> None:
        self.stopping.set()
        self.researcher.close()
        self.settle()
        for server in self.servers:
            server.close()
        self.model.__exit__(None, None, None)
        self.disk.unmount()

    def _hosts(self) -> list[str]:
        return ["researcher", *(f"server-{number}" for number in range(SERVERS))]

    def _env(self, host: str) -> dict[str, str]:
        return self.clocks[host].env if host in self.clocks else {}

    def _await_study(self) -> None:
        """Wait for the study: what was never stored cannot be resumed, so faults begin with it."""
        deadline = time.monotonic() + BEGIN_TIMEOUT_S
        while not self.study_id:
            is_late = self.researcher.is_over or time.monotonic() > deadline
            assert not is_late, self.researcher.log.read_text(errors="replace")[-1000:]
            time.sleep(WATCHED_S)
            try:
                with open_store(self.database, read_only=True) as store:
                    self.study_id = next((study.id for study in store.list_studies()), "")
            except StoreError:
                # Not there yet, or just being made.
                continue
        self.researcher.begun(self.study_id)

    def _keep_starting(self, server: ServerProcess, pause_s: float) -> None:
        self.stopping.wait(pause_s)
        while not self.stopping.is_set():
            try:
                server.start()
                return
            except (OSError, SwarmError):
                # A full disk keeps a server from starting; whoever looks after it tries again.
                self.stopping.wait(START_AGAIN_S)
