"""A program that is killed in mid-training says nothing of its arm: its run goes on where it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_support import command_of, descendants, is_running
from slow_samplers import Pace
from waiting import wait_until

TOPIC = "batch size 2 or 3 for tool use at equal steps"
PATIENCE_S = 240
pytestmark = pytest.mark.timeout(400)


def programs_of_runs() -> list[psutil.Process]:
    """The programs of runs alone: a trial run has another folder."""
    commands = [(process, command_of(process)) for process in descendants(psutil.Process().pid)]
    return [
        process
        for process, command in commands
        if "swarm.program" in command and "--run" in command and "supervise.py" not in " ".join(command)
    ]


def test_run_goes_on_when_its_program_is_killed(
    tmp_path: Path, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulated_study import reports_without_images

    from experiments_db import RunStatus, StudyStatus, open_store
    from researcher.loop.nodes.monitor import MAX_KILLS
    from researcher.loop.session import work_on
    from researcher.study.requests import create_study
    from researcher.study.settings import StudySettings

    # No run comes to its end before the last kill.
    pace = Pace(last_step=1)
    monkeypatch.setattr("swarm.server.http.Backends", pace.backends())
    settings = StudySettings(engine="fake", steps=2, seeds=1, eval_episodes=4, servers=(start_server().url,))
    with reports_without_images(), open_store(tmp_path / "research.db") as store:
        study_id = create_study(store, TOPIC, settings).id
        worker = threading.Thread(target=work_on, args=(store, study_id, tmp_path))
        worker.start()

        def kinds() -> list[str]:
            return [event.kind for event in store.list_events(study_id, limit=None)]

        for kills in range(1, 3):
            found: list[psutil.Process] = []
            wait_until(lambda found=found: found or found.extend(programs_of_runs()))
            found[0].kill()
            wait_until(lambda found=found: not is_running(found[0]))
            wait_until(lambda kills=kills: kinds().count("run.resumed") == kills)
        pace.last_step = None
        worker.join(PATIENCE_S)
        assert store.get_study(study_id).status is StudyStatus.FINISHED
        runs = store.list_runs(study_id=study_id)
        assert [(run.attempt, run.status) for run in runs] == [(1, RunStatus.FINISHED)] * 2
        assert "run.failed" not in kinds() and MAX_KILLS >= 2
