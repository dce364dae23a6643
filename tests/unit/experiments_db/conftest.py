"""A store on a real database: a SQLite file, and PostgreSQL as well where SWARM_TEST_POSTGRES_URL names a server."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from experiments_db import Experiment, ExperimentStore, Run, Study, open_store

POSTGRES_URL = os.environ.get("SWARM_TEST_POSTGRES_URL")


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
    schema = f"test_{uuid4().hex}"
    admin = sa.create_engine(sa.make_url(POSTGRES_URL).set(drivername="postgresql+psycopg"))
    with admin.begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    url = sa.make_url(POSTGRES_URL).update_query_dict({"options": f"-csearch_path={schema}"})
    yield url.render_as_string(hide_password=False)
    with admin.begin() as connection:
        connection.execute(sa.schema.DropSchema(schema, cascade=True))
    admin.dispose()


@pytest.fixture
def store(location: str, clock: Clock) -> Iterator[ExperimentStore]:
    with open_store(location, clock=clock) as opened:
        yield opened


@pytest.fixture
def study(store: ExperimentStore) -> Study:
    return store.create_study("Which learning rate trains word reversal best?", brain="rules")


@pytest.fixture
def experiment(store: ExperimentStore, study: Study) -> Experiment:
    return store.create_experiment(study.id, "lr=1e-3", factors={"lr": 1e-3}, job={"lr": 1e-3}, client_code="pass\n")


@pytest.fixture
def run(store: ExperimentStore, experiment: Experiment) -> Run:
    return store.claim_run(experiment.id, 1, "key-1")
