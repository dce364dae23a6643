"""The frame node: the charter keeps what the planner chose of how runs are measured, and takes the rest of a person."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_answers import RecordedAnswers

from experiments_db import open_store
from researcher.charter import Budget, Charter, JudgedBy
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.frame import frame
from researcher.planner.base import Planner
from researcher.planner.llm import LLMPlanner
from researcher.planner.rules import RulesPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.servers.server import LeaseHolder
from researcher.servers.server_pool import ServerPool
from researcher.study.settings import read_settings

REVERSE_CALLS, REVERSE_TOKENS = 8, 8 * 12
"""The limits of an attempt at word reversal, which has one reply of at most 12 tokens."""
CHOSEN = {"judged_by": "worst", "eval_every": 5, "attempt_calls": 3, "attempt_tokens": 900, "eval_episodes": 50}


def frame_with(home: Path, planner: Planner, topic: str, flags: dict[str, object]) -> Charter:
    with open_store(home / "research.db") as store:
        study = store.create_study(topic, planner=planner.name).id
        deps = Deps(
            log=StudyLog(store, study),
            planner=planner,
            pool=ServerPool(urls=(), local=1, home=home, holder=LeaseHolder("study")),
            ledger=BudgetLedger(store, study, Budget()),
            home=home,
        )
        frame(deps, first_state(study), read_settings({"engine": "fake", **flags}).request(topic))
        deps.environments.close()
        return deps.charter()


@pytest.mark.parametrize(
    ("flags", "limits"),
    [
        ({}, (REVERSE_CALLS, REVERSE_TOKENS)),
        ({"attempt_calls": 3}, (3, 3 * 12)),
        ({"attempt_calls": 3, "attempt_tokens": 50}, (3, 50)),
        ({"scope": "settings"}, (None, None)),
    ],
)
def test_agents_are_compared_at_equal_limits_of_an_attempt(
    tmp_path: Path, flags: dict[str, object], limits: tuple[int | None, int | None]
) -> None:
    settings = {"planner": "rules", "kind": "optimize", "env": "reverse", **flags}
    charter = frame_with(tmp_path, RulesPlanner(), "Find the best program for word reversal", settings)
    assert (charter.attempt_calls, charter.attempt_tokens) == limits
    assert any("model calls" in each for each in charter.assumptions) == (limits[0] is not None and len(flags) < 2)


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
    framed = {"question": "Which rate?", "family": "reverse", "vary": ["lr=1e-3,3e-3"], **answer}
    planner = LLMPlanner(RecordedAnswers(frame=[framed]))
    charter = frame_with(tmp_path, planner, "Which rate?", {"planner": "llm", **flags})

    found = (charter.judged_by, charter.eval_every, charter.attempt_calls, charter.attempt_tokens)
    assert (*found, charter.eval_episodes) == kept
