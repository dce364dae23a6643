"""The run of a training on its server, which is launched under the training's key or resumed."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from swarm.cli.train.training_folder import TrainingFolder, TrainingRecord, differences
from swarm.client import SwarmClient, server_calls
from swarm.errors import LaunchConflict
from swarm.job import TrainJob, build_job
from swarm.schemas import Status

UNDER_WAY = frozenset({"running", "done"})


def take_up(folder: TrainingFolder, wanted: TrainingRecord, *, has_own_server: bool) -> TrainingRecord:
    """Return the recorded training if it is the same as `wanted`. Return `wanted` if the folder has no other training.

    A different training without a base score has no results, and `wanted` replaces it. Raise Conflict for a different
    training with results.
    """
    known = folder.read()
    if known is None and has_own_server:
        folder.require_no_ledger()
    if known is not None and known.base_score is None and differences(known, wanted):
        # The recorded training failed early, for example because its model did not load. So it has no results to keep.
        # Its record stays until the server has agreed to the new training.
        folder.former = known.key
        return wanted
    if known is None:
        folder.write(wanted)
        return wanted
    folder.require_same(known, wanted)
    return known.model_copy(update={"job": wanted.job})


def start_run(
    client: SwarmClient, folder: TrainingFolder, record: TrainingRecord, job: TrainJob, *, fresh: bool
) -> Status:
    """Launch or resume the run of this training, wait until it is served, and return the server's status.

    Raise Conflict if the server lacks the run or has another one, EngineFailure if it cannot serve the run.
    """
    if folder.former is not None:
        _end_former(client, folder, folder.former, fresh=fresh)
        folder.write(record)
    launched = client.find_launch(record.key)
    if launched is None:
        if record.base_score is not None:
            raise folder.refusal(f"the server at {client.url} knows nothing of the training in {folder.directory}")
        _launch(client, record.key, job)
    elif launched.outcome == "replaced":
        raise folder.refusal(
            f"the server at {client.url} has begun another run since the training in {folder.directory}"
        )
    with _without_advice():
        status = client.auto_sync_train_config_and_start_engine(job)
    # Written only now, because the server has just agreed to a possibly larger number of steps.
    folder.write(record)
    return status


@contextmanager
def _without_advice() -> Generator[None]:
    """Silence the client library's log about a complete job, because its advice is for programs."""
    log = logging.getLogger(server_calls.__name__)
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def _end_former(client: SwarmClient, folder: TrainingFolder, key: str, *, fresh: bool) -> None:
    """Stop the run that is being replaced. Raise Conflict if it has trained steps, unless `fresh`."""
    launched = client.find_launch(key)
    if launched is None or launched.outcome == "replaced":
        return
    if launched.step and not fresh:
        raise folder.refusal(f"clients have trained {launched.step} steps of another training in {folder.directory}")
    if launched.outcome in UNDER_WAY:
        client.stop_engine()


def _launch(client: SwarmClient, key: str, job: TrainJob) -> None:
    """Launch the run. Stop an unused run that the server itself has started with the same job, if there is one."""
    try:
        client.launch(key, job)
    except LaunchConflict as error:
        if _is_untouched(client, job):
            client.stop_engine()
            client.launch(key, job)
            return
        hint = f"`swarm stop --engine-only --url {client.url}` frees the server for this one"
        raise LaunchConflict(f"{error.message}; {hint}") from error


def _is_untouched(client: SwarmClient, job: TrainJob) -> bool:
    newest = client.find_launch()
    if newest is not None and newest.outcome != "replaced":
        return False
    present, status = client.job().resolved, client.status()
    if present is None or status.step or status.pool is None:
        return False
    # The run is stopped and launched anew, so its guard need not be the same.
    if not build_job({**present, "guard": job.guard}).means(job):
        return False
    return not (status.pool.episodes or status.pool.running_train or status.pool.running_eval)
