"""Faults planted in real trainings of the bundled model: they are noticed, undone, and cost next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from server_processes import ServerProcess, server_processes
from tests_support import WAIT_S

from swarm import SwarmClient, TrainJob
from swarm.environments import Environment
from swarm.environments.server import open_environment
from swarm.program import Program, measure, train
from swarm.program.base import answer_in_turn
from swarm.program.gates import until_rest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

BEGIN, STEPS = 20, 30
"""The faults are planted in a training that begins with a trained checkpoint, so that each one takes few steps."""
PLANTED = BEGIN + 4
"""The step whose update is the bad one."""
SOON = 5
JOB = TrainJob(batch_size=8, num_repeat=8, total_steps=BEGIN, lr=1e-3, seed=1, experiment_name="trained")
PLANTS: list[tuple[str, dict[str, Any], int]] = [
    *(("learning rate", {"lr": lr}, seed) for seed, lr in enumerate((0.05, 0.1, 0.2, 0.3))),
    *(("numbers", {"lr": 1e30}, seed) for seed in range(3)),
    *(("reward", {}, seed) for seed in range(3)),
]


@dataclass
class Turned:
    """The client's reward, which is turned around in four batches."""

    is_planted: bool
    batches: int = 0
    client: SwarmClient | None = field(default=None)

    def gate(self, number: int) -> int:
        assert self.client is not None
        until_rest(self.client)
        self.batches += 1
        return min(number, JOB.batch_size)

    def reward(self, task: Any, transcript: Any, grade: Any) -> float:
        first = PLANTED - BEGIN
        is_turned = self.is_planted and first <= self.batches < first + 4
        return 1 - grade.score if is_turned else grade.score


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    with open_environment("sort") as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_processes(tmp_path_factory.mktemp("plants")) as make:
        yield make()


@pytest.fixture(scope="module")
def checkpoint(server: ServerProcess, environment: Environment) -> str:
    with SwarmClient(server.url, timeout=WAIT_S) as client:
        client.auto_sync_train_config_and_start_engine(JOB)
        train(client, environment, JOB)
        return str(Path(client.save_checkpoint().path))


@pytest.fixture(scope="module")
def score(server: ServerProcess, environment: Environment, checkpoint: str) -> float:
    """The held-out score of the training without a fault."""
    return run(server, environment, checkpoint, "none", {}, 0)[0]


def run(
    server: ServerProcess, environment: Environment, checkpoint: str, fault: str, settings: dict[str, Any], seed: int
) -> tuple[float, list[dict[str, Any]]]:
    """Return the score of a training with a fault, and what the guard found."""
    changes = {"resume_from": checkpoint, "total_steps": STEPS, "guard": "rollback", "seed": seed}
    job = TrainJob.model_validate(
        {**JOB.model_dump(), **changes, "experiment_name": f"{fault}-{seed}".replace(" ", "-")}
    )
    turned = Turned(fault == "reward")
    with SwarmClient(server.url, timeout=WAIT_S) as client:
        turned.client = client
        client.auto_sync_train_config_and_start_engine(job, force_restart=True)
        if settings:
            client.change_job(settings, at_step=PLANTED)
        train(client, environment, job, Program("turned", answer_in_turn, turned.reward), gate=turned.gate)
        events = client.past_events()
        begin = max(event.event_id for event in events if event.kind == "job.started")
        found = [event.detail for event in events if event.kind.startswith("guard.") and event.event_id > begin]
        mean = measure(client, environment, episodes=200).mean
    assert mean is not None
    return mean, found


def test_planted_faults_are_noticed_soon_and_undone(
    server: ServerProcess, environment: Environment, checkpoint: str, score: float
) -> None:
    mended = 0
    for fault, settings, seed in PLANTS:
        mean, found = run(server, environment, checkpoint, fault, settings, seed)
        assert found and PLANTED <= found[0]["step"] <= PLANTED + SOON, (fault, seed, found)
        mended += mean >= 0.9 * score
    assert mended >= 8
