"""The swarm commands as a person meets them: one clear line for every mistake, and the documented exit code."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from command_line import run_swarm
from server_processes import serving
from tests_support import begin, run_batch, wait_for_state, wait_for_step

from swarm import SwarmClient
from swarm.errors import EngineFailure
from swarm.job import TrainJob

SWARM = [sys.executable, "-m", "swarm.cli"]


COMMANDER, ROLLOUT, OBSERVER = "commander-token-0123", "rollout-token-012345", "observer-token-01234"
FAKE_JOB = {
    "engine": "fake", "project_name": "shop", "experiment_name": "third-try", "batch_size": 1, "num_repeat": 2,
    "drain_timeout_s": 1, "save_freq": 1,
}  # fmt: skip


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SWARM_")}
    return {**clean, "NO_COLOR": "1"}


def process_of(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SWARM, *arguments], capture_output=True, text=True, timeout=60, env=environment())


@dataclass(frozen=True)
class Interrupted:
    """What a server announced and what was mapped into its memory, one step into a job; then it was killed."""

    home: Path
    announced: dict[str, Any]
    libraries: str


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    directory = tmp_path_factory.mktemp("interrupted")
    job = directory / "job.yaml"
    job.write_text(yaml.safe_dump(FAKE_JOB))
    with serving(directory / "home", "--job", str(job), env=environment()) as (process, http, announced):
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=1, repeats=2)
        wait_for_step(http, 1)
        libraries = Path(f"/proc/{process.pid}/maps").read_text()
        process.kill()
        process.wait(timeout=60)
    return Interrupted(directory / "home", announced, libraries)


@pytest.fixture
def interrupted_home(interrupted: Interrupted, tmp_path: Path) -> Path:
    """A copy of the home of a server that was killed one step into a job."""
    return shutil.copytree(interrupted.home, tmp_path / "home")


def test_a_server_in_a_new_directory_resumes_nothing_and_loads_no_torch_for_its_work(interrupted: Interrupted) -> None:
    assert interrupted.announced["resumes"] is None
    assert "python" in interrupted.libraries and "libtorch" not in interrupted.libraries


def test_start_goes_on_with_the_interrupted_job_and_says_which(interrupted_home: Path) -> None:
    with serving(interrupted_home, env=environment(), stderr=subprocess.PIPE) as (process, http, announced):
        assert announced["resumes"] == "shop/third-try"
        status = wait_for_state(http, "ROLLING")
        assert (status["experiment_name"], status["step"]) == ("third-try", 1)
        process.terminate()
        _, messages = process.communicate(timeout=60)
        assert "shop/third-try" in messages


def test_a_server_that_is_told_to_warm_up_has_its_worker_before_a_job_comes(tmp_path: Path) -> None:
    with serving(tmp_path / "warm", "--warm-up", env=environment()) as (process, http, announced):
        assert announced["pid"] == process.pid
        assert http.get("/ready").json() == {"ready": True, "state": "OFFLINE", "reason": None}
        children = psutil.Process(announced["pid"]).children()
        [worker] = [child for child in children if "swarm.backends.local.worker" in child.cmdline()]
    worker.wait(timeout=60)


@pytest.mark.slow
def test_no_resume_starts_without_the_interrupted_job(interrupted_home: Path) -> None:
    with serving(interrupted_home, "--no-resume", env=environment()) as (_, http, announced):
        assert announced["resumes"] is None
        status = http.get("/v1/swarm/status").json()
        assert (status["state"], status["experiment_name"]) == ("OFFLINE", None)


def test_every_command_uses_the_token_with_the_least_rights_that_is_enough(start_server: Any) -> None:
    url = start_server(token=COMMANDER, rollout_token=ROLLOUT, observer_token=OBSERVER).url
    assert run_swarm("status", "--url", url).exit_code == 4
    for name, token in (("TOKEN", COMMANDER), ("ROLLOUT_TOKEN", ROLLOUT), ("OBSERVER_TOKEN", OBSERVER)):
        assert run_swarm("status", "--url", url, **{f"SWARM_{name}": token}).exit_code == 0
    # The wrong commander's token is not even sent where the observer's is enough.
    mixed = {"SWARM_TOKEN": "wrong-token-0123456789", "SWARM_OBSERVER_TOKEN": OBSERVER}
    assert run_swarm("status", "--url", url, **mixed).exit_code == 0
    assert run_swarm("stop", "--url", url, SWARM_OBSERVER_TOKEN=OBSERVER).exit_code == 4
    refused = run_swarm("stop", "--url", url, SWARM_TOKEN=ROLLOUT)
    assert (refused.exit_code, refused.stderr.count("\n")) == (4, 1)
    stopped = run_swarm("stop", "--url", url, "--json", SWARM_TOKEN=COMMANDER)
    assert (stopped.exit_code, json.loads(stopped.stdout)) == (0, {"url": url, "stopping": "server"})


def test_tokens_are_never_flags() -> None:
    done = run_swarm("start", "--token", COMMANDER)
    assert done.exit_code == 2


def test_a_token_that_is_too_short_is_refused_without_being_shown(tmp_path: Path) -> None:
    done = run_swarm("start", "--port", "0", "--home", str(tmp_path), SWARM_TOKEN="too-short")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "too-short" not in done.stderr


def test_status_shows_policy_sources_and_the_longest_silent_episode(start_server: Any) -> None:
    server = start_server(
        TrainJob.model_validate({**FAKE_JOB, "batch_size": 10, "mixture": {"math": 0.6, "code": 0.4}})
    )
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        begin(http, client_id="laptop-7", task_id="slow", data_source="math")
    shown = run_swarm("status", "--url", server.url).stdout
    for fragment in (
        "ROLLING",
        "shop/third-try",
        "enough_tasks: 10 tasks x 2",
        "math 60%",
        "0/6",
        "0/4",
        "laptop-7",
        "slow",
    ):
        assert fragment in shown, fragment


def test_stop_ends_the_server(start_server: Any) -> None:
    server = start_server()
    done = run_swarm("stop", "--url", server.url)
    assert done.exit_code == 0, done.stderr
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{server.url}/health", timeout=60)
        except httpx.TransportError:
            return
        time.sleep(0.1)
    pytest.fail("the server still answers")


def test_status_shows_the_state_and_speaks_json(start_server: Any) -> None:
    server = start_server()
    assert "OFFLINE" in run_swarm("status", "--url", server.url).stdout
    assert json.loads(run_swarm("status", "--url", server.url, "--json").stdout)["state"] == "OFFLINE"


@pytest.mark.parametrize("command", [["status"], ["stop"], ["eval", "--env", "reverse", "-n", "2"]])
def test_an_unreachable_server_is_one_line_and_exit_code_5(command: list[str]) -> None:
    done = run_swarm(*command, "--url", "http://127.0.0.1:9")
    assert done.exit_code == 5
    assert done.stderr.count("\n") == 1
    assert "127.0.0.1:9" in done.stderr


def test_a_port_in_use_is_one_line_and_exit_code_75(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = process_of("start", "--port", str(port), "--home", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (75, 1)
    assert str(port) in done.stderr
    assert not list(tmp_path.iterdir()), "nothing is written before the port is ours"


BAD_JOBS = {
    "no file": (None, "none.yaml"),
    "malformed YAML": ("batch_size: [1", "not valid YAML"),
    "unknown key": ("learning_rate: 0.1", "learning_rate: unknown setting"),
    "negative batch size": ("batch_size: -4", "batch_size"),
    "not a mapping": ("- 1", "expected a mapping"),
    "lr is not a number": ("lr: .nan", "lr"),
}


@pytest.mark.parametrize(("text", "fragment"), BAD_JOBS.values(), ids=BAD_JOBS.keys())
def test_a_bad_job_file_is_one_line_and_exit_code_2(tmp_path: Path, text: str | None, fragment: str) -> None:
    path = tmp_path / ("none.yaml" if text is None else "job.yaml")
    if text is not None:
        path.write_text(text)
    done = run_swarm("start", "--port", "0", "--home", str(tmp_path / "home"), "--job", str(path))
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert fragment in done.stderr
    assert not (tmp_path / "home").exists()


def test_an_exposed_address_without_a_token_refuses_to_start(tmp_path: Path) -> None:
    done = run_swarm("start", "--host", "0.0.0.0", "--port", "0", "--home", str(tmp_path))
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "SWARM_TOKEN" in done.stderr
    assert not list(tmp_path.iterdir())


def test_eval_of_an_unknown_task_names_the_known_ones(start_server: Any) -> None:
    server = start_server()
    done = run_swarm("eval", "--env", "chess", "--url", server.url)
    assert done.exit_code in {2, 3}
    assert "reverse" in done.stderr


def test_eval_on_a_server_without_a_model_does_not_wait_for_one(start_server: Any) -> None:
    done = run_swarm("eval", "--env", "reverse", "-n", "2", "--url", start_server().url)
    assert (done.exit_code, done.stderr.count("\n")) == (75, 1)
    assert "serves no model: it is OFFLINE" in done.stderr


def test_a_wrong_model_path_makes_the_engine_fail_with_the_reason(start_server: Any, tmp_path: Path) -> None:
    server = start_server()
    with SwarmClient(server.url) as client, pytest.raises(EngineFailure, match="no-model"):
        client.auto_sync_train_config_and_start_engine(TrainJob(model=str(tmp_path / "no-model")))
    with httpx.Client(base_url=server.url, timeout=60) as http:
        assert "no-model" in http.get("/v1/swarm/status").json()["reason"]
        assert http.get("/ready").status_code == 503


def test_a_server_that_cannot_serve_the_job_of_its_start_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model: ./no-model\n")
    done = process_of("start", "--port", "0", "--home", str(tmp_path / "home"), "--job", str(tmp_path / "job.yaml"))
    assert (done.returncode, done.stdout) == (1, "")
    [said] = [line for line in done.stderr.splitlines() if "Ctrl-C stops it" not in line]
    assert said.startswith("swarm: model './no-model': no directory")


def test_the_shell_completes_commands_and_options() -> None:
    def completed(line: str) -> list[str]:
        words = {"_SWARM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        program = "import sys; sys.argv[0] = 'swarm'; from swarm.cli import app; app(prog_name='swarm')"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env={**environment(), **words}
        )
        return done.stdout.split()

    assert completed("swarm o") == ["overwatch"]
    assert "--no-resume" in completed("swarm start --no")


def test_the_commands_parse_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys; import swarm.cli.commands\n"
        "print(sorted({'torch', 'fastapi', 'uvicorn', 'textual', 'rich', 'httpx', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr


def test_importing_swarm_is_light(tmp_path: Path) -> None:
    code = (
        "import sys; import swarm; swarm.SwarmClient; swarm.TrainJob\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'ray', 'verl', 'vllm', 'numpy'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr
