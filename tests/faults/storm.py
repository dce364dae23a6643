"""A storm of kill -9 over a server, its engine worker and its clients, under load; and the count of what was lost."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
import yaml
from process_support import command_of, descendants

CLIENTS = 3
SERVING = {"ROLLING", "DRAINING", "TRAINING", "EXPORTING"}
WORKER_MODULE = "swarm.backends.local.worker"
RECOVERY_LIMIT_S = 90.0
PROGRESS_LIMIT_S = 200.0
SERVER_PROGRAM = (sys.executable, "-m", "swarm.cli", "start")
CLIENT_PROGRAM = Path(__file__).with_name("storm_client.py")


class Target(StrEnum):
    SERVER = "server"
    WORKER = "engine worker"
    BOTH = "server and worker"
    CLIENT = "client"


WEIGHTS = {Target.SERVER: 3, Target.WORKER: 3, Target.BOTH: 2, Target.CLIENT: 2}


@dataclass(frozen=True)
class Kill:
    """One kill: what the engine was doing, and how long until it served again. None: it served all along."""

    target: Target
    state: str
    recovered_s: float | None


@dataclass(frozen=True)
class Losses:
    """What the ledger says against what the clients were told."""

    acknowledged: int
    lost: list[str]
    altered: list[str]
    counted_twice: int
    unfinished_batches: int
    missing_steps: list[int]
    inexact_batches: list[str]


@dataclass
class Storm:
    """One server directory with its clients, and the kills it went through. `worker` marks the command line of the
    engine's process."""

    home: Path
    job: Mapping[str, Any]
    dice: random.Random
    worker: str = WORKER_MODULE
    recovery_limit_s: float = RECOVERY_LIMIT_S
    kills: list[Kill] = field(default_factory=list[Kill])
    _server: subprocess.Popen[bytes] | None = None
    _clients: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._job_path = self.home / "job.yaml"
        self._job_path.write_text(yaml.safe_dump(dict(self.job)))
        self._http = httpx.Client(base_url=self.url, timeout=5)

    def begin(self) -> None:
        self._start_server("--job", str(self._job_path))
        self._wait_until(lambda status: status.get("state") in SERVING, self.recovery_limit_s)
        self._clients = [self._start_client(index) for index in range(CLIENTS)]
        self.wait_for_step(1)

    def strike(self, target: Target | None = None) -> Kill:
        """Kill something after a moment, bring it back if that is not the server's own doing, and wait for it."""
        time.sleep(self.dice.choice((0.05, 0.3, 1.0, 2.0)) * self.dice.random())
        target = target or self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        present = self._wait_until(
            lambda status: "state" in status and bool(self.pids(self.worker)), self.recovery_limit_s
        )
        state, recoveries = present["state"], present["recoveries"]
        if target is Target.CLIENT:
            self._replace_client(self.dice.randrange(CLIENTS))
            self.kills.append(Kill(target, state, None))
            return self.kills[-1]
        struck_at = time.monotonic()
        self._kill(target)
        self._wait_until(
            lambda status: status.get("state") in SERVING and status["recoveries"] > recoveries, self.recovery_limit_s
        )
        self.kills.append(Kill(target, state, time.monotonic() - struck_at))
        return self.kills[-1]

    def wait_for_step(self, step: int) -> None:
        self._wait_until(lambda status: status.get("step", -1) >= step, PROGRESS_LIMIT_S)

    def calm_down(self) -> None:
        """Two more batches without a kill, then everybody goes in order."""
        self.wait_for_step(self.peek()["step"] + 2)
        for client in self._clients:
            end_process(client, signal.SIGKILL)
        assert self._server is not None
        end_process(self._server, signal.SIGTERM)

    def close(self) -> None:
        self._http.close()
        for process in (*self._clients, self._server):
            if process is not None:
                end_process(process, signal.SIGKILL)

    def losses(self) -> Losses:
        """Read from the files of the server and of the clients, after the end."""
        told = [json.loads(line) for path in self.home.glob("*.journal") for line in whole_lines(path)]
        with closing(sqlite3.connect(f"file:{self.home}/home/ledger.db?mode=ro", uri=True)) as ledger:
            ledger.row_factory = sqlite3.Row
            episodes = {row["episode_id"]: row for row in ledger.execute("SELECT * FROM episodes")}
            batches = ledger.execute("SELECT * FROM batches").fetchall()
        kept = {"completed", "trained", "dropped"}
        trained = [row for row in batches if row["state"] == "trained"]
        counted = sum(int(json.loads(row["metrics"])["batch/episodes"]) for row in trained)
        steps = [row["step"] for row in trained]
        return Losses(
            acknowledged=len(told),
            lost=[
                line["episode_id"]
                for line in told
                if line["episode_id"] not in episodes or episodes[line["episode_id"]]["state"] not in kept
            ],
            altered=[
                line["episode_id"]
                for line in told
                if line["episode_id"] in episodes and episodes[line["episode_id"]]["reward"] != line["reward"]
            ],
            counted_twice=counted - sum(row["state"] == "trained" for row in episodes.values()),
            unfinished_batches=sum(row["state"] == "closed" for row in batches),
            missing_steps=sorted(set(range(1, max(steps) + 1)).symmetric_difference(steps)),
            inexact_batches=[row["batch_id"] for row in trained if not self._is_exact(row, episodes.values())],
        )

    def _is_exact(self, batch: sqlite3.Row, episodes: Iterable[sqlite3.Row]) -> bool:
        """Whether the batch holds as many groups as the job asks for, none of them too large."""
        groups = Counter(row["batch_group"] for row in episodes if row["batch_id"] == batch["batch_id"])
        return len(groups) == self.job["batch_size"] and max(groups.values()) <= self.job["num_repeat"]

    def summary(self) -> dict[str, Any]:
        """Seconds until the model was served again, by target."""
        found: dict[str, Any] = {}
        for target in Target:
            times = sorted(kill.recovered_s for kill in self.kills if kill.target is target and kill.recovered_s)
            found[target] = {
                "kills": sum(kill.target is target for kill in self.kills),
                "median_s": statistics.median(times) if times else None,
                "max_s": times[-1] if times else None,
            }
        every = [kill.recovered_s for kill in self.kills if kill.recovered_s is not None]
        return {"targets": found, "median_s": statistics.median(every) if every else None, **asdict(self.losses())}

    def _kill(self, target: Target) -> None:
        if target in {Target.WORKER, Target.BOTH}:
            for pid in self.pids(self.worker):
                kill_pid(pid)
        if target in {Target.SERVER, Target.BOTH}:
            assert self._server is not None
            end_process(self._server, signal.SIGKILL)
            self._start_server()

    def _replace_client(self, index: int) -> None:
        end_process(self._clients[index], signal.SIGKILL)
        self._clients[index] = self._start_client(index)

    def _start_server(self, *arguments: str) -> None:
        with (self.home / "server.log").open("ab") as log:
            self._server = subprocess.Popen(
                [*SERVER_PROGRAM, "--port", str(self._port), "--home", str(self.home / "home"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _start_client(self, index: int) -> subprocess.Popen[bytes]:
        name = f"client-{index}"
        with (self.home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(CLIENT_PROGRAM), self.url, name, str(self.home / f"{name}.journal")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def pids(self, mark: str) -> set[int]:
        """Processes below the server with this word on their command line."""
        assert self._server is not None
        return {child.pid for child in descendants(self._server.pid) if mark in command_of(child)}

    def _wait_until(self, is_reached: Callable[[dict[str, Any]], bool], limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while not is_reached(present := self.peek()):
            assert present.get("state") != "FAILED", present
            assert time.monotonic() < deadline, f"waited {limit_s:.0f} s: {present}\n{self._said()}"
            time.sleep(0.02)
        return present

    def _said(self) -> str:
        """The last words of everybody."""
        return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(self.home.glob("*.log")))

    def peek(self) -> dict[str, Any]:
        """The present status; empty while nobody answers."""
        try:
            answer = self._http.get("/v1/swarm/status")
        except httpx.TransportError:
            return {}
        return answer.json() if answer.status_code == 200 else {}


@contextmanager
def storm(home: Path, job: Mapping[str, Any], seed: int, **options: Any) -> Iterator[Storm]:
    weather = Storm(home, job, random.Random(seed), **options)
    try:
        weather.begin()
        yield weather
    finally:
        weather.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def kill_pid(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def end_process(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    process.send_signal(how)
    process.wait(timeout=30)


def whole_lines(path: Path) -> list[str]:
    """A line that the kill cut off was never finished: its acknowledgement does not count."""
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()
