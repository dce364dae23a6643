"""The version of the database, which is upgraded on opening or refused before anything is changed.

Place in the flow: `open_store` calls `prepare` once. The steps themselves are Alembic revisions in migrations/. This
module knows how to run them, not what they do.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from experiments_db.engine import Database, connect
from experiments_db.errors import NotAStore, SchemaTooNew, SchemaTooOld
from experiments_db.models import Base

MIGRATIONS = Path(__file__).parent / "migrations"

VERSION_TABLE = "experiments_db_version"
"""A name of our own, so that another application's database is told apart from a newer one of ours."""

POSTGRES_LOCK_KEY = 0x5357524D
"""An arbitrary constant: processes that upgrade the same database take this advisory lock in turn."""


def migration_config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration.

    The revisions run on `connection`, inside its present transaction.
    """
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    return config


def prepare(database: Database) -> None:
    """Create or upgrade the tables; for a read-only database, only check them.

    Raises SchemaTooNew, SchemaTooOld and NotAStore, having changed nothing.
    """
    if database.path is not None and not database.read_only and database.path.exists():
        # Even a look through a writing connection may move pages from the WAL into the file.
        look = connect(database.path, read_only=True)
        try:
            with look.read() as session:
                check_revision(session.connection(), str(database))
        finally:
            look.close()
    if database.read_only:
        with database.read() as session:
            if check_revision(session.connection(), str(database)) != head_revision():
                raise SchemaTooOld(f"{database} needs an upgrade: open it once for writing with this version")
        return
    database.enable_wal()
    _upgrade(database)


def _upgrade(database: Database) -> None:
    with database.write() as session:
        connection = session.connection()
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRES_LOCK_KEY})
        revision = check_revision(connection, str(database))
        if revision is None:
            # The revisions would create the same tables at three times the work.
            Base.metadata.create_all(connection)
            command.stamp(migration_config(connection), "head")
        elif revision != head_revision():
            command.upgrade(migration_config(connection), "head")


def check_revision(connection: Connection, name: str) -> str | None:
    """Return the revision of the database, None for an empty one. Raises SchemaTooNew and NotAStore."""
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            raise NotAStore(f"{name} holds other tables; give studies a database of their own")
        return None
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    revision = context.get_current_revision()
    if revision is not None and revision not in known_revisions():
        raise SchemaTooNew(
            f"{name} was written by a newer version (schema {revision}); upgrade this program to open it"
        )
    return revision


# Reading the revisions imports each of them, and opening a store needs them several times.
@cache
def head_revision() -> str | None:
    return ScriptDirectory.from_config(migration_config()).get_current_head()


@cache
def known_revisions() -> frozenset[str]:
    return frozenset(script.revision for script in ScriptDirectory.from_config(migration_config()).walk_revisions())
