"""Training that ends at a quota of tokens or seconds, on a real server without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from swarm import SwarmClient, TrainJob
from swarm.environments import load_environment
from swarm.program.gates import AmountGate
from swarm.program.training import train

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=50)


@pytest.fixture
def client(start_server: Callable[..., Any]) -> Iterator[SwarmClient]:
    with SwarmClient(start_server().url) as opened:
        opened.auto_sync_train_config_and_start_engine(JOB)
        yield opened


def test_training_ends_with_the_step_that_reaches_the_tokens(client: SwarmClient) -> None:
    gate = AmountGate(client, tokens=60, seconds=None, batch_size=JOB.batch_size)

    done = train(client, load_environment("copy"), JOB, gate=gate.gate)

    counts = [point.metrics["actor/trained_tokens"] for point in client.metrics()]
    assert done.steps == len(counts) < 50
    assert sum(counts) >= 60 > sum(counts[:-1])
    # Whoever takes the run up again finds that it has used its quota.
    again = AmountGate(client, tokens=60, seconds=None, batch_size=JOB.batch_size)
    assert train(client, load_environment("copy"), JOB, gate=again.gate).steps == done.steps


def test_training_ends_with_a_step_and_counts_those_that_were_there(client: SwarmClient) -> None:
    for last in (2, 3, 3):
        gate = AmountGate(client, tokens=None, seconds=None, steps=last, batch_size=JOB.batch_size)
        assert train(client, load_environment("copy"), JOB, gate=gate.gate).steps == last


def test_training_ends_with_the_first_step_after_the_seconds(client: SwarmClient) -> None:
    times = iter([0.0, 1.0, 2.0, 10.0])
    gate = AmountGate(client, tokens=None, seconds=5, batch_size=JOB.batch_size, clock=lambda: next(times))

    assert train(client, load_environment("copy"), JOB, gate=gate.gate).steps == 2
