"""A server that is killed around a rollback of its guard goes on with the same weights, bit for bit."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from server_processes import ServerProcess, server_processes
from tests_support import WAIT_S, begin, chat, end, wait_for_state, wait_for_step

from swarm import SwarmClient, TrainJob


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, load_file
    import torch
    from safetensors.torch import load_file


JOB = TrainJob(
    engine="local", batch_size=4, num_repeat=1, algorithm="reinforce_plus_plus", lr=1e-3, max_response_length=4,
    drain_timeout_s=5, total_steps=20, guard="rollback",
)  # fmt: skip
REWARDS = [0.5, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
"""The rewards of steps 1 to 7. The last one shows the fault, and step 3 is the newest good one."""


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


def train(http: httpx.Client, step: int, reward: float, name: str) -> None:
    """Bring the episodes of a step, the same ones each time. The rewards differ a little, so that each step learns."""
    for task in range(4):
        episode = begin(http)
        chat(http, episode, f"Say {step} {task}", seed=100 * step + task, max_tokens=4)
        end(http, episode, task_id=f"{name}-{step}-{task}", reward=reward + 0.01 * task * (reward > 0))


def kill(server: ServerProcess, moment: str) -> None:
    """Kill the server as soon as it has the last episode, or as soon as it shows that it goes back."""
    deadline = time.monotonic() + WAIT_S
    while moment == "while it goes back":
        with SwarmClient(server.url) as client:
            if client.status().step == 3:
                break
        assert time.monotonic() < deadline, "the guard finds nothing"
        time.sleep(0.01)
    server.kill()


def weights_after(tmp_path: Path, moment: str | None) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return the weights of step 5 after a rollback to step 3, and the kinds of the guard's events."""
    with server_processes(tmp_path / str(moment)) as make:
        server = make()
        with (
            SwarmClient(server.url, timeout=WAIT_S) as client,
            httpx.Client(base_url=server.url, timeout=WAIT_S) as http,
        ):
            client.auto_sync_train_config_and_start_engine(JOB)
            for step, reward in enumerate(REWARDS, start=1):
                train(http, step, reward, "first")
                if step < len(REWARDS):
                    wait_for_step(http, step)
        if moment is not None:
            kill(server, moment)
            server.start()
        with SwarmClient(server.url) as client, httpx.Client(base_url=server.url, timeout=WAIT_S) as http:
            deadline = time.monotonic() + WAIT_S
            while not any(event.kind == "guard.rolled_back" for event in client.past_events()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert wait_for_state(http, "ROLLING")["step"] == 3
            for step in (4, 5):
                train(http, step, 1.0, "again")
                wait_for_step(http, step)
            path = Path(client.save_checkpoint().path)
            kinds = [event.kind for event in client.past_events() if event.kind.startswith("guard.")]
            [tensors] = [load_file(file) for file in path.glob("model*.safetensors")]
    return tensors, kinds


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_kill_around_a_rollback_leaves_the_weights_as_without_it(tmp_path: Path) -> None:
    expected, kinds = weights_after(tmp_path, None)
    assert kinds == ["guard.rolled_back"]
    for moment in ("with the last episode", "while it goes back"):
        found, kinds = weights_after(tmp_path, moment)
        assert kinds == ["guard.rolled_back"], moment
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected), moment
