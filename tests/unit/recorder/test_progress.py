"""The progress of ledgers in the experiments database: an older copy is told of, and nothing else is."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from command_line import run_swarm

from researcher.recorded_trainings import open_database_sink
from swarm import TrainJob
from swarm.ledger import EpisodeRow, Ledger, RecordLoss, ReportedResult
from swarm.recorder.progress import ProgressRecording
from swarm.recorder.reading import LedgerReader
from swarm.schemas import Receipt
from swarm.server.backup import back_up, restore
from swarm.server.home import open_home
from swarm.types import EpisodeType

JOB = TrainJob(engine="fake").resolve().model_dump(mode="json")


class Place:
    """Homes of servers that record in one database, and what their recorders have told."""

    def __init__(self, folder: Path) -> None:
        self.home, self.runs = folder / "home", folder / "runs"
        self.told: list[RecordLoss] = []
        self.is_heard = True

    def serve(self, episodes: int, home: Path | None = None) -> None:
        """Open the ledger as a server does, end episodes, and record after each of them."""
        home = home or self.home
        with closing(open_home(home)) as opened, self.recording(home) as recorded:
            recorded()
            asyncio.run(self._end(opened, episodes))
            recorded()

    async def _end(self, opened: Ledger, episodes: int) -> None:
        if await opened.latest_job() is None:
            await opened.record_job({}, JOB)
        for number in range(episodes):
            name, now = f"{time.time_ns()}-{number}", time.time()
            await opened.begin_episode(EpisodeRow(name, EpisodeType.EVAL, "c", "0" * 64, now, 240.0, now + 1800))
            result = ReportedResult(
                name, "key", "digest", task_id="t", reward=1.0, is_success=None, metadata={}, ended_at=now
            )
            await opened.end_episode(result)

    def recording(self, home: Path) -> closing[Callable[[], bool]]:
        sink = open_database_sink(str(self.runs))
        recording = ProgressRecording(LedgerReader(home / "ledger.db"), sink, home, self._hear)

        class Recorded:
            def __call__(self) -> bool:
                return recording.catch_up()

            def close(self) -> None:
                sink.close()

        return closing(Recorded())

    def _hear(self, _: Receipt, loss: RecordLoss) -> bool:
        self.told.append(loss)
        return self.is_heard

    def noted(self) -> list[int]:
        with closing(sqlite3.connect(self.runs / "research.db")) as connection:
            return sorted(row[0] for row in connection.execute("SELECT acknowledged FROM noted_ledgers"))

    def put_back(self, copy: Path) -> None:
        shutil.rmtree(self.home)
        shutil.copytree(copy, self.home)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_older_copy_is_told_once_and_the_database_follows_it(place: Place, tmp_path: Path) -> None:
    place.serve(4)
    shutil.copytree(place.home, tmp_path / "copy")
    place.serve(6)
    place.put_back(tmp_path / "copy")
    place.serve(1)
    assert place.told == [RecordLoss(4, 6)] and place.noted() == [5]
    place.serve(1)
    assert len(place.told) == 1


def test_until_the_server_hears_of_a_loss_the_database_keeps_what_it_knows(place: Place, tmp_path: Path) -> None:
    place.serve(4)
    shutil.copytree(place.home, tmp_path / "copy")
    place.serve(6)
    place.put_back(tmp_path / "copy")
    place.is_heard = False
    place.serve(8)
    assert set(place.told) == {RecordLoss(4, 6)} and place.noted() == [10]
    place.is_heard = True
    place.serve(0)
    assert set(place.told) == {RecordLoss(4, 6)} and place.noted() == [12]


def test_a_recorder_that_outlives_its_server_does_not_take_a_copy_for_its_ledger(place: Place, tmp_path: Path) -> None:
    place.is_heard = False
    place.serve(2)
    shutil.copytree(place.home, tmp_path / "copy")
    place.serve(3)
    with place.recording(place.home) as recorded:
        assert recorded()
        place.put_back(tmp_path / "copy")
        assert not recorded() and not recorded()
    assert place.noted() == [5]


def test_a_training_without_an_end_is_imported(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = {name: value for name, value in JOB.items() if name != "total_steps"}
    monkeypatch.setitem(globals(), "JOB", endless)
    place.serve(2)
    done = run_swarm("import", str(place.home), "--record", str(place.runs), SWARM_NO_RECORD="")
    assert done.exit_code == 0 and "StopIteration" not in done.output, done.output


def nothing(_: Place) -> None:
    return None


def moved_and_back(place: Place) -> None:
    away = place.home.rename(place.home.with_name("away"))
    away.rename(place.home)


def behind_a_link(place: Place) -> None:
    place.home.symlink_to(place.home.rename(place.home.with_name("away")))


def without_database(place: Place) -> None:
    shutil.rmtree(place.runs)


def with_older_database(place: Place) -> None:
    shutil.rmtree(place.runs)
    shutil.copytree(place.runs.with_name("older"), place.runs)


def with_a_linked_ledger(place: Place) -> None:
    (place.home / "second.db").hardlink_to(place.home / "ledger.db")


def without_its_control_file(place: Place) -> None:
    (place.home / "ledger.db.control").unlink()


@pytest.mark.parametrize(
    "happens",
    [
        nothing, moved_and_back, behind_a_link, without_database, with_older_database, with_a_linked_ledger,
        without_its_control_file,
    ],
)  # fmt: skip
def test_what_is_no_older_copy_is_not_told(happens: Callable[[Place], None], place: Place) -> None:
    place.serve(3)
    shutil.copytree(place.runs, place.runs.with_name("older"))
    place.serve(2)
    happens(place)
    place.serve(1)
    assert not place.told and 6 in place.noted()


def test_other_servers_and_restored_backups_are_not_told_of(place: Place, tmp_path: Path) -> None:
    place.serve(4)
    place.serve(2, tmp_path / "other")
    back_up(place.home, tmp_path / "backup")
    place.serve(3)
    restore(tmp_path / "backup", place.home)
    restore(tmp_path / "backup", tmp_path / "twin")
    place.serve(0)
    place.serve(1, tmp_path / "twin")
    place.serve(1, tmp_path / "other")
    assert not place.told and place.noted() == [3, 4, 5, 7]


def test_an_import_names_an_older_copy_and_keeps_what_the_database_knows(place: Place, tmp_path: Path) -> None:
    place.serve(2)
    shutil.copytree(place.home, tmp_path / "copy")
    place.serve(3)
    place.put_back(tmp_path / "copy")
    for _ in range(2):
        done = run_swarm("import", str(place.home), "--record", str(place.runs), SWARM_NO_RECORD="")
        assert done.exit_code == 0 and "episodes after 2 unknown" in done.output, done.output
    assert place.noted() == [5]
