"""A run that begins at a checkpoint: at its step, with its weights, and in its place in the order of tasks."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from local_runs import assert_same_checkpoint
from server_processes import ServerProcess, server_processes
from tests_support import begin, chat, end, run_batch, wait_for_state, wait_for_step

from swarm import SwarmClient, TrainJob
from swarm.environments import load_environment
from swarm.errors import BadRequest, CheckpointError, EngineFailure, IllegalTransition, JobInvalid, NotFound
from swarm.program.command_line import main
from swarm.program.order import stream
from swarm.tasks import Split

FAKE = TrainJob(engine="fake", batch_size=1, num_repeat=2, total_steps=5, drain_timeout_s=1)
LOCAL = TrainJob(
    engine="local", batch_size=1, num_repeat=2, lr=1e-3, lr_warmup_steps=4, max_response_length=12, drain_timeout_s=1,
    total_steps=4,
)  # fmt: skip


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


@pytest.fixture
def checkpoint(start_server: Any) -> Path:
    """The checkpoint of step 2 of a run without a model."""
    server = start_server(FAKE)
    with SwarmClient(server.url) as client, httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        train(http, 1, 2)
        return Path(client.save_checkpoint().path)


def resumed(job: TrainJob, checkpoint: Path, **changes: Any) -> TrainJob:
    return TrainJob.model_validate({**job.model_dump(), "resume_from": str(checkpoint), **changes})


def train(http: httpx.Client, *steps: int) -> None:
    """Train the steps with the same episodes each time."""
    for step in steps:
        for repeat in range(2):
            episode = begin(http)
            chat(http, episode, f"Say {step}", seed=10 * step + repeat, max_tokens=12)
            end(http, episode, task_id=f"task-{step}", reward=float(repeat))
        wait_for_step(http, step)


def test_a_run_begins_at_the_step_of_its_checkpoint_and_ends_at_the_step_of_its_job(
    start_server: Any, checkpoint: Path
) -> None:
    job = resumed(FAKE, checkpoint)
    server = start_server()
    with SwarmClient(server.url) as client, httpx.Client(base_url=server.url, timeout=60) as http:
        status = client.auto_sync_train_config_and_start_engine(job)
        assert (status.step, status.weight_version, client.job().initial_step) == (2, 2, 2)
        [started] = [event.detail for event in client.past_events() if event.kind == "job.started"]
        assert started["resume_from"] == {"path": str(checkpoint), "step": 2}
        # Before the first step of its own, it can save what it began with.
        assert client.save_checkpoint().step == 2
        train(http, 3, 4)
        with pytest.raises(NotFound, match="began at step 2, with resume_from: it cannot go to step 1"):
            client.load_checkpoint(1)
        client.load_checkpoint(2)
        assert client.status().step == 2
        train(http, 3, 4, 5)
        wait_for_state(http, "COMPLETE")
        assert [point.step for point in client.metrics()] == [3, 4, 5]
        assert client.auto_sync_train_config_and_start_engine(job).step == 5


def test_a_run_that_has_trained_nothing_yet_goes_on_at_its_checkpoint(
    start_server: Any, checkpoint: Path, tmp_path: Path
) -> None:
    job, home = resumed(FAKE, checkpoint), tmp_path / "home"
    first = start_server(home=home)
    with SwarmClient(first.url) as client:
        client.auto_sync_train_config_and_start_engine(job)
        client.save_checkpoint()
        client.stop_engine()
        assert client.auto_sync_train_config_and_start_engine(job).step == 2
        changed = job.model_copy(update={"lr": 1e-4, "resume_from": None})
        assert client.auto_sync_train_config_and_start_engine(changed, resume="weights").step == 0


def test_a_launched_run_begins_at_its_checkpoint_too(start_server: Any, checkpoint: Path) -> None:
    server = start_server()
    with SwarmClient(server.url) as client, httpx.Client(base_url=server.url, timeout=60) as http:
        with pytest.raises(JobInvalid, match="no directory"):
            client.launch("a", resumed(FAKE, checkpoint / "gone"))
        assert client.find_launch("a") is None
        client.launch("a", resumed(FAKE, checkpoint))
        wait_for_state(http, "ROLLING")
        launched = client.find_launch("a")
        assert launched is not None and (launched.outcome, launched.step, launched.total_steps) == ("running", 2, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resume_from": "/nowhere"}, "no directory /nowhere"),
        ({"resume_from": "/"}, "not a complete checkpoint"),
        ({"total_steps": 2}, "of step 2, and the job ends with total_steps 2"),
        ({"model": "micro"}, "written with model nano, and the job has micro"),
        ({"lora_rank": 4}, "written with lora_rank 0, and the job has 4"),
        ({"engine": "local"}, "written with engine fake, and the job has local"),
    ],
)
def test_what_a_run_cannot_begin_at_is_refused_in_one_line(
    start_server: Any, checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    with SwarmClient(start_server().url) as client:
        with pytest.raises(JobInvalid, match=f"^resume_from: .*{message}[^\n]*$") as refused:
            client.auto_sync_train_config_and_start_engine(resumed(FAKE, checkpoint, **changes))
        assert refused.value.param == "resume_from"
        assert not [event for event in client.past_events() if event.kind == "job.started"]


@pytest.mark.parametrize("manifest", [{}, {"step": "2"}, {"files": {"fake_trainer.json": {"bytes": 1}}}])
def test_a_checkpoint_that_is_not_what_was_written_is_refused(
    start_server: Any, checkpoint: Path, tmp_path: Path, manifest: dict[str, Any]
) -> None:
    damaged = Path(shutil.copytree(checkpoint, tmp_path / "damaged"))
    whole = json.loads((damaged / "manifest.json").read_text())
    (damaged / "manifest.json").write_text(json.dumps({**whole, **manifest} if manifest else {}))
    with SwarmClient(start_server().url) as client, pytest.raises(JobInvalid, match=r"resume_from: .*checkpoint"):
        client.auto_sync_train_config_and_start_engine(resumed(FAKE, damaged))


def test_another_checkpoint_is_another_job_and_no_change_of_the_running_one(
    start_server: Any, checkpoint: Path
) -> None:
    server = start_server(FAKE)
    job = resumed(FAKE, checkpoint)
    with SwarmClient(server.url) as client, httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        with pytest.raises(IllegalTransition, match="another job"):
            client.auto_sync_train_config_and_start_engine(job)
        with pytest.raises(BadRequest, match="resume_from cannot change while the job runs"):
            client.change_job({"resume_from": str(checkpoint)})
        with pytest.raises(JobInvalid, match="leave one out"):
            client.auto_sync_train_config_and_start_engine(job, resume="weights")


def test_a_program_goes_on_with_the_tasks_that_the_first_steps_have_not_taken(
    start_server: Any, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text("def reward(task, transcript, grade):\n    return grade.score\n")
    job = TrainJob(engine="fake", batch_size=3, num_repeat=2, total_steps=6, seed=4)

    def run(url: str, job: TrainJob, *words: str) -> Counter[str]:
        job.dump_job_as_yaml(tmp_path / "job.yaml")
        main(
            tmp_path / "program.py",
            ["--server", url, "--env", "reverse", "--job", str(tmp_path / "job.yaml"), "--workers", "4", *words],
        )
        with SwarmClient(url) as client:
            return Counter(view.task_id or "" for view in client.episodes(state="trained"))

    first, second = start_server().url, start_server().url
    before = run(first, job, "--until-steps", "2")
    with SwarmClient(first) as client:
        longer = resumed(job, Path(client.save_checkpoint().path))
    upto4 = run(second, longer, "--until-steps", "4")
    # The same command goes on from there.
    after = run(second, longer)
    wanted = [item.task.task_id for item in islice(stream(load_environment("reverse"), Split.TRAIN, job.seed), 18)]
    assert before == dict.fromkeys(wanted[:6], 2)
    assert upto4 == dict.fromkeys(wanted[6:12], 2)
    assert after == dict.fromkeys(wanted[6:], 2)


def test_a_server_that_is_killed_at_its_first_step_begins_at_the_checkpoint_again(
    checkpoint: Path, tmp_path: Path
) -> None:
    mine = Path(shutil.copytree(checkpoint, tmp_path / "mine"))
    before = {path.name: path.read_bytes() for path in mine.iterdir()}
    with server_processes(tmp_path / "killed") as make:
        server = make()
        with SwarmClient(server.url, timeout=120) as client, httpx.Client(base_url=server.url, timeout=60) as http:
            client.auto_sync_train_config_and_start_engine(resumed(FAKE, mine))
            run_batch(http, tasks=1, repeats=1)
            killed(server)
            assert wait_for_state(http, "ROLLING")["step"] == 2
            # The half batch is still there.
            run_batch(http, tasks=1, repeats=1)
            wait_for_step(http, 3)
            forget_own_checkpoints(server)
            killed(server)
            assert wait_for_state(http, "ROLLING")["step"] == 3
            assert {path.name: path.read_bytes() for path in mine.iterdir()} == before
            forget_own_checkpoints(server)
            mine.rename(tmp_path / "moved")
            with pytest.raises(CheckpointError, match="cannot be read"):
                client.load_checkpoint(2)
            assert client.status().state == "ROLLING"
            killed(server)
            assert "resume_from" in wait_for_state(http, "FAILED")["reason"]
            with pytest.raises((EngineFailure, CheckpointError), match="resume_from"):
                client.auto_sync_train_config_and_start_engine(resumed(FAKE, mine))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_runs_of_two_steps_have_the_weights_of_one_of_four_also_after_a_kill(tmp_path: Path) -> None:
    with server_processes(tmp_path / "killed") as make:
        one, two = make(), make()
        with SwarmClient(one.url, timeout=120) as client, httpx.Client(base_url=one.url, timeout=60) as http:
            client.auto_sync_train_config_and_start_engine(LOCAL)
            train(http, 1, 2)
            checkpoint = Path(client.save_checkpoint().path)
            train(http, 3, 4)
            whole = Path(client.save_checkpoint().path)
            client.stop_engine()
        with SwarmClient(two.url, timeout=120) as client, httpx.Client(base_url=two.url, timeout=60) as http:
            assert client.auto_sync_train_config_and_start_engine(resumed(LOCAL, checkpoint)).step == 2
            train(http, 3)
            forget_own_checkpoints(two)
            killed(two)
            assert wait_for_state(http, "ROLLING")["step"] == 3
            train(http, 4)
            again = Path(client.save_checkpoint().path)
            rates = [point.metrics["actor/lr"] for point in client.metrics()]
    assert rates == pytest.approx([7.5e-4, 1e-3])
    assert assert_same_checkpoint(again, whole)["steps_done"] == 4


def killed(server: ServerProcess) -> None:
    server.kill()
    server.start()


def forget_own_checkpoints(server: ServerProcess) -> None:
    for name in ("checkpoints", "recovery"):
        shutil.rmtree(server.home / f"swarm/default/run-0001/{name}", ignore_errors=True)
