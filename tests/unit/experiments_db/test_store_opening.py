import os
import sqlite3
import stat
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from experiments_db import (
    ExperimentStore,
    InvalidRecord,
    NotAStore,
    ReadOnlyStore,
    RecordNotFound,
    SchemaMismatch,
    SchemaTooNew,
    SchemaTooOld,
    StoreUnavailable,
    open_store,
)
from experiments_db.engine import connect
from experiments_db.models import Base
from experiments_db.schema import VERSION_TABLE, migration_config


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "research.db"


def set_revision(path: Path, revision: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (revision,))
    connection.close()


def pragma(path: Path, name: str) -> object:
    database = connect(path, read_only=False)
    with database.read() as session:
        value = session.execute(sa.text(f"PRAGMA {name}")).scalar_one()
    database.close()
    return value


def test_store_is_made_with_its_folders_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "50% & ünïcode?#" / "research.db"
    with open_store(path) as store:
        study = store.create_study("t", planner="rules")
    with open_store(str(path)) as store:
        assert store.get_study(study.id) == study
    assert path.is_file()


def test_sqlite_runs_with_the_settings_it_should(path: Path) -> None:
    open_store(path).close()
    assert pragma(path, "journal_mode") == "wal"
    assert pragma(path, "foreign_keys") == 1
    assert pragma(path, "synchronous") == 2
    assert pragma(path, "busy_timeout") == 30_000


def test_migrations_make_exactly_the_tables_of_the_models(location: str) -> None:
    database = connect(location, read_only=False)
    with database.write() as session:
        command.upgrade(migration_config(session.connection()), "head")
        context = MigrationContext.configure(
            session.connection(),
            opts={"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True},
        )
        assert compare_metadata(context, Base.metadata) == []
    database.close()


def test_a_new_database_is_what_the_revisions_make(location: str) -> None:
    open_store(location).close()
    database = connect(location, read_only=False)
    with database.write() as session:
        made_at_once = tables_of(session.connection())
        Base.metadata.drop_all(session.connection())
        session.execute(sa.text(f"DROP TABLE {VERSION_TABLE}"))
        command.upgrade(migration_config(session.connection()), "head")
        assert tables_of(session.connection()) == made_at_once
    database.close()


def tables_of(connection: sa.Connection) -> dict[str, object]:
    """All that the database knows of its tables, in no order."""
    looked = sa.inspect(connection)
    looks = (
        looked.get_columns,
        looked.get_foreign_keys,
        looked.get_unique_constraints,
        looked.get_check_constraints,
        looked.get_indexes,
    )
    versions = [tuple(row) for row in connection.execute(sa.text(f"SELECT * FROM {VERSION_TABLE}"))]
    return {"versions": versions} | {
        table: [looked.get_pk_constraint(table), *(sorted(map(repr, look(table))) for look in looks)]
        for table in looked.get_table_names()
    }


def test_revisions_form_one_line_up_to_one_head() -> None:
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(migration_config())
    assert len(script.get_heads()) == 1
    assert len(script.get_bases()) == 1


def test_failed_migration_leaves_nothing_behind(path: Path) -> None:
    database = connect(path, read_only=False)
    with pytest.raises(StoreUnavailable), database.write() as session:
        command.upgrade(migration_config(session.connection()), "head")
        session.execute(sa.text("SELECT no_such_function()"))
    with database.read() as session:
        assert sa.inspect(session.connection()).get_table_names() == []
    database.close()


def test_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with open_store(path) as store:
        assert store.list_studies() == []


@pytest.mark.parametrize("read_only", [False, True])
def test_newer_database_is_refused_and_left_as_it_is(path: Path, read_only: bool) -> None:
    open_store(path).close()
    set_revision(path, "9999")
    before = sha256(path.read_bytes()).hexdigest()
    with pytest.raises(SchemaTooNew, match="newer version"):
        open_store(path, read_only=read_only)
    assert sha256(path.read_bytes()).hexdigest() == before


@pytest.mark.parametrize("read_only", [False, True])
def test_database_of_another_program_is_refused_and_left_as_it_is(path: Path, read_only: bool) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (id INTEGER)")
    connection.close()
    before = sha256(path.read_bytes()).hexdigest()
    with pytest.raises(NotAStore, match="other tables"):
        open_store(path, read_only=read_only)
    assert sha256(path.read_bytes()).hexdigest() == before


def test_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_text("dear diary, today I trained a model")
    with pytest.raises(NotAStore, match="not a SQLite database"):
        open_store(path)
    assert path.read_text().startswith("dear diary")


def test_damaged_database_is_reported(path: Path) -> None:
    open_store(path).close()
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 8000)
    with pytest.raises((StoreUnavailable, SchemaMismatch)):
        open_store(path)


def test_read_only_store_reads_and_never_writes(path: Path) -> None:
    with open_store(path) as store:
        study = store.create_study("t", planner="rules")
    with open_store(path, read_only=True) as store:
        assert store.get_study(study.id) == study
        with pytest.raises(ReadOnlyStore, match="opened for reading"):
            store.create_study("t", planner="rules")
    database = connect(path, read_only=True)
    with pytest.raises(ReadOnlyStore), database.read() as session:
        session.execute(sa.text("DELETE FROM studies"))
    database.close()


def test_reader_sees_what_a_writer_commits_meanwhile(path: Path) -> None:
    with open_store(path) as writer, open_store(path, read_only=True) as reader:
        study = writer.create_study("t", planner="rules")
        assert reader.get_study(study.id) == study


def test_reading_what_is_not_there_makes_no_file(path: Path) -> None:
    with pytest.raises(RecordNotFound, match="no database"):
        open_store(path, read_only=True)
    assert not path.exists()


def test_reading_an_empty_database_asks_for_an_upgrade(path: Path) -> None:
    path.touch()
    with pytest.raises(SchemaTooOld, match="open it once for writing"):
        open_store(path, read_only=True)


@pytest.mark.parametrize(
    "location",
    [
        "",
        "  ",
        "mysql://host/db",
        "sqlite://",
        "sqlite:///:memory:",
        "nonsense://x",
        "postgresql://u:s3cret@host:port/db",
    ],
)
def test_impossible_location_is_refused_without_its_password(location: str) -> None:
    with pytest.raises(InvalidRecord) as refused:
        open_store(location)
    assert "s3cret" not in str(refused.value)


def test_missing_postgresql_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreUnavailable, match="needs the Python package psycopg"):
        open_store("postgresql://user:s3cret@127.0.0.1:1/db")


@pytest.mark.skipif(find_spec("psycopg") is None, reason="the driver is not installed")
def test_unreachable_postgresql_is_reported_without_its_password() -> None:
    with pytest.raises(StoreUnavailable, match="not usable") as unreachable:
        open_store("postgresql://user:s3cret@127.0.0.1:1/db")
    assert "s3cret" not in str(unreachable.value)


def test_url_of_a_sqlite_file_is_the_same_as_its_path(path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store:
        study = store.create_study("t", planner="rules")
    with open_store(path, read_only=True) as store:
        assert store.get_study(study.id) == study


def test_folder_is_not_a_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot use"):
        open_store(tmp_path)


def test_file_in_the_place_of_a_folder_is_reported(path: Path) -> None:
    path.write_text("")
    with pytest.raises(StoreUnavailable, match="cannot use"):
        open_store(path / "research.db")


def test_full_disk_is_reported_and_stores_nothing_of_the_write(path: Path) -> None:
    open_store(path).close()
    database = connect(path, read_only=False)
    # SQLite answers a file that may grow no further as it does a full disk.
    sa.event.listen(database.engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count=80"))
    with ExperimentStore(database) as store:
        study = store.create_study("t", planner="rules")
        with pytest.raises(StoreUnavailable, match="full"):
            store.append_event(study.id, "x", "y" * 1_000_000)
        assert store.list_events(study.id) == []
        store.append_event(study.id, "x", "small")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_file_that_may_not_be_written_is_reported(path: Path) -> None:
    open_store(path).close()
    path.chmod(stat.S_IRUSR)
    with pytest.raises((ReadOnlyStore, StoreUnavailable)):
        open_store(path)
