"""Damage to the record of a server: it is refused with the number of episodes that are gone, or costs none."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run_swarm
from server_processes import serving
from tests_support import begin, end, run_batch, wait_for_state, wait_for_step

from swarm.doctor.examination import Health
from swarm.doctor.server import check_ledger
from swarm.errors import LedgerDamaged
from swarm.ledger import Ledger
from swarm.ledger.database import log_of
from swarm.ledger.integrity import inspection, opening
from swarm.server.home import open_home

pytestmark = pytest.mark.timeout(600)

JOB: dict[str, Any] = {"engine": "fake", "batch_size": 4, "num_repeat": 2, "drain_timeout_s": 1, "save_freq": 1}
STEPS = 4
"""In each of the three lives of the server; after them it has one episode of the next batch."""
EPISODES = STEPS * 8
PAGE = 4096
UNKNOWN = "unknown"
GOES_ON = "goes on"


@dataclass(frozen=True)
class States:
    """Copies of one home: killed early, closed later, killed at the end; and another closed home."""

    early: Path
    closed: Path
    killed: Path
    other: Path


def acknowledged_in(state: str) -> int:
    return {"early": EPISODES + 1, "closed": 2 * EPISODES + 1, "killed": 3 * EPISODES + 1}[state]


def run_steps(http: httpx.Client, first: int) -> None:
    wait_for_state(http, "ROLLING")
    for step in range(first, first + STEPS):
        if step > 1 and step == first:
            # One of the group waits since the life before.
            wait_for_step(http, step - 1)
        run_batch(http, tasks=4, repeats=2, name=f"step-{step}")
        wait_for_step(http, step)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    place = tmp_path_factory.mktemp("damage")
    home, job = place / "home", place / "job.json"
    job.write_text(json.dumps({**JOB, "project_name": "mine"}))
    with serving(home, "--job", str(job)) as (server, http, _):
        wait_for_state(http, "ROLLING")
        evaluation = begin(http, episode_type="eval")
        end(http, evaluation, task_id="held-out", reward=1.0, call=True)
        run_steps(http, 1)
        server.send_signal(signal.SIGKILL)
        server.wait(60)
    shutil.copytree(home, place / "early")
    with serving(home) as (server, http, _):
        run_steps(http, STEPS + 1)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == -signal.SIGTERM
    shutil.copytree(home, place / "closed")
    with serving(home) as (server, http, _):
        run_steps(http, 2 * STEPS + 1)
        server.send_signal(signal.SIGKILL)
        server.wait(60)
    shutil.copytree(home, place / "killed")
    with closing(open_home(place / "other")) as other:
        asyncio.run(other.record_job({}, {}))
    return States(place / "early", place / "closed", place / "killed", place / "other")


Damage = Callable[[Path, States], None]
Loss = Callable[[Path, States], int]


@dataclass(frozen=True)
class Case:
    """`lost` is a number of episodes, `UNKNOWN` where the record of their number is gone as well, or `GOES_ON`."""

    state: str
    damage: Damage
    lost: int | str | Loss


def ledger(home: Path) -> Path:
    return home / "ledger.db"


def remove(*names: str) -> Damage:
    def damage(home: Path, _: States) -> None:
        for name in names:
            (home / name).unlink()

    return damage


def edit(name: str, change: Callable[[bytes], bytes]) -> Damage:
    return lambda home, _: void((home / name).write_bytes(change((home / name).read_bytes())))


def overwrite(name: str, content: bytes) -> Damage:
    return edit(name, lambda _: content)


def patch(name: str, at: Callable[[bytes], int], with_: bytes = b"") -> Damage:
    """Put other bytes somewhere; without any, one bit is flipped there."""

    def change(content: bytes) -> bytes:
        place = at(content)
        new = with_ or bytes([content[place] ^ 1])
        return content[:place] + new + content[place + len(new) :]

    return edit(name, change)


def copy_from(state: str, *names: str) -> Damage:
    def damage(home: Path, states: States) -> None:
        for name in names:
            shutil.copy(getattr(states, state) / name, home / name)

    return damage


def both(*damages: Damage) -> Damage:
    return lambda home, states: void([damage(home, states) for damage in damages])


def void(_: object) -> None:
    return None


def merge_log(home: Path, _: States) -> None:
    """What a person gets who copies a ledger with the sqlite3 shell."""
    with closing(sqlite3.connect(ledger(home))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def put_old_copy(home: Path, states: States) -> None:
    for name in (LOG, "ledger.db-shm"):
        (home / name).unlink(missing_ok=True)
    copy_from("early", "ledger.db", "ledger.db-wal")(home, states)
    merge_log(home, states)


def other_program(home: Path, _: States) -> None:
    ledger(home).unlink()
    with closing(sqlite3.connect(ledger(home))) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")


def no_tables(home: Path, _: States) -> None:
    ledger(home).unlink()
    with closing(sqlite3.connect(ledger(home))) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA user_version = 1")


def pages_of(home: Path, table: str, kind: str = "leaf") -> list[int]:
    """The numbers of a table's pages, counted from 1, as SQLite itself lists them."""
    with closing(sqlite3.connect(f"file:{ledger(home)}?mode=ro&immutable=1", uri=True)) as connection:
        rows = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY pageno", (table, kind)
        )
        return [row[0] for row in rows]


def spoil_page(table: str, kind: str = "leaf", number: int = 1) -> Damage:
    def damage(home: Path, states: States) -> None:
        start = (pages_of(home, table, kind)[number] - 1) * PAGE
        patch("ledger.db", lambda _: start, b"\xa5" * PAGE)(home, states)

    return damage


def on_page(table: str, number: int = 1) -> Loss:
    """How many episodes have a row on a page of the state as it was."""

    def count(_: Path, states: States) -> int:
        page = pages_of(states.closed, table)[number]
        content = ledger(states.closed).read_bytes()[(page - 1) * PAGE : page * PAGE]
        ids = acknowledged_ids(states.closed)
        return len({each for each in ids if each.encode() in live_cells(content)})

    return count


def live_cells(page: bytes) -> bytes:
    """The content area of a leaf page of a table or an index."""
    cells = int.from_bytes(page[3:5], "big")
    starts = [int.from_bytes(page[8 + 2 * each : 10 + 2 * each], "big") for each in range(cells)]
    return page[min(starts) :]


def acknowledged_ids(home: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{ledger(home)}?mode=ro&immutable=1", uri=True)) as connection:
        rows = connection.execute("SELECT episode_id FROM episodes WHERE state IN ('completed', 'trained', 'dropped')")
        return [row[0] for row in rows]


def not_in(home: Path, states: States) -> int:
    """What SQLite alone finds missing in a home, against the episodes of the killed server."""
    with closing(sqlite3.connect(ledger(home))) as connection:
        left = connection.execute("SELECT count(*) FROM episodes WHERE reward IS NOT NULL").fetchone()[0]
    return acknowledged_in("killed") - left


def flip_in(table: str, found: bytes) -> Damage:
    """Flip a bit of a row: in the first leaf of its table that holds such bytes."""

    def damage(home: Path, states: States) -> None:
        def place(content: bytes) -> int:
            starts = [(number - 1) * PAGE for number in pages_of(home, table)]
            holding = next(start for start in starts if found in live_cells(content[start : start + PAGE]))
            return content.rindex(found, holding, holding + PAGE) + len(found) // 2

        patch("ledger.db", place)(home, states)

    return damage


def middle_of_log(content: bytes) -> int:
    frames = (len(content) - 32) // (PAGE + 24)
    return 32 + frames // 2 * (PAGE + 24) + 24 + 700


ALL_CLOSED, ALL_KILLED = acknowledged_in("closed"), acknowledged_in("killed")
LOG = "ledger.db-wal"

CASES = {
    "nothing, after a stop": Case("closed", both(), GOES_ON),
    "nothing, after a kill": Case("killed", both(), GOES_ON),
    "ledger missing": Case("closed", remove("ledger.db"), ALL_CLOSED),
    "ledger missing, log there": Case("killed", remove("ledger.db"), ALL_KILLED),
    "ledger empty": Case("closed", overwrite("ledger.db", b""), ALL_CLOSED),
    "ledger empty, log there": Case("killed", overwrite("ledger.db", b""), ALL_KILLED),
    "ledger and control missing": Case("closed", remove("ledger.db", "ledger.db.control"), UNKNOWN),
    "ledger empty, control missing": Case(
        "closed", both(overwrite("ledger.db", b""), remove("ledger.db.control")), UNKNOWN
    ),
    "ledger empty, control damaged": Case(
        "closed", both(overwrite("ledger.db", b""), overwrite("ledger.db.control", b"\0" * 1024)), UNKNOWN
    ),
    "ledger without tables": Case("closed", no_tables, ALL_CLOSED),
    "control missing": Case("closed", remove("ledger.db.control"), GOES_ON),
    "control damaged": Case("killed", overwrite("ledger.db.control", b"\0" * 1024), GOES_ON),
    "control half damaged": Case("killed", patch("ledger.db.control", lambda _: 40), GOES_ON),
    "ledger cut in half": Case(
        "closed", edit("ledger.db", lambda content: content[: len(content) // PAGE // 2 * PAGE]), ALL_CLOSED
    ),
    "ledger overwritten by text": Case("closed", overwrite("ledger.db", b"my diary\n" * 900), ALL_CLOSED),
    "ledger without its header": Case("closed", patch("ledger.db", lambda _: 0, b"X" * 16), ALL_CLOSED),
    "database of another program": Case("closed", other_program, ALL_CLOSED),
    "page of turns": Case("closed", spoil_page("turns"), on_page("turns")),
    "page of episodes": Case("closed", spoil_page("episodes", number=0), on_page("episodes", 0)),
    "page of an index": Case("closed", spoil_page("episodes_by_state", number=0), 0),
    "page of metrics": Case("closed", spoil_page("batches", number=0), 0),
    "byte of a reply, after a kill": Case("killed", flip_in("turns", b'"role":"assistant"'), 1),
    "byte of a result": Case("closed", flip_in("episodes", b"held-out"), 1),
    "byte of a result, after a kill": Case("killed", flip_in("episodes", b"held-out"), 1),
    "byte of a state, after a kill": Case("killed", flip_in("episodes", b"trained"), 1),
    "byte of an index": Case("closed", flip_in("episodes_by_task", b"held-out"), 0),
    "byte of an index, after a kill": Case("killed", both(merge_log, flip_in("episodes_by_task", b"held-out")), 0),
    "byte of a job": Case("closed", patch("ledger.db", lambda content: content.index(b'"num_repeat"') + 2), 0),
    "byte of a metric": Case("closed", patch("ledger.db", lambda content: content.rindex(b"critic/score") + 3), 0),
    "bytes behind the end": Case("closed", patch("ledger.db", len, b"garbage"), 0),
    "old copy, after a stop": Case("closed", put_old_copy, ALL_CLOSED - acknowledged_in("early")),
    "old copy, after a kill": Case("killed", put_old_copy, ALL_KILLED - acknowledged_in("early")),
    "old copy, the control missing": Case("closed", both(put_old_copy, remove("ledger.db.control")), UNKNOWN),
    "log gone": Case("killed", remove(LOG), not_in),
    "log empty": Case("killed", overwrite(LOG, b""), not_in),
    "log cut in half": Case("killed", edit(LOG, lambda content: content[: len(content) // 2]), not_in),
    "header of the log": Case("killed", patch(LOG, lambda _: 17), not_in),
    "frame of the log": Case("killed", patch(LOG, middle_of_log), not_in),
    "log of an earlier time": Case("killed", copy_from("early", LOG), not_in),
    "shared memory of zeros": Case("killed", overwrite("ledger.db-shm", bytes(32768)), GOES_ON),
    "shared memory gone": Case("killed", remove("ledger.db-shm"), GOES_ON),
    "log merged by another program": Case("killed", merge_log, GOES_ON),
    "ledger of another directory": Case("closed", copy_from("other", "ledger.db"), ALL_CLOSED),
    "ledger and control of another directory": Case(
        "closed", copy_from("other", "ledger.db", "ledger.db.control"), UNKNOWN
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_damage_is_refused_with_the_number_of_episodes_gone_or_costs_none(
    name: str, states: States, tmp_path: Path
) -> None:
    case, home = CASES[name], tmp_path / "home"
    shutil.copytree(getattr(states, case.state), home)
    case.damage(home, states)
    judged = shutil.copytree(home, tmp_path / "judged")
    before = content_of(home)
    if case.lost == GOES_ON:
        with closing(open_home(home)) as opened:
            assert count(opened) == acknowledged_in(case.state)
        return
    with pytest.raises(LedgerDamaged) as refusal:
        open_home(home)
    message = refusal.value.message
    expected = case.lost(judged, states) if callable(case.lost) else case.lost
    if expected == UNKNOWN:
        assert "is not on record" in message
    else:
        assert re.search(r"; ([\d,]+) of [\d,]+ acknowledged episodes are gone: ", message), message
        assert f"; {expected:,} of {acknowledged_in(case.state):,} acknowledged" in message, message
    assert content_of(home) == before
    with closing(open_home(home, is_new_wanted=True)) as fresh:
        assert count(fresh) == 0
    (aside,) = home.glob("set-aside-*")
    assert content_of(aside) == before, "what is set aside is what was there"


def count(opened: Ledger) -> int:
    async def read() -> int:
        return await opened.read(lambda connection: connection.execute("SELECT acknowledged FROM marks").fetchone()[0])

    return asyncio.run(read())


def content_of(home: Path) -> dict[str, bytes]:
    """All that says something: locks, shared memory and logs of processes say nothing."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and not path.name.endswith((".lock", "-shm", ".log")) and path.stat().st_size
    }


def start(home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", str(home), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_start_names_the_loss_and_its_hint_begins_anew_without_deleting_anything(
    states: States, tmp_path: Path
) -> None:
    home = tmp_path / "a home"
    shutil.copytree(states.killed, home)
    overwrite("ledger.db", b"")(home, states)
    before = content_of(home)
    refused = start(home)
    assert (refused.returncode, refused.stdout) == (74, "")
    assert refused.stderr.count("\n") == 1
    assert f"{ALL_KILLED} of {ALL_KILLED} acknowledged episodes are gone" in refused.stderr
    program, *words = shlex.split(refused.stderr.rpartition("new ledger: ")[2])
    assert program == "swarm"
    command = [sys.executable, "-m", "swarm.cli", *words, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        with httpx.Client(base_url=json.loads(server.stdout.readline())["url"], timeout=60) as http:
            assert http.get("/v1/swarm/status").json()["state"] == "OFFLINE"
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    (aside,) = home.glob("set-aside-*")
    assert content_of(aside) == before
    assert start(home, "--new-ledger").returncode == 2, "a sound ledger is never set aside"


def test_a_stop_leaves_one_file_and_a_copy_of_it_is_a_copy_of_all(states: States, tmp_path: Path) -> None:
    home = shutil.copytree(states.killed, tmp_path / "home")
    assert log_of(ledger(home)).stat().st_size
    with serving(home) as (server, http, _):
        wait_for_state(http, "ROLLING")
        assert run_swarm("stop", "--url", str(http.base_url)).exit_code == 0
        server.wait(60)
    assert sorted(path.name for path in home.glob("ledger.db*")) == ["ledger.db", "ledger.db.control", "ledger.db.lock"]
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(ledger(home), copy)
    with closing(open_home(copy)) as opened:
        assert count(opened) == ALL_KILLED


def test_damage_that_nothing_has_read_is_found_by_the_doctor(states: States, tmp_path: Path) -> None:
    """As of a ledger that is too large for the look at the start."""
    home = shutil.copytree(states.killed, tmp_path / "home")
    sound = check_ledger(home)
    both(merge_log, flip_in("turns", b'"role":"assistant"'))(home, states)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opening, "CHECK_LIMIT_S", 0.0)
        open_home(home).close()
    found = check_ledger(home)
    assert sound.verdict is Health.OK and f"{ALL_KILLED} acknowledged episodes" in sound.message
    assert found.verdict is Health.FAIL and f"1 of {ALL_KILLED} acknowledged episodes" in found.message


def test_a_server_that_runs_while_its_ledger_is_looked_at_is_no_damage(states: States, tmp_path: Path) -> None:
    home = shutil.copytree(states.closed, tmp_path / "home")
    look = inspection._check_file
    served: list[int] = []

    def serve_first(*arguments: Any) -> None:
        if not served:
            served.append(1)
            with closing(open_home(home)) as opened:
                asyncio.run(opened.record_job({}, {}))
        look(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inspection, "_check_file", serve_first)
        found = inspection.inspect(ledger(home), None)
    assert served and found.mark is not None and found.mark.acknowledged == acknowledged_in("closed")
