"""The plain-HTTP example: bash, curl and sed are a whole client."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from swarm import TrainJob

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_http"
SCRIPT = ["bash", str(EXAMPLE / "client.sh")]

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.fixture
def quick_job(tmp_path: Path) -> Path:
    """The example's job with an engine that costs no time."""
    job = TrainJob.build_job_from_yaml(EXAMPLE / "job.yaml")
    assert (job.model, job.total_steps) == ("nano", 10)
    quick = job.model_copy(update={"engine": "fake", "batch_size": 2, "num_repeat": 4, "total_steps": 3})
    path = tmp_path / "job.yaml"
    path.write_text(quick.model_dump_json(exclude_defaults=True, indent=2))
    return path


def test_a_shell_script_trains_the_model(swarm_process: str, quick_job: Path) -> None:
    done = subprocess.run(
        [*SCRIPT, str(quick_job)],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "SWARM_URL": swarm_process},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 1  reward [\d.]+", done.stdout), done.stdout
    assert done.stdout.splitlines()[-1] == "done: 3 steps"
    status = httpx.get(f"{swarm_process}/v1/swarm/status", timeout=60).json()
    assert (status["step"], status["pool"]["running_train"]) == (3, 0)
    trained = httpx.get(f"{swarm_process}/v1/swarm/episodes", params={"state": "trained"}, timeout=60).json()
    assert {(episode["turns"], episode["reward"]) for episode in trained["episodes"]} == {(1, 0.0)}


def test_a_killed_script_sends_no_more_heartbeats(swarm_process: str, quick_job: Path) -> None:
    quick_job.write_text(quick_job.read_text().replace('"total_steps": 3', '"total_steps": 100000'))
    with subprocess.Popen(
        [*SCRIPT, str(quick_job)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "SWARM_URL": swarm_process},
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline().startswith("step 1")
        script.send_signal(signal.SIGKILL)
        script.wait(timeout=60)
        deadline = time.monotonic() + 60
        while _is_alive(script.pid):
            assert time.monotonic() < deadline, "something of the script is still running"
            time.sleep(0.1)


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
