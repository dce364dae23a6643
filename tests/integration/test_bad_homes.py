"""Directories no server can work in: one clear line, the documented exit code, and every file as it was.

Real files and real mounts: a process in a mount namespace of its own holds them, servers are started beside it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from server_processes import serving
from tests_support import begin, chat, end, wait_for_state, wait_for_step

from swarm.cli.failures import failures_in_one_line
from swarm.ledger import Ledger

START = [sys.executable, "-m", "swarm.cli", "start", "--port", "0"]
FAKE_JOB: dict[str, Any] = {"engine": "fake", "batch_size": 2, "num_repeat": 2, "drain_timeout_s": 1}
ROOM_BYTES = 24 * 2**20


@dataclass(frozen=True, slots=True)
class Namespace:
    """Mounts that only this test sees. `prefix` starts a command among them; `path` reaches a file from outside."""

    pid: int

    @property
    def prefix(self) -> list[str]:
        as_user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self.pid), *as_user, "--mount", "--"]

    def path(self, inside: Path) -> Path:
        return Path(f"/proc/{self.pid}/root{inside}")


Mount = Callable[[str], Namespace]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Runs a shell script of mounts in a new namespace; skips the test where the system does not allow it."""
    holders: list[subprocess.Popen[str]] = []

    def run(script: str) -> Namespace:
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        command = ["unshare", *as_root, "--mount", "sh", "-ec", f"{script}\necho ready; exec sleep 300"]
        try:
            holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        except FileNotFoundError:
            pytest.skip("needs unshare (util-linux)")
        holders.append(holder)
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            pytest.skip(f"no mounts for this user: {holder.stderr.read().strip()}")
        return Namespace(holder.pid)

    yield run
    for holder in holders:
        holder.kill()
        holder.communicate(timeout=60)


def refused(home: Path, prefix: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """The outcome of `swarm start`, after checking that it is one line."""
    done = subprocess.run(
        [*(prefix or []), *START, "--home", str(home)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SWARM_TOKEN": ""},
    )
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("swarm: ")
    assert done.stdout == ""
    return done


def start_here(start_server: Any, home: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and message of the same without a process: what a command makes of the failure to start."""
    with pytest.raises(typer.Exit) as ended, failures_in_one_line():
        start_server(home=home)
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith("swarm: "), message
    return ended.value.exit_code, message


def content(directory: Path) -> dict[str, str]:
    """Digest of every file that says something: locks, shared memory and empty logs of SQLite say nothing."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.stat().st_size and not path.name.endswith((".lock", "-shm"))
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with a ledger that a server has left in order."""
    directory = tmp_path / "home"
    directory.mkdir()
    Ledger.open(directory / "ledger.db").close()
    return directory


def test_a_damaged_ledger_is_named_and_left_alone(home: Path) -> None:
    ledger = home / "ledger.db"
    data = bytearray(ledger.read_bytes())
    data[4096 : 4096 * 6] = os.urandom(4096 * 5)
    ledger.write_bytes(data)
    before = content(home)
    done = refused(home)
    assert done.returncode == 74
    assert "damaged" in done.stderr and str(ledger) in done.stderr
    assert content(home) == before


def spoil_by_text(home: Path) -> None:
    (home / "ledger.db").write_bytes(b"my diary, page one\n" * 500)


def spoil_by_another_program(home: Path) -> None:
    for path in home.iterdir():
        path.unlink()
    with closing(sqlite3.connect(home / "ledger.db")) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")


def spoil_by_another_version(home: Path) -> None:
    with closing(sqlite3.connect(home / "ledger.db")) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("spoil", "code", "says"),
    [
        (spoil_by_text, 74, "ledger.db"),
        (spoil_by_another_program, 1, "not a ledger"),
        (spoil_by_another_version, 1, "another version (schema 99"),
    ],
)
def test_a_file_that_is_no_ledger_of_this_version_is_named_and_left_alone(
    home: Path, start_server: Any, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], code: int,
    says: str,
) -> None:  # fmt: skip
    spoil(home)
    before = content(home)
    exit_code, message = start_here(start_server, home, capsys)
    assert exit_code == code and says in message
    assert content(home) == before


def test_a_second_server_is_sent_away_and_the_first_goes_on(home: Path) -> None:
    with serving(home) as (first, http, _):
        done = refused(home)
        assert done.returncode == 75
        assert str(first.pid) in done.stderr
        assert http.get("/health").status_code == 200
        assert (home / "ledger.db.lock").read_text() == str(first.pid)


def test_a_read_only_directory_is_named_and_left_alone(home: Path, mount: Mount) -> None:
    before = content(home)
    namespace = mount(f"mount --bind '{home}' '{home}'; mount -o remount,bind,ro '{home}'")
    done = refused(home, namespace.prefix)
    assert done.returncode == 1
    assert str(home) in done.stderr and os.strerror(errno.EROFS) in done.stderr
    assert content(home) == before


def test_a_home_that_is_a_file_is_named_and_left_alone(
    tmp_path: Path, start_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.write_text("not a directory")
    code, message = start_here(start_server, home, capsys)
    assert code == 1
    assert str(home) in message
    assert home.read_text() == "not a directory"


def test_a_full_disk_at_the_start_is_named_and_nothing_is_overwritten(tmp_path: Path, home: Path, mount: Mount) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    namespace = mount(
        f"mount -t tmpfs -o size=2m tmpfs '{disk}'; cp -r '{home}' '{disk}/home'; dd if=/dev/zero of='{disk}/filler' "
        "bs=4k 2>/dev/null || true"
    )
    inside = namespace.path(disk)
    before = content(inside)
    done = refused(disk / "home", namespace.prefix)
    assert done.returncode == 1
    assert str(disk / "home") in done.stderr
    assert "full" in done.stderr or os.strerror(errno.ENOSPC) in done.stderr
    assert content(inside) == before


def fill(directory: Path) -> Path:
    """Take all space that is left."""
    filler = directory / "filler"
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def test_a_disk_that_fills_up_in_mid_run_loses_nothing_and_the_run_goes_on_with_new_space(
    tmp_path: Path, mount: Mount
) -> None:
    """Acknowledged episodes stay; what cannot be stored is refused with 507; later everything is trained once."""
    home = tmp_path / "disk"
    home.mkdir()
    namespace = mount(f"mount -t tmpfs -o size={ROOM_BYTES} tmpfs '{home}'")
    with serving(home, prefix=namespace.prefix) as (process, http, _):
        put = http.put("/v1/swarm/job", json={"job": FAKE_JOB})
        assert put.status_code == 200, put.text
        http.post("/v1/swarm/engine/start", json={})
        wait_for_state(http, "ROLLING")
        acknowledged = begin(http)
        end(http, acknowledged, task_id="a", reward=1.0, call=True)
        running = begin(http)
        chat(http, running, "before the disk is full")

        filler = fill(namespace.path(home))
        refusal = _end(http, running, "a", 0.0)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (507, "ledger_unwritable"), refusal.text
        assert refusal.headers["retry-after"] == "1"
        assert http.post("/v1/swarm/episodes/begin", json={}).status_code == 507
        assert http.get("/health").status_code == 200
        status = http.get("/v1/swarm/status").json()
        assert (status["state"], status["pool"]["episodes"]) == ("ROLLING", 1)

        filler.unlink()
        assert _end(http, running, "a", 0.0).json()["replayed"] is False
        for reward in (0.0, 1.0):
            end(http, begin(http), task_id="b", reward=reward, call=True)
        wait_for_step(http, 1)
        episode = http.get(f"/v1/swarm/episodes/{acknowledged['episode_id']}").json()["episode"]
        assert episode["state"] == "trained"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    # SQLite resolves links, and the name under /proc is one that leads nowhere: look at a copy.
    left = shutil.copytree(namespace.path(home), tmp_path / "left")
    with closing(sqlite3.connect(left / "ledger.db")) as ledger:
        states = dict(ledger.execute("SELECT state, count(*) FROM episodes GROUP BY state"))
        assert states == {"trained": 4}
        assert ledger.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_disk_that_is_full_when_a_batch_is_closed_does_not_lose_the_batch(tmp_path: Path, mount: Mount) -> None:
    home = tmp_path / "disk"
    home.mkdir()
    namespace = mount(f"mount -t tmpfs -o size={ROOM_BYTES} tmpfs '{home}'")
    with serving(home, prefix=namespace.prefix) as (_, http, _):
        http.put("/v1/swarm/job", json={"job": {**FAKE_JOB, "stop_rule": "any_client_agrees"}})
        http.post("/v1/swarm/engine/start", json={})
        step = 0
        while True:
            step += 1
            wait_for_state(http, "ROLLING")
            straggler = begin(http)
            for task, reward in (("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 1.0)):
                end(http, begin(http), task_id=f"{task}{step}", reward=reward, call=True)
            http.post("/v1/swarm/batch/agree", json={"client_id": "anonymous"}).raise_for_status()
            filler = fill(namespace.path(home))
            if http.get("/v1/swarm/status").json()["state"] == "DRAINING":
                break
            filler.unlink()  # This machine was so slow that the batch was closed before its disk was full.
        # The straggler is waited for until the drain timeout; the batch is closed then, at the latest.
        time.sleep(FAKE_JOB["drain_timeout_s"] + 1)
        assert http.get("/health").status_code == 200
        filler.unlink()
        status = wait_for_step(http, step)
        assert status["last_metrics"]["batch/episodes"] == 4
        http.post(f"/v1/swarm/episodes/{straggler['episode_id']}/abort", json={})


def _end(http: httpx.Client, episode: dict[str, Any], task_id: str, reward: float) -> httpx.Response:
    return http.post(f"/v1/swarm/episodes/{episode['episode_id']}/end", json={"task_id": task_id, "reward": reward})
