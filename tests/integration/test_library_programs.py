"""The programs of the library train and are scored on tasks of one turn, of several turns, and with tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from researcher.programs import list_programs
from swarm import SwarmClient, TrainJob
from swarm.environments import load_environment
from swarm.program import load_program, train

NAMES = [program.name for program in list_programs()]


@pytest.fixture(scope="module")
def client(start_shared_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_shared_server().url) as client:
        yield client


@pytest.fixture
def load(tmp_path: Path):
    def load_by_name(name: str):
        path = tmp_path / "program.py"
        path.write_text(next(program.code for program in list_programs() if program.name == name))
        return load_program(path)

    return load_by_name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["reverse", "guess", "calc"])
def test_a_program_trains_on_the_fake_engine_and_none_of_its_attempts_fails(client, load, name, family):
    job = TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=2, experiment_name=f"{name}-{family}")
    client.auto_sync_train_config_and_start_engine(job, force_restart=True)
    environment = load_environment(family)
    trained = train(client, environment, job, load(name))
    assert (trained.steps, trained.failures) == (2, 0)
