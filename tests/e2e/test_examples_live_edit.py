"""The live-edit example: killed, edited and started again, the same run goes on with the new reward."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from example_programs import EXAMPLES, changed_job
from tests_support import wait_for_step

EXAMPLE = EXAMPLES / "live_edit"


@contextmanager
def running(client: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(client), "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_curve_goes_on_with_the_edited_reward(swarm_process: str, tmp_path: Path) -> None:
    client = tmp_path / "client.py"
    shutil.copy(EXAMPLE / "client.py", client)
    changed_job(tmp_path, "live_edit", engine="fake", batch_size=4, num_repeat=4, total_steps=30)
    with httpx.Client(base_url=swarm_process, timeout=60) as http:
        with running(client, swarm_process):
            wait_for_step(http, 3)
        killed_at = http.get("/v1/swarm/status").json()
        strict = "return float(answer == expected)"
        assert strict in client.read_text()
        client.write_text(client.read_text().replace(strict, "return 0.25 + 0.5 * (len(answer) % 2)"))
        with running(client, swarm_process) as process:
            output, errors = process.communicate(timeout=90)
        assert process.returncode == 0, errors
        after = http.get("/v1/swarm/status").json()
        points = http.get("/v1/swarm/metrics").json()["points"]
    assert f"joined at step {killed_at['step']}" in output or f"joined at step {killed_at['step'] + 1}" in output
    assert (after["step"], after["started_at"]) == (30, killed_at["started_at"])
    assert [point["step"] for point in points] == list(range(1, 31))
    rewards = [point["metrics"]["critic/score/mean"] for point in points]
    # The fake model never reverses a word; the edited reward pays a quarter even for nothing.
    assert rewards[:3] == [0.0, 0.0, 0.0]
    assert all(reward >= 0.25 for reward in rewards[killed_at["step"] + 2 :])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_interrupted_client_leaves_nothing_running(swarm_process: str, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "client.py", tmp_path)
    changed_job(tmp_path, "live_edit", engine="fake", batch_size=4, num_repeat=4, total_steps=10_000)
    with httpx.Client(base_url=swarm_process, timeout=60) as http:
        with running(tmp_path / "client.py", swarm_process) as process:
            wait_for_step(http, 2)
            process.send_signal(signal.SIGINT)
            # Twice what the client grants its own threads, for a busy machine.
            _, errors = process.communicate(timeout=60)
        status = http.get("/v1/swarm/status").json()
    assert process.returncode == 1
    assert errors.strip().splitlines()[-1].startswith("live_edit: stopped")
    assert "Traceback" not in errors
    assert status["pool"]["running_train"] == 0, status
