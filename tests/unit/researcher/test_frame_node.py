"""The frame node: the charter keeps what the planner chose of how runs are measured, and takes the rest of a person."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_answers import RecordedAnswers

from experiments_db import open_store
from researcher.charter import Budget, Charter, JudgedBy
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.frame import frame
from researcher.planner.llm import LLMPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.servers.server import LeaseHolder
from researcher.servers.server_pool import ServerPool
from researcher.study.settings import read_settings

CHOSEN = {"judged_by": "worst", "eval_every": 5, "attempt_calls": 3, "attempt_tokens": 900, "eval_episodes": 50}


@pytest.mark.parametrize(
    ("answer", "flags", "kept"),
    [
        (CHOSEN, {}, (JudgedBy.WORST, 5, 3, 900, 50)),
        ({}, {}, (JudgedBy.FINAL, 0, None, None, 400)),
        ({"eval_every": 2}, {"attempt_calls": 7}, (JudgedBy.FINAL, 2, 7, None, 400)),
        ({}, {"metric": "area", "eval_every": 10}, (JudgedBy.AREA, 10, None, None, 400)),
    ],
)
def test_choices_of_the_planner_are_frozen_beside_those_of_the_person(
    tmp_path: Path, answer: dict[str, object], flags: dict[str, object], kept: tuple[object, ...]
) -> None:
    request = read_settings({"planner": "llm", "engine": "fake", **flags}).request("Which rate?")
    framed = {"question": "Which rate?", "family": "reverse", "vary": ["lr=1e-3,3e-3"], **answer}
    with open_store(tmp_path / "research.db") as store:
        study = store.create_study("Which rate?", planner="llm").id
        deps = Deps(
            log=StudyLog(store, study),
            planner=LLMPlanner(RecordedAnswers(frame=[framed])),
            pool=ServerPool(urls=(), local=1, home=tmp_path, holder=LeaseHolder("study")),
            ledger=BudgetLedger(store, study, Budget()),
            home=tmp_path,
        )
        frame(deps, first_state(study), request)
        deps.environments.close()
        charter: Charter = deps.charter()

    found = (charter.judged_by, charter.eval_every, charter.attempt_calls, charter.attempt_tokens)
    assert (*found, charter.eval_episodes) == kept
