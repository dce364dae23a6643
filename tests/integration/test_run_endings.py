"""How runs of a study end before their job is done: what trains after that (nothing), and what their record says."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swarm.processes.child import process_start

if TYPE_CHECKING:
    from experiments_db import ExperimentStore, Run
    from researcher.study.settings import StudySettings

pytestmark = [pytest.mark.begins_first, pytest.mark.timeout(400)]

TOPIC = "batch size 2 or 3 on reversal at equal steps"


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global reports_without_images, RunStatus, StudyStatus, open_store, StoppingLimits, work_on, TRAINING_SECONDS
    global EPISODES, gather_amounts, ask_to_end, create_study, StudySettings
    from simulated_study import reports_without_images

    from experiments_db import TRAINING_SECONDS, RunStatus, StudyStatus, open_store
    from researcher.execution.early_stopping import StoppingLimits
    from researcher.loop.session import work_on
    from researcher.report.numbers.curves import EPISODES, gather_amounts
    from researcher.study.requests import ask_to_end, create_study
    from researcher.study.settings import StudySettings


def _settings(**more: Any) -> StudySettings:
    return StudySettings(engine="fake", seeds=1, eval_episodes=6, **more)


class Ledgers:
    """What the own servers of a study have on record, by the name of the job."""

    def __init__(self, home: Path, study_id: str) -> None:
        self._files = sorted((home / "studies" / study_id / "servers").glob("*/ledger.db"))

    def trained(self, run: Run) -> tuple[int, int]:
        """Steps and episodes that were trained of a run."""
        return self._ask(
            run,
            "SELECT COUNT(DISTINCT b.step), COUNT(e.episode_id) FROM batches b JOIN episodes e USING (batch_id)"
            " WHERE b.state = 'trained' AND b.job_id = ?",
        )

    def unfinished(self, run: Run) -> int:
        """Train episodes of a run that nobody has ended."""
        return self._ask(run, "SELECT COUNT(*) FROM episodes WHERE state = 'running' AND job_id = ?")[0]

    def stopped_at(self, run: Run) -> float:
        """When the engine was first stopped after the run's job was started."""
        question = (
            "SELECT MIN(at) FROM events WHERE kind = 'engine.state' AND json_extract(detail, '$.state') = 'OFFLINE'"
            " AND event_id > (SELECT MAX(event_id) FROM events WHERE kind = 'job.started'"
            " AND json_extract(detail, '$.job_id') = ?)"
        )
        return float(self._ask(run, question)[0])

    def _ask(self, run: Run, question: str) -> tuple[int, ...]:
        name = run.job["experiment_name"]
        for file in self._files:
            with closing(sqlite3.connect(file)) as database:
                found = database.execute(
                    "SELECT job_id FROM jobs WHERE json_extract(job, '$.experiment_name') = ?", (name,)
                ).fetchone()
                if found is not None:
                    return database.execute(question, found).fetchone()
        raise AssertionError(f"no server knows {name}")


def _check_end(store: ExperimentStore, ledgers: Ledgers, run: Run) -> int:
    """The record of a run and its server's are the same, and nobody works on it any more. Returns its last step."""
    steps = [point.step for point in store.list_metrics([run.id], names=[EPISODES])]
    assert steps == list(range(1, len(steps) + 1))
    amounts = gather_amounts(store, [run.id])
    assert (amounts.steps or 0, amounts.episodes or 0) == ledgers.trained(run)
    assert ledgers.unfinished(run) == 0
    assert run.pid is not None and process_start(run.pid) is None
    assert ledgers.stopped_at(run) <= (run.finished_at or 0)
    return len(steps)


def test_run_that_is_stopped_early_has_trained_and_recorded_what_is_scored_and_nothing_more(
    store: ExperimentStore, tmp_path: Path
) -> None:
    study = create_study(store, TOPIC, _settings(steps=100_000, parallel=2, keep_checkpoints="all"))

    assert (
        work_on(store, study.id, tmp_path, limits=StoppingLimits(dead_steps=3, evidence_groups=1)).study.status
        is StudyStatus.FINISHED
    )

    runs = store.list_runs(study_id=study.id)
    assert len(runs) == 2
    for run in runs:
        assert run.status is RunStatus.FINISHED and run.diagnosis is not None and run.diagnosis["kind"] == "dead_reward"
        last = _check_end(store, Ledgers(tmp_path, study.id), run)
        (final,) = store.list_evaluations(run_ids=[run.id], phase="final")
        assert final.weight_version == run.final_weight_version == last
        assert f"stopped early after step {last}:" in str(run.exit_reason)


def test_run_that_fails_by_its_diagnosis_trains_no_further_and_frees_its_server(
    store: ExperimentStore, tmp_path: Path
) -> None:
    study = create_study(store, TOPIC, _settings(steps=100_000, parallel=2, keep_checkpoints="all"))

    work_on(store, study.id, tmp_path, limits=StoppingLimits(overrun_s=1.5, dead_steps=1_000_000))

    runs = store.list_runs(study_id=study.id)
    assert len(runs) == 2
    for run in runs:
        assert run.status is RunStatus.FAILED and run.diagnosis is not None and run.diagnosis["kind"] == "overrun"
        _check_end(store, Ledgers(tmp_path, study.id), run)


def _await_step(store: ExperimentStore, study_id: str, step: int, is_alive: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not any(
        point.step >= step
        for run in store.list_runs(study_id=study_id, statuses=[RunStatus.RUNNING])
        for point in store.list_metrics([run.id], names=[EPISODES])
    ):
        assert is_alive() and time.monotonic() < deadline
        time.sleep(0.05)


def _check_carried_on(store: ExperimentStore, home: Path, study_id: str) -> None:
    """Every run was begun once, and its record has each of its steps once."""
    runs = store.list_runs(study_id=study_id)
    assert [(run.attempt, run.status) for run in runs] == [(1, RunStatus.FINISHED)] * 2
    for run in runs:
        last = _check_end(store, Ledgers(home, study_id), run)
        seconds = [point.value for point in store.list_metrics([run.id], names=[TRAINING_SECONDS])]
        assert len(seconds) == last and all(seconds)


def test_paused_study_goes_on_with_the_step_that_its_own_servers_had_reached(
    store: ExperimentStore, tmp_path: Path
) -> None:
    # More steps than a machine could do before the pause; limits end the runs after it.
    study = create_study(store, TOPIC, _settings(steps=100_000, parallel=2, keep_checkpoints="all"))
    endless = StoppingLimits(dead_steps=1_000_000)
    worker = threading.Thread(target=work_on, args=(store, study.id, tmp_path), kwargs={"limits": endless})
    worker.start()
    _await_step(store, study.id, 3, worker.is_alive)

    ask_to_end(store, study.id, StudyStatus.PAUSED)
    worker.join(120)

    assert not worker.is_alive()
    paused = store.list_runs(study_id=study.id, statuses=[RunStatus.RUNNING])
    assert paused and all(run.pid is not None and process_start(run.pid) is None for run in paused)
    before = {run.id: store.list_metrics([run.id]) for run in paused}
    reached = max(point.step for points in before.values() for point in points)
    few_more = StoppingLimits(dead_steps=reached + 3, evidence_groups=1)
    assert work_on(store, study.id, tmp_path, limits=few_more).study.status is StudyStatus.FINISHED
    for run_id, points in before.items():
        after = store.list_metrics([run_id])
        assert set(points) <= set(after) and max(point.step for point in after) > reached
    _check_carried_on(store, tmp_path, study.id)
