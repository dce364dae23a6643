"""The checkpoint that an exploring run goes on from, and the servers that can read it.

Place in the flow: launch asks here for every trial, and pruning.py keeps what may still be asked for. Own servers share
this machine's disk. Of a named server it is only known that it can read what it wrote itself.
"""

from __future__ import annotations

from pathlib import Path

from experiments_db import Run, RunStatus
from researcher.loop.deps import Deps
from researcher.phases import PRUNED, RESUME_FROM
from researcher.record.runs import Trial
from researcher.servers.server_pool import Slot


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
