"""Servers for real clients: one with the bundled model, one whose replies are scripted. Each is started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from integration.clients.stage import Stage, open_stage

from swarm.job import TrainJob

# More than all tests together fill, so that no batch is ever trained.
SIZE = {"batch_size": 1000, "num_repeat": 2, "max_response_length": 512}


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The bundled model on the local engine."""
    with open_stage(tmp_path_factory.mktemp("nano"), TrainJob(**SIZE)) as stage:
        yield stage


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The fake engine, which says what a test tells it to."""
    with open_stage(tmp_path_factory.mktemp("scripted"), TrainJob(engine="fake", **SIZE)) as stage:
        yield stage
