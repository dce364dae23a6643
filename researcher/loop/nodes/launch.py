"""Launch: open trials of the plan go to free servers; the key of a run is stored before the server hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from experiments_db import BudgetKind, RunStatus, Severity
from researcher.errors import BudgetExceeded
from researcher.execution.runs import Trial, TrialState, job_of, run_key, total_steps
from researcher.execution.servers import Slot
from researcher.loop.deps import ActiveRun, Deps
from researcher.loop.nodes.design import needs_design, pilot_trials
from researcher.loop.nodes.write_program import is_trusted, planned_iteration
from researcher.loop.state import ResearchState


def launch(deps: Deps, state: ResearchState) -> ResearchState:
    for trial in open_trials(deps, state):
        slot = deps.pool.take()
        if slot is None:
            break
        try:
            # Another attempt at a trial that was paid for is free.
            deps.ledger.ensure_can_launch(0 if trial.runs else 1)
        except BudgetExceeded as error:
            deps.pool.give_back(slot)
            deps.log.note("budget.spent", f"No further run: {error}", severity=Severity.WARNING)
            return {**state, "is_spent": True}
        begin(deps, trial, slot, is_fresh=True)
    return state


def open_trials(deps: Deps, state: ResearchState) -> Iterator[Trial]:
    """Those that the plan still needs; while the number of runs is not chosen, those of the pilot."""
    planned, charter = planned_iteration(deps.log, state), deps.log.charter()
    if needs_design(charter, planned):
        pilot = pilot_trials(deps, charter, planned)
        return iter([trial for trial in pilot if trial.state is TrialState.OPEN])
    return deps.open_trials.of_plan(planned)


def _is_any_open(deps: Deps, state: ResearchState) -> bool:
    return next(open_trials(deps, state), None) is not None


def is_piloted(deps: Deps, state: ResearchState) -> bool:
    """Whether the runs of the pilot are over, so that the number of runs can be chosen."""
    is_waiting = needs_design(deps.log.charter(), planned_iteration(deps.log, state))
    return is_waiting and not state["is_spent"] and len(deps.active_runs) == 0 and not _is_any_open(deps, state)


def has_work(deps: Deps, state: ResearchState) -> bool:
    """Whether the plan has runs under way, or open ones that may still be launched."""
    return len(deps.active_runs) > 0 or (not state["is_spent"] and _is_any_open(deps, state))


def begin(deps: Deps, trial: Trial, slot: Slot, *, is_fresh: bool) -> None:
    """Claim the trial's next attempt and have it prepared; unless `is_fresh`, go on with the run that is under way."""
    assert slot.url is not None, "a slot that was taken has a server"
    if is_fresh:
        job = job_of(deps.study_id, trial.experiment, trial.seed, trial.attempt)
        key = run_key(deps.study_id, trial)
        run = deps.store.claim_run(trial.experiment.id, trial.seed, key, attempt=trial.attempt, job=job)
        run = deps.store.update_run(run.id, status=RunStatus.LAUNCHING, server_url=slot.url)
    else:
        run = trial.runs[-1]
    deps.ledger.charge(BudgetKind.RUNS, 1, f"{trial.experiment.name}/{trial.seed}", run_id=run.id)
    steps = total_steps(trial.experiment.job)
    name = trial.name if run.attempt == 1 else f"{trial.name} (attempt {run.attempt})"
    active = ActiveRun(run.id, name, trial.experiment, steps, slot, deps.early_stopping(trial.experiment))
    deps.active_runs.add(active)
    prepare = partial(
        deps.evaluator().prepare,
        run,
        trial.experiment,
        slot.url,
        is_trusted=is_trusted(trial.experiment),
        is_fresh=is_fresh,
    )
    deps.background.submit(run.id, prepare)
    verb = "launched" if is_fresh else "taken up again"
    deps.log.note("run.launched", f"{active.name} {verb} on server {slot.url}", run_id=run.id)
