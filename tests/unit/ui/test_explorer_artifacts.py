"""The recorded files of runs and trainings: where they are, and commands that load them."""

from __future__ import annotations

import shlex
import struct
import zlib
from pathlib import Path

import pytest
import yaml
from explorer_samples import add_study, create_database, record_training, words

from experiments_db import Run, ServerEvent, TrainingNews, open_store, record_run
from swarm.job import TrainJob
from ui.artifacts.recorded_files import (
    ADAPTER,
    CHECKPOINT,
    Presence,
    RecordedFile,
    commands_of,
    files_of_run,
    files_of_training,
    locate_folder,
)


@pytest.fixture
def finished(tmp_path: Path) -> tuple[Path, Run]:
    """A database and a run of it with a log, a log that is gone, a checkpoint, and one that the study removed."""
    kept, removed = tmp_path / "servers/0/step-000030", tmp_path / "servers/0/step-000010"
    kept.mkdir(parents=True)
    (kept / "model.safetensors").write_bytes(b"x" * 2048)
    found: list[Run] = []

    def fill(store, home: Path) -> None:
        study = add_study(store, home)
        run = next(run for run in store.list_runs(study_id=study) if store.list_episodes(run.id))
        lost = home / "studies" / study / "runs" / run.id / "lost <b>.log"
        store.record_artifact(study, "output", str(lost), sha256="0" * 64, size_bytes=5, run_id=run.id)
        ids = {"checkpoint": str(kept), "checkpoints": {"10": str(removed)}, "pruned": [str(removed)]}
        found.append(store.update_run(run.id, external_ids=ids))

    return create_database(tmp_path, fill), found[0]


def saved(training_id: str, number: int, **detail: object) -> ServerEvent:
    return ServerEvent(training_id, number, "checkpoint.saved", detail, 5.0 + number)


def test_the_files_of_a_run_say_where_they_are(open_page, finished: tuple[Path, Run]) -> None:
    database, run = finished
    page = open_page("run", database, run=run.id, part="Artifacts")
    assert not page.error and not page.warning
    table = page.dataframe[0].value
    states = dict(zip(table["Kind"] + " " + table["File"], table["State"], strict=True))
    assert states == {
        "checkpoint step-000030": "here",
        "checkpoint step-000010": "removed by the study",
        "log client.log": "here",
        "output lost <b>.log": "gone",
    }
    assert table["Size"].iloc[0] == "2.0 KiB" and list(table["Step"].dropna()) == [30, 10]


def test_a_file_that_is_here_comes_with_commands_and_one_that_is_gone_with_none(
    open_page, finished: tuple[Path, Run]
) -> None:
    database, run = finished
    kept = open_page("run", database, run=run.id, part="Artifacts", file=run.external_ids["checkpoint"])
    assert not kept.warning
    assert "swarm export" in words(kept) and "resume_from" in words(kept) and "from_pretrained" in words(kept)
    gone = open_page("run", database, run=run.id, part="Artifacts", file=run.external_ids["checkpoints"]["10"])
    assert not gone.code
    assert "no longer there" in gone.warning[0].value and "removed it" in gone.warning[0].value


def test_a_training_has_the_checkpoints_that_it_kept(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with open_store(tmp_path / "research.db") as store:
        training = store.get_training(record_training(store, steps=1))
        events = (
            saved(training.id, 1, path=str(tmp_path / "a"), step=3, kept=True),
            saved(training.id, 2, path=str(tmp_path / "a"), step=3, kept=True),
            saved(training.id, 3, path=str(tmp_path / "recovery"), step=4, kept=False),
            saved(training.id, 4, path=str(tmp_path / "gone"), step=5, kept=True),
            saved(training.id, 5, path="/srv/b", step=6, kept=True),
            saved(training.id, 6, path=None, step="x", kept=True),
            ServerEvent(training.id, 7, "batch.trained", {"path": "/c", "kept": True}, 9.0),
        )
        store.add_to_training(training.id, TrainingNews(events=events))
        stored = store.list_server_events(training.id, kind="checkpoint.saved")
        assert [event.number for event in stored] == [6, 5, 4, 3, 2, 1]
    files = files_of_training(tmp_path, training, stored)
    assert [(file.step, file.presence) for file in files] == [
        (6, Presence.ELSEWHERE), (5, Presence.GONE), (3, Presence.HERE),
    ]  # fmt: skip
    # The records of a database on a server name no file of this machine.
    assert {file.presence for file in files_of_training(None, training, stored)} == {Presence.ELSEWHERE}


def test_only_folders_below_the_database_are_looked_at(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home / "a", other):
        folder.mkdir(parents=True)
    (home / "link").symlink_to(other)
    (home / "loop").symlink_to(home / "loop")
    (home / "file").write_text("")
    assert locate_folder(home, str(home / "a")) == home / "a"
    stored = [str(other), str(home / "link"), str(home / "loop"), str(home / "file"), str(home / "none"), "a", ""]
    stored += [f"{home}/../other", f"{home}/a/../../other", f"{home}/\x00", f"{home}/{'a' * 5000}", "/net/elsewhere"]
    assert [locate_folder(home, item) for item in stored] == [None] * len(stored)


def test_records_of_a_run_that_are_not_as_expected_cost_nothing(finished: tuple[Path, Run]) -> None:
    _, run = finished
    assert files_of_run(None, run, [])[0].presence is Presence.ELSEWHERE
    run.external_ids["checkpoints"] = ["x"]  # type: ignore[index]
    run.external_ids["pruned"] = None  # type: ignore[index]
    assert len(files_of_run(None, run, [])) == 1


@pytest.mark.parametrize("kind", [CHECKPOINT, ADAPTER])
def test_a_job_that_goes_on_from_a_checkpoint_is_valid(kind: str) -> None:
    job = TrainJob(lora_rank=8 if kind == ADAPTER else 0).model_dump(mode="json")
    path = "/srv/it's: #1/step-000012"
    commands = commands_of(RecordedFile(kind, path, Presence.HERE, step=12, job=job))
    given = yaml.safe_load(commands[-1].text)
    resumed = TrainJob.model_validate(given)
    assert str(resumed.resume_from) == path and resumed.total_steps == 32
    assert resumed.lora_rank == job["lora_rank"] and resumed.model == job["model"]
    assert ("--merge-lora" in commands[0].text) is (kind == ADAPTER)
    assert shlex.split(commands[0].text.splitlines()[0])[2] == path
    compile(commands[1].text, "snippet", "exec")


@pytest.mark.parametrize("path", ["/a\nrm -rf b", "/a\x1b[31m", "/a\u202eb"])
def test_a_path_that_cannot_be_copied_has_no_command(path: str) -> None:
    assert commands_of(RecordedFile(CHECKPOINT, path, Presence.HERE)) == []


def png() -> bytes:
    """Return a picture of one pixel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


def logged(folder: Path, name: str, content: bytes) -> tuple[Path, str, Path]:
    """Return a database with a run that logged this file, the run's id, and the copy."""
    source = folder / name
    source.write_bytes(content)
    database = folder / "home" / "research.db"
    with record_run("own", database=database) as run:
        copy = run.log_file(source)
    return database, run.id, copy


@pytest.mark.parametrize(
    ("name", "content", "kind"), [("a.png", png(), "image"), ("a.csv", b"a,b\n1,=x\n", "dataframe")]
)
def test_a_picture_and_a_table_are_shown(open_page, tmp_path: Path, name: str, content: bytes, kind: str) -> None:
    database, run_id, copy = logged(tmp_path, name, content)
    page = open_page("training", database, training=run_id, part="Artifacts", file=str(copy))
    assert name in words(page) and "cannot be shown" not in words(page)
    assert len(page.get(kind)) == (2 if kind == "dataframe" else 1)


@pytest.mark.parametrize("name", ["a.png", "a.parquet", "a.csv", "a.svg", "a.html", "a"])
def test_a_file_that_is_not_what_its_name_says_costs_only_its_picture(open_page, tmp_path: Path, name: str) -> None:
    database, run_id, copy = logged(tmp_path, name, b"\xff\x00<script>alert(1)</script>")
    page = open_page("training", database, training=run_id, part="Artifacts", file=str(copy))
    assert not page.get("image") and name in words(page)


def test_a_logged_file_that_was_deleted_is_named_as_gone(open_page, tmp_path: Path) -> None:
    database, run_id, copy = logged(tmp_path, "a.png", png())
    copy.unlink()
    page = open_page("training", database, training=run_id, part="Artifacts", file=str(copy))
    assert "no longer there" in page.warning[0].value
