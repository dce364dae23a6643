"""The status of a server and its job, as the control API shows them."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import swarm
from swarm.gateway.control.views import view_evaluation
from swarm.job import TrainJob
from swarm.ledger import EvaluationRow, EventRow
from swarm.live_settings import JobChange
from swarm.run.lifecycle import EngineLifecycle
from swarm.schemas import DiskView, EvaluationView, GuardView, JobChangeView, JobView, Status
from swarm.server.run import JobRun
from swarm.trainer.checkpoints import DiskUse

logger = logging.getLogger(__name__)

RUNNING_SHOWN = 50
LOOK_AGAIN_S = 30.0
"""The time for which a measurement of the disk is shown. It takes longer than the rest of a status."""


def build_status(job: TrainJob | None, run: JobRun | None, lifecycle: EngineLifecycle, started_at: float) -> Status:
    """Return what the server knows without a read of the ledger or the disk.

    `started_at` is in seconds since the epoch.
    """
    weights = lifecycle.weights
    if run is not None:
        job = run.job.at(weights.step + 1)
    episodes = run.episodes if run else None
    return Status(
        server_version=swarm.__version__,
        state=lifecycle.state,
        reason=lifecycle.reason,
        has_diverged=lifecycle.has_diverged,
        project_name=job.project_name if job else None,
        experiment_name=job.experiment_name if job else None,
        model=job.model if job else None,
        step=weights.step,
        total_steps=job.total_steps if job else None,
        weight_version=weights.version,
        pool=episodes.pool_view() if episodes else None,
        policy=episodes.batch.policies().active if episodes else None,
        clients=episodes.client_views() if episodes else [],
        running=episodes.running_views(RUNNING_SHOWN) if episodes else [],
        warnings=episodes.warnings() if episodes else [],
        recoveries=run.recoveries if run else 0,
        calls=dict(run.service.counts.oddities) if run else {},
        ignored_fields=dict(run.service.counts.ignored_fields) if run else {},
        tokens_per_second=run.service.tokens_per_second() if run else 0.0,
        calls_in_flight=episodes.calls_in_flight() if episodes else 0,
        last_metrics=run.loop.last_metrics if run else {},
        revision=run.job.timeline.revision if run else 0,
        changes_ahead=[_view(change) for change in run.job.timeline.changes if change.at_step > weights.step]
        if run
        else [],
        evaluation=_view_score(run.loop.evaluations.present) if run else None,
        last_evaluation=_view_score(run.loop.evaluations.last_done) if run else None,
        guard=_view_guard(run.loop.guard.newest) if run else None,
        started_at=started_at,
        now=time.time(),
    )


def build_job_view(job: TrainJob | None, run: JobRun | None) -> JobView:
    if job is None:
        return JobView(job=None, resolved=None)
    view = JobView(
        job=job.model_dump(mode="json", exclude_defaults=True), resolved=job.resolve().model_dump(mode="json")
    )
    if run is None:
        return view
    running = run.job
    return view.model_copy(
        update={
            "in_force": running.at(running.filling).model_dump(mode="json"),
            "filling": running.filling,
            "initial_step": run.recovery.initial_step,
            "revision": running.timeline.revision,
            "changes": [_view(change) for change in running.timeline.changes],
        }
    )


def _view_score(row: EvaluationRow | None) -> EvaluationView | None:
    return None if row is None else view_evaluation(row)


def _view_guard(event: EventRow | None) -> GuardView | None:
    if event is None:
        return None
    fields = {name: event.detail.get(name) for name in GuardView.model_fields if name != "did"}
    return GuardView.model_validate({**fields, "did": event.kind.removeprefix("guard.")})


def _view(change: JobChange) -> JobChangeView:
    return JobChangeView(revision=change.revision, at_step=change.at_step, settings=dict(change.settings))


class DiskMeter:
    """A cached measurement of a directory's disk use. It is used from one event loop."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._seen: DiskView | None = None
        self._looked_at = -LOOK_AGAIN_S
        self._turn = asyncio.Lock()

    async def view(self) -> DiskView | None:
        """Return the disk use, at most LOOK_AGAIN_S seconds old, or None if the directory cannot be read."""
        async with self._turn:
            if time.monotonic() - self._looked_at >= LOOK_AGAIN_S:
                self._seen = await asyncio.to_thread(_look, self._home)
                self._looked_at = time.monotonic()
        return self._seen


def _look(home: Path) -> DiskView | None:
    try:
        use = DiskUse.of(home)
    except OSError as error:
        logger.error("%s cannot be looked at: %s", home, error)
        return None
    return DiskView(
        ledger_bytes=use.ledger,
        checkpoints_bytes=use.checkpoints + use.recovery,
        recovery_bytes=use.recovery,
        free_bytes=use.free,
    )
