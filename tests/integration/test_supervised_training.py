"""Supervised steps of a real server: they begin when asked, survive kill -9, and reward follows."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from local_runs import assert_same_checkpoint
from server_processes import serving
from tests_support import run_batch, wait_for_state, wait_for_step

from swarm import SwarmClient
from swarm.demonstrations import write_demonstrations
from swarm.errors import BadRequest, JobInvalid, RolloutPaused
from swarm.job import build_job
from swarm.program.gates import until_demonstrated

JOB = {
    "model": "nano", "sft_steps": 6, "sft_batch_size": 4, "total_steps": 7, "batch_size": 2, "num_repeat": 2,
    "sft_coeff": 0.2, "max_response_length": 8,
}  # fmt: skip


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


def demonstrations(folder: Path) -> Path:
    rng = random.Random(0)
    words = ["".join(rng.choices("ABCDEFGH", k=4)) for _ in range(40)]
    path = folder / "reversed.jsonl"
    chats = [
        ([{"role": "user", "content": f"Reverse: {word}"}, {"role": "assistant", "content": word[::-1]}], [])
        for word in words
    ]
    path.write_bytes(write_demonstrations(chats))
    return path


def test_supervised_steps_wait_for_a_client_and_then_hold_episodes_back(start_server: Any, tmp_path: Path) -> None:
    path = demonstrations(tmp_path)
    server = start_server(home=tmp_path / "home")
    job = {**JOB, "engine": "fake", "demonstrations": str(path)}
    with SwarmClient(server.url) as client:
        status = client.auto_sync_train_config_and_start_engine(job)
        assert (status.state, status.step) == ("ROLLING", 0)
        assert (client.job().job or {})["demonstrations"].startswith("sha256:")
        with pytest.raises(RolloutPaused, match="demonstrations are trained up to step 6"):
            client.begin_episode(task_id="t", wait_timeout=0)
        episode_id, _ = client.begin_episode(task_id="t", wait_timeout=60)
        client.abort_episode(episode_id)
        assert client.status().step == 6
        points = client.metrics()
        assert [point.step for point in points] == list(range(1, 7))
        assert all("sft/loss" in point.metrics and "critic/score/mean" not in point.metrics for point in points)
        # The same job again, from the same file, joins the run.
        assert client.auto_sync_train_config_and_start_engine(job).step == 6
    server.stop()


def test_demonstrations_that_a_server_lacks_and_files_that_hold_none_are_refused(
    start_server: Any, tmp_path: Path
) -> None:
    server = start_server(home=tmp_path / "home")
    job = {**JOB, "engine": "fake"}
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    with SwarmClient(server.url) as client:
        for name, kind, says in (
            ("sha256:" + 64 * "0", JobInvalid, "upload the file first"),
            (str(tmp_path / "none.jsonl"), BadRequest, "cannot be read"),
            (str(wrong), BadRequest, "wrong.jsonl: line 1: messages"),
        ):
            with pytest.raises(kind, match=says):
                client.auto_sync_train_config_and_start_engine({**job, "demonstrations": name})
    server.stop()


def play(home: Path, job: dict[str, Any], kills: list[float]) -> Path:
    """Train the job to its end, kill the server after so many seconds of each life, and return the last checkpoint."""
    for seconds in [*kills, None]:
        with serving(home) as (process, http, address):
            with SwarmClient(address["url"]) as client:
                client.auto_sync_train_config_and_start_engine(job)
                with suppress(RolloutPaused):
                    client.begin_episode(task_id="asking", wait_timeout=0)
            if seconds is None:
                wait_for_step(http, job["sft_steps"])
                return Path(http.post("/v1/swarm/engine/checkpoint", timeout=60).raise_for_status().json()["path"])
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
    raise AssertionError


def test_a_server_killed_in_its_supervised_steps_ends_with_the_same_weights(tmp_path: Path) -> None:
    job = {**JOB, "demonstrations": str(demonstrations(tmp_path))}
    whole = play(tmp_path / "whole", job, [])
    broken = play(tmp_path / "broken", job, [0.2, 0.05])
    assert json.loads((whole / "manifest.json").read_text())["step"] == 6
    assert_same_checkpoint(whole, broken)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_in_supervised_steps_change_no_weight(tmp_path: Path) -> None:
    rng = random.Random(7)
    job = {**JOB, "sft_steps": 40, "total_steps": 41, "demonstrations": str(demonstrations(tmp_path))}
    whole = play(tmp_path / "whole", job, [])
    broken = play(tmp_path / "broken", job, [rng.uniform(0.0, 0.6) for _ in range(20)])
    assert_same_checkpoint(whole, broken)


def test_reward_follows_demonstrations_with_their_term_beside_it(start_server: Any, tmp_path: Path) -> None:
    server = start_server(home=tmp_path / "home")
    with SwarmClient(server.url) as client, httpx.Client(base_url=server.url, timeout=30) as http:
        job = {**JOB, "sft_steps": 1, "total_steps": 2, "demonstrations": str(demonstrations(tmp_path))}
        client.auto_sync_train_config_and_start_engine(job)
        with pytest.raises(RolloutPaused):
            client.begin_episode(task_id="t", wait_timeout=0)
        wait_for_step(http, 1)
        run_batch(http, tasks=2, repeats=2)
        wait_for_state(http, "COMPLETE")
        last = client.metrics()[-1].metrics
        assert last["sft/loss"] > 0 and last["sft/demonstrations"] == 4 and last["batch/episodes"] == 4
    server.stop()


def test_a_run_may_end_in_its_supervised_steps(start_server: Any, tmp_path: Path) -> None:
    server = start_server(home=tmp_path / "home")
    job = {**JOB, "engine": "fake", "demonstrations": str(demonstrations(tmp_path))}
    with SwarmClient(server.url) as client:
        client.auto_sync_train_config_and_start_engine(job)
        given = build_job({**job, "demonstrations": "sha256:0"})
        assert until_demonstrated(client, given).step == 6
        client.load_checkpoint(3, end=True)
        ended = until_demonstrated(client, given)
        assert (ended.state, ended.step) == ("COMPLETE", 3)
    server.stop()


def test_the_guard_halves_the_rate_of_supervised_steps_that_diverge(start_server: Any, tmp_path: Path) -> None:
    server = start_server(home=tmp_path / "home")
    more = {"sft_lr": 1e30, "guard": "rollback", "demonstrations": str(demonstrations(tmp_path))}
    with SwarmClient(server.url) as client:
        client.auto_sync_train_config_and_start_engine({**JOB, **more})
        ended = until_demonstrated(client, build_job({**JOB, **more, "demonstrations": "sha256:0"}))
        changed = [change.settings for change in client.job().changes]
        assert {"sft_lr": 5e29} in changed and not any("lr" in settings for settings in changed)
        assert (ended.state, ended.step) == ("COMPLETE", 1), "it ends before the fall where half the rate is too much"
    server.stop()
