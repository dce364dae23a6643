"""Charter, plans and analyses survive the database unchanged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments_db import ExperimentStore, StudyStatus, Verdict, open_store
from researcher.analysis import Analysis, ArmSummary, Comparison
from researcher.errors import ResearchError
from researcher.history import History
from researcher.planner.rules import RulesPlanner
from researcher.record.log import (
    DIAGNOSED,
    EXTENDED,
    StudyLog,
    analysis_from_json,
    charter_from_json,
    plan_from_json,
    to_json,
)
from researcher.study.ending import REPORTED, WORKING, is_over
from researcher.study.settings import StudySettings
from researcher.study.topic import read_request

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


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperimentStore]:
    with open_store(tmp_path / "research.db") as store:
        yield store


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


def test_study_that_fails_before_it_works_again_after_it_was_extended_is_not_over(store: ExperimentStore) -> None:
    study = store.create_study("t", planner="rules").id
    log = StudyLog(store, study)
    for kind in (WORKING, REPORTED):
        log.note(kind, kind)
    failed = store.set_study_status(study, StudyStatus.FAILED, "no arm has a score")
    assert is_over(store, failed)

    log.note(EXTENDED, "extended")

    assert not is_over(store, failed)
