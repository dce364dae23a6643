"""The file: what was acknowledged survives a kill, a full disk loses nothing, a wrong file is left alone."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from swarm.errors import LedgerError, LedgerInUse
from swarm.ledger import EpisodeRow, Ledger
from swarm.types import EpisodeType

CHILD_PRELUDE = """
import asyncio, sys, time, uuid
from pathlib import Path
from swarm.errors import LedgerError
from swarm.ledger import EpisodeRow, Ledger, ReportedResult
from swarm.types import EpisodeType, FinishReason, SamplingParams, Turn

def turn_of(episode_id, tokens=3):
    return Turn(episode_id, 0, (1,) * tokens, (2,), (-0.5,), (0,), FinishReason.STOP, SamplingParams(4),
                ({"role": "user", "content": "hi"},), {"role": "assistant", "content": "ho"}, (), None, None, 1.0, 2.0)

async def begin(ledger, episode_id):
    now = time.time()
    await ledger.begin_episode(EpisodeRow(episode_id, EpisodeType.TRAIN, "c", "0" * 64, now, 240.0, now + 1800))

async def end(ledger, episode_id):
    await ledger.end_episode(ReportedResult(episode_id, idempotency_key=episode_id, payload_digest="d", task_id="t",
                             reward=1.0, is_success=None, metadata={}, ended_at=time.time()))
"""

ENDLESS_WRITER = """
async def work(ledger):
    while True:
        episode_id = uuid.uuid4().hex
        await begin(ledger, episode_id)
        await ledger.add_turns([turn_of(episode_id)])
        await end(ledger, episode_id)
        sys.stdout.write(episode_id + "\\n")
        sys.stdout.flush()

async def main():
    ledger = Ledger.open(Path(sys.argv[1]))
    if await ledger.latest_job() is None:
        await ledger.record_job({}, {})
    await asyncio.gather(*(work(ledger) for _ in range(8)))

asyncio.run(main())
"""

# A limit on the file size makes the system refuse writes exactly as a full disk does.
FULL_DISK = """
import resource, signal

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = Ledger.open(Path(sys.argv[1]))
    await ledger.record_job({}, {})
    await begin(ledger, "before")
    await begin(ledger, "during")
    await end(ledger, "before")
    limit(max(path.stat().st_size for path in Path(sys.argv[1]).parent.iterdir()))
    try:
        await asyncio.wait_for(ledger.add_turns([turn_of("during", tokens=100_000)]), 60)
        print("acknowledged")
    except LedgerError as error:
        print(f"refused: {error}")
    print((await ledger.episode("during")).state, len(await ledger.turns("during")))
    limit(resource.RLIM_INFINITY)
    await asyncio.wait_for(ledger.add_turns([turn_of("during", tokens=100_000)]), 60)
    await asyncio.wait_for(end(ledger, "during"), 60)
    print((await ledger.episode("during")).state, len(await ledger.turns("during")))
    ledger.close()

asyncio.run(main())
"""


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


def start_child(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD_PRELUDE + script, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def test_every_acknowledged_end_survives_kill_9_exactly_once_and_no_kill_is_taken_for_a_loss(path: Path) -> None:
    told: set[str] = set()
    for life in range(4):
        child = start_child(ENDLESS_WRITER, path)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(100)]
        with pytest.raises(LedgerInUse, match=f"in use by process {child.pid}"):
            Ledger.open(path)
        os.kill(child.pid, signal.SIGKILL)
        lines += child.communicate(timeout=60)[0].splitlines(keepends=True)
        told |= {line.strip() for line in lines if line.endswith("\n")}
        assert len(told) >= 100 * (life + 1)
        # Its control file names no episode that the ledger does not have.
        Ledger.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        ended = [row[0] for row in connection.execute("SELECT episode_id FROM episodes WHERE state = 'completed'")]
        turns = {row[0] for row in connection.execute("SELECT episode_id FROM turns")}
        [acknowledged] = connection.execute("SELECT acknowledged FROM marks").fetchone()
    assert told <= set(ended) <= turns
    assert acknowledged == len(ended) == len(set(ended))


def test_full_disk_refuses_the_turn_stores_nothing_and_takes_it_once_there_is_space(path: Path) -> None:
    child = start_child(FULL_DISK, path)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    refusal, during, after = out.splitlines()
    assert refusal.startswith("refused: the ledger cannot write")
    assert during == "running 0"
    assert after == "completed 1"


@pytest.mark.parametrize("version", [0, 1, 99])
def test_ledger_of_another_version_is_refused_by_name_and_untouched(path: Path, version: int) -> None:
    Ledger.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=rf"another version \(schema {version}") as refusal:
        Ledger.open(path)
    assert str(path) in refusal.value.message
    assert path.read_bytes() == before


@pytest.mark.parametrize("has_header", [False, True])
def test_file_left_by_a_crash_in_creation_becomes_a_ledger(script: Any, tmp_path: Path, has_header: bool) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    if has_header:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        assert path.stat().st_size > 0
    ledger = Ledger.open(path)
    try:
        assert script.wait(ledger.latest_job()) is None
    finally:
        ledger.close()


def test_directory_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger.open(tmp_path)


def test_closed_ledger_refuses_writes_and_closes_twice(script: Any, ledger: Ledger) -> None:
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        script.begin("e1")


def test_callers_in_several_event_loops_are_all_answered(script: Any, ledger: Ledger) -> None:
    def live(name: str) -> None:
        asyncio.run(asyncio.wait_for(begin_all(ledger, [f"{name}-{number}" for number in range(50)]), 60))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(live, "abcd"))
    assert script.wait(ledger.episode_counts()) == {("running", ""): 200}


def test_write_is_left_out_if_its_caller_gave_up_before_its_turn(script: Any, ledger: Ledger, path: Path) -> None:
    async def give_up_on_a_busy_file(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        first = asyncio.create_task(begin_all(ledger, ["first"]))
        await asyncio.sleep(0.1)
        late = asyncio.create_task(begin_all(ledger, ["late"]))
        await asyncio.sleep(0.1)
        late.cancel()
        await asyncio.sleep(0)
        connection.execute("ROLLBACK")
        await first

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        script.wait(give_up_on_a_busy_file(connection))
    assert script.wait(ledger.episode_counts()) == {("running", ""): 1}


async def begin_all(ledger: Ledger, ids: list[str]) -> None:
    rows = [EpisodeRow(name, EpisodeType.TRAIN, "c", "0" * 64, 1.0, 240.0, 2e9) for name in ids]
    await asyncio.gather(*(ledger.begin_episode(row) for row in rows))


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


@pytest.mark.parametrize("is_new", [True, False])
def test_read_only_directory_is_refused_in_one_line(path: Path, is_new: bool) -> None:
    path.parent.mkdir(parents=True)
    if not is_new:
        Ledger.open(path).close()
    before = None if is_new else path.read_bytes()
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
    assert (path.read_bytes() if path.exists() else None) == before


def obey_permissions() -> None:
    """Without this capability even root is bound by the mode of a directory; nobody else has it to lose."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)
