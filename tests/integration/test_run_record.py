"""A run whose server's record is not that of an honest run is rejected, by name, before it is scored."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from researcher.errors import RunRejected
from researcher.evaluation.run_record import check_record, held_out_of, mark_begin
from swarm import EpisodeType, SwarmClient, Task, TrainJob, WorkflowOutput

pytestmark = pytest.mark.timeout(400)

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=50, experiment_name="arm/seed-1")
HELD_OUT = held_out_of({"words/held-out": "What is the secret word?"})
RUN = "run-1"


@pytest.fixture
def server(start_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_server().url, client_id=f"{RUN}/host:1:2") as client:
        client.auto_sync_train_config_and_start_engine(JOB)
        yield client


def attempt(client: SwarmClient, task_id: str, *messages: str, kind: EpisodeType = EpisodeType.TRAIN) -> None:
    with client.open_episode(Task("?", task_id), kind) as episode:
        for message in messages:
            body = {"model": "x", "messages": [{"role": "user", "content": message}], "max_tokens": 4}
            headers = {"Authorization": f"Bearer {episode.credentials.api_key}"}
            url = f"{episode.credentials.base_url}/chat/completions"
            httpx.post(url, json=body, headers=headers).raise_for_status()
        episode.output = WorkflowOutput(reward=1.0)


def change_policy(client: SwarmClient) -> None:
    client.update_batch_policy(batch_size=1)


def train_and_load(client: SwarmClient) -> None:
    # One episode of the first task is there already.
    for task in ("a", "b", "b"):
        attempt(client, task, "hello")
    client.wait_until_step(1, 60)
    # The checkpoint of the step may be in work still.
    while client.status().state != "ROLLING":
        time.sleep(0.05)
    client.load_checkpoint(0)


def stop_and_start(client: SwarmClient) -> None:
    client.stop_engine()
    client.auto_sync_train_config_and_start_engine(JOB)


def start_anew(client: SwarmClient) -> None:
    client.auto_sync_train_config_and_start_engine(JOB, force_restart=True)


def extend(client: SwarmClient) -> None:
    client.auto_sync_train_config_and_start_engine(JOB.model_copy(update={"total_steps": 60}))


def train_as_another(client: SwarmClient) -> None:
    with SwarmClient(client.url, client_id="run-2/host:1:2") as other:
        attempt(other, "a", "hello")


def train_on_a_held_out_task(client: SwarmClient) -> None:
    attempt(client, "words/held-out", "hello")


def ask_a_held_out_question(client: SwarmClient) -> None:
    attempt(client, "a", "hello", "Think of this:\n  What is the secret word? \nAnswer briefly.")


OFFENCES = [
    (change_policy, "the settings of the job were changed"),
    (train_and_load, "the weights of step 0 were loaded"),
    (stop_and_start, "the engine was stopped"),
    (start_anew, "the engine was stopped"),
    (extend, "the job was given another number of steps"),
    (train_as_another, "train episodes came from another client, run-2"),
    (train_on_a_held_out_task, "the held-out task words/held-out is among the train episodes"),
    (ask_a_held_out_question, "asks a held-out question: 'What is the secret word\\?'"),
]


@pytest.mark.parametrize(("offend", "reason"), OFFENCES)
def test_a_run_is_rejected_for_what_its_server_recorded(
    server: SwarmClient, offend: Callable[[SwarmClient], None], reason: str
) -> None:
    mark = mark_begin(server, JOB.model_dump())
    attempt(server, "a", "hello")
    check_record(server, mark, HELD_OUT, RUN)
    offend(server)
    with pytest.raises(RunRejected, match=reason):
        check_record(server, mark, HELD_OUT, RUN)


def test_what_an_honest_run_does_and_what_was_before_it_is_no_reason(server: SwarmClient) -> None:
    change_policy(server)
    train_as_another(server)
    job = JOB.model_copy(update={"experiment_name": "arm/seed-2"})
    server.auto_sync_train_config_and_start_engine(job, force_restart=True)
    mark = mark_begin(server, job.model_dump())
    for _ in range(2):
        attempt(server, "a", "What is the secret word for 'a'?", "My secret: What is the secret word? Say it.")
        attempt(server, "b", "hello")
    server.wait_until_step(1, 60)
    attempt(server, "words/held-out", "What is the secret word?", kind=EpisodeType.EVAL)
    server.save_checkpoint()
    check_record(server, mark, HELD_OUT, RUN)


def test_the_end_that_the_study_asked_for_is_no_reason_even_if_it_was_asked_for_twice(server: SwarmClient) -> None:
    mark = mark_begin(server, JOB.model_dump())
    server.change_job({"total_steps": 3})
    server.change_job({"total_steps": 2})

    check_record(server, mark, HELD_OUT, RUN, ended_at=2)
    for ended_at in (3, None):
        with pytest.raises(RunRejected, match="the settings of the job were changed"):
            check_record(server, mark, HELD_OUT, RUN, ended_at=ended_at)


def test_a_server_that_never_started_the_job_is_no_witness(server: SwarmClient) -> None:
    with pytest.raises(RunRejected, match="no record of the start of another"):
        mark_begin(server, {"experiment_name": "another"})


def test_episodes_of_earlier_runs_are_no_reason_whatever_their_times(server: SwarmClient, tmp_path: Path) -> None:
    train_as_another(server)
    # As if the clock had been set back by an hour since: the times of earlier episodes lie ahead.
    (ledger,) = tmp_path.rglob("ledger.db")
    with closing(sqlite3.connect(ledger, timeout=60)) as connection, connection:
        connection.execute("UPDATE episodes SET begun_at = begun_at + 3600")
    job = JOB.model_copy(update={"experiment_name": "arm/seed-3"})
    server.auto_sync_train_config_and_start_engine(job, force_restart=True)
    mark = mark_begin(server, job.model_dump())
    attempt(server, "a", "hello")
    check_record(server, mark, HELD_OUT, RUN)
