"""Plan: the planner's next iteration becomes hypotheses and arms in the database."""

from __future__ import annotations

from dataclasses import replace

from experiments_db import ExperimentStatus
from researcher.base_scores import read_first_score
from researcher.charter import Charter
from researcher.errors import BudgetExceeded
from researcher.history import History
from researcher.loop.deps import Deps, ResearchState
from researcher.loop.explore import add_exploration, next_plan
from researcher.loop.nodes.analyze import hypothesis_key
from researcher.memory.recall import recall
from researcher.plan import Arm, Plan, Stage
from researcher.record.costs import compare_attempts, gather_costs
from researcher.record.log import Notebook, to_json
from researcher.record.runs import TrialState, list_all_trials


def plan(deps: Deps, state: ResearchState) -> ResearchState:
    iteration = state["iteration"]
    planned = deps.log.find_plan(iteration)
    if planned is None:
        charter = deps.charter()
        if iteration and (reason := deps.ledger.find_exhausted()):
            deps.log.warn("budget.used_up", f"No further plan: {reason}")
            return {**state, "is_halted": True, "is_budget_used_up": True}
        history = gather_history(deps, charter)
        search = charter.search
        proposed = deps.planner.plan(charter, history) if search is None else next_plan(deps, charter, search, history)
        if proposed is None:
            return {**state, "is_halted": True}
        arms = tuple(_with_checkpoints(arm, charter) for arm in proposed.arms)
        planned = replace(
            proposed,
            iteration=iteration,
            arms=arms,
            author=proposed.author or deps.planner.name,
            claim=history.claims,
        )
        if not _adds_runs(deps, planned):
            deps.log.note("plan.empty", "The next plan adds no run to those there are, so the study ends here.")
            return {**state, "is_halted": True}
        names = ", ".join(arm.name for arm in planned.arms)
        run = {(item.experiment.name, item.seed, item.rung) for item in list_all_trials(deps.store, deps.study_id)}
        count = len(_runs_of(planned) - run)
        if iteration and planned.stage is Stage.CLAIM and (reason := _too_dear(deps, count)):
            # A plan that the budget ends halfway decides nothing, and keeps the test split closed.
            deps.log.warn("budget.used_up", f"No further plan: {reason}")
            return {**state, "is_halted": True}
        deps.log.write_plan(
            planned,
            f"Plan {iteration + 1}{_purpose_of(planned)}: {names}; seeds {', '.join(map(str, planned.seeds))}; up to "
            f"{count} new runs.",
        )
    Notebook(deps.store, deps.study_id).note_plan(planned)
    _store(deps, planned)
    return state


def _runs_of(planned: Plan) -> set[tuple[str, int, int]]:
    return {(arm.name, seed, planned.rungs.get(arm.name, 0)) for arm in planned.arms for seed in planned.seeds}


def _purpose_of(planned: Plan) -> str:
    if planned.stage is Stage.EXPLORE:
        return " explores"
    return " confirms" if planned.primary else ""


def _too_dear(deps: Deps, runs: int) -> str | None:
    try:
        deps.ledger.ensure_can_launch(runs)
    except BudgetExceeded as error:
        return str(error)
    return None


def _with_checkpoints(arm: Arm, charter: Charter) -> Arm:
    """Return the arm with the checkpoints that scores at earlier steps need."""
    return replace(arm, job={**arm.job, "save_freq": charter.eval_every}) if charter.eval_every else arm


def _adds_runs(deps: Deps, planned: Plan) -> bool:
    """Return whether one of the plan's arms, if it may run, lacks a run with one of its seeds, up to its rung."""
    arms = {item.name: item for item in deps.store.list_experiments(deps.study_id)}
    trials = list_all_trials(deps.store, deps.study_id)
    tried = {(trial.experiment.name, trial.seed, trial.rung) for trial in trials if trial.state is not TrialState.OPEN}
    out = {name for name, arm in arms.items() if arm.status is ExperimentStatus.INVALID}
    return any(arm not in out for arm, *_ in _runs_of(planned) - tried)


def gather_history(deps: Deps, charter: Charter) -> History:
    """Return everything that a planner may know when it plans, decides or answers a review."""
    history = deps.log.history()
    costs = gather_costs(deps.store, deps.study_id, explores=True)
    base = read_first_score(deps.store, deps.study_id)
    history = replace(
        history,
        earlier_findings=recall(deps.store, deps.study_id, charter),
        attempts=compare_attempts(costs),
        base_score="" if base is None else base.text,
    )
    return add_exploration(deps, charter, history)


def _store(deps: Deps, planned: Plan) -> None:
    """Store hypotheses and arms under keys, so that a repeat after a crash adds nothing."""
    hypothesis_of: dict[str, str] = {}
    for index, item in enumerate(planned.hypotheses):
        stored = deps.store.create_hypothesis(
            deps.study_id,
            hypothesis_key(planned.iteration, index),
            item.statement,
            rationale=item.prediction,
            iteration=planned.iteration,
        )
        for arm in item.arms:
            hypothesis_of.setdefault(arm, stored.id)
    # Parents come first, because the other arms refer to them by id.
    for arm in sorted(planned.arms, key=lambda arm: not arm.is_baseline):
        parent = deps.store.find_experiment(deps.study_id, arm.parent) if arm.parent else None
        second = deps.store.find_experiment(deps.study_id, arm.second_parent) if arm.second_parent else None
        deps.store.create_experiment(
            deps.study_id,
            arm.name,
            factors=dict(arm.factors),
            job=dict(arm.job),
            train_environment=arm.environment,
            hypothesis_id=hypothesis_of.get(arm.name),
            parent_id=parent.id if parent else None,
            second_parent_id=second.id if second else None,
            operator=arm.operator,
            iteration=planned.iteration,
            is_baseline=arm.is_baseline,
            purpose=arm.rationale,
            manipulation=None if arm.manipulation is None else to_json(arm.manipulation),
        )
