"""The run of a training on its server: begun under the training's key, or gone on with.

Place in the flow: `swarm train` comes here with the folder of a training. What is asked for has to agree with the
record there, and the record with what the server knows. Nothing is begun in the place of a run that was trained, unless
that is asked for. This module knows nothing of environments and programs.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from swarm.cli.train.training_folder import TrainingFolder
from swarm.cli.train.training_record import TrainingRecord, differences
from swarm.client import SwarmClient
from swarm.client.plans import calls
from swarm.errors import LaunchConflict
from swarm.job import TrainJob, build_job
from swarm.schemas import Status

UNDER_WAY = frozenset({"running", "done"})


def take_up(folder: TrainingFolder, wanted: TrainingRecord, *, has_own_server: bool) -> TrainingRecord:
    """The training to go on with, or `wanted` where there is none in which anything was measured.

    Raises Conflict if there is another one.
    """
    known = folder.read()
    if known is None and has_own_server:
        folder.require_no_ledger()
    if known is not None and known.base_score is None and differences(known, wanted):
        # It came to nothing, such as by a model that could not be loaded: there is no result to confuse this one with.
        # Whether the server agrees is not known yet: until then its record stays.
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
    """Wait until the run of this training is served; its status says at which step.

    Raises Conflict if the server has no such run, or another one; EngineFailure if it cannot serve it.
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
            f"the server at {client.url} has begun another run since it trained what {folder.directory} is about"
        )
    with _without_advice():
        status = client.auto_sync_train_config_and_start_engine(job)
    # Only now are more steps agreed with the server.
    folder.write(record)
    return status


@contextmanager
def _without_advice() -> Generator[None]:
    """Leave out what the client library logs of a job that is complete: it is advice for programs."""
    log = logging.getLogger(calls.__name__)
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def _end_former(client: SwarmClient, folder: TrainingFolder, key: str, *, fresh: bool) -> None:
    """Free the server of the run whose place is taken. Raises Conflict if it was trained and nobody asked for that."""
    launched = client.find_launch(key)
    if launched is None or launched.outcome == "replaced":
        return
    if launched.step and not fresh:
        raise folder.refusal(f"others have trained {launched.step} steps of what {folder.directory} began")
    if launched.outcome in UNDER_WAY:
        client.stop_engine()


def _launch(client: SwarmClient, key: str, job: TrainJob) -> None:
    """Begin the run. One that the server began by itself with this very job, and nobody has used, makes room."""
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
    if present is None or not build_job(present).means(job) or status.step or status.pool is None:
        return False
    return not (status.pool.episodes or status.pool.running_train or status.pool.running_eval)
