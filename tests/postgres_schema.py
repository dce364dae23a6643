"""A schema of its own on the PostgreSQL server that SWARM_TEST_POSTGRES_URL names: an empty database for one test."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

POSTGRES_URL = os.environ.get("SWARM_TEST_POSTGRES_URL")


@contextmanager
def new_schema(server: str) -> Generator[Any]:
    """The URL of an empty schema, which is dropped at the end."""
    import sqlalchemy as sa

    schema = f"test_{uuid4().hex}"
    admin = sa.create_engine(sa.make_url(server).set(drivername="postgresql+psycopg"))
    with admin.begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    yield sa.make_url(server).update_query_dict({"options": f"-csearch_path={schema}"})
    with admin.begin() as connection:
        connection.execute(sa.schema.DropSchema(schema, cascade=True))
    admin.dispose()
