"""Opening a file: an older one is migrated and a copy of it kept, one that cannot be written is left alone."""

from __future__ import annotations

import ctypes
import hashlib
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from swarm.errors import LedgerError
from swarm.ledger import Ledger
from swarm.ledger.integrity import opening
from swarm.live_settings import JobChange
from swarm.schemas import EpisodeState

FORMER = {version: Path(__file__).with_name(f"version_{version}.sql") for version in range(1, 9)}
APPLICATION_ID = 0x53574C47

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1

OPEN = """
import sys
from pathlib import Path
from swarm.errors import LedgerError
from swarm.ledger import Ledger
try:
    Ledger.open(Path(sys.argv[1])).close()
except LedgerError as error:
    print(error.message)
"""


@pytest.fixture(params=FORMER)
def version(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def old_path(path: Path, version: int) -> Path:
    """A file that a former version of the schema left behind."""
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FORMER[version].read_text())
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {version}")
    return path


def test_ledger_of_a_former_version_goes_on_where_it_stood(old_path: Path, make_script: Any) -> None:
    ledger = Ledger.open(old_path)
    script = make_script(ledger)
    try:
        work = script.wait(ledger.recover())
        trained = script.wait(ledger.batch_episodes("b1"))
        failures = script.wait(ledger.failures())
        groups = script.wait(ledger.trained_groups_by_source())
        changes = script.wait(ledger.job_changes(1))
        script.wait(ledger.record_change(JobChange(len(changes) + 1, 9, {"batch_size": 4})))
        [batch] = script.wait(ledger.trained_batches(0))
        script.end("running")
    finally:
        ledger.close()
    assert (work.step, work.weight_version) == (1, 1)
    assert [episode.row.episode_id for episode in work.running] == ["running"]
    assert [episode.turns for episode in work.completed] == [(script.turn("waiting"),)]
    assert [episode.turns for episode in trained] == [(script.turn("trained-1"),), (script.turn("trained-2"),)]
    row = work.completed[0].row
    assert (row.data_source, row.lease_s, row.turn_rewards, row.reward) == ("default", None, None, 1.0)
    assert row.rewards is None
    assert (row.use.calls, row.use.prompt_tokens, row.use.sampled_tokens) == (1, 3, 2)
    assert failures == {"idle_timeout": 2, "client_abort": 1, "stale": 1}
    assert groups == {"default": 1}
    assert batch.settings == {}


def test_policies_of_a_former_version_are_changes_of_its_job_from_the_step_after_their_seal(
    path: Path, make_script: Any
) -> None:
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FORMER[5].read_text())
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 5")
    ledger = Ledger.open(path)
    try:
        changes = make_script(ledger).wait(ledger.job_changes(1))
    finally:
        ledger.close()
    # The first was sealed with step 1, the second waits for the seal of step 2.
    assert changes == [JobChange(1, 2, {"num_repeat": 2}), JobChange(2, 3, {"num_repeat": 4, "batch_size": 3})]


def test_migrated_ledger_has_the_tables_and_indexes_of_a_new_one(old_path: Path, tmp_path: Path) -> None:
    def schema_of(path: Path) -> tuple[set[Any], dict[str, set[str]]]:
        Ledger.open(path).close()
        with closing(sqlite3.connect(path)) as connection:
            objects = set(connection.execute("SELECT type, name, tbl_name FROM sqlite_schema"))
            tables = [name for kind, name, _ in objects if kind == "table"]
            columns = {
                table: set(connection.execute(f"SELECT name FROM pragma_table_info('{table}')")) for table in tables
            }
        return objects, columns

    assert schema_of(old_path) == schema_of(tmp_path / "new.db")


def test_copy_of_the_old_version_is_kept_whole(old_path: Path, version: int) -> None:
    Ledger.open(old_path).close()
    copy_path = old_path.with_name(f"ledger.db.v{version}")
    with closing(sqlite3.connect(copy_path)) as copy:
        assert copy.execute("PRAGMA user_version").fetchone() == (version,)
        assert "\n".join(copy.iterdump()) + "\n" == FORMER[version].read_text()
    kept = digest(copy_path)
    Ledger.open(old_path).close()
    assert digest(copy_path) == kept


def test_without_a_copy_nothing_is_migrated(old_path: Path, version: int) -> None:
    old_path.with_name(f"ledger.db.v{version}").mkdir()
    before = content_of(old_path)
    with pytest.raises(LedgerError, match="cannot be opened") as refusal:
        Ledger.open(old_path)
    assert "\n" not in refusal.value.message
    assert content_of(old_path) == before
    assert not list(old_path.parent.glob("*.partial"))


def test_migration_that_fails_midway_leaves_the_old_version(old_path: Path) -> None:
    with closing(sqlite3.connect(old_path)) as connection:
        connection.execute("ALTER TABLE episodes ADD COLUMN checksum INTEGER")
    before = content_of(old_path)
    with pytest.raises(LedgerError, match="duplicate column name: checksum"):
        Ledger.open(old_path)
    assert content_of(old_path) == before


@pytest.mark.parametrize("is_new", [True, False])
def test_read_only_directory_is_refused_in_one_line(path: Path, is_new: bool) -> None:
    path.parent.mkdir(parents=True)
    if not is_new:
        Ledger.open(path).close()
    before = [] if is_new else content_of(path)
    path.parent.chmod(0o500)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", OPEN, str(path)],
            capture_output=True, text=True, timeout=30, cwd=Path(__file__).parents[3], preexec_fn=obey_permissions,
        )  # fmt: skip
    finally:
        path.parent.chmod(0o700)
    (line,) = ended.stdout.splitlines() or [ended.stderr]
    assert str(path.parent) in line
    assert "cannot be opened" in line
    assert not path.exists() if is_new else content_of(path) == before


def test_check_of_a_large_file_ends_in_time_and_finds_what_it_gets_to(
    script: Any, ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.complete("e1")
    ledger.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE ballast (bytes BLOB)")
        connection.executemany("INSERT INTO ballast VALUES (?)", [(bytes(3000),)] * 2000)
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="is damaged"):
        Ledger.open(path)
    monkeypatch.setattr(opening, "CHECK_LIMIT_S", 0.0)
    reopened = Ledger.open(path)
    try:
        assert script.wait(reopened.episode("e1")).state is EpisodeState.COMPLETED
    finally:
        reopened.close()


def obey_permissions() -> None:
    """Without this capability even root is bound by the mode of a directory; nobody else has it to lose."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def content_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        return [str(version), *connection.iterdump()]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
