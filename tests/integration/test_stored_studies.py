"""Studies that an older version wrote: they open, keep what they say, and go on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from simulated_study import reports_without_images
from typer.testing import CliRunner

from experiments_db import Author, SchemaTooOld, open_store
from researcher.cli import app
from researcher.study.log import StudyLog

STORED = Path(__file__).parent / "stored"
STUDY = "st-1m81x5ekht535"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A study of two arms that was paused by a signal after the first of its two runs."""
    folder = tmp_path / "studies" / STUDY
    folder.mkdir(parents=True)
    for name, path in (("research", tmp_path / "research.db"), ("graph", folder / "graph.db")):
        with closing(sqlite3.connect(path)) as database:
            database.executescript((STORED / f"{name}_0001.sql").read_text())
    with reports_without_images():
        yield tmp_path


def test_plans_and_authors_are_found_in_what_an_older_version_kept_as_events(home: Path) -> None:
    with pytest.raises(SchemaTooOld):
        open_store(home / "research.db", read_only=True)
    with open_store(home / "research.db") as store:
        (plan,) = StudyLog(store, STUDY).history().plans
        arms = store.list_experiments(STUDY)
    assert [arm.name for arm in plan.arms] == [arm.name for arm in arms] == ["no-kl", "kl"]
    assert {arm.author for arm in arms} == {Author.PACKAGE}


def test_reading_commands_upgrade_the_database_first(home: Path) -> None:
    listed = CliRunner().invoke(app, ["list", "--home", str(home)])

    assert listed.exit_code == 0, listed.stderr
    assert STUDY in listed.stdout
