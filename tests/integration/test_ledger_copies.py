"""A ledger that was restored from an older copy, or moved under its server: what is lost or stopped is named."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run_swarm
from server_processes import ServerProcess, server_processes, serving
from tests_support import begin, end, run_batch, wait_for_state, wait_for_step
from waiting import wait_until

from swarm import SwarmClient, Task, WorkflowOutput
from swarm.doctor.examination import Health
from swarm.doctor.server import check_ledger

pytestmark = pytest.mark.timeout(600)

JOB: dict[str, Any] = {"engine": "fake", "batch_size": 2, "num_repeat": 2, "drain_timeout_s": 1}


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    return str(path)


def test_clients_of_a_server_whose_ledger_is_moved_lack_no_acknowledged_episode_and_get_the_reason(
    tmp_path: Path, job: str
) -> None:
    home = tmp_path / "home"
    acknowledged: list[str] = []
    refusals: list[dict[str, Any]] = []
    enough = threading.Event()

    def work(url: str) -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            while True:
                begun = http.post("/v1/swarm/episodes/begin", json={"episode_type": "eval"})
                ended = begun
                if begun.is_success:
                    path = f"/v1/swarm/episodes/{begun.json()['episode_id']}/end"
                    ended = http.post(path, json={"task_id": "t", "reward": 1.0})
                if not ended.is_success:
                    refusals.append(ended.json()["error"])
                    return
                acknowledged.append(begun.json()["episode_id"])
                if len(acknowledged) > 100:
                    enough.set()

    with serving(home, "--job", job) as (server, http, _):
        wait_for_state(http, "ROLLING")
        workers = [threading.Thread(target=work, args=(str(http.base_url),)) for _ in range(8)]
        for worker in workers:
            worker.start()
        assert enough.wait(60)
        (home / "ledger.db").rename(home / "ledger.db.old")
        for worker in workers:
            worker.join(60)
        status = http.get("/v1/swarm/status")
        assert status.status_code == 200 and "was moved or deleted" in status.json()["ledger_fault"]
        server.send_signal(signal.SIGKILL)
        server.wait(60)
    assert len(refusals) == len(workers)
    assert {each["code"] for each in refusals} == {"ledger_unwritable"}
    assert all("ledger.db.old" in each["message"] for each in refusals)
    with closing(sqlite3.connect(f"file:{home}/ledger.db.old?mode=ro&immutable=1", uri=True)) as connection:
        stored = {row[0] for row in connection.execute("SELECT episode_id FROM episodes WHERE state = 'completed'")}
    assert not set(acknowledged) - stored
    refused = run_swarm("start", "--home", str(home), "--port", "0")
    assert refused.exit_code == 74 and "ledger.db.old" in refused.output
    (home / "ledger.db.old").rename(home / "ledger.db")
    with serving(home) as (_, http, _):
        wait_for_state(http, "ROLLING")


def test_a_server_whose_ledger_comes_back_trains_on(tmp_path: Path, job: str) -> None:
    home = tmp_path / "home"
    with serving(home, "--job", job) as (_, http, _):
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=1, repeats=2, name="before")
        home.rename(tmp_path / "away")
        running = http.post("/v1/swarm/episodes/begin", json={})
        assert running.status_code == 507 and "put it back" in running.text
        assert "was moved or deleted" in http.get("/v1/swarm/status").json()["ledger_fault"]
        (tmp_path / "away").rename(home)
        assert http.get("/v1/swarm/status").json()["ledger_fault"] is None
        run_batch(http, tasks=1, repeats=2, name="after")
        wait_for_step(http, 1)
        end(http, begin(http), task_id="more", reward=1.0, call=True)


LEDGER = ("ledger.db", "ledger.db-wal", "ledger.db.control")


def end_episodes(client: SwarmClient, number: int) -> None:
    for _ in range(number):
        episode_id, _credentials = client.begin_episode("eval")
        client.end_episode(Task("t", {}), episode_id, WorkflowOutput(reward=1.0))


def copy_ledger(home: Path, place: Path) -> None:
    place.mkdir()
    for name in LEDGER:
        shutil.copy(home / name, place)


def put_back(place: Path, home: Path) -> None:
    for path in home.glob("ledger.db*"):
        path.unlink()
    for path in place.iterdir():
        shutil.copy(path, home)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that records into `runs` of this test."""
    with server_processes(tmp_path) as make:
        process = make(is_running=False)
        process.env = {"SWARM_NO_RECORD": "", "SWARM_RECORD": str(tmp_path / "runs")}
        process.start()
        yield process


@pytest.fixture
def unrecorded(server: ServerProcess) -> ServerProcess:
    """The same server without a database."""
    server.kill()
    server.env = {}
    server.start()
    return server


def rolling(server: ServerProcess) -> SwarmClient:
    client = SwarmClient(server.url)
    client.auto_sync_train_config_and_start_engine(JOB)
    return client


def noted(tmp_path: Path) -> dict[str, int]:
    """The acknowledged episodes of each ledger, as the database has them."""
    try:
        with closing(sqlite3.connect(f"file:{tmp_path}/runs/research.db?mode=ro", uri=True)) as connection:
            return dict(connection.execute("SELECT ledger_id, acknowledged FROM noted_ledgers").fetchall())
    except sqlite3.OperationalError:
        return {}


def restart_from_copy(server: ServerProcess, copy: Path) -> None:
    server.kill()
    put_back(copy, server.home)
    server.start()


def test_an_older_copy_of_ledger_and_control_is_named_by_a_client_that_comes_back(
    unrecorded: ServerProcess, tmp_path: Path
) -> None:
    with rolling(unrecorded) as client, SwarmClient(unrecorded.url) as fresh:
        end_episodes(client, 40)
        copy_ledger(unrecorded.home, tmp_path / "copy")
        end_episodes(client, 60)
        restart_from_copy(unrecorded, tmp_path / "copy")
        assert fresh.status().lost == []
        (lost,) = client.status().lost
        assert (lost.after, lost.missing) == (40, 60)
        assert "restored from a copy: episodes after 40 unknown" in lost.sentence
        wait_until(lambda: client.status().state == "ROLLING")
        end_episodes(client, 70)
        assert [each.missing for each in fresh.status().lost] == [60], "it stays, and the rest is new"
        told = [event for event in fresh.past_events() if event.kind == "episodes.lost"]
        assert [event.detail for event in told] == [{"after": 40, "missing": 60}]
        unrecorded.kill()
        unrecorded.start()
        (kept,) = fresh.status().lost
        assert (kept.sentence, round(kept.noticed_at)) == (lost.sentence, round(lost.noticed_at))
    assert "episodes after 40 unknown" in (unrecorded.home / "stderr.log").read_text()
    shown = run_swarm("status", "--url", unrecorded.url)
    assert "restored from a copy: episodes after 40 unknown" in shown.output
    found = check_ledger(unrecorded.home)
    assert found.verdict is Health.WARN and "episodes after 40 unknown" in found.message


def test_an_older_copy_of_ledger_and_control_is_named_by_the_database_alone(
    server: ServerProcess, tmp_path: Path
) -> None:
    with rolling(server) as client:
        end_episodes(client, 40)
        copy_ledger(server.home, tmp_path / "copy")
        end_episodes(client, 60)
    wait_until(lambda: 100 in noted(tmp_path).values())
    restart_from_copy(server, tmp_path / "copy")
    with SwarmClient(server.url) as fresh:
        wait_until(lambda: fresh.status().lost)
        assert [(each.after, each.missing) for each in fresh.status().lost] == [(40, 60)]
        wait_until(lambda: list(noted(tmp_path).values()) == [40])
        server.kill()
        server.start()
        wait_until(lambda: list(noted(tmp_path).values()) == [40])
        assert [each.missing for each in fresh.status().lost] == [60], "it was told once"


def test_nobody_raises_an_alarm_by_a_receipt_that_the_server_has_not_given(
    unrecorded: ServerProcess, tmp_path: Path
) -> None:
    with rolling(unrecorded) as client, httpx.Client(base_url=unrecorded.url, timeout=60) as http:
        episode_id, credentials = client.begin_episode("eval")
        given = client.end_episode(Task("t", {}), episode_id, WorkflowOutput(reward=1.0)).receipt
        assert given is not None
        ledger_id, opening, _, seal = given.split(".")
        for forged in (
            f"{ledger_id}.{opening}.999999999.{seal}",
            f"{ledger_id}.{'f' * 24}.999999999.{seal}",
            "x" * 9000,
        ):
            headers = {"x-swarm-receipt": forged}
            assert http.get("/v1/swarm/status", headers=headers).json()["lost"] == []
            keyed = {"x-swarm-receipt": forged, "authorization": f"Bearer {credentials.api_key}"}
            assert http.get("/v1/swarm/status", headers=keyed).status_code == 403
            http.get(f"{credentials.base_url}/models", headers=keyed)
        assert client.status().lost == [] and "episodes.lost" not in {each.kind for each in client.past_events()}
