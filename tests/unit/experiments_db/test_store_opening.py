import os
import sqlite3
import stat
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest
import sqlalchemy as sa

from experiments_db import (
    ExperimentStore,
    InvalidRecord,
    NotAStore,
    ReadOnlyStore,
    RecordNotFound,
    SchemaMismatch,
    StoreUnavailable,
    open_store,
)
from experiments_db.engine import connect


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "research.db"


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


def test_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with open_store(path) as store:
        assert store.list_studies() == []


@pytest.mark.parametrize("read_only", [False, True])
def test_database_of_another_version_is_refused_and_left_as_it_is(path: Path, read_only: bool) -> None:
    open_store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE experiments_db_version SET digest = '0123abcd'")
    connection.commit()
    connection.close()
    before = sha256(path.read_bytes()).hexdigest()
    with pytest.raises(SchemaMismatch, match=r"another version .*0123abcd.*: open it with that version, or"):
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
