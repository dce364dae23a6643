"""The check of a database's tables: an empty database gets them, and one with others is refused unchanged."""

from __future__ import annotations

from sqlalchemy import Column, Connection, MetaData, Table, Text, insert, inspect, select, text

from experiments_db.engine import Database, connect
from experiments_db.errors import NotAStore, RecordNotFound, SchemaMismatch
from experiments_db.tables import METADATA, schema_digest

VERSION = Table("experiments_db_version", MetaData(), Column("digest", Text, nullable=False))
"""A name of our own, so that another application's database is told apart from one of ours."""

POSTGRES_LOCK_KEY = 0x5357524D
"""An arbitrary constant: processes that prepare the same database take this advisory lock in turn."""


def prepare(database: Database) -> None:
    """Create the tables in an empty database that is open for writing; check those of any other.

    Raises RecordNotFound for reading an empty database, SchemaMismatch and NotAStore, having changed nothing.
    """
    if database.path is not None and not database.read_only and database.path.exists():
        # Even a look through a writing connection may move pages from the WAL into the file.
        look = connect(database.path, read_only=True)
        try:
            with look.read() as connection:
                _has_tables(connection, database)
        finally:
            look.close()
    if database.read_only:
        with database.read() as connection:
            if not _has_tables(connection, database):
                raise RecordNotFound(f"{database} is empty; start a study to fill it")
        return
    database.enable_wal()
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRES_LOCK_KEY})
        if not _has_tables(connection, database):
            METADATA.create_all(connection)
            VERSION.create(connection)
            connection.execute(insert(VERSION).values(digest=schema_digest()))


def _has_tables(connection: Connection, database: Database) -> bool:
    """Return whether the database has this program's tables; False if it has none at all."""
    names = inspect(connection).get_table_names()
    if not names:
        return False
    if VERSION.name not in names:
        raise NotAStore(f"{database} holds other tables; give studies a database of their own")
    found = connection.execute(select(text("*")).select_from(VERSION)).scalar()
    if found != schema_digest():
        raise SchemaMismatch(
            f"{database} was written by another version of this program (schema {found}, here {schema_digest()}): "
            "open it with that version, or name another file"
        )
    return True
