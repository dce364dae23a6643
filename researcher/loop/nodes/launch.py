"""Launch: free servers get open trials of the plan; the key of a run is stored before its server receives it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from experiments_db import BudgetKind, Run, RunStatus, Severity
from researcher.errors import BudgetExceeded
from researcher.execution.early_stopping import read_steps
from researcher.loop.deps import ActiveRun, Deps, Phase, ResearchState
from researcher.loop.nodes.design import needs_design, pilot_trials
from researcher.loop.nodes.write_program import is_trusted, planned_iteration
from researcher.loop.outages import note_servers
from researcher.loop.pruning import has_space
from researcher.phases import ENDED_BY, FROM_RUNG, PRUNED, RESUME_FROM
from researcher.record.runs import (
    Diagnosis,
    Trial,
    TrialState,
    cost_of,
    gpus_of,
    job_of,
    list_trials,
    run_key,
    total_steps,
)
from researcher.servers.server_pool import Slot


def launch(deps: Deps, state: ResearchState) -> ResearchState:
    note_servers(deps)
    if deps.pool.is_any_answering and not deps.pool.is_any_free:
        return state
    for trial in open_trials(deps, state):
        slot = take_slot(deps, trial)
        if slot is None and deps.pool.is_any_answering:
            # The next trial avoids other servers than this one, so it may find a free server.
            continue
        try:
            # Another attempt at a trial that was paid for is free.
            deps.ledger.ensure_can_launch(0 if trial.runs else _least_cost(deps, trial))
        except BudgetExceeded as error:
            if slot is not None:
                deps.pool.give_back(slot)
            deps.log.note("budget.used_up", f"No further run: {error}", severity=Severity.WARNING)
            return {**state, "is_budget_used_up": True}
        if slot is None:
            break
        try:
            if not has_space(deps):
                deps.pool.give_back(slot)
                break
            claim(deps, trial, slot)
        except Exception:
            # If something could not be stored, the node is repeated, and the server must be free then.
            if all(active.slot is not slot for active in deps.active_runs):
                deps.pool.give_back(slot)
            raise
    return state


def open_trials(deps: Deps, state: ResearchState) -> list[Trial]:
    """Return the open trials of the plan, or those of the pilot while the number of runs is not chosen."""
    planned, charter = planned_iteration(deps.log, state), deps.log.charter()
    if needs_design(charter, planned):
        trials = pilot_trials(deps, charter, planned)
    else:
        trials = list_trials(deps.store, deps.study_id, planned)
    return [trial for trial in trials if trial.state is TrialState.OPEN]


def is_piloted(deps: Deps, state: ResearchState) -> bool:
    """Return whether the runs of the pilot are over, so that the number of runs can be chosen."""
    is_waiting = needs_design(deps.log.charter(), planned_iteration(deps.log, state))
    return is_waiting and not state["is_budget_used_up"] and len(deps.active_runs) == 0 and not open_trials(deps, state)


def has_work(deps: Deps, state: ResearchState) -> bool:
    """Return whether the plan has runs in progress, or open ones that may still be launched."""
    return len(deps.active_runs) > 0 or (not state["is_budget_used_up"] and bool(open_trials(deps, state)))


def claim(deps: Deps, trial: Trial, slot: Slot) -> None:
    """Claim the trial's next attempt for a slot and begin it. May be repeated after a failure."""
    run = _claim_row(deps, trial, slot)
    # Before the run counts as launched: from then on its trial is not open, and would not be claimed again.
    charge(deps, trial, run)
    run = deps.store.update_run(run.id, status=RunStatus.LAUNCHING, server_url=slot.url)
    begin(deps, trial, run, slot)


def _claim_row(deps: Deps, trial: Trial, slot: Slot) -> Run:
    """Claim the trial's next attempt, which goes on from the former rung where the slot's server can read it."""
    name, seed, attempt, rung = trial.experiment.name, trial.seed, trial.attempt, trial.rung
    job = job_of(deps.study_id, trial.experiment, seed, attempt, rung)
    former = find_former(deps, trial)
    if former is not None and is_readable(deps, former, slot):
        job[RESUME_FROM] = former.external_ids["checkpoint"]
    key = run_key(deps.study_id, name, seed, attempt, rung)
    run = deps.store.claim_run(trial.experiment.id, seed, key, rung=rung, attempt=attempt, job=job)
    if former is None or run.job.get(RESUME_FROM) is None:
        return run
    return deps.store.update_run(run.id, external_ids={**run.external_ids, FROM_RUNG: former.rung})


def _least_cost(deps: Deps, trial: Trial) -> float:
    """Return the full runs that the trial costs if it goes on from its former rung."""
    former = find_former(deps, trial)
    steps = total_steps(trial.experiment.job)
    return (trial.rung - (former.rung if former else 0)) / steps if trial.rung else 1.0


def charge(deps: Deps, trial: Trial, run: Run) -> None:
    """Charge the budget for the trial of a run; each trial is charged once, as its last attempt costs."""
    deps.ledger.charge(BudgetKind.RUNS, cost_of(run, trial.experiment), trial.key, run_id=run.id)


def begin(deps: Deps, trial: Trial, run: Run, slot: Slot, *, phase: Phase = Phase.PREPARING) -> ActiveRun:
    """Begin a claimed run, or continue one in a later phase from its record, and return it.

    The run has been charged for. Either waits until the slot's server answers.
    """
    steps = total_steps(trial.experiment.job)
    name = trial.name if run.attempt == 1 else f"{trial.name} (attempt {run.attempt})"
    deps.ledger.begin_run(run.id, gpus_of(trial.experiment.job))
    active = ActiveRun(run.id, name, trial.experiment, steps, slot, deps.early_stopping(trial.experiment), phase)
    _restore(deps, active, run)
    deps.active_runs.add(active)
    if phase is Phase.PREPARING:
        prepare(deps, active)
    verb = "launched" if run.status is RunStatus.LAUNCHING else "taken up again"
    deps.log.note("run.launched", f"{active.name} {verb} on server {slot.name}", run_id=run.id)
    return active


def _restore(deps: Deps, active: ActiveRun, run: Run) -> None:
    """Restore what an earlier process saw and decided of a run that is taken up again."""
    if (recorded := run.external_ids.get(ENDED_BY)) is not None:
        active.diagnosis = Diagnosis.on_record(recorded)
    if steps := read_steps(deps.store, run.id):
        active.early_stopping.restore(steps)
        active.copied_step = steps[-1][0]


def prepare(deps: Deps, active: ActiveRun) -> None:
    """Boot a run's engine and start its program, in the background, once its server answers."""
    if not active.slot.is_answering:
        active.is_waiting = True
        return
    # The run waits until the work has begun: a read that fails now is repeated in a later round.
    active.phase, active.is_waiting = Phase.PREPARING, True
    work = partial(
        deps.evaluator(active.dropped).prepare,
        deps.store.get_run(active.run_id),
        active.experiment,
        str(active.slot.url),
        is_trusted=is_trusted(active.experiment),
    )
    active.is_waiting, active.was_away = False, False
    deps.background.submit(active.run_id, work)


def find_former(deps: Deps, trial: Trial) -> Run | None:
    """Return the arm's run at its highest rung below that of the trial, if its checkpoint is there.

    Returns None once an attempt that went on from a checkpoint has failed: the next one is trained from the start.
    """
    if not trial.rung or any(run.status is RunStatus.FAILED and run.job.get(RESUME_FROM) for run in trial.runs):
        return None
    runs = deps.store.list_runs(experiment_id=trial.experiment.id, seed=trial.seed)
    lower = [run for run in runs if 0 < run.rung < trial.rung and run.status is RunStatus.FINISHED]
    return max((run for run in lower if _has_checkpoint(run)), key=lambda run: run.rung, default=None)


def is_readable(deps: Deps, former: Run, slot: Slot) -> bool:
    """Return whether the server of a slot can read the checkpoint of a run."""
    path = Path(former.external_ids["checkpoint"])
    return path.is_dir() if slot.is_local else former.server_url == slot.url


def take_slot(deps: Deps, trial: Trial) -> Slot | None:
    """Take a free server for a trial, preferably one that can go on with it, and return it; None if there is none."""
    former = find_former(deps, trial)
    if former is not None and former.server_url not in trial.failed_on:
        slot = deps.pool.take_at(former.server_url)
        if slot is not None and slot.is_answering:
            return slot
        if slot is not None:
            deps.pool.give_back(slot)
    return deps.pool.take(trial.failed_on)


def _has_checkpoint(run: Run) -> bool:
    path = run.external_ids.get("checkpoint")
    return bool(path) and str(Path(path).resolve()) not in run.external_ids.get(PRUNED, ())
