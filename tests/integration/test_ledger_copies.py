"""A ledger that was restored from an older copy, or moved under its server: what is lost or stopped is named."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run_swarm
from server_processes import serving
from tests_support import begin, end, run_batch, wait_for_state, wait_for_step

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
        assert http.get("/v1/swarm/status").status_code == 507
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
        (tmp_path / "away").rename(home)
        run_batch(http, tasks=1, repeats=2, name="after")
        wait_for_step(http, 1)
        end(http, begin(http), task_id="more", reward=1.0, call=True)
