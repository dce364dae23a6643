"""The scores of a study as the judge gets them, failed runs included, and the arms that are out of the ranking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, TypeVar

from experiments_db import EvaluationSummary, Experiment, ExperimentStatus, ExperimentStore, Run, RunStatus
from researcher.charter import Charter, JudgedBy
from researcher.judge import Runs, evaluation_noise, worst_score
from researcher.judge.learning_curves import (
    JudgedNumber,
    ScoredStep,
    area_under,
    curve_of,
    lowest_of,
    spread_of,
    steps_to,
)
from researcher.judge.samples import ScoredRun
from researcher.phases import AUTHORSHIP, BASE, FINAL, MANIPULATION, PLAIN_AGENT, TEST
from researcher.plan import Plan
from researcher.record.log import DISQUALIFIED, SUSPECT, plan_from_json
from researcher.record.runs import Trial, TrialState, list_all_trials
from researcher.record.unlike_training import find_not_as_trained

T = TypeVar("T")
Scores = dict[tuple[str, str], EvaluationSummary]
"""Evaluations by run and phase."""
FEWEST_FOR_SPREAD = 3


@dataclass(frozen=True, slots=True)
class StudyScores:
    """The runs of each arm by seed, in the order of the arms, and the reasons for missing scores.

    `missing` are the seeds that ended without a score. `cut_off` are those that the budget ended in progress. No later
    run of the arm has overtaken them, so they count as never begun. `rejected` are the arms that never ran.
    """

    runs: Mapping[str, Runs]
    missing: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])
    cut_off: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])
    rejected: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def reasons(self) -> dict[str, tuple[str, ...]]:
        """The reasons, for people, why an arm lacks scores."""
        without = {
            arm: {**self.missing.get(arm, {}), **self.cut_off.get(arm, {})} for arm in (*self.missing, *self.cut_off)
        }
        by_seed = {
            arm: tuple(f"seed {seed}: {why}" for seed, why in sorted(seeds.items())) for arm, seeds in without.items()
        }
        return {**by_seed, **{arm: (why,) for arm, why in self.rejected.items()}}


# Some failed runs are results: those that diverged, gave non-finite numbers, overran, cheated, or whose program crashed
# for good. The charter defines their score. A run that the system lost stays missing, with the reason by name.
# Exploring runs are left out, because they chose the arms.
def read_scores(store: ExperimentStore, study_id: str, charter: Charter) -> StudyScores:
    """Return the scores on the search split of all runs but those that explored."""
    experiments = store.list_experiments(study_id)
    rejected = {
        item.name: item.note or "rejected by check" for item in experiments if item.status is ExperimentStatus.INVALID
    }
    trials = [trial for trial in list_all_trials(store, study_id) if not trial.rung]
    claiming = {run.id for trial in trials for run in trial.runs}
    found = store.list_evaluation_summaries(study_id=study_id, split=charter.search_split)
    evaluations = [item for item in found if item.run_id in claiming]
    runs = {item.name: dict[int, ScoredRun]() for item in experiments}
    for trial, run in _score_trials(charter, trials, evaluations):
        runs[trial.experiment.name][trial.seed] = run
    missing, cut_off = _sort_out([trial for trial in trials if trial.seed not in runs[trial.experiment.name]], trials)
    if charter.judged_by is JudgedBy.SPREAD:
        runs = {arm: _spread(by_seed) for arm, by_seed in runs.items()}
    return StudyScores(runs, missing, cut_off, rejected)


def _spread(runs: Mapping[int, ScoredRun]) -> dict[int, ScoredRun]:
    """Return the runs of an arm with their distance from its median; empty for fewer than FEWEST_FOR_SPREAD runs."""
    if len(runs) < FEWEST_FOR_SPREAD:
        return {}
    distances = spread_of([JudgedNumber(run.score, run.noise) for run in runs.values()])
    return {
        seed: replace(run, score=distance.value, noise=distance.noise, base=None, base_noise=None)
        for (seed, run), distance in zip(runs.items(), distances, strict=True)
    }


def _score_trials(
    charter: Charter, trials: Sequence[Trial], evaluations: Sequence[EvaluationSummary]
) -> Iterable[tuple[Trial, ScoredRun]]:
    measured: Scores = {(item.run_id, item.phase): item for item in evaluations}
    by_run = _by_run(evaluations)
    untrained = [_base_of(trial, measured) for trial in trials]
    worst = worst_score(charter.of_scores, (item.mean for item in measured.values()))
    for trial, base in zip(trials, untrained, strict=True):
        if trial.finished is not None:
            run_id = trial.finished.id
            curve = curve_of(by_run[run_id], charter.search_split, charter.metric_range)
            given = _judge_by(charter, measured[run_id, FINAL], curve)
        elif trial.own_failure:
            run_id = trial.runs[-1].id
            curve = curve_of(by_run.get(run_id, []), charter.search_split, charter.metric_range)
            given = _judge_failed(charter, _score_of_failed(charter, base, untrained, worst), curve)
        else:
            continue
        if given is not None:
            yield (
                trial,
                ScoredRun(
                    *(run_id, given.value, given.noise),
                    # A difference between a number of steps and a score would have no meaning.
                    base=base.mean if base is not None and charter.judged_by.is_score else None,
                    failure=trial.own_failure,
                    base_noise=_noise(charter, base) if base is not None and charter.judged_by.is_score else None,
                    retries=_retries_of(trial),
                    with_plain=_with_plain(charter, measured, run_id, FINAL),
                ),
            )


def _with_plain(charter: Charter, measured: Scores, run_id: str, phase: str) -> ScoredRun | None:
    """Return a run as the baseline's agent scores its weights; None unless its arm has another agent."""
    found = measured.get((run_id, PLAIN_AGENT[phase]))
    if found is None or charter.judged_by is not JudgedBy.FINAL:
        return None
    return ScoredRun(run_id, found.mean, _noise(charter, found))


def _base_of(trial: Trial, measured: Scores) -> EvaluationSummary | None:
    return next((measured[run.id, BASE] for run in reversed(trial.runs) if (run.id, BASE) in measured), None)


def _retries_of(trial: Trial) -> tuple[str, ...]:
    """Return the reasons of earlier attempts that failed after their training had begun.

    A lost server, an exhausted budget and a pause stop an attempt, which is not a failure. A run that is scored as
    failed has no retries, because its failure is reported.
    """
    if trial.finished is None:
        return ()
    return tuple(
        run.exit_reason or "no reason recorded"
        for run in trial.runs
        if run.status is RunStatus.FAILED and run.started_at is not None
    )


def _sort_out(
    unscored: Iterable[Trial], trials: Iterable[Trial]
) -> tuple[dict[str, dict[int, str]], dict[str, dict[int, str]]]:
    """Return the reasons of trials that ended without a score, and of those that the end of the budget cut off.

    A program may delay a run that it does not like until the budget is used up. Then a later run of the same arm has
    finished before it, and the delayed run counts as missing.
    """
    scored_since = {
        trial.experiment.name: trial.runs[0].created_at
        for trial in sorted(trials, key=lambda trial: trial.runs[0].created_at)
        if trial.finished is not None
    }
    missing: dict[str, dict[int, str]] = {}
    cut_off: dict[str, dict[int, str]] = {}
    for trial in unscored:
        arm = trial.experiment.name
        if trial.budget_stop:
            is_overtaken = scored_since.get(arm, -1.0) > trial.runs[0].created_at
            (missing if is_overtaken else cut_off).setdefault(arm, {})[trial.seed] = trial.budget_stop
        elif trial.state is TrialState.GIVEN_UP:
            missing.setdefault(arm, {})[trial.seed] = trial.failure
    return missing, cut_off


def read_test_scores(store: ExperimentStore, study_id: str, charter: Charter) -> Mapping[str, Runs]:
    """Return the scores on the test split by arm and seed; empty before it was opened."""
    arms = {item.id: item.name for item in store.list_experiments(study_id)}
    scored = {run.id: run for run in store.list_runs(study_id=study_id)}
    found: dict[str, dict[int, ScoredRun]] = {}
    listed = store.list_evaluation_summaries(study_id=study_id, split=charter.test_split)
    measured: Scores = {(item.run_id, item.phase): item for item in listed}
    for (run_id, phase), item in measured.items():
        if phase == TEST:
            run = scored[run_id]
            plain = _with_plain(charter.of_scores, measured, run_id, TEST)
            found.setdefault(arms[run.experiment_id], {})[run.seed] = ScoredRun(
                run_id, item.mean, _noise(charter, item), with_plain=plain
            )
    return found


def choose_for_plan(
    plan: Plan, earlier: Iterable[Plan], by_arm: Mapping[str, Mapping[int, T]]
) -> dict[str, dict[int, T]]:
    """Return the entries by seed that the arms of a plan are judged by.

    If the plan pools runs, these are all entries of an arm, else those with seeds that no earlier plan used. An arm
    without a new seed is judged by its entries with the plan's seeds.
    """
    before: dict[str, set[int]] = {}
    for each in earlier:
        for arm in each.arms:
            before.setdefault(arm.name, set()).update(each.seeds)
    chosen: dict[str, dict[int, T]] = {}
    for arm in plan.arms:
        own = by_arm.get(arm.name, {})
        fresh = set(plan.seeds) - before.get(arm.name, set())
        seeds = set(own) if plan.pools_runs else fresh or set(plan.seeds)
        chosen[arm.name] = {seed: own[seed] for seed in sorted(own) if seed in seeds}
    return chosen


def _by_run(evaluations: Iterable[EvaluationSummary]) -> dict[str, list[EvaluationSummary]]:
    grouped: dict[str, list[EvaluationSummary]] = {}
    for item in evaluations:
        grouped.setdefault(item.run_id, []).append(item)
    return grouped


def _judge_by(charter: Charter, final: EvaluationSummary, curve: Sequence[ScoredStep]) -> JudgedNumber:
    """Return the number that a finished run is judged by; its final score if its curve has no other point."""
    found: JudgedNumber | None = None
    match charter.judged_by:
        case JudgedBy.AREA:
            found = area_under(curve)
        case JudgedBy.WORST:
            found = lowest_of(curve, charter.sign)
        case JudgedBy.STEPS_TO:
            found = _count_steps(charter, curve)
        case JudgedBy.FINAL | JudgedBy.SPREAD:
            pass
    return found or JudgedNumber(final.mean, _noise(charter, final))


def _count_steps(charter: Charter, curve: Sequence[ScoredStep]) -> JudgedNumber:
    """Return the steps up to the charter's level; all steps of the run if it never reaches the level."""
    assert charter.judged_level is not None, "the settings of a study ask for it"
    return steps_to(curve, charter.judged_level) or JudgedNumber(float(charter.job["total_steps"]), 0.0)


def _judge_failed(charter: Charter, failed: JudgedNumber | None, curve: Sequence[ScoredStep]) -> JudgedNumber | None:
    """Return the number that a failed run is judged by.

    It counts as if it had never reached a level, and as no better than its lowest score.
    """
    if charter.judged_by is JudgedBy.STEPS_TO:
        return JudgedNumber(float(charter.job["total_steps"]), 0.0)
    lowest = lowest_of(curve, charter.sign) if charter.judged_by is JudgedBy.WORST else None
    if failed is None or lowest is None:
        return failed
    return min(failed, lowest, key=lambda number: charter.sign * number.value)


def _score_of_failed(
    charter: Charter, base: EvaluationSummary | None, others: Iterable[EvaluationSummary | None], worst: float | None
) -> JudgedNumber | None:
    """Return the final score that a failed run counts with, and its noise; None if there is no basis for one."""
    if charter.failed_score == "base":
        if base is not None:
            return JudgedNumber(base.mean, _noise(charter, base))
        known = [item for item in others if item is not None]
        if known:
            return JudgedNumber(fmean(item.mean for item in known), _noise(charter, known[0]))
    return None if worst is None else JudgedNumber(worst, 0.0)


def _noise(charter: Charter, item: EvaluationSummary) -> float:
    return evaluation_noise(item.mean, item.stderr, item.episodes, charter.metric_range)


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
    runs = _planned_runs(store, study_id, until)
    accepted = store.get_study(study_id).settings.get("accept", ())
    by_scores = _find_out_by_scores(store, runs, accepted)
    return {**find_not_as_trained(store, study_id, runs), **by_scores, **excluded}


def find_suspects(store: ExperimentStore, study_id: str) -> dict[str, str]:
    """Return the arms that the planner does not trust, with its reasons; the first reason stays."""
    found: dict[str, str] = {}
    for decision in store.list_decisions(study_id):
        found = {**decision.details.get(SUSPECT, {}), **found}
    return found


def _planned_runs(store: ExperimentStore, study_id: str, until: int | None) -> dict[str, tuple[Run, Experiment]]:
    """Return the runs of the plans up to an iteration, by id, each with its arm."""
    arms = {item.id: item for item in store.list_experiments(study_id)}
    plans = [plan_from_json(stored.document) for stored in store.list_plans(study_id)]
    planned = {
        (arm.name, seed, plan.rungs.get(arm.name, 0))
        for plan in plans
        if until is None or plan.iteration <= until
        for arm in plan.arms
        for seed in plan.seeds
    }
    return {
        run.id: (run, arm)
        for run in store.list_runs(study_id=study_id)
        if (arm := arms.get(run.experiment_id)) and (arm.name, run.seed, run.rung) in planned
    }


def _find_out_by_scores(
    store: ExperimentStore, runs: Mapping[str, tuple[Run, Experiment]], accepted: Collection[str]
) -> dict[str, str]:
    """Return the arms that their final scores show to be out.

    A score may be one of the arm's code, and not of the model, unless a person has accepted the arm. Too few
    transcripts of an arm may pass its manipulation check, over all its scores.
    """
    arms = {arm.id: arm for _, arm in runs.values()}
    out: dict[str, str] = {}
    counts: dict[str, Counter[str]] = {}
    for score in store.list_evaluations(run_ids=list(runs), phase=FINAL):
        _, arm = runs[score.run_id]
        problem = score.details.get(AUTHORSHIP, {}).get("problem")
        if problem and arm.name not in accepted:
            out.setdefault(arm.name, problem)
        if arm.manipulation is not None:
            found, counted = score.details.get(MANIPULATION, {}), counts.setdefault(arm.id, Counter())
            counted.update({name: int(found.get(name, 0)) for name in ("passed", "total")})
    for arm_id, counted in counts.items():
        check = arms[arm_id].manipulation or {}
        passed, total = counted["passed"], counted["total"]
        if passed < check["share"] * total:
            out[arms[arm_id].name] = (
                f"it is not what it claims: in {passed} of {total} transcripts it is true that {check['statement']!r}"
            )
    return out


def find_limits(store: ExperimentStore, run_ids: Sequence[str]) -> tuple[str, ...]:
    """Return what a reader should know of the limits that an arm's requests put on the model's replies."""
    names = sorted({name for found in _authorships(store, run_ids) for name in found.get("limits", ())})
    return (f"its code limits the replies by the task: {', '.join(names)}",) if names else ()


def find_work_of_code(store: ExperimentStore, run_ids: Sequence[str]) -> str:
    """Return how the code of an arm did a part of the model's work; empty if it did not."""
    return next((str(found["problem"]) for found in _authorships(store, run_ids) if "problem" in found), "")


def _authorships(store: ExperimentStore, run_ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    scores = store.list_evaluations(run_ids=list(run_ids), phase=FINAL) if run_ids else []
    return (score.details[AUTHORSHIP] for score in scores if AUTHORSHIP in score.details)
