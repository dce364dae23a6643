"""kill -9 of a server process: what was acknowledged is still there, and the same job goes on where it stood."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from local_runs import assert_same_checkpoint
from server_processes import serving
from tests_support import begin, chat, end, run_batch, wait_for_state, wait_for_step

from swarm.ledger import Ledger

JOB = {"engine": "fake", "batch_size": 2, "num_repeat": 2, "drain_timeout_s": 1}
LOCAL_JOB = {
    **JOB,
    "engine": "local",
    "ppo_epochs": 2,
    "mini_batch_num": 2,
    "lr_warmup_steps": 3,
    "weight_decay": 0.01,
    "use_kl_loss": True,
    "max_response_length": 24,
}


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


Restarted = Callable[[Path], AbstractContextManager[httpx.Client]]


@pytest.fixture
def restarted(start_server: Any) -> Restarted:
    """Starts the next server in a directory, in a thread: only the one that dies needs a process of its own."""

    @contextmanager
    def start(home: Path) -> Iterator[httpx.Client]:
        server = start_server(home=home)
        with httpx.Client(base_url=server.url, timeout=30) as http:
            yield http
        server.stop()

    return start


def write_job(directory: Path, job: dict[str, Any]) -> Path:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def kill(process: subprocess.Popen[str], how: signal.Signals = signal.SIGKILL) -> None:
    os.kill(process.pid, how)
    process.wait(timeout=30)


def test_a_killed_server_goes_on_by_itself_with_step_half_filled_batch_and_running_episodes(
    tmp_path: Path, restarted: Restarted
) -> None:
    home = tmp_path / "home"
    with serving(home, "--job", str(write_job(tmp_path, JOB))) as (process, http, _):
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=2, repeats=2)
        wait_for_step(http, 1)
        for reward in (0.0, 1.0):
            end(http, begin(http), task_id="half", reward=reward, call=True)
        running = begin(http)
        first = chat(http, running, "Hello")
        kill(process)

    with restarted(home) as http:
        status = http.get("/v1/swarm/status").json()
        assert (status["step"], status["weight_version"]) == (1, 1)
        assert (status["pool"]["episodes"], status["pool"]["tasks"], status["pool"]["running_train"]) == (2, 1, 1)
        assert status["failures"] == {}
        messages = [
            {"role": "user", "content": "Hello"},
            first["choices"][0]["message"],
            {"role": "user", "content": "again"},
        ]
        chat(http, running, messages)
        end(http, running, task_id="other", reward=0.0)
        end(http, begin(http), task_id="other", reward=1.0, call=True)
        wait_for_step(http, 2)
        points = http.get("/v1/swarm/metrics").json()["points"]
        assert [(point["step"], point["metrics"]["batch/episodes"]) for point in points] == [(1, 4), (2, 4)]
        detail = http.get(f"/v1/swarm/episodes/{running['episode_id']}").json()
        assert [turn["parent"] for turn in detail["turns"]] == [None, 0]
        assert http.get("/v1/swarm/status").json()["recoveries"] == 1


def test_a_server_ended_by_a_signal_goes_on_and_one_told_to_stop_does_not(tmp_path: Path, restarted: Restarted) -> None:
    home = tmp_path / "home"
    with serving(home, "--job", str(write_job(tmp_path, JOB))) as (process, http, _):
        wait_for_state(http, "ROLLING")
        running = begin(http)
        kill(process, signal.SIGTERM)
    with restarted(home) as http:
        wait_for_state(http, "ROLLING")
        end(http, running, task_id="t", reward=1.0, call=True)
        http.post("/v1/swarm/shutdown").raise_for_status()
    with restarted(home) as http:
        assert http.get("/v1/swarm/status").json()["state"] == "OFFLINE"


REPLAYED_SLOWLY: list[dict[str, Any]] = [
    {"algorithm": "gae", "lam": 0.9, "critic_warmup": 2},
    {
        "algorithm": "gdpo",
        "gdpo_reward_keys": ["right", "short"],
        "policy_loss": "bypass_mode",
        "loss_type": "reinforce",
        "rollout_is": "token",
        "rollout_rs": "token_k1",
        "rollout_rs_threshold": 1.2,
    },
    {"algorithm": "remax", "num_repeat": 3},
]


@pytest.mark.parametrize(
    "settings",
    [{}, *(pytest.param(settings, marks=pytest.mark.slow) for settings in REPLAYED_SLOWLY)],
    ids=lambda settings: str(settings.get("algorithm", "grpo")),
)
def test_replayed_training_equals_uninterrupted_training_bit_for_bit(
    tmp_path: Path, restarted: Restarted, settings: dict[str, Any]
) -> None:
    home, job = tmp_path / "home", {**LOCAL_JOB, **settings}
    checkpoint, kept = "/v1/swarm/engine/checkpoint", tmp_path / "uninterrupted"
    with serving(home, "--job", str(write_job(tmp_path, job))) as (process, http, _):
        wait_for_state(http, "ROLLING")
        for step in (1, 2, 3):
            run_batch(
                http,
                tasks=2,
                repeats=job["num_repeat"],
                name=f"batch-{step}",
                named=job.get("gdpo_reward_keys", ()),
                tells_task=job.get("algorithm") == "remax",
            )
            wait_for_step(http, step)
        path = Path(http.post(checkpoint).raise_for_status().json()["path"])
        path.rename(kept)
        # All three steps have to be replayed.
        shutil.rmtree(path.parents[1] / "recovery")
        kill(process)
    with restarted(home) as http:
        assert wait_for_state(http, "ROLLING")["weight_version"] == 3
        replayed = Path(http.post(checkpoint).raise_for_status().json()["path"])
    state = assert_same_checkpoint(kept, replayed)
    assert "critic" not in state or state["critic"]["weights"]["head.weight"].any(), "it has learned something"
    assert state["optimizer"]["adamw"]
    [recovery] = [detail for kind, detail in asyncio.run(read_events(home)) if kind == "engine.recovered"]
    assert (recovery["step"], recovery["replayed"]) == (3, 3)


async def read_events(home: Path) -> list[tuple[str, Any]]:
    with closing(Ledger.open(home / "ledger.db")) as ledger:
        return [(event.kind, event.detail) for event in await ledger.events(limit=1000)]
