"""Launch: free servers get open trials of the plan; the key of a run is stored before its server receives it.

An exploring run goes on from the checkpoint of the arm's former rung, if its server can read it. After a failure it is
trained from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from experiments_db import BudgetKind, Run, RunStatus, Severity
from researcher.errors import BudgetExceeded
from researcher.loop.deps import ActiveRun, Deps, Phase
from researcher.loop.exploration.resumption import find_former, is_readable, take_slot
from researcher.loop.nodes.design import needs_design, pilot_trials
from researcher.loop.nodes.write_program import is_trusted, planned_iteration
from researcher.loop.outages import note_servers
from researcher.loop.pruning import has_space
from researcher.loop.state import ResearchState
from researcher.phases import ENDED_BY, FROM_RUNG, RESUME_FROM
from researcher.record.runs import Diagnosis, Trial, TrialState, cost_of, gpus_of, job_of, run_key, total_steps
from researcher.servers.server_pool import Slot
from swarm.guard import WATCHED


def launch(deps: Deps, state: ResearchState) -> ResearchState:
    note_servers(deps)
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


def open_trials(deps: Deps, state: ResearchState) -> Iterator[Trial]:
    """Return the open trials of the plan, or those of the pilot while the number of runs is not chosen."""
    planned, charter = planned_iteration(deps.log, state), deps.log.charter()
    if needs_design(charter, planned):
        pilot = pilot_trials(deps, charter, planned)
        return iter([trial for trial in pilot if trial.state is TrialState.OPEN])
    return deps.open_trials.of_plan(planned)


def _is_any_open(deps: Deps, state: ResearchState) -> bool:
    return next(open_trials(deps, state), None) is not None


def is_piloted(deps: Deps, state: ResearchState) -> bool:
    """Return whether the runs of the pilot are over, so that the number of runs can be chosen."""
    is_waiting = needs_design(deps.log.charter(), planned_iteration(deps.log, state))
    return (
        is_waiting and not state["is_budget_used_up"] and len(deps.active_runs) == 0 and not _is_any_open(deps, state)
    )


def has_work(deps: Deps, state: ResearchState) -> bool:
    """Return whether the plan has runs in progress, or open ones that may still be launched."""
    return len(deps.active_runs) > 0 or (not state["is_budget_used_up"] and _is_any_open(deps, state))


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
    steps: dict[int, dict[str, float | None]] = {}
    for point in deps.store.list_metrics([run.id], names=WATCHED):
        steps.setdefault(point.step, {})[point.name] = point.value
    if steps:
        active.early_stopping.restore(sorted(steps.items()))
        active.copied_step = max(steps)


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
