"""kill -9 of a server process: what was acknowledged is still there, and the same job goes on where it stood."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml
from tests_support import begin, end, run_batch, wait_for_state, wait_for_step

JOB = {"engine": "fake", "batch_size": 2, "num_repeat": 2, "save_freq": 1, "drain_timeout_s": 1}


@contextmanager
def server_process(home: Path, job: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    command = [
        sys.executable,
        "-m",
        "swarm.cli",
        "start",
        "--port",
        "0",
        "--home",
        str(home),
        "--job",
        str(job),
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            with httpx.Client(base_url=url, timeout=20) as http:
                wait_for_state(http, "ROLLING")
                yield process, http
        finally:
            process.kill()


def test_a_killed_server_goes_on_with_step_and_half_filled_batch(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(JOB))
    home = tmp_path / "home"
    with server_process(home, job) as (process, http):
        run_batch(http, tasks=2, repeats=2)
        wait_for_step(http, 1)
        for reward in (0.0, 1.0):
            end(http, begin(http), task_id="half", reward=reward, call=True)
        running = begin(http)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=10)

    with server_process(home, job) as (_, http):
        status = http.get("/v1/swarm/status").json()
        assert (status["step"], status["weight_version"]) == (1, 1)
        assert (status["pool"]["episodes"], status["pool"]["tasks"]) == (2, 1)
        assert status["failures"] == {"server_restarted": 1}
        late = http.post(f"/v1/swarm/episodes/{running['episode_id']}/end", json={"task_id": "half", "reward": 1.0})
        assert (late.status_code, late.json()["error"]["code"]) == (409, "episode_ended")
        for reward in (0.0, 1.0):
            end(http, begin(http), task_id="other", reward=reward, call=True)
        wait_for_step(http, 2)
        points = http.get("/v1/swarm/metrics").json()["points"]
        assert [(point["step"], point["metrics"]["batch/episodes"]) for point in points] == [(1, 4), (2, 4)]


def test_a_job_that_trained_and_never_saved_starts_over_and_says_so(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump({**JOB, "save_freq": 0}))
    home = tmp_path / "home"
    with server_process(home, job) as (process, http):
        run_batch(http, tasks=2, repeats=2)
        wait_for_step(http, 1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
    with server_process(home, job) as (_, http):
        status = http.get("/v1/swarm/status").json()
        assert (status["step"], status["weight_version"], status["pool"]["episodes"]) == (0, 0, 0)
