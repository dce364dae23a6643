"""The scores of a study as the judge takes them: every run that counts, those that failed by their own doing included.

Place in the flow: `analyze` and the report read them here, from the database alone. A run that diverged, gave numbers
that are not finite, overran, cheated, or whose program crashed for good is a result, and scored as the charter says; a
run that was lost to the system stays missing, with the reason by name. This module judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from experiments_db import EvaluationSummary, ExperimentStatus, ExperimentStore
from researcher.evaluator import BASE, FINAL, SEALED
from researcher.execution.runs import TrialState, list_all_trials
from researcher.judge import Runs, evaluation_noise
from researcher.learning_curves import ScoredStep, area_under, curve_of
from researcher.types import Charter, JudgedBy, Plan, ScoredRun


@dataclass(frozen=True, slots=True)
class StudyScores:
    """By arm, in the order of the arms: the runs by seed, and the reasons of what has no score."""

    runs: Mapping[str, Runs]
    missing: Mapping[str, tuple[str, ...]]


def read_scores(store: ExperimentStore, study_id: str, charter: Charter) -> StudyScores:
    """All scores on the search split."""
    experiments = store.list_experiments(study_id)
    runs: dict[str, dict[int, ScoredRun]] = {item.name: {} for item in experiments}
    missing: dict[str, tuple[str, ...]] = {
        item.name: (item.note or "rejected by check",)
        for item in experiments
        if item.status is ExperimentStatus.INVALID
    }
    trials = list_all_trials(store, study_id)
    evaluations = store.list_evaluation_summaries(study_id=study_id, split=charter.search_split)
    measured = {(item.run_id, item.phase): item for item in evaluations}
    curves = {
        run_id: curve_of(items, charter.search_split, charter.metric_range)
        for run_id, items in _by_run(evaluations).items()
    }
    untrained = [
        next((measured[run.id, BASE] for run in reversed(trial.runs) if (run.id, BASE) in measured), None)
        for trial in trials
    ]
    worst = _worst_score(charter, (item.mean for item in measured.values()))
    for trial, base in zip(trials, untrained, strict=True):
        arm = trial.experiment.name
        if trial.finished is not None:
            score, noise = _score_of(charter, measured[trial.finished.id, FINAL], curves[trial.finished.id])
            runs[arm][trial.seed] = ScoredRun(trial.finished.id, score, noise, _mean(base), trial.own_failure)
        elif trial.own_failure and (given := _score_of_failed(charter, base, untrained, worst)):
            score, noise = given
            runs[arm][trial.seed] = ScoredRun(trial.runs[-1].id, score, noise, _mean(base), trial.own_failure)
        elif trial.budget_stop:
            missing[arm] = (*missing.get(arm, ()), f"seed {trial.seed}: {trial.budget_stop}")
        elif trial.state is TrialState.GIVEN_UP:
            missing[arm] = (*missing.get(arm, ()), f"seed {trial.seed}: {trial.failure}")
    return StudyScores(runs, missing)


def read_sealed(store: ExperimentStore, study_id: str, charter: Charter) -> Mapping[str, Runs]:
    """The scores on the sealed split by arm and seed; empty before it was opened."""
    arms = {item.id: item.name for item in store.list_experiments(study_id)}
    scored = {run.id: run for run in store.list_runs(study_id=study_id)}
    sealed: dict[str, dict[int, ScoredRun]] = {}
    for item in store.list_evaluation_summaries(study_id=study_id, phase=SEALED, split=charter.sealed_split):
        run = scored[item.run_id]
        sealed.setdefault(arms[run.experiment_id], {})[run.seed] = ScoredRun(run.id, item.mean, _noise(charter, item))
    return sealed


def runs_of_plan(plan: Plan, earlier: Iterable[Plan], runs: Mapping[str, Runs]) -> dict[str, Runs]:
    """What the arms of a plan are judged by: all their runs if it pools them, else those that no plan before it had.

    A plan that repeats an arm without a new seed is judged by that arm's runs with the plan's seeds.
    """
    before: dict[str, set[int]] = {}
    for each in earlier:
        for arm in each.arms:
            before.setdefault(arm.name, set()).update(each.seeds)
    chosen: dict[str, Runs] = {}
    for arm in plan.arms:
        own = runs.get(arm.name, {})
        fresh = set(plan.seeds) - before.get(arm.name, set())
        seeds = set(own) if plan.pools_runs else fresh or set(plan.seeds)
        chosen[arm.name] = {seed: own[seed] for seed in sorted(own) if seed in seeds}
    return chosen


def _by_run(evaluations: Iterable[EvaluationSummary]) -> dict[str, list[EvaluationSummary]]:
    grouped: dict[str, list[EvaluationSummary]] = {}
    for item in evaluations:
        grouped.setdefault(item.run_id, []).append(item)
    return grouped


def _score_of(charter: Charter, final: EvaluationSummary, curve: Sequence[ScoredStep]) -> tuple[float, float]:
    """The number that a run is judged by, and its noise from evaluation."""
    area = area_under(curve) if charter.judged_by is JudgedBy.AREA else None
    return (final.mean, _noise(charter, final)) if area is None else (area.mean, area.noise)


def _score_of_failed(
    charter: Charter, base: EvaluationSummary | None, others: Iterable[EvaluationSummary | None], worst: float | None
) -> tuple[float, float] | None:
    """The score and its noise; None if the charter leaves such runs out, or there is nothing to go by."""
    if charter.failed_score == "missing":
        return None
    if charter.failed_score == "base":
        if base is not None:
            return base.mean, _noise(charter, base)
        known = [item for item in others if item is not None]
        if known:
            return fmean(item.mean for item in known), _noise(charter, known[0])
    return None if worst is None else (worst, 0.0)


def _worst_score(charter: Charter, seen: Iterable[float]) -> float | None:
    is_minimized = charter.direction == "minimize"
    if charter.metric_range is not None:
        return charter.metric_range[1 if is_minimized else 0]
    return (max if is_minimized else min)(seen, default=None)


def _noise(charter: Charter, item: EvaluationSummary) -> float:
    return evaluation_noise(item.mean, item.stderr, item.episodes, charter.metric_range)


def _mean(item: EvaluationSummary | None) -> float | None:
    return None if item is None else item.mean
