"""A program that is killed in mid-training says nothing of its arm: its run goes on where it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_support import command_of, descendants, is_running
from slow_samplers import Pace

TOPIC = "batch size 2 or 3 for tool use at equal steps"
PATIENCE_S = 240
pytestmark = pytest.mark.timeout(400)


class StudyAtWork:
    """A study in a thread; `kill` ends the program of a run under way by kill -9."""

    def __init__(self, store: Any, home: Path, url: str) -> None:
        from researcher.loop.session import work_on
        from researcher.study.requests import create_study
        from researcher.study.settings import StudySettings

        self.store = store
        self.home = home
        settings = StudySettings(engine="fake", steps=2, seeds=1, eval_episodes=4, servers=(url,))
        self.study_id = create_study(store, TOPIC, settings).id
        self._thread = threading.Thread(target=work_on, args=(store, self.study_id, home))
        self._thread.start()

    def kill(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self._programs()):
            assert self._thread.is_alive() and time.monotonic() < deadline
            time.sleep(0.2)
        found[0].kill()
        while is_running(found[0]):
            time.sleep(0.02)

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.store.list_events(self.study_id, limit=None)]

    def _programs(self) -> list[psutil.Process]:
        """Those of runs alone: a trial run has another folder."""
        commands = [(process, command_of(process)) for process in descendants(psutil.Process().pid)]
        return [
            process
            for process, command in commands
            if "swarm.program" in command and "--run" in command and "supervise.py" not in " ".join(command)
        ]


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Pace:
    """No run comes to its end before a test says so."""
    pace = Pace(last_step=1)
    monkeypatch.setattr("swarm.server.http.Backends", pace.backends())
    return pace


@pytest.fixture
def at_work(tmp_path: Path, start_server: Callable[..., Any], pace: Pace) -> Iterator[StudyAtWork]:
    from simulated_study import reports_without_images

    from experiments_db import open_store

    with reports_without_images(), open_store(tmp_path / "research.db") as store:
        yield StudyAtWork(store, tmp_path, start_server().url)


def test_run_goes_on_when_its_program_is_killed(at_work: StudyAtWork, pace: Pace) -> None:
    from experiments_db import RunStatus, StudyStatus
    from researcher.loop.nodes.monitor import MAX_KILLS

    for count in range(2):
        at_work.kill()
        while at_work.kinds().count("run.resumed") == count:
            time.sleep(0.1)
    pace.last_step = None
    at_work.join()

    assert at_work.store.get_study(at_work.study_id).status is StudyStatus.FINISHED
    runs = at_work.store.list_runs(study_id=at_work.study_id)
    assert [(run.attempt, run.status) for run in runs] == [(1, RunStatus.FINISHED)] * 2
    assert "run.failed" not in at_work.kinds() and MAX_KILLS >= 2
