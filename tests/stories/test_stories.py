"""Three studies by a careful planner, as a language model and as an agent over MCP: the honest arm alone is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments_db import ExperimentStatus, ExperimentStore, NoteKind, RunStatus, Verdict, open_store
from researcher.plan import Stage
from researcher.record.log import StudyLog
from researcher.report.clauses import list_clauses
from researcher.report.numbers.gather import gather
from researcher.verification.verify import verify_study
from stories.story import Story, load_story, play_by_agent, play_by_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("play", [play_by_model, play_by_agent])
@pytest.mark.parametrize("name", ["reward", "workflow", "recipe"])
def test_the_honest_improvement_is_kept_and_nothing_else(
    name: str, play: Callable[[Story, Path], None], tmp_path: Path
) -> None:
    story, home = load_story(name), tmp_path / "runs"
    play(story, home)
    with open_store(home / "research.db", read_only=True) as store:
        [study] = store.list_studies()
        assert study.status == "finished", study.status_reason
        check_arms(story, store, study.id, is_reviewed=play is play_by_model)
        facts = gather(store, study.id)
        assert all(clause.result for clause in list_clauses(facts))
        assert not verify_study(store, study.id).mismatches


def check_arms(story: Story, store: ExperimentStore, study_id: str, *, is_reviewed: bool) -> None:
    arms = {arm.name: arm for arm in store.list_experiments(study_id)}
    plans = StudyLog(store, study_id).history().plans
    assert sum(plan.stage is Stage.EXPLORE for plan in plans) >= 4

    kept = {item.experiment_id for item in store.list_findings(study_id=study_id, verdict=Verdict.KEEP)}
    assert len(kept) >= 1 and kept <= {arms[name].id for name in story.kept if name in arms}
    for name in story.rejected:
        assert arms[name].status is ExperimentStatus.INVALID and not store.list_runs(experiment_id=arms[name].id)
    for name in story.crashed:
        assert [run.status for run in store.list_runs(experiment_id=arms[name].id)] == [RunStatus.FAILED]
        [heir] = [arm for arm in arms.values() if arm.parent_id == arms[name].id]
        assert heir.operator == "debug" and heir.status is ExperimentStatus.READY
    repairs = [event.message for event in store.list_events(study_id, kind="arm.repair", limit=None)]
    for name in story.repaired:
        assert any(message.startswith(f"{name}: ") for message in repairs)
        assert arms[name].status is ExperimentStatus.READY
    if is_reviewed:
        withdrawn = {review.experiment_id for review in store.list_reviews(study_id) if review.is_withdrawn}
        assert withdrawn <= {arms[name].id for name in story.withdrawn}
    told = [note.text for note in store.list_notes(study_id, kind=NoteKind.TRIED)]
    assert all(any(name in text for text in told) for name in story.gamed)
