"""A store on a real database: a SQLite file, and PostgreSQL as well where SWARM_TEST_POSTGRES_URL names a server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from postgres_schema import POSTGRES_URL, new_schema

from experiments_db import open_store

if TYPE_CHECKING:
    from experiments_db import Experiment, ExperimentStore, Run, Study


class Clock:
    """Seconds since the epoch that move only when told to, but never stand quite still."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        self.now += 0.002
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", *(["postgresql"] if POSTGRES_URL else [])])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty database may be made; each test has its own."""
    if request.param == "sqlite":
        yield str(tmp_path / "research.db")
        return
    assert POSTGRES_URL is not None
    with new_schema(POSTGRES_URL) as url:
        yield url.render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite database with all tables, to be copied."""
    path = tmp_path_factory.mktemp("made") / "research.db"
    open_store(path).close()
    return path


@pytest.fixture
def store(location: str, clock: Clock, made: Path) -> Iterator[ExperimentStore]:
    if "://" not in location:
        shutil.copy(made, location)
    with open_store(location, clock=clock) as opened:
        yield opened


@pytest.fixture
def study(store) -> Study:
    return store.create_study("Which learning rate trains word reversal best?", planner="rules")


@pytest.fixture
def experiment(store, study: Study) -> Experiment:
    return store.create_experiment(study.id, "lr=1e-3", factors={"lr": 1e-3}, job={"lr": 1e-3}, program_code="pass\n")


@pytest.fixture
def run(store, experiment: Experiment) -> Run:
    return store.claim_run(experiment.id, 1, "key-1")
