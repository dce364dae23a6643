"""The decide node with a planner that has nothing to say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments_db import ExperimentStore, Severity, open_store
from researcher.execution.background import BackgroundTasks
from researcher.loop.deps import Deps
from researcher.loop.nodes.decide import decide
from researcher.loop.state import first_state
from researcher.planner.rules import RulesPlanner
from researcher.planner.scripted import Script, ScriptedPlanner
from researcher.servers.leases import LeaseHolder
from researcher.servers.server_pool import ServerPool
from researcher.study.budget import BudgetLedger
from researcher.study.log import StudyLog, to_json
from researcher.types import Analysis, Budget, FrameRequest, History


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperimentStore]:
    with open_store(tmp_path / "research.db") as store:
        yield store


def test_a_brain_without_an_answer_ends_the_study_and_why_is_on_record(store: ExperimentStore, tmp_path: Path) -> None:
    study = store.create_study("t", brain="scripted")
    log, rules = StudyLog(store, study.id), RulesPlanner()
    charter = rules.frame(FrameRequest("batch size 2 or 3 on reversal"))
    store.freeze_charter(study.id, to_json(charter))
    log.write_plan(rules.plan(charter, History()), "plan")
    log.write_analysis(0, Analysis(arms=(), comparisons=(), ranking=(), failed={}), "analysis")
    deps = Deps(
        study_id=study.id,
        store=store,
        log=log,
        planner=ScriptedPlanner(Script(charter, plans=(), programs={}, decisions=())),
        pool=ServerPool(urls=(), local=1, home=tmp_path, holder=LeaseHolder("study")),
        background=BackgroundTasks(1),
        ledger=BudgetLedger(store, study.id, Budget()),
        sandbox=None,
        home=tmp_path,
    )

    assert decide(deps, first_state(study.id))["is_halted"]

    (decision,) = store.list_decisions(study.id)
    assert (decision.action, decision.reason) == ("stop", "The planner came to no decision.")
    warnings = [event.message for event in store.list_events(study.id) if event.severity is Severity.WARNING]
    assert warnings == [
        "No interpretation: the script has no interpretation number 1",
        "No decision: the script has no decision number 1",
    ]
