"""The decide node with a brain that has nothing to say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments_db import ExperimentStore, Severity, open_store
from researcher.brain.rules import RulesBrain
from researcher.brain.scripted import Script, ScriptedBrain
from researcher.budget import BudgetLedger
from researcher.crew import Crew
from researcher.deps import Deps
from researcher.journal import Journal, charter_to_json
from researcher.nodes.decide import decide
from researcher.servers import ServerPool
from researcher.state import first_state
from researcher.types import Analysis, Budget, FrameRequest, History


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperimentStore]:
    with open_store(tmp_path / "research.db") as store:
        yield store


def test_a_brain_without_an_answer_ends_the_study_and_why_is_on_record(store: ExperimentStore, tmp_path: Path) -> None:
    study = store.create_study("t", brain="scripted")
    journal, rules = Journal(store, study.id), RulesBrain()
    charter = rules.frame(FrameRequest("batch size 2 or 3 on reversal"))
    store.freeze_charter(study.id, charter_to_json(charter))
    journal.write_plan(rules.plan(charter, History()), "plan")
    journal.write_analysis(0, Analysis(arms=(), comparisons=(), ranking=(), failed={}), "analysis")
    deps = Deps(
        study_id=study.id,
        store=store,
        journal=journal,
        brain=ScriptedBrain(Script(charter, plans=(), clients={}, decisions=())),
        pool=ServerPool(urls=(), local=1, home=tmp_path),
        crew=Crew(1),
        ledger=BudgetLedger(store, study.id, Budget()),
        sandbox=None,
        home=tmp_path,
    )

    assert decide(deps, first_state(study.id))["is_halted"]

    (decision,) = store.list_decisions(study.id)
    assert (decision.action, decision.reason) == ("stop", "The brain came to no decision.")
    warnings = [event.message for event in store.list_events(study.id) if event.severity is Severity.WARNING]
    assert warnings == [
        "No interpretation: the script has no interpretation number 1",
        "No decision: the script has no decision number 1",
    ]
