"""The ways that docs/architecture.md lists, file by file, are those that requests and a batch really take."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from process_support import command_of, descendants
from server_processes import serving
from tests_support import begin, chat, end, wait_for_state, wait_for_step

ROOT = Path(__file__).parents[2]
RECORDER = ROOT / "tests" / "stand_ins" / "call_record"
JOB = {"model": "nano", "batch_size": 1, "num_repeat": 2, "total_steps": 3}
LIMIT_S = 60.0

pytestmark = pytest.mark.timeout(400)


@dataclass
class Recorded:
    """A server whose processes note what is called, and the folder with the notes."""

    http: httpx.Client
    directory: Path
    pid: int

    def begin_anew(self) -> None:
        """Returns once every process that holds a part of the ways has begun a new record."""
        processes = [
            self.pid,
            *(each.pid for each in descendants(self.pid) if "swarm.backends" in str(command_of(each))),
        ]
        before = {pid: self._beginnings(pid) for pid in processes}
        for pid in processes:
            os.kill(pid, signal.SIGUSR1)
        self._until(lambda: all(self._beginnings(pid) > before[pid] for pid in processes))

    def await_call(self, file: str, function: str) -> None:
        self._until(lambda: any(is_step((file, function), call) for call in self.calls()))

    def calls(self) -> list[tuple[str, str]]:
        """File and function of what was called since the record began, by the time of the first call."""
        noted: list[tuple[int, str, str]] = []
        for path in self.directory.iterdir():
            lines = [line.split(" ", 2) for line in path.read_text().splitlines()]
            last = max((index for index, line in enumerate(lines) if line[1] == "-"), default=-1)
            noted += [(int(when), file, function) for when, file, function in lines[last + 1 :]]
        return [(file, function) for _, file, function in sorted(noted)]

    def _beginnings(self, pid: int) -> int:
        path = self.directory / str(pid)
        return path.read_text().count(" - begun\n") if path.exists() else 0

    def _until(self, true: Any) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < deadline
            time.sleep(0.05)


def is_step(step: tuple[str, str], call: tuple[str, str]) -> bool:
    """A function within another is listed by its own name."""
    return step[0] == call[0] and (step[1] == call[1] or call[1].endswith(f".<locals>.{step[1]}"))


def way(heading: str) -> list[tuple[str, str]]:
    """The files and functions below a heading of the document, in order."""
    section = (ROOT / "docs" / "architecture.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"\| `(swarm/\S+\.py)` \| `(\S+)` \|$", section, flags=re.MULTILINE)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    directory = tmp_path / "calls"
    directory.mkdir()
    environment = {**os.environ, "CALL_RECORD": str(directory), "PYTHONPATH": f"{RECORDER}{os.pathsep}{ROOT}"}
    with serving(tmp_path / "home", env=environment) as (server, http, _):
        yield Recorded(http, directory, server.pid)
        server.send_signal(signal.SIGTERM)
        server.wait(LIMIT_S)


def test_the_listed_ways_are_those_of_a_begin_a_call_and_a_batch(recorded: Recorded) -> None:
    http = recorded.http
    assert http.put("/v1/swarm/job", json={"job": JOB}).status_code == 200
    assert http.post("/v1/swarm/engine/start", json={}).status_code == 202
    wait_for_state(http, "ROLLING")
    # The first batch imports the libraries of the learner.
    for reward in (0.0, 1.0):
        end(http, begin(http, task_id="t"), task_id="t", reward=reward, call=True)
    wait_for_step(http, 1)
    first = begin(http, task_id="t")
    recorded.begin_anew()
    second = begin(http, task_id="t")
    beginning = way("The way of a begin")
    recorded.await_call(*beginning[-1])
    follow(beginning, recorded.calls(), files=10)
    chat(http, first, "Reverse: ABC", max_tokens=8)
    end(http, first, task_id="t", reward=0.0)

    recorded.begin_anew()
    # Another prompt: of the same one nothing would be left to compute.
    chat(http, second, "Repeat: XYZ", max_tokens=8)
    completion = way("The way of one chat completion")
    recorded.await_call(*completion[-1])
    follow(completion, recorded.calls(), files=25)

    recorded.begin_anew()
    end(http, second, task_id="t", reward=1.0)
    batch = way("The way from an end to published weights")
    recorded.await_call(*batch[-1])
    follow(batch, recorded.calls(), files=17)


def follow(steps: list[tuple[str, str]], calls: list[tuple[str, str]], *, files: int) -> None:
    """Each step is taken, after the one before it, and no file is listed twice."""
    assert len(steps) == len({file for file, _ in steps}) <= files
    order = [next((index for index, call in enumerate(calls) if is_step(step, call)), None) for step in steps]
    assert None not in order, [step for step, index in zip(steps, order, strict=True) if index is None]
    assert order == sorted(order, key=lambda index: index or 0)
