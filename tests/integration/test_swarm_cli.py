"""The swarm commands as a person meets them: one clear line for every mistake, and the documented exit code."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

SWARM = [sys.executable, "-m", "swarm.cli"]


def run_swarm(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SWARM, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1", "SWARM_TOKEN": "", **(env or {})},
    )


def test_start_is_ready_within_ten_seconds_and_announces_itself_as_json(tmp_path: Path) -> None:
    began = time.monotonic()
    server = subprocess.Popen(
        [*SWARM, "start", "--port", "0", "--home", str(tmp_path), "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        announced = json.loads(server.stdout.readline())
        ready = httpx.get(f"{announced['url']}/ready", timeout=5)
        elapsed = time.monotonic() - began
        assert ready.json() == {"ready": True, "state": "OFFLINE", "reason": None}
        assert announced["pid"] == server.pid
        assert elapsed < 10, f"{elapsed:.1f} s"
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=20)


def test_stop_ends_the_server(start_server: Any) -> None:
    server = start_server()
    done = run_swarm("stop", "--url", server.url)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{server.url}/health", timeout=1)
        except httpx.TransportError:
            return
        time.sleep(0.1)
    pytest.fail("the server still answers")


def test_status_shows_the_state_and_speaks_json(start_server: Any) -> None:
    server = start_server()
    assert "OFFLINE" in run_swarm("status", "--url", server.url).stdout
    assert json.loads(run_swarm("status", "--url", server.url, "--json").stdout)["state"] == "OFFLINE"


@pytest.mark.parametrize("command", [["status"], ["stop"], ["eval", "--task", "reverse", "-n", "2"]])
def test_an_unreachable_server_is_one_line_and_exit_code_5(command: list[str]) -> None:
    done = run_swarm(*command, "--url", "http://127.0.0.1:9")
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1
    assert "127.0.0.1:9" in done.stderr


def test_a_port_in_use_is_one_line_and_exit_code_75(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_swarm("start", "--port", str(port), "--home", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (75, 1)
    assert str(port) in done.stderr
    assert not list(tmp_path.iterdir()), "nothing is written before the port is ours"


def test_a_second_server_on_the_same_directory_is_refused_with_the_pid_of_the_first(
    start_server: Any, tmp_path: Path
) -> None:
    start_server(home=tmp_path)
    done = run_swarm("start", "--port", "0", "--home", str(tmp_path))
    assert done.returncode in {1, 75}
    assert str(os.getpid()) in done.stderr


BAD_JOBS = {
    "malformed YAML": ("batch_size: [1", "not valid YAML"),
    "unknown key": ("learning_rate: 0.1", "learning_rate: unknown setting"),
    "negative batch size": ("batch_size: -4", "batch_size"),
    "not a mapping": ("- 1", "expected a mapping"),
    "lr is not a number": ("lr: .nan", "lr"),
}


@pytest.mark.parametrize(("text", "fragment"), BAD_JOBS.values(), ids=BAD_JOBS.keys())
def test_a_bad_job_file_is_one_line_and_exit_code_2(tmp_path: Path, text: str, fragment: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    done = run_swarm("start", "--port", "0", "--home", str(tmp_path / "home"), "--job", str(path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert fragment in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_missing_job_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run_swarm("start", "--port", "0", "--home", str(tmp_path), "--job", str(tmp_path / "none.yaml"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_an_exposed_address_without_a_token_refuses_to_start(tmp_path: Path) -> None:
    done = run_swarm("start", "--host", "0.0.0.0", "--port", "0", "--home", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "SWARM_TOKEN" in done.stderr


def test_eval_of_an_unknown_task_names_the_known_ones(start_server: Any) -> None:
    server = start_server()
    done = run_swarm("eval", "--task", "chess", "--url", server.url)
    assert done.returncode in {2, 3}
    assert "reverse" in done.stderr


def test_a_wrong_model_path_makes_the_engine_fail_with_the_reason(start_server: Any, tmp_path: Path) -> None:
    from swarm.config import TrainJob

    server = start_server(TrainJob(model=str(tmp_path / "no-model")))
    with httpx.Client(base_url=server.url, timeout=20) as http:
        deadline = time.monotonic() + 60
        while (status := http.get("/v1/swarm/status").json())["state"] != "FAILED":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "no-model" in status["reason"]
        assert http.get("/ready").status_code == 503


def test_importing_swarm_is_light(tmp_path: Path) -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import swarm; swarm.SwarmClient; swarm.TrainJob\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'ray', 'verl', 'vllm', 'numpy'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr
