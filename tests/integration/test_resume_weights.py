"""A changed job that takes the place of the one that runs: a new run, from the weights there are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_processes import ServerProcess, server_processes
from tests_support import run_batch, wait_for_state, wait_for_step

from swarm import SwarmClient, TrainJob
from swarm.errors import BadRequest, IllegalTransition, JobInvalid

FAKE = TrainJob(engine="fake", batch_size=1, num_repeat=2, drain_timeout_s=1)
LOCAL = TrainJob(engine="local", batch_size=1, num_repeat=2, lr=1e-3, max_response_length=12, drain_timeout_s=1)


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


def saved(client: SwarmClient) -> bytes:
    """The present weights."""
    return (Path(client.save_checkpoint().path) / "model.safetensors").read_bytes()


def train(server: ServerProcess, *steps: int) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for step in steps:
            run_batch(http, tasks=1, repeats=2, name=f"batch-{step}")
            wait_for_step(http, step)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_changed_job_begins_with_the_weights_of_the_last_step_and_survives_a_kill(tmp_path: Path) -> None:
    changed = LOCAL.model_copy(update={"lr": 5e-4, "mini_batch_num": 2})
    with server_processes(tmp_path) as make:
        server = make()
        with SwarmClient(server.url, timeout=120) as client:
            client.auto_sync_train_config_and_start_engine(LOCAL)
            base = saved(client)
            train(server, 1, 2)
            trained = saved(client)
            assert trained != base
            # The way there is the record of the run alone.
            for path in server.home.glob("swarm/default/run-0001"):
                shutil.rmtree(path)
            status = client.auto_sync_train_config_and_start_engine(changed, resume="weights")
            assert (status.step, status.weight_version) == (0, 0)
            assert saved(client) == trained
            train(server, 1)
            after = saved(client)
            shutil.rmtree(server.home / "swarm/default/run-0002/checkpoints")
            shutil.rmtree(server.home / "swarm/default/run-0002/recovery", ignore_errors=True)
            server.kill()
            server.start()
            with httpx.Client(base_url=server.url, timeout=60) as http:
                wait_for_state(http, "ROLLING")
            assert client.status().step == 1
            assert saved(client) == after
            third = client.auto_sync_train_config_and_start_engine(LOCAL, resume="weights")
            assert third.step == 0
            assert saved(client) == after
            started = [event.detail for event in client.past_events() if event.kind == "job.started"]
            assert [each.get("weights_of") for each in started] == [
                None, {"job_id": 1, "step": 2}, {"job_id": 2, "step": 1}
            ]  # fmt: skip


def test_the_same_job_just_goes_on_and_another_one_is_a_new_run_without_force(start_server: Any) -> None:
    server = start_server(FAKE)
    with SwarmClient(server.url) as client, httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=1, repeats=2)
        wait_for_step(http, 1)
        assert client.auto_sync_train_config_and_start_engine(FAKE, resume="weights").step == 1
        other = FAKE.model_copy(update={"lr": 1e-4})
        with pytest.raises(IllegalTransition, match="another job is ROLLING"):
            client.auto_sync_train_config_and_start_engine(other)
        assert client.auto_sync_train_config_and_start_engine(other, resume="weights").step == 0
        assert client.auto_sync_train_config_and_start_engine(other, resume="weights").step == 0
        assert len([event for event in client.past_events() if event.kind == "job.started"]) == 2


def test_weights_of_another_model_and_a_forced_restart_are_refused_in_one_line(start_server: Any) -> None:
    server = start_server(FAKE)
    with SwarmClient(server.url) as client, httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        with pytest.raises(JobInvalid, match="the existing weights are those of nano, not of micro"):
            client.auto_sync_train_config_and_start_engine(FAKE.model_copy(update={"model": "micro"}), resume="weights")
        with pytest.raises(BadRequest, match="leave one out"):
            client.auto_sync_train_config_and_start_engine(FAKE, force_restart=True, resume="weights")
        with pytest.raises(BadRequest, match="must be 'run' or 'weights'"):
            client.auto_sync_train_config_and_start_engine(FAKE, resume="optimizer")  # type: ignore[arg-type]


def test_a_first_job_begins_with_its_model(start_server: Any) -> None:
    server = start_server()
    with SwarmClient(server.url) as client:
        assert client.auto_sync_train_config_and_start_engine(FAKE, resume="weights").step == 0
        [started] = [event.detail for event in client.past_events() if event.kind == "job.started"]
        assert "weights_of" not in started
