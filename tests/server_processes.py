"""`swarm start` in processes of their own, each with its home and its port, killed and started again at will."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx

STOP_TIMEOUT_S = 60


class NotStarted(OSError):
    """The server ended before it said its address; the message is the last that it wrote."""


@dataclass
class ServerProcess:
    """A server at an address that it keeps over its lives."""

    home: Path
    port: int
    process: subprocess.Popen[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that its process has besides those of this one."""
    is_ready: bool = False
    """Whether its process has said that it answers, and was not killed or waited for since."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Returns once it answers. Raises NotStarted, or another OSError where its home cannot be written."""
        self.home.mkdir(parents=True, exist_ok=True)
        words = ["-m", "swarm.cli", "start", "--port", str(self.port), "--home", str(self.home), "--json"]
        with (self.home / "stderr.log").open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, **self.env},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.wait()
            raise NotStarted((self.home / "stderr.log").read_text()[-2000:])
        assert json.loads(line)["url"] == self.url
        self.is_ready = True

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """kill -9; returns once it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        assert self.process is not None
        self.is_ready = False
        self.process.communicate(timeout=STOP_TIMEOUT_S)

    def close(self) -> None:
        if self.is_running:
            self.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def server_processes(directory: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Makes servers under `directory`, running unless `is_running` is false; all are ended with the block."""
    made: list[ServerProcess] = []

    def make(*, is_running: bool = True) -> ServerProcess:
        server = ServerProcess(directory / f"server-{len(made)}", free_port())
        made.append(server)
        if is_running:
            server.start()
        return server

    try:
        yield make
    finally:
        for server in made:
            server.close()


class Serving(NamedTuple):
    """A server in a process of its own, a client of it, and what it announced."""

    process: subprocess.Popen[str]
    http: httpx.Client
    announced: dict[str, Any]


@contextmanager
def serving(home: Path | str, *words: str, prefix: Sequence[str] = (), **popen: Any) -> Iterator[Serving]:
    """`swarm start --json` on a free port, unless `words` name one; killed in the end. `prefix` starts the command."""
    command = [*prefix, sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", str(home), "--json"]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True, **popen) as process:
        try:
            assert process.stdout is not None
            announced = json.loads(process.stdout.readline())
            with httpx.Client(base_url=announced["url"], timeout=60) as http:
                yield Serving(process, http, announced)
        finally:
            process.kill()
