"""Charter, plans and analyses survive the database unchanged."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments_db import ExperimentStore, StoreLeaseLost, StudyStatus, Verdict
from researcher.analysis import Analysis, ArmSummary, Comparison
from researcher.cli import app
from researcher.errors import ResearchError, StudyBusy
from researcher.history import History
from researcher.planner.rules import RulesPlanner
from researcher.record.lease import TTL_S, StudyLease
from researcher.record.log import (
    DIAGNOSED,
    StudyLog,
    analysis_from_json,
    charter_from_json,
    plan_from_json,
    to_json,
)
from researcher.study.ending import REPORTED, WORKING, is_over
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request
from swarm.processes.child import process_start

PLANNER = RulesPlanner()
CHARTER = PLANNER.frame(read_request("Which settings train agents best?", StudySettings(max_runs=7)))
PLAN = PLANNER.plan(PLANNER.frame(read_request("KL or no KL?", StudySettings())), History())
ANALYSIS = Analysis(
    arms=(ArmSummary("a", {0: 0.5, 3: 0.6}, {0: 0.1}, 0.55, math.nan, 0.7, ("run-1",)),),
    comparisons=(
        Comparison("a", "b", 0.1, math.nan, math.nan, math.nan, math.nan, (0,), Verdict.INCONCLUSIVE, ("run-1",)),
    ),
    ranking=("a",),
    failed={"c": ("seed 0: no",)},
)


def test_charter_and_plan_come_back_equal_from_json_text() -> None:
    assert charter_from_json(json.loads(json.dumps(to_json(CHARTER)))) == CHARTER
    assert plan_from_json(json.loads(json.dumps(to_json(PLAN)))) == PLAN


def test_analysis_comes_back_with_its_missing_numbers() -> None:
    text = json.dumps(to_json(ANALYSIS), allow_nan=False)

    assert repr(analysis_from_json(json.loads(text))) == repr(ANALYSIS)


def test_history_has_plans_analyses_and_diagnoses_in_order(store: ExperimentStore) -> None:
    study = store.create_study("t", planner="rules")
    log = StudyLog(store, study.id)
    log.write_plan(PLAN, "plan")
    for number in range(600):
        log.note("run.training", f"event {number}")
    log.note(DIAGNOSED, "The reward is dead.")
    log.write_analysis(0, ANALYSIS, "analysis")

    history = StudyLog(store, study.id).history()

    assert history.plans == (PLAN,)
    assert repr(history.analyses) == repr((ANALYSIS,))
    assert history.diagnoses == ("The reward is dead.",)
    assert StudyLog(store, study.id).find_plan(1) is None


def test_study_without_charter_says_so(store: ExperimentStore) -> None:
    study = store.create_study("t", planner="rules")

    with pytest.raises(ResearchError, match="no charter"):
        StudyLog(store, study.id).charter()


def test_study_that_fails_before_it_works_again_is_not_over(store: ExperimentStore) -> None:
    study = store.create_study("t", planner="rules").id
    log = StudyLog(store, study)
    for kind in (WORKING, REPORTED):
        log.note(kind, kind)
    failed = store.set_study_status(study, StudyStatus.FAILED, "no arm has a score")
    assert is_over(store, failed)

    log.note(WORKING, "working")

    assert not is_over(store, failed)


def _nothing() -> None:
    pass


def test_second_researcher_is_told_who_works_on_the_study(store: ExperimentStore, tmp_path: Path) -> None:
    study = store.create_study("batch size 2 or 3", planner="rules")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        owner = f"{socket.gethostname()}:{living.pid}:{process_start(living.pid)}"
        store.acquire_lease(f"study:{study.id}", owner, TTL_S)

        second = CliRunner().invoke(app, ["resume", study.id, "--home", str(tmp_path)])

    assert second.exit_code == StudyBusy.exit_code == 75
    assert f"is at work on study:{study.id}" in second.stderr


def test_dead_owner_is_replaced_at_once_and_locked_out(store: ExperimentStore) -> None:
    study = store.create_study("t", planner="rules")
    # No process has the number 0.
    dead = store.acquire_lease(f"study:{study.id}", f"{socket.gethostname()}:0:1", TTL_S)

    with StudyLease(store, study.id, on_beat=_nothing, on_lost=_nothing) as study_lease:
        study_lease.store.set_study_status(study.id, StudyStatus.PAUSED)
        with pytest.raises(StoreLeaseLost):
            store.under(dead).set_study_status(study.id, StudyStatus.FAILED)

    assert store.get_study(study.id).status is StudyStatus.PAUSED
    assert store.find_lease(f"study:{study.id}") is None


def test_loss_of_the_lease_is_noticed_at_the_next_heartbeat(store: ExperimentStore) -> None:
    beats, lost = threading.Event(), threading.Event()
    with StudyLease(store, "s", on_beat=beats.set, on_lost=lost.set, heartbeat_s=0.05):
        assert beats.wait(10)
        lease = store.find_lease("study:s")
        assert lease is not None
        store.release_lease(lease)
        store.acquire_lease("study:s", "elsewhere:1:1", TTL_S)

        assert lost.wait(10)
