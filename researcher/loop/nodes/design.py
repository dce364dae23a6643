"""Design: the number of runs of each arm of a plan with a claim, and their power, before arms are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from experiments_db import TRAINING_SECONDS, BudgetKind
from researcher.charter import Charter, JudgedBy, SampleSizeGoal
from researcher.errors import Underpowered
from researcher.judge.equality_size import describe_need, forecast
from researcher.judge.power import Spread, assume_spread, choose_size, measure_spread
from researcher.judge.samples import ScoredRun
from researcher.judge.size_words import describe_size, refuse_size
from researcher.loop.deps import Deps, ResearchState
from researcher.loop.nodes.write_program import planned_iteration
from researcher.memory.prior import confirm, find_prior
from researcher.memory.settlement import set_out_to_check
from researcher.plan import Plan, Stage
from researcher.record.log import charter_from_json
from researcher.record.runs import Trial, TrialState, list_all_trials, list_trials
from researcher.record.scores import read_scores
from researcher.search.record import read_tree
from researcher.search.rules import runs_for_claim

ENOUGH_DF = 6
"""Degrees of freedom of earlier studies that replace a pilot: three arms of three runs."""
MAX_STUDIES = 200
FORECAST = "plan.forecast"
"""The kind of the event that says, before the first run, what a margin takes."""


def design(deps: Deps, state: ResearchState) -> ResearchState:
    """Choose the sample size of the first plan with a claim, or of any confirmation.

    A question that earlier studies decided is confirmed with fewer runs, unless a person asks for a study made anew.
    Otherwise the variance of a run's score comes from earlier studies of the same environment and model, or from a
    pilot. The pilot is the first runs of the baseline, which later count as its own. The arms were planned before, so
    the pilot chooses no arm. A search goes on with less power than wanted, because its exploration is done. A later
    confirmation has its own share of alpha, and the runs before it are its pilot. A question for equality says before
    the first run how many runs its margin takes.

    Raises Underpowered if a comparing study cannot reach the power it needs, unless a person chose the seeds or
    accepted that.
    """
    charter, planned = deps.charter(), planned_iteration(deps.log, state)
    if charter.sample_size is None or not needs_design(charter, planned):
        return state
    goal = _goal_of(charter, charter.sample_size, planned)
    if (confirmed := _confirm(deps, charter, planned, goal)) is not None:
        deps.log.write_plan(confirmed, confirmed.rationale, kind="plan.sized")
        return state
    remembered = _remember_spread(deps, charter, planned)
    most = _most_runs(deps, charter, planned)
    if charter.margin is not None and remembered is None and not _is_begun(deps, planned):
        _forecast(deps, charter, planned, goal, most)
    spread = remembered or _find_spread(deps, charter, planned, goal)
    if spread is None:
        return state
    size = choose_size(
        # The size is that of a first plan, and alpha is shared out anew from this one on.
        replace(charter, rule=replace(charter.rule, shares=charter.rule.shares[planned.claim :])),
        goal,
        spread,
        len(planned.arms),
        primary=len(planned.primary),
        max_runs=most,
        run_seconds=_seconds_of_a_run(deps, charter),
        parallel=len(deps.pool.slots),
    )
    need = ""
    if charter.margin is not None and size.power < goal.target_power:
        need = describe_need(charter, goal, spread, len(planned.arms))
    if goal.seeds is None and not goal.is_underpowered and size.power < goal.min_power and charter.search is None:
        raise Underpowered(refuse_size(goal, size, need))
    first = planned.seeds[0]
    seeds = tuple(range(first, first + size.seeds)) if goal.seeds is None else planned.seeds
    sized = replace(planned, seeds=seeds, sample_size=size)
    deps.log.write_plan(sized, describe_size(goal, size, need), kind="plan.sized")
    return state


def _goal_of(charter: Charter, goal: SampleSizeGoal, planned: Plan) -> SampleSizeGoal:
    """Return the goal of a plan: the smallest effect that it looks for, or that one of its hypotheses rules out."""
    nulls = [
        item.contrast.margin or charter.rule.min_effect
        for item in planned.hypotheses
        if item.contrast is not None and item.contrast.rules_out_a_gain and planned.primary
    ]
    return replace(goal, target_effect=min(goal.target_effect, *nulls)) if nulls else goal


def _forecast(deps: Deps, charter: Charter, planned: Plan, goal: SampleSizeGoal, max_runs: int | None) -> None:
    """Say once what the margin takes.

    Raises Underpowered if the study is too small even for runs that are much alike, unless a person accepted that.
    """
    arms = len(planned.arms)
    seeds = goal.seeds or (goal.max_seeds if max_runs is None else min(goal.max_seeds, max_runs // arms))
    expected = forecast(charter, goal, arms, seeds)
    if goal.seeds is None and not goal.is_underpowered and expected.power < goal.min_power:
        raise Underpowered(
            f"too few runs for the margin. {expected.sentence} Start the study anew with {expected.need}; or with a "
            "wider --margin, or with --underpowered"
        )
    if not deps.store.list_events(deps.study_id, kind=FORECAST, limit=1):
        deps.log.note(FORECAST, expected.sentence)


def _confirm(deps: Deps, charter: Charter, planned: Plan, goal: SampleSizeGoal) -> Plan | None:
    """Return the plan with the runs that confirm what earlier studies found; None if the question is studied anew.

    A number of runs that a person chose stands. A search confirms what itself has found. Equality is sized by its
    margin, whatever was found before.
    """
    is_by_itself = goal.seeds is not None or charter.search is not None or charter.margin is not None
    if deps.is_afresh or is_by_itself or _is_begun(deps, planned):
        return None
    prior = find_prior(deps.store, deps.study_id, charter, planned)
    if prior is None:
        return None
    confirmation = confirm(charter, goal, prior, len(planned.arms), max_runs=charter.budget.max_runs)
    size = confirmation.size
    if size is None:
        deps.log.note("plan.studies_anew", confirmation.sentence)
        return None
    set_out_to_check(deps.store, deps.study_id, [item.finding.id for item in prior.findings])
    seeds = tuple(range(prior.first_seed, prior.first_seed + size.seeds))
    return replace(
        planned, seeds=seeds, sample_size=size, rationale=f"{planned.rationale} {confirmation.sentence}".strip()
    )


def _is_begun(deps: Deps, planned: Plan) -> bool:
    """Return whether a run of the plan exists already, so that its number of runs comes from the pilot."""
    return any(trial.runs for trial in list_trials(deps.store, deps.study_id, planned))


def needs_design(charter: Charter, planned: Plan) -> bool:
    """Return whether a plan needs its number of runs. Plans after the first one of given arms have their planner's."""
    is_designed = planned.stage is Stage.CLAIM and (planned.claim == 0 or charter.search is not None)
    return charter.sample_size is not None and is_designed and planned.sample_size is None


def _most_runs(deps: Deps, charter: Charter, planned: Plan) -> int | None:
    """Return the most runs that the plan may have; None without a limit."""
    if charter.search is None:
        return charter.budget.max_runs
    # The runs of the pilot are charged already, and the plan counts them too.
    pilot = sum(bool(trial.runs) for trial in pilot_trials(deps, charter, planned))
    used = deps.ledger.used()[BudgetKind.RUNS] - pilot
    return runs_for_claim(charter, charter.search, used=used, claims=planned.claim)


def pilot_trials(deps: Deps, charter: Charter, planned: Plan) -> list[Trial]:
    """Return the trials that run first: the baseline with the first seeds.

    There are none if the baseline may not run, and for a later confirmation, which follows scored runs.
    """
    goal = charter.sample_size
    if goal is None or planned.claim:
        return []
    trials = [
        trial for trial in list_trials(deps.store, deps.study_id, planned) if trial.experiment.name == charter.baseline
    ]
    return trials[: goal.pilot_seeds]


def _find_spread(deps: Deps, charter: Charter, planned: Plan, goal: SampleSizeGoal) -> Spread | None:
    """Return the spread of the scores that the study has; None while the pilot runs.

    These are the pilot, or the runs of earlier confirmations, and the baseline's exploring run of full length. Without
    two of them, the exploring runs of full length of all arms count as those of one arm, which differ less. The spread
    is assumed only where there are no two.
    """
    pilot = pilot_trials(deps, charter, planned)
    if goal.seeds is None and any(trial.state in (TrialState.OPEN, TrialState.ACTIVE) for trial in pilot):
        return None
    runs = list(read_scores(deps.store, deps.study_id, charter).runs.get(charter.baseline, {}).values())
    explored = _explored_in_full(deps, charter)
    of_baseline = [explored[charter.baseline]] if charter.baseline in explored else []
    if len(runs) + len(of_baseline) > 1:
        exploring = " and its exploring run" if of_baseline else ""
        before = "the" if planned.claim else "a pilot of"
        basis = f"{before} {len(runs)} runs of {charter.baseline}{exploring}"
        return _measure(charter, [*runs, *of_baseline], len(runs), basis)
    if len(explored) > 1:
        basis = f"the exploring runs of {len(explored)} arms, which differ more than runs of one arm"
        return _measure(charter, list(explored.values()), 0, basis)
    pilot_failed = "an assumption: the pilot gave no two scores"
    return assume_spread(charter) if goal.seeds is not None else assume_spread(charter, pilot_failed)


def _measure(charter: Charter, runs: list[ScoredRun], counting: int, basis: str) -> Spread:
    """Return the spread of runs of which the first `counting` have the number of episodes of the plan.

    The noise of the others is that of exploration, which is no noise of the plan.
    """
    spread = measure_spread(charter, [runs], basis)
    judged = [run if index < counting else replace(run, noise=0.0) for index, run in enumerate(runs)]
    return replace(spread, noise_variance=measure_spread(charter, [judged], basis).noise_variance)


def _explored_in_full(deps: Deps, charter: Charter) -> dict[str, ScoredRun]:
    """Return the exploring runs that had the whole training, by arm; none if a study judges more than final scores."""
    if charter.search is None or charter.judged_by is not JudgedBy.FINAL:
        return {}
    nodes = read_tree(deps.store, deps.study_id, charter).nodes
    full = {node.name: score for node in nodes if (score := node.at(charter.search.rungs[-1])) and not node.failure}
    return {name: ScoredRun(name, score.score, score.stderr**2) for name, score in full.items()}


def _remember_spread(deps: Deps, charter: Charter, planned: Plan) -> Spread | None:
    """Return the spread in earlier studies of the same tasks, number of episodes, model and number of steps.

    None if these have too few degrees of freedom.
    """
    arms: list[list[ScoredRun]] = []
    studies = 0
    wanted = {_kind_of_job(arm.job) for arm in planned.arms}
    for study in deps.store.list_studies(limit=MAX_STUDIES):
        stored = deps.store.find_charter(study.id)
        if study.id == deps.study_id or stored is None:
            continue
        if not _is_measured_alike(charter_from_json(stored.document), charter):
            continue
        jobs = {item.name: _kind_of_job(item.job) for item in deps.store.list_experiments(study.id)}
        scored = read_scores(deps.store, study.id, charter).runs
        found = [list(runs.values()) for arm, runs in scored.items() if jobs[arm] in wanted and len(runs) > 1]
        arms += found
        studies += bool(found)
    if sum(len(runs) - 1 for runs in arms) < ENOUGH_DF:
        return None
    return measure_spread(charter, arms, f"{studies} earlier studies of this environment and model")


def _is_measured_alike(other: Charter, charter: Charter) -> bool:
    """Return whether two studies score their runs the same way, so that the scores vary alike."""
    return all(
        getattr(other, name) == getattr(charter, name)
        for name in ("environment_digest", "eval_episodes", "judged_by", "judged_level", "eval_every")
    )


def _kind_of_job(job: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(job.get(name) for name in ("engine", "model", "total_steps"))


def _seconds_of_a_run(deps: Deps, charter: Charter) -> float | None:
    """Return the seconds that the whole trainings of the baseline took so far, on average; None before the first."""
    trials = (trial for trial in list_all_trials(deps.store, deps.study_id) if not trial.rung)
    runs = [trial.finished.id for trial in trials if trial.finished and trial.experiment.name == charter.baseline]
    seconds = deps.store.sum_metric(runs, TRAINING_SECONDS)
    return fmean(seconds.values()) if seconds else None
