"""The runs that an ended researcher process left behind: taken up again where a server has them, else begun anew."""

from __future__ import annotations

from experiments_db import Run, RunStatus
from researcher.loop.deps import Deps, Phase
from researcher.loop.nodes.launch import begin, charge
from researcher.phases import ENDED_BY, FINAL
from researcher.record.runs import Trial, list_all_trials
from researcher.servers.server_pool import Slot
from swarm import SwarmError
from swarm.processes import StaleProcess, end_stale
from swarm.schemas import LaunchView

INTERRUPTED = "interrupted: the researcher ended before the run did"


def reconcile(deps: Deps) -> None:
    """Take up every run that is not over, or end it; finished runs stay untouched."""
    for trial in list_all_trials(deps.store, deps.study_id):
        for run in trial.runs:
            if run.status.is_over or run.status is RunStatus.PLANNED:
                continue
            left = StaleProcess.GONE if run.pid is None else end_stale(run.pid, run.external_ids.get("pid_started"))
            if left is not StaleProcess.GONE:
                deps.log.warn("run.orphan", f"{trial.name}: a client left behind {left}.", run_id=run.id)
            if not _take_up(deps, trial, run):
                settle(deps, trial.name, run, INTERRUPTED)


def end_clients(deps: Deps) -> None:
    """End the clients of all runs in progress."""
    for active in deps.active_runs:
        if active.child is not None:
            active.child.stop()


def leave(deps: Deps, reason: str, *, is_for_good: bool) -> None:
    """Leave the runs in progress waiting on their servers; end those on own servers if the study has ended."""
    for active in deps.active_runs:
        run = deps.store.get_run(active.run_id)
        if is_for_good and active.slot.is_local:
            settle(deps, active.name, run, f"interrupted: {reason}")
        elif not run.status.is_over:
            where = f"waits at step {active.copied_step} of {active.steps}"
            deps.log.note("run.waiting", f"{active.name} {where}: {reason}", run_id=run.id)


def settle(deps: Deps, name: str, run: Run, reason: str) -> None:
    """End a run that cannot go on: as finished if its score is stored, else as stopped."""
    if run.status.is_over or run.status is RunStatus.PLANNED:
        return
    split = deps.log.charter().search_split
    if run.status is RunStatus.EVALUATING and deps.store.find_evaluation(run.id, FINAL, split) is not None:
        deps.store.update_run(run.id, status=RunStatus.FINISHED, exit_reason="scored before the researcher ended")
    else:
        deps.store.update_run(run.id, status=RunStatus.STOPPED, exit_reason=reason)
    deps.log.note("run.settled", f"{name}: {deps.store.get_run(run.id).exit_reason}", run_id=run.id)


def _take_up(deps: Deps, trial: Trial, run: Run) -> bool:
    """Return whether the run goes on.

    It goes on where a server has it, or may have it once the server answers. A launch that the server never received is
    made again as the same attempt.
    """
    slot, launched = _find_home(deps, run)
    if slot is None:
        return False
    phase = _phase_of(run)
    if slot.is_answering:
        if launched is None and run.status is RunStatus.LAUNCHING:
            deps.pool.give_back(slot)
            deps.store.update_run(run.id, status=RunStatus.PLANNED)
            return True
        is_there = launched is not None and launched.outcome in ("running", "done", "stopped")
        is_saved = launched is not None and phase is Phase.TRAINED and "checkpoint" in run.external_ids
        if not (is_there or is_saved):
            deps.pool.give_back(slot)
            return False
    charge(deps, trial, run)
    active = begin(deps, trial, deps.store.update_run(run.id, server_url=slot.url), slot, phase=phase)
    # Work in the other phases starts by itself.
    active.is_waiting = active.is_waiting or phase is Phase.ENDING
    return True


def _phase_of(run: Run) -> Phase:
    if run.status is RunStatus.EVALUATING:
        return Phase.TRAINED
    return Phase.ENDING if run.external_ids.get(ENDED_BY) is not None else Phase.PREPARING


def _find_home(deps: Deps, run: Run) -> tuple[Slot | None, LaunchView | None]:
    """Take the slot of the server that has the run, and return it with the server's record of the launch.

    Own servers come back at other addresses. The one that knows the run's key has it; if none does, any of them will
    do.
    """
    own = deps.pool.free_own()
    for slot in own:
        if (launched := _look_up(deps, slot, run)) is not None:
            return deps.pool.claim(slot), launched
    slot = deps.pool.claim(own[0]) if own else deps.pool.take_at(run.server_url)
    if slot is None or slot.is_local or not slot.is_answering:
        return slot, None
    return slot, _look_up(deps, slot, run)


def _look_up(deps: Deps, slot: Slot, run: Run) -> LaunchView | None:
    try:
        with deps.pool.connect(str(slot.url)) as client:
            return client.find_launch(run.idempotency_key)
    except SwarmError as error:
        deps.pool.report_outage(slot, error)
        return None
