"""The arms that are out of the ranking, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from experiments_db import Author, Experiment, ExperimentStore
from researcher.phases import AUTHORSHIP, FINAL, MANIPULATION
from researcher.plan import Plan
from researcher.record.log import DISQUALIFIED, plan_from_json


def find_excluded(store: ExperimentStore, study_id: str, until: int | None = None) -> dict[str, str]:
    """Return the excluded arms with their reasons, of all iterations or of those up to one.

    The first reason stays, and nothing takes an arm back in.
    """
    excluded: dict[str, str] = {}
    for decision in store.list_decisions(study_id):
        if until is None or decision.iteration <= until:
            excluded = {**decision.details.get(DISQUALIFIED, {}), **excluded}
    names = {item.id: item.name for item in store.list_experiments(study_id)}
    for review in store.list_reviews(study_id):
        is_by_then = until is None or review.iteration <= until
        if review.is_withdrawn and is_by_then and review.experiment_id in names:
            excluded.setdefault(names[review.experiment_id], f"withdrawn after a review: {review.response}")
    return {
        **_find_solved_in_code(store, study_id, until),
        **_find_failed_manipulation(store, study_id, until),
        **excluded,
    }


def _find_solved_in_code(store: ExperimentStore, study_id: str, until: int | None) -> dict[str, str]:
    """Return the arms a final score of which is one of their code and not of the model.

    Only programs of a language model are looked at.
    """
    arms = store.list_experiments(study_id)
    names = {item.id: item.name for item in arms if item.author is Author.LANGUAGE_MODEL}
    if not names:
        return {}
    planned = _runs_until([plan_from_json(stored.document) for stored in store.list_plans(study_id)], until)
    runs = {run.id: run for run in store.list_runs(study_id=study_id) if run.experiment_id in names}
    found: dict[str, str] = {}
    for score in store.list_evaluations(run_ids=list(runs), phase=FINAL):
        run = runs[score.run_id]
        arm, problem = names[run.experiment_id], score.details.get(AUTHORSHIP, {}).get("problem")
        if problem and (arm, run.seed, run.rung) in planned:
            found.setdefault(arm, problem)
    return found


def _find_failed_manipulation(store: ExperimentStore, study_id: str, until: int | None) -> dict[str, str]:
    """Return the arms of whose transcripts too few pass the manipulation check, over all scores after training."""
    checked = {item.id: item for item in store.list_experiments(study_id) if item.manipulation is not None}
    if not checked:
        return {}
    plans = [plan_from_json(stored.document) for stored in store.list_plans(study_id)]
    planned = _runs_until(plans, until)
    counts = {arm: [0, 0] for arm in checked}
    for run in store.list_runs(study_id=study_id):
        arm = checked.get(run.experiment_id)
        if arm is None or (arm.name, run.seed, run.rung) not in planned:
            continue
        for score in store.list_evaluations(run_ids=[run.id], phase=FINAL):
            counted = score.details.get(MANIPULATION, {})
            counts[arm.id][0] += int(counted.get("passed", 0))
            counts[arm.id][1] += int(counted.get("total", 0))
    return {
        checked[arm].name: _describe(checked[arm], passed, total)
        for arm, (passed, total) in counts.items()
        if passed < _check_of(checked[arm])["share"] * total
    }


def _runs_until(plans: Iterable[Plan], until: int | None) -> set[tuple[str, int, int]]:
    """Return arm, seed and rung of every run that the plans up to an iteration ask for."""
    return {
        (arm.name, seed, plan.rungs.get(arm.name, 0))
        for plan in plans
        if until is None or plan.iteration <= until
        for arm in plan.arms
        for seed in plan.seeds
    }


def _describe(arm: Experiment, passed: int, total: int) -> str:
    statement = _check_of(arm)["statement"]
    return f"it is not what it claims: in {passed} of {total} transcripts it is true that {statement!r}"


def _check_of(arm: Experiment) -> Mapping[str, Any]:
    assert arm.manipulation is not None, "only such arms are looked at"
    return arm.manipulation
