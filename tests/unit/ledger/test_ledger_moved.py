"""A ledger that is moved, replaced or deleted while it is open: nothing is acknowledged that its file does not hold."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from swarm.errors import LedgerDamaged, LedgerUnwritable
from swarm.ledger.integrity.control import control_path
from swarm.ledger.integrity.place import LOG_LOOK_S
from swarm.server.home import open_home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def written(home: Path, make_script: Any) -> Any:
    """A script of a ledger that was opened before, with 3 episodes in its file and 3 in its write-ahead log."""
    with closing(open_home(home)) as first:
        script = make_script(first)
        script.wait(first.record_job({}, {}))
        script.complete("0", "1", "2")
    script = make_script(open_home(home))
    script.complete("3", "4", "5")
    return script


ACKNOWLEDGED = {"0", "1", "2", "3", "4", "5"}


def episodes_in(path: Path) -> set[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        return {row[0] for row in connection.execute("SELECT episode_id FROM episodes WHERE reward IS NOT NULL")}


def move_beside(home: Path) -> Path:
    return (home / "ledger.db").rename(home / "ledger.db.old")


def move_away(home: Path) -> Path:
    place = home.parent / "elsewhere"
    place.mkdir()
    for path in sorted(home.glob("ledger.db*")):
        path.rename(place / path.name)
    return place / "ledger.db"


def replace_by_empty(home: Path) -> Path:
    moved = move_beside(home)
    (home / "ledger.db").touch()
    return moved


def replace_by_another(home: Path) -> Path:
    other = home.parent / "other"
    open_home(other).close()
    moved = move_beside(home)
    shutil.copy(other / "ledger.db", home / "ledger.db")
    return moved


def delete(home: Path) -> None:
    (home / "ledger.db").unlink()


def delete_log(home: Path) -> Path:
    (home / "ledger.db-wal").unlink()
    time.sleep(LOG_LOOK_S)
    return home / "ledger.db"


@dataclass(frozen=True)
class Move:
    """What is done to a home, which returns where the ledger is now, or None where it is gone; and what is told."""

    do: Callable[[Path], Path | None]
    reason: str


MOVES = {
    "moved beside": Move(move_beside, "ledger.db.old"),
    "moved away with log and control": Move(move_away, "moved or deleted"),
    "replaced by an empty file": Move(replace_by_empty, "ledger.db.old"),
    "replaced by another ledger": Move(replace_by_another, "ledger.db.old"),
    "deleted": Move(delete, "rescued"),
    "log deleted": Move(delete_log, "ledger.db-wal"),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_ledger_that_loses_its_place_acknowledges_nothing_more_and_lacks_nothing(
    name: str, home: Path, written: Any
) -> None:
    script, move = written, MOVES[name]
    script.begin("last")
    place = move.do(home)
    for _ in range(2):
        with pytest.raises(LedgerUnwritable, match=move.reason):
            script.end("last")
    if place is None:
        (place,) = home.glob("ledger.db.rescued-*")
    assert episodes_in(place) >= ACKNOWLEDGED, "also if the server is killed now"
    script.ledger.close()
    assert episodes_in(place) >= ACKNOWLEDGED


def test_a_file_that_is_moved_right_after_a_commit_gets_what_is_in_the_log(home: Path, written: Any) -> None:
    assert written.ledger.commits.commits
    moved = move_beside(home)
    wait_until(lambda: episodes_in(moved) >= ACKNOWLEDGED)
    written.ledger.close()


def test_what_lies_in_the_place_of_a_moved_ledger_is_left_as_it_is(home: Path, written: Any) -> None:
    script = written
    replace_by_another(home)
    before = (home / "ledger.db").read_bytes()
    with pytest.raises(LedgerUnwritable):
        script.begin("last")
    script.ledger.close()
    assert (home / "ledger.db").read_bytes() == before


def test_a_ledger_that_is_cut_in_its_place_acknowledges_nothing_more(home: Path, written: Any) -> None:
    script = written
    (home / "ledger.db").write_bytes(b"")
    with pytest.raises(LedgerUnwritable, match="cut or overwritten"):
        script.begin("last")
    script.ledger.close()
    with pytest.raises(LedgerDamaged, match="6 of 6 acknowledged"):
        open_home(home)


@pytest.mark.parametrize("moved", ["home", "ledger"])
def test_a_ledger_that_is_put_back_goes_on(moved: str, home: Path, written: Any) -> None:
    script = written
    origin = home if moved == "home" else home / "ledger.db"
    away = origin.rename(origin.with_name("away"))
    with pytest.raises(LedgerUnwritable, match="put it back"):
        script.begin("last")
    away.rename(origin)
    script.complete("last")
    script.ledger.close()
    with closing(open_home(home)) as opened:
        assert written.wait(opened.episode("last")).reward == 1.0


@pytest.mark.parametrize("how", ["hard link", "symbolic link to the home", "copy beside"])
def test_links_and_copies_of_a_running_ledger_change_nothing(
    how: str, home: Path, tmp_path: Path, written: Any, make_script: Any
) -> None:
    written.ledger.close()
    reached = home
    if how == "symbolic link to the home":
        reached = tmp_path / "link"
        reached.symlink_to(home)
    with closing(open_home(reached)) as opened:
        script = make_script(opened)
        script.complete("one")
        if how == "hard link":
            (home / "second.db").hardlink_to(home / "ledger.db")
        if how == "copy beside":
            shutil.copy(home / "ledger.db", home / "copy.db")
        script.complete("two")
    with closing(open_home(home)) as opened:
        assert make_script(opened).wait(opened.episode("two")).reward == 1.0


def damaged(home: Path) -> str:
    with pytest.raises(LedgerDamaged) as refusal:
        open_home(home)
    return refusal.value.message


def test_a_restart_names_the_ledger_that_lies_beside_an_empty_place(home: Path, written: Any) -> None:
    written.ledger.close()
    move_beside(home)
    shutil.copy(home / "ledger.db.old", home / "notes.txt")
    (home / "notes.txt").write_bytes(b"no ledger")
    message = damaged(home)
    assert "6 of 6 acknowledged" in message and "ledger.db.old" in message and "notes.txt" not in message
    (home / "ledger.db.old").rename(home / "ledger.db")
    open_home(home).close()


def test_a_restart_names_the_ledger_that_lies_beside_another_one(home: Path, written: Any) -> None:
    written.ledger.close()
    replace_by_another(home)
    assert "ledger.db.old" in damaged(home)


def test_a_restart_after_a_deletion_names_the_rescued_ledger_which_goes_on(home: Path, written: Any) -> None:
    script = written
    delete(home)
    with pytest.raises(LedgerUnwritable):
        script.begin("last")
    script.ledger.close()
    (rescued,) = home.glob("ledger.db.rescued-*")
    assert rescued.name in damaged(home)
    rescued.rename(home / "ledger.db")
    with closing(open_home(home)) as opened:
        assert written.wait(opened.episode("5")).reward == 1.0


def test_a_new_ledger_beside_a_moved_one_is_begun_with_a_warning(
    home: Path, written: Any, caplog: pytest.LogCaptureFixture
) -> None:
    written.ledger.close()
    move_beside(home)
    control_path(home / "ledger.db").unlink()
    open_home(home).close()
    assert "ledger.db.old" in caplog.text and "6 acknowledged episodes" in caplog.text


def test_a_ledger_of_the_same_folder_that_is_not_this_one_is_not_named(
    home: Path, tmp_path: Path, written: Any
) -> None:
    written.ledger.close()
    open_home(tmp_path / "other").close()
    shutil.copy(tmp_path / "other" / "ledger.db", home / "other.db")
    (home / "ledger.db").unlink()
    assert "other.db" not in damaged(home)
