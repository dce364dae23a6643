"""What becomes of runs whose researcher ended: gone on with where their server still has them, else begun anew.

Place in the flow: study.py calls `reconcile` before the graph goes on, and `leave` when it stops early. This module
knows nothing of how runs are measured or judged.
"""

from __future__ import annotations

from experiments_db import Run, RunStatus
from researcher.children import end_stale
from researcher.deps import ActiveRun, Deps, Phase
from researcher.harness import FINAL
from researcher.nodes.launch import begin
from researcher.runs import Cell, job_of, list_all_cells, total_steps
from researcher.servers import connect
from researcher.watchdog import Watchdog
from swarm import SwarmError

INTERRUPTED = "interrupted: the researcher ended before the run did"


def reconcile(deps: Deps) -> None:
    """Every run that is not over gets a home or an end. Finished ones are never touched."""
    for cell in list_all_cells(deps.store, deps.study_id):
        for run in cell.runs:
            if run.status.is_over or run.status is RunStatus.PLANNED:
                continue
            if run.pid is not None and end_stale(run.pid, run.external_ids.get("pid_started")):
                deps.journal.warn("run.orphan", f"{cell.name}: a client left behind was ended.", run_id=run.id)
            if not _take_up(deps, cell, run):
                settle(deps, cell.name, run, INTERRUPTED)


def leave(deps: Deps, reason: str) -> None:
    """End the clients of all runs under way. A run on somebody else's server may be taken up again later."""
    for active in deps.roster:
        if active.child is not None:
            active.child.stop()
        if active.slot.is_local or active.phase is Phase.PREPARING:
            settle(deps, active.name, deps.store.get_run(active.run_id), f"interrupted: {reason}")


def settle(deps: Deps, name: str, run: Run, reason: str) -> None:
    """The end of a run that cannot go on: finished if its score is in, not begun if it had not, else stopped."""
    if run.status.is_over:
        return
    split = deps.journal.charter().search_split
    if run.status is RunStatus.EVALUATING and deps.store.find_evaluation(run.id, FINAL, split) is not None:
        deps.store.update_run(run.id, status=RunStatus.FINISHED, exit_reason="scored before the researcher ended")
    elif run.status in (RunStatus.PLANNED, RunStatus.LAUNCHING):
        deps.store.update_run(run.id, status=RunStatus.PLANNED)
        return
    else:
        deps.store.update_run(run.id, status=RunStatus.STOPPED, exit_reason=reason)
    deps.journal.note("run.settled", f"{name}: {deps.store.get_run(run.id).exit_reason}", run_id=run.id)


def _take_up(deps: Deps, cell: Cell, run: Run) -> bool:
    """Whether a server outside this process still has the run's job, so that the run goes on."""
    if run.status not in (RunStatus.RUNNING, RunStatus.EVALUATING):
        return False
    slot = deps.pool.take_at(run.server_url)
    if slot is None or slot.url is None:
        return False
    if not _still_has(slot.url, str(job_of(deps.study_id, cell.experiment, run.seed, run.attempt)["experiment_name"])):
        deps.pool.give_back(slot)
        return False
    if run.status is RunStatus.RUNNING:
        begin(deps, cell, slot, is_fresh=False)
        return True
    steps = total_steps(cell.experiment.job)
    deps.roster.add(
        ActiveRun(run.id, cell.name, cell.experiment, steps, slot, Watchdog(deps.limits), phase=Phase.TRAINED)
    )
    return True


def _still_has(url: str, experiment_name: str) -> bool:
    try:
        with connect(url) as client:
            status = client.status()
    except SwarmError:
        return False
    return status.experiment_name == experiment_name and status.state not in ("OFFLINE", "FAILED")
