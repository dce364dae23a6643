"""What docs/operations.md says of backups, done as it stands there: a restored server goes on where the backup was."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from command_line import run_swarm
from server_processes import serving
from tests_support import begin, chat, end, run_batch, wait_for_state, wait_for_step

from swarm.server.backup import _is_like
from swarm.trainer.checkpoint_files import read_manifest
from swarm.trainer.checkpoints import RunDirectory, runs_of

pytestmark = pytest.mark.timeout(600)

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
JOB: dict[str, Any] = {"engine": "fake", "batch_size": 2, "num_repeat": 2, "drain_timeout_s": 1, "save_freq": 2}
HOME = Path("runs/swarm")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("job.json").write_text(json.dumps(JOB))
    return tmp_path


def on_the_page(first: str) -> list[list[str]]:
    """The commands of the block that begins so, with the backup in the directory of the test."""
    (block,) = (
        each for each in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL) if each.startswith(first)
    )
    return [shlex.split(line.replace("/backups/", "backups/"))[1:] for line in block.splitlines()]


def run(words: list[str], **env: str) -> None:
    done = run_swarm(*words, **env)
    assert done.exit_code == 0, done.output


def test_a_server_that_is_restored_as_the_page_says_goes_on_where_the_backup_was(place: Path) -> None:
    with serving(HOME, "--job", "job.json") as (server, http, _):
        wait_for_state(http, "ROLLING")
        for step in (1, 2, 3):
            run_batch(http, tasks=2, repeats=2, name=f"step-{step}", tells_task=True)
            wait_for_step(http, step)
        end(http, begin(http, task_id="waits"), task_id="waits", reward=1.0, call=True)
        running = begin(http, task_id="waits")
        chat(http, running, "half a task")
        (backup,) = on_the_page("swarm backup")
        run(backup)
        end(http, running, task_id="waits", reward=0.0)
        run_batch(http, tasks=1, repeats=2, name="later", tells_task=True)
        wait_for_step(http, 4)
        stop, restore, start = on_the_page("swarm stop")
        run(stop, SWARM_URL=str(http.base_url))
        server.wait(60)
    run(restore)
    with serving("runs/swarm", *start[1:]) as (_, http, _):
        status = wait_for_state(http, "ROLLING")
        assert (status["step"], status["weight_version"], status["pool"]["episodes"]) == (3, 3, 1)
        assert [each["episode_id"] for each in status["running"]] == [running["episode_id"]]
        chat(http, running, "the other half")
        end(http, running, task_id="waits", reward=0.0)
        run_batch(http, tasks=1, repeats=2, name="other", tells_task=True)
        wait_for_step(http, 4)
    (aside,) = HOME.glob("set-aside-*")
    assert {path.name for path in aside.rglob("step-*")} >= {"step-000002", "step-000004"}, "nothing later is deleted"


def test_a_backup_under_load_is_whole_and_has_all_that_was_acknowledged_before_it(place: Path) -> None:
    acknowledged: list[int] = []
    is_over = threading.Event()
    with serving(HOME, "--job", "job.json") as (server, http, _):
        wait_for_state(http, "ROLLING")

        def work() -> None:
            while not is_over.is_set():
                end(http, begin(http, episode_type="eval"), task_id="t", reward=1.0, call=True)
                acknowledged.append(1)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for number in range(3):
                before = len(acknowledged)
                done = run_swarm("backup", f"backup-{number}", "--home", str(HOME), "--json")
                assert done.exit_code == 0, done.output
                after = len(acknowledged)
                assert before <= json.loads(done.stdout)["episodes"] <= after + 1
        finally:
            is_over.set()
            worker.join(60)
        server.send_signal(signal.SIGKILL)
    (last, *_) = [json.loads(run_swarm("restore", "backup-2", "--home", "new", "--json").stdout)]
    assert last["set_aside"] is None
    with serving("new") as (_, http, _):
        assert wait_for_state(http, "ROLLING")["step"] == 0


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the home of a server that was stopped, and `backup`, one of it."""
    directory = tmp_path_factory.mktemp("stopped")
    (directory / "job.json").write_text(json.dumps(JOB))
    with serving(directory / HOME, "--job", str(directory / "job.json")) as (server, http, _):
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=2, repeats=2)
        wait_for_step(http, 1)
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    run(["backup", str(directory / "backup"), "--home", str(directory / HOME)])
    return directory


@pytest.fixture
def closed(stopped: Path, place: Path) -> Path:
    """A copy of that home, and of its backup."""
    shutil.copytree(stopped, place, dirs_exist_ok=True)
    return HOME


def test_what_is_no_whole_backup_changes_nothing(closed: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in closed.rglob("*") if path.name != "ledger.db.lock"}
    content = bytearray(Path("backup/ledger.db").read_bytes())
    content[len(content) // 2] ^= 1
    Path("backup/ledger.db").write_bytes(content)
    refused = run_swarm("restore", "backup", "--home", str(closed))
    assert refused.exit_code == 74 and "nothing was changed" in refused.output
    assert run_swarm("restore", "nowhere", "--home", str(closed)).exit_code == 3
    assert {path: path.stat().st_mtime_ns for path in closed.rglob("*") if path.name != "ledger.db.lock"} == before


def test_no_backup_is_made_of_a_home_without_a_record(tmp_path: Path) -> None:
    assert run_swarm("backup", "backup", "--home", str(tmp_path)).exit_code == 3
    (tmp_path / "ledger.db").touch()
    assert run_swarm("backup", "backup", "--home", str(tmp_path)).exit_code == 3


def test_no_backup_is_made_of_a_damaged_ledger_or_over_another_backup(closed: Path) -> None:
    assert run_swarm("backup", "backup", "--home", str(closed)).exit_code == 2
    content = bytearray((closed / "ledger.db").read_bytes())
    content[content.rindex(b'"role":"assistant"') + 2] ^= 1
    (closed / "ledger.db").write_bytes(content)
    refused = run_swarm("backup", "other", "--home", str(closed))
    assert refused.exit_code == 74 and "1 of 4 acknowledged episodes" in refused.output
    assert not [name for name in os.listdir() if "other" in name]


def test_a_ledger_that_went_on_from_a_backup_is_not_taken_for_its_origin(closed: Path) -> None:
    run(["restore", "backup", "--home", "twin"])
    with serving("twin") as (server, http, _):
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=2, repeats=2)
        wait_for_step(http, 2)
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    (closed / "ledger.db").write_bytes(Path("twin/ledger.db").read_bytes())
    refused = run_swarm("start", "--home", str(closed))
    assert refused.exit_code == 74 and "4 of 4 acknowledged episodes" in refused.output


def test_a_restore_sets_aside_whatever_has_a_name_that_the_backup_brings(closed: Path) -> None:
    project = next(Path("backup").glob("*/*/run-*")).parent.parent.name
    (Path("half") / project / "notes").mkdir(parents=True)
    done = run_swarm("restore", "backup", "--home", "half", "--json")
    assert done.exit_code == 0, done.output
    assert (Path(json.loads(done.stdout)["set_aside"]) / project / "notes").is_dir()
    assert not (Path("half") / project / "notes").exists() and list(Path("half").glob("*/*/run-*"))


def test_neither_a_backup_nor_the_home_of_a_stopped_server_is_left_a_write_ahead_log(closed: Path) -> None:
    assert {path.name for path in Path("backup").glob("ledger.db*")} == {"ledger.db", "ledger.db.control"}
    run(["restore", "backup", "--home", "twin"])
    for home in (closed, Path("twin")):
        kept = {"ledger.db", "ledger.db.control", "ledger.db.lock"}
        assert {path.name for path in home.glob("ledger.db*")} == kept


def test_a_checkpoint_that_was_not_copied_whole_is_copied_again_unless_it_was_damaged_before(closed: Path) -> None:
    [origin] = runs_of(closed)
    copy = Path("backup") / origin.path.relative_to(closed)
    [checkpoint] = RunDirectory(copy, origin.number).checkpoints.newest_first()
    name = next(iter(read_manifest(checkpoint)["files"]))
    assert _is_like(origin, copy)
    (checkpoint / name).write_bytes(b"torn")
    assert not _is_like(origin, copy)
    (origin.path / checkpoint.relative_to(copy) / name).write_bytes(b"torn")
    assert _is_like(origin, copy)
