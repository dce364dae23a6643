"""What becomes of runs whose researcher ended: gone on with where their server still has them, else begun anew.

Place in the flow: session.py calls `reconcile` before the graph goes on, and `leave` when it stops early. This module
knows nothing of how runs are measured or judged.
"""

from __future__ import annotations

from experiments_db import Run, RunStatus
from researcher.evaluator import FINAL
from researcher.execution.runs import Trial, gpus_of, job_of, list_all_trials, total_steps
from researcher.loop.deps import ActiveRun, Deps, Phase
from researcher.loop.nodes.launch import begin
from swarm import SwarmError
from swarm.processes.child import end_stale

INTERRUPTED = "interrupted: the researcher ended before the run did"


def reconcile(deps: Deps) -> None:
    """Every run that is not over gets a home or an end. Finished ones are never touched."""
    for trial in list_all_trials(deps.store, deps.study_id):
        for run in trial.runs:
            if run.status.is_over or run.status is RunStatus.PLANNED:
                continue
            if run.pid is not None and end_stale(run.pid, run.external_ids.get("pid_started")):
                deps.log.warn("run.orphan", f"{trial.name}: a client left behind was ended.", run_id=run.id)
            if not _take_up(deps, trial, run):
                settle(deps, trial.name, run, INTERRUPTED)


def leave(deps: Deps, reason: str) -> None:
    """End the clients of all runs under way. A run on somebody else's server may be taken up again later."""
    for active in deps.active_runs:
        if active.child is not None:
            active.child.stop()
        if active.slot.is_local or active.phase is Phase.PREPARING:
            settle(deps, active.name, deps.store.get_run(active.run_id), f"interrupted: {reason}")


def settle(deps: Deps, name: str, run: Run, reason: str) -> None:
    """The end of a run that cannot go on: finished if its score is in, not begun if it had not, else stopped."""
    if run.status.is_over:
        return
    split = deps.log.charter().search_split
    if run.status is RunStatus.EVALUATING and deps.store.find_evaluation(run.id, FINAL, split) is not None:
        deps.store.update_run(run.id, status=RunStatus.FINISHED, exit_reason="scored before the researcher ended")
    elif run.status in (RunStatus.PLANNED, RunStatus.LAUNCHING):
        deps.store.update_run(run.id, status=RunStatus.PLANNED)
        return
    else:
        deps.store.update_run(run.id, status=RunStatus.STOPPED, exit_reason=reason)
    deps.log.note("run.settled", f"{name}: {deps.store.get_run(run.id).exit_reason}", run_id=run.id)


def _take_up(deps: Deps, trial: Trial, run: Run) -> bool:
    """Whether a server outside this process still has the run's job, so that the run goes on."""
    if run.status not in (RunStatus.RUNNING, RunStatus.EVALUATING):
        return False
    slot = deps.pool.take_at(run.server_url)
    if slot is None or slot.url is None:
        return False
    if not _still_has(
        deps, slot.url, str(job_of(deps.study_id, trial.experiment, run.seed, run.attempt)["experiment_name"])
    ):
        deps.pool.give_back(slot)
        return False
    if run.status is RunStatus.RUNNING:
        begin(deps, trial, slot, is_fresh=False)
        return True
    steps = total_steps(trial.experiment.job)
    deps.ledger.begin_run(run.id, gpus_of(trial.experiment.job))
    deps.active_runs.add(
        ActiveRun(
            run.id, trial.name, trial.experiment, steps, slot, deps.early_stopping(trial.experiment), Phase.TRAINED
        )
    )
    return True


def _still_has(deps: Deps, url: str, experiment_name: str) -> bool:
    try:
        with deps.pool.connect(url) as client:
            status = client.status()
    except SwarmError:
        return False
    return status.experiment_name == experiment_name and status.state not in ("OFFLINE", "FAILED")
