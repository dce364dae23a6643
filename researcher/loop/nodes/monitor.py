"""Monitor: one brief look at every run in progress: copy its curves, notice its end, stop it if it is hopeless."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from experiments_db import TRAINING_SECONDS, RunStatus, Severity
from researcher.errors import ResearchError, RunBroken, RunDiverged, RunLost, RunRejected, ScoreIncomplete
from researcher.execution.background import Drained
from researcher.execution.early_stopping import step_limit_s
from researcher.execution.storage import is_storage_outage
from researcher.execution.training_process import ends_at_a_quota
from researcher.loop.deps import ActiveRun, Deps, Phase, ResearchState
from researcher.loop.nodes.launch import prepare
from researcher.loop.outages import (
    diagnose_exit,
    is_out,
    lose,
    note_servers,
    refuse_to_blame,
    refuse_to_repeat,
    set_back,
    stop_over_budget,
    wait_a_round,
)
from researcher.loop.pruning import has_space
from researcher.phases import ENDED_AT, ENDED_BY
from researcher.record.failure_reason import in_one_line, last_words
from researcher.record.log import DIAGNOSED, Notebook
from researcher.record.runs import FAILURE, OWN_DOING, PROGRAM, STALL, UNSCORED, Diagnosis, job_of_run
from researcher.servers.jobs import EndedTraining, diagnose_attempts, end_job, refuse_own_successor, stop_job
from researcher.servers.server_pool import is_outage
from swarm import SwarmError
from swarm.errors import ProgramFailure, TrainingDiverged
from swarm.guard import NOT_FINITE
from swarm.processes import KILLED, tail
from swarm.schemas import MetricPointView

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds for which one round waits for something to happen; short enough to look live."""

LAST_LINES = 5
MAX_INCOMPLETE = 2
"""How often a score that lacks episodes is measured again, on a server that answers."""
DISK_EVERY_S = 30.0
MAX_KILLS = 3
"""A program that is killed so often without a step in between uses up something, such as memory."""
RESTART_S = 5.0
"""Seconds for which an engine may be stopped while its job is restarted."""


def monitor(deps: Deps, state: ResearchState) -> ResearchState:
    """Look at every run in progress once.

    Raises ServerProblem once no server can answer any more, or none has for longer than the study allows.
    """
    wait_a_round(deps, POLL_S)
    note_servers(deps)
    deps.pool.check()
    for active in deps.active_runs.in_phase(Phase.PREPARING):
        with deps.background.ended(active.run_id) as task:
            if task is not None:
                _begin_training(deps, active, task)
            elif not is_out(deps, active) and active.is_waiting:
                prepare(deps, active)
    for active in deps.active_runs.in_phase(Phase.TRAINING):
        if not is_out(deps, active):
            _look_at(deps, active)
    for active in deps.active_runs.in_phase(Phase.ENDING):
        with deps.background.ended(active.run_id) as task:
            if task is not None:
                _leave_training(deps, active, task)
            elif not is_out(deps, active) and active.is_waiting:
                end_training(deps, active)
    has_space(deps, every_s=DISK_EVERY_S)
    is_budget_used_up = stop_over_budget(deps) or state["is_budget_used_up"]
    return {**state, "polls": state["polls"] + 1, "is_budget_used_up": is_budget_used_up}


def _begin_training(deps: Deps, active: ActiveRun, task: Future[Any]) -> None:
    error = task.exception()
    if error is None:
        # Stored first: if that fails, the run is still in its phase, and all of this is done again.
        deps.log.note("run.training", f"{active.name} trains ({active.steps} steps)", run_id=active.run_id)
        active.child = task.result()
        active.phase = Phase.TRAINING
        active.early_stopping.begin()
        active.trains_since = time.time()
    else:
        end_with(deps, active, error)


def _look_at(deps: Deps, active: ActiveRun) -> None:
    assert active.child is not None and active.slot.url is not None, "a run in training has both"
    code = active.child.poll()
    try:
        with deps.pool.connect(active.slot.url) as client:
            status = client.status()
            _copy_curves(deps, active, client.metrics(active.last_copied))
            failing = diagnose_attempts(client, status, active.experiment.job)
    except SwarmError as error:
        if is_outage(error):
            deps.pool.report_outage(active.slot, error)
            return
        logger.info("%s: no look at the server: %s", active.name, error)
        _act_on(deps, active, active.early_stopping.diagnose())
        return
    _notice_restart(active, status.started_at)
    if active.was_away and _has_lost_its_place(deps, active, status.state, code):
        return
    if status.experiment_name != _own_name(deps, active):
        fail(deps, active, f"the server runs {status.experiment_name} instead")
    elif status.step >= active.steps:
        active.phase = Phase.TRAINED
    elif is_engine_gone(active, status.state, time.monotonic()):
        reason = f"the engine is {status.state} at step {status.step}: {status.reason or 'stopped'}"
        fail_with(deps, active, RunDiverged(reason) if status.has_diverged else RunBroken(reason))
    elif code == 0 and ends_at_a_quota(deps.log.charter(), deps.store.get_run(active.run_id)):
        # The program ends by itself with the step that reaches the quota, and only then.
        end_training(deps, active)
    elif code == KILLED and active.kills < MAX_KILLS:
        active.kills += 1
        active.child.stop()
        deps.log.warn("run.resumed", f"{active.name} goes on: its program was killed", run_id=active.run_id)
        prepare(deps, active)
    elif code is not None and (code != 0 or status.state == "ROLLING"):
        words = last_words(tail(deps.evaluator().folder(active.run_id) / "train.log"), LAST_LINES)
        reason = f"the client ended with exit code {code} at step {status.step} of {active.steps}: {words}"
        active.diagnosis = diagnose_exit(active, code, reason)
        end_training(deps, active)
    else:
        _act_on(deps, active, failing or _attributed(active.early_stopping.diagnose(), status.state))


def _attributed(diagnosis: Diagnosis | None, state: str) -> Diagnosis | None:
    """Blame the program for a run that makes no step while its server waits for episodes."""
    if diagnosis is None or diagnosis.kind != STALL or state != "ROLLING":
        return diagnosis
    sentence = f"{diagnosis.sentence} Its server waits for episodes that its program does not bring."
    return Diagnosis(PROGRAM, sentence, is_scored=False, is_retried=False)


def is_engine_gone(active: ActiveRun, state: str, now: float) -> bool:
    """Return whether the engine has failed, or is stopped for longer than a restart with another job takes.

    `now` is in monotonic seconds.
    """
    if state != "OFFLINE":
        active.offline_since = None
        return state == "FAILED"
    if active.offline_since is None:
        active.offline_since = now
    return now - active.offline_since >= RESTART_S


def _notice_restart(active: ActiveRun, started_at: float) -> None:
    """Record that the server was away if it was restarted between two looks."""
    before, active.server_started_at = active.server_started_at, started_at
    active.was_away = active.was_away or before not in (None, started_at)


def _has_lost_its_place(deps: Deps, active: ActiveRun, state: str, code: int | None) -> bool:
    """Return whether a run had to leave its server after an outage, or to begin again there.

    Its program may not have survived the outage, and the engine may not run again. Neither is the run's fault.
    """
    assert active.slot.url is not None, "a run in training has a server"
    run = deps.store.get_run(active.run_id)
    try:
        with deps.pool.connect(active.slot.url) as client:
            launched = client.find_launch(run.idempotency_key)
            if launched is not None and launched.outcome == "replaced":
                refuse_own_successor(client, run)
    except SwarmError as error:
        deps.pool.report_outage(active.slot, error)
        return True
    except RunRejected as error:
        fail_with(deps, active, error)
        return True
    if launched is None or launched.outcome == "replaced":
        lose(deps, active, f"server {active.slot.name} came back without it")
        return True
    is_at_work = state in ("ROLLING", "DRAINING", "TRAINING", "EXPORTING", "BOOTING")
    is_at_its_end = code == 0 and ends_at_a_quota(deps.log.charter(), run)
    is_program_gone = code is not None and is_at_work and not is_at_its_end
    if launched.outcome != "stopped" and not is_program_gone:
        return False
    if active.child is not None:
        active.child.stop()
    deps.log.note("run.resumed", f"{active.name} goes on after an outage of its server", run_id=active.run_id)
    prepare(deps, active)
    return True


def _copy_curves(deps: Deps, active: ActiveRun, points: Sequence[MetricPointView]) -> None:
    """Copy the metrics of the steps after the last copied one.

    That last step may be among the points too, because its time is needed.
    """
    values: dict[int, dict[str, float]] = {}
    for point in points:
        if point.step > active.copied_step:
            # The clock of another machine may be behind; a step then takes no time, never less.
            since = max((at for at in (active.copied_at, active.trains_since) if at <= point.at), default=point.at)
            values[point.step] = {**point.metrics, TRAINING_SECONDS: point.at - since}
        active.copied_at = point.at
    if not values:
        return
    deps.store.record_metrics(active.run_id, values)
    for point in points:
        if point.step in values:
            active.early_stopping.observe(point.step, point.metrics)
    active.outages = active.kills = 0
    active.copied_step = points[-1].step


def _act_on(deps: Deps, active: ActiveRun, diagnosis: Diagnosis | None) -> None:
    if diagnosis is None:
        return
    note = deps.log.note
    note(DIAGNOSED, f"{active.name}: {diagnosis.sentence}", run_id=active.run_id, severity=Severity.WARNING)
    active.diagnosis = diagnosis
    end_training(deps, active)


def end_training(deps: Deps, active: ActiveRun) -> None:
    """End the training of a run in the background; its diagnosis is stored first."""
    # The run waits until the end has begun: a write that fails now is repeated in a later round.
    active.phase, active.is_waiting = Phase.ENDING, True
    diagnosis = active.diagnosis
    if diagnosis is not None and diagnosis.is_scored:
        _note_end(deps, active, {ENDED_BY: diagnosis.as_recorded()})
    child, after, url = active.child, active.last_copied, str(active.slot.url)
    wait_s = step_limit_s(active.experiment.job)

    def check_stop() -> None:
        deps.background.check()
        if active.dropped.is_set():
            raise Drained

    def end() -> EndedTraining:
        with deps.pool.connect(url) as client:
            if diagnosis is not None and not diagnosis.is_scored:
                return stop_job(client, child, after)
            return end_job(client, child, after, wait_s=wait_s, check_stop=check_stop)

    deps.background.submit(active.run_id, end)
    active.is_waiting = False


def _leave_training(deps: Deps, active: ActiveRun, task: Future[EndedTraining]) -> None:
    """Pass a run whose training has ended on to its scores, or record that the run has failed."""
    error, diagnosis = task.exception(), active.diagnosis
    active.is_waiting = True
    if error is None:
        _copy_curves(deps, active, task.result().points)
    if diagnosis is not None and not diagnosis.is_scored and not isinstance(error, Drained):
        if error is not None:
            logger.warning("%s: its engine is not stopped: %s", active.name, error)
        fail(deps, active, diagnosis.sentence, diagnosis=diagnosis)
    elif error is not None:
        end_with(deps, active, error)
    elif (step := task.result().step) != active.copied_step:
        end_with(deps, active, RunBroken(f"its server is at step {step} and has a record of {active.copied_step}"))
    elif step >= active.steps:
        # The last step was in progress already, so nothing was cut short.
        _note_end(deps, active, {ENDED_BY: None})
        active.diagnosis, active.phase, active.is_waiting = None, Phase.TRAINED, False
    else:
        _note_end(deps, active, {ENDED_AT: step})
        active.phase, active.is_waiting = Phase.TRAINED, False


def _note_end(deps: Deps, active: ActiveRun, fact: Mapping[str, Any]) -> None:
    run = deps.store.get_run(active.run_id)
    deps.store.update_run(run.id, external_ids={**run.external_ids, **fact})


def end_with(deps: Deps, active: ActiveRun, error: BaseException) -> None:
    """Handle an error of background work: repeat what says nothing about the run, and fail it for all else."""
    if is_outage(error):
        set_back(deps, active, error)
    elif is_storage_outage(error):
        active.is_waiting = True
        logger.warning("%s: done again: %s", active.name, error)
    elif isinstance(error, RunLost):
        lose(deps, active, str(error))
    elif isinstance(error, ScoreIncomplete) and (active.incomplete < MAX_INCOMPLETE or not active.slot.is_answering):
        active.incomplete += 1
        active.is_waiting = True
        logger.warning("%s: measured again: %s", active.name, error)
    else:
        fail_with(deps, active, error)


def fail_with(deps: Deps, active: ActiveRun, error: BaseException) -> None:
    """Record a run as failed by an error of its background work; log unforeseen errors with their traceback.

    Raises EnvironmentBroken, SandboxUnavailable if no other run could be scored either.
    """
    if isinstance(error, Drained):
        # The study is stopping, and `leave` records what happens to its runs.
        return
    if not isinstance(error, (SwarmError, ResearchError, OSError)):
        logger.error("%s: unexpected failure", active.name, exc_info=error)
    refuse_to_repeat(deps, active, error)
    reason = str(error) or type(error).__name__
    diagnosis = None
    if isinstance(error, RunRejected):
        diagnosis = Diagnosis("rejected", reason, is_scored=False, is_retried=False)
    elif isinstance(error, (RunDiverged, TrainingDiverged)):
        diagnosis = Diagnosis(NOT_FINITE, reason, is_scored=False, is_retried=False)
    elif isinstance(error, ScoreIncomplete):
        diagnosis = Diagnosis(UNSCORED, reason, is_scored=False, is_retried=False)
    elif isinstance(error, ProgramFailure):
        diagnosis = Diagnosis(PROGRAM, reason, is_scored=False, is_retried=False)
    fail(deps, active, reason, diagnosis=diagnosis)


def fail(deps: Deps, active: ActiveRun, reason: str, *, diagnosis: Diagnosis | None = None) -> None:
    """Record that a run has ended without a score, and free its server; the study goes on.

    Raises EnvironmentBroken or SandboxUnavailable if one of these is the cause.
    """
    refuse_to_blame(deps)
    if active.child is not None:
        active.child.stop()
    reason = in_one_line(reason)
    found: dict[str, Any] = {"kind": FAILURE, "sentence": reason, "is_retried": True}
    if diagnosis is not None:
        sentence = in_one_line(diagnosis.sentence)
        found = {"kind": diagnosis.kind, "sentence": sentence, "is_retried": diagnosis.is_retried}
    run = deps.store.update_run(active.run_id, status=RunStatus.FAILED, exit_reason=reason, diagnosis=found)
    Notebook(deps.store, deps.study_id).note_failed_run(run, active.name, found["sentence"])
    deps.ledger.end_run(active.run_id)
    deps.log.warn("run.failed", f"{active.name} failed: {reason}", run_id=active.run_id)
    deps.active_runs.remove(active)
    deps.pool.report_run(active.slot, is_well=found["kind"] in OWN_DOING)
    deps.pool.give_back(active.slot)


def _own_name(deps: Deps, active: ActiveRun) -> str:
    run = deps.store.get_run(active.run_id)
    return str(job_of_run(run, active.experiment)["experiment_name"])
