from __future__ import annotations

import os
import sqlite3
import stat
import sys
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments_db import (
    InvalidRecord,
    NotAStore,
    ReadOnlyStore,
    RecordNotFound,
    SchemaMismatch,
    StoreUnavailable,
    open_store,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "research.db"


@pytest.fixture(scope="module")
def connect():
    """Opens a database without a store; it loads SQLAlchemy."""
    from experiments_db.engine import connect

    return connect


def test_store_is_made_with_its_folders_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "50% & ünïcode?#" / "research.db"
    with open_store(path) as store:
        study = store.create_study("t", planner="rules")
    with open_store(str(path)) as store:
        assert store.get_study(study.id) == study
    assert path.is_file()


def test_sqlite_runs_with_the_settings_it_should(connect, path: Path) -> None:
    open_store(path).close()
    database = connect(path, read_only=False)
    settings = {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 2, "busy_timeout": 30_000}
    with database.read() as connection:
        assert settings == {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in settings}
    database.close()


def test_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with open_store(path) as store:
        assert store.list_studies() == []


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def write_another_version(path: Path) -> None:
    open_store(path).close()
    execute(path, "UPDATE experiments_db_version SET digest = '0123abcd'")


def write_damage(path: Path) -> None:
    open_store(path).close()
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 8000)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (write_another_version, SchemaMismatch, "another version .*0123abcd.*: open it with that version, or name"),
        (lambda path: execute(path, "CREATE TABLE recipes (id INTEGER)"), NotAStore, "other tables"),
        (lambda path: path.write_text("dear diary, today I trained a model"), NotAStore, "not a SQLite database"),
        (write_damage, (StoreUnavailable, SchemaMismatch), None),
        (Path.mkdir, StoreUnavailable, "cannot use"),
    ],
    ids=["another version", "another program", "no database", "damaged", "a folder"],
)
def test_what_is_no_store_of_this_version_is_refused_and_left_as_it_is(
    path: Path, make: Callable[[Path], object], error: type[Exception], said: str | None, read_only: bool
) -> None:
    make(path)
    before = path.is_file() and sha256(path.read_bytes()).hexdigest()
    with pytest.raises(error, match=said):
        open_store(path, read_only=read_only)
    assert (path.is_file() and sha256(path.read_bytes()).hexdigest()) == before


def test_read_only_store_reads_and_never_writes(connect, path: Path) -> None:
    with open_store(path) as store:
        study = store.create_study("t", planner="rules")
    with open_store(path, read_only=True) as store:
        assert store.get_study(study.id) == study
        with pytest.raises(ReadOnlyStore, match="opened for reading"):
            store.create_study("t", planner="rules")
    database = connect(path, read_only=True)
    with pytest.raises(ReadOnlyStore), database.read() as connection:
        connection.exec_driver_sql("DELETE FROM studies")
    database.close()


def test_reader_sees_what_a_writer_commits_meanwhile(path: Path) -> None:
    with open_store(path) as writer, open_store(path, read_only=True) as reader:
        study = writer.create_study("t", planner="rules")
        assert reader.get_study(study.id) == study


def test_reading_what_is_not_there_makes_no_file(path: Path) -> None:
    with pytest.raises(RecordNotFound, match="no database"):
        open_store(path, read_only=True)
    assert not path.exists()


def test_reading_an_empty_database_says_that_it_is_empty(path: Path) -> None:
    path.touch()
    with pytest.raises(RecordNotFound, match="is empty; start a study"):
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


def test_file_in_the_place_of_a_folder_is_reported(path: Path) -> None:
    path.write_text("")
    with pytest.raises(StoreUnavailable, match="cannot use"):
        open_store(path / "research.db")


def test_full_disk_is_reported_and_stores_nothing_of_the_write(connect, path: Path) -> None:
    from sqlalchemy import event

    from experiments_db import ExperimentStore

    open_store(path).close()
    database = connect(path, read_only=False)
    # SQLite answers a file that may grow no further as it does a full disk.
    event.listen(database.engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count=80"))
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
