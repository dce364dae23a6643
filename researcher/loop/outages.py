"""Runs that stop through no doing of their arm: servers that go away, a used-up budget, a broken environment."""

from __future__ import annotations

import time

from experiments_db import RunStatus
from researcher.errors import EnvironmentBroken, ScoreIncomplete
from researcher.loop.deps import ActiveRun, Deps, Phase
from researcher.record.failure_reason import in_one_line
from researcher.record.runs import BUDGET, ENVIRONMENT, FAILURE, OWN_DOING, PROGRAM, SERVER_LOST, Diagnosis
from researcher.servers.server_pool import Slot
from swarm.processes import KILLED, Child
from swarm.program import ENVIRONMENT_FAILED, PROGRAM_FAILED

OUTAGE_WAIT_S = 30.0
"""The length of a round while no server answers; it ends as soon as one comes back."""
MAX_OUTAGES = 20
"""A run with so many outages and no progress between them begins anew elsewhere."""


def wait_a_round(deps: Deps, usual_s: float) -> None:
    """Wait until something happens, but at most `usual_s` while a server answers."""
    deps.background.wait(usual_s if deps.pool.is_any_answering else OUTAGE_WAIT_S)


def note_servers(deps: Deps) -> None:
    """Record an event for each server that went or came back since the last call, and one if none is left."""
    changes = deps.pool.take_changes()
    answering = sum(slot.is_answering for slot in deps.pool.slots)
    count = f"{answering} of {len(deps.pool.slots)} servers answer"
    for change in changes:
        if change.is_back:
            deps.log.note("server.back", f"Server {change.name} answers after {change.out_s:.0f} s; {count}.")
        else:
            deps.log.warn("server.lost", f"Server {change.name} is out: {in_one_line(change.reason)}; {count}.")
    if not answering and any(not change.is_back for change in changes):
        deps.log.warn("servers.lost", f"{count}; the study waits until one does.")


def await_slot(deps: Deps) -> Slot | None:
    """Wait until a server answers, and return a free slot; None if all servers that answer have runs."""
    # The events come first: if one cannot be stored, no slot is taken that nobody gives back.
    note_servers(deps)
    while (slot := deps.pool.take()) is None and not deps.pool.is_any_answering:
        deps.background.wait(OUTAGE_WAIT_S)
        deps.background.check()
        note_servers(deps)
    return slot


def is_out(deps: Deps, active: ActiveRun) -> bool:
    """Return whether nothing can be done for a run because its server does not answer.

    A run that has waited long enough leaves its server, if another one answers.
    """
    if active.slot.is_answering:
        if active.away_since is not None:
            active.away_since, active.was_away = None, True
            # The step that was under way does not take the time of the outage.
            active.trains_since = time.time()
            active.early_stopping.resume()
        return False
    if active.away_since is None:
        active.away_since = time.monotonic()
        active.early_stopping.pause()
    away_s = time.monotonic() - active.away_since
    if away_s > active.is_worth_waiting_s(deps.limits.outage_s) and deps.pool.has_other(active.slot):
        lose(deps, active, f"its server {active.slot.name} has not answered for {away_s:.0f} s")
    return True


def set_back(deps: Deps, active: ActiveRun, error: BaseException) -> None:
    """Record that work for a run met an outage; the work begins again once the server answers."""
    deps.pool.report_outage(active.slot, error)
    active.outages += 1
    active.is_waiting = True
    if active.outages > MAX_OUTAGES:
        lose(deps, active, f"{active.outages} outages of its server while it made no progress")


def lose(deps: Deps, active: ActiveRun, reason: str) -> None:
    """Give up a run together with its server, which says nothing about the arm; another attempt follows."""
    reason = in_one_line(reason)
    stop(deps, active, SERVER_LOST, reason, event="run.lost", note=f"is begun anew: {reason}")


def stop(deps: Deps, active: ActiveRun, kind: str, reason: str, *, event: str, note: str) -> None:
    """End a run for a reason that is no failure of its arm, and record an event.

    A run that was being ended by the arm's own doing counts as failed: another attempt would let the arm choose among
    its runs.
    """
    found, status = {"kind": kind, "sentence": reason, "is_retried": True}, RunStatus.STOPPED
    if active.diagnosis is not None and active.diagnosis.kind in OWN_DOING:
        found, status = active.diagnosis.as_recorded(), RunStatus.FAILED
        event, note = "run.failed", f"failed: {active.diagnosis.sentence}"
    deps.store.update_run(active.run_id, status=status, exit_reason=found["sentence"], diagnosis=found)
    deps.log.warn(event, f"{active.name} {note}", run_id=active.run_id)
    drop(deps, active)


def drop(deps: Deps, active: ActiveRun) -> None:
    """Leave a run, whatever background work it has, and free its server."""
    active.dropped.set()
    if active.child is not None:
        active.child.stop()
    deps.background.abandon(active.run_id, _end)
    deps.ledger.end_run(active.run_id)
    deps.active_runs.remove(active)
    deps.pool.give_back(active.slot)


def _end(result: object) -> None:
    if isinstance(result, Child):
        result.stop()


def stop_over_budget(deps: Deps) -> bool:
    """Return whether the budget is used up; if so, stop every run that trains or waits for a server."""
    reason = deps.ledger.find_exhausted()
    if reason is None:
        return False
    for active in deps.active_runs:
        if active.phase is Phase.TRAINING or active.is_waiting or active.away_since is not None:
            sentence = f"stopped by the budget at step {active.copied_step} of {active.steps}: {reason}"
            stop(deps, active, BUDGET, sentence, event="run.stopped", note=f"is {sentence}")
    return True


def examine_environment(deps: Deps) -> None:
    """Examine the environment that arms are judged on. Raises EnvironmentBroken, SandboxUnavailable."""
    charter = deps.log.charter()
    deps.environments.examine(charter.environment, charter.environment_digest)


def refuse_to_blame(deps: Deps) -> None:
    """Raise EnvironmentBroken or SandboxUnavailable if the environment or the sandbox fails, and not the arm."""
    if deps.sandbox is not None:
        deps.sandbox.check()
    examine_environment(deps)


def refuse_to_repeat(deps: Deps, active: ActiveRun, error: BaseException) -> None:
    """Raise EnvironmentBroken if environment failures made the score of the baseline incomplete.

    No other arm could be compared with such a baseline.
    """
    is_of_baseline = isinstance(error, ScoreIncomplete) and active.experiment.is_baseline
    if is_of_baseline and (reason := deps.environments.failed_since(active.began)):
        raise EnvironmentBroken(f"the environment fails while the baseline is scored: {reason}")


def diagnose_exit(active: ActiveRun, code: int, reason: str) -> Diagnosis:
    """Return a diagnosis of the exit code of the process that trained a run: whose fault it was.

    Raises EnvironmentBroken if the environment fails the baseline.
    """
    if code == ENVIRONMENT_FAILED and active.experiment.is_baseline:
        raise EnvironmentBroken(f"the environment fails while the baseline trains: {reason}")
    if code == ENVIRONMENT_FAILED:
        return Diagnosis(ENVIRONMENT, reason, is_scored=False, is_retried=True)
    is_own = code in (0, PROGRAM_FAILED, KILLED)
    return Diagnosis(PROGRAM if is_own else FAILURE, reason, is_scored=False, is_retried=not is_own)
