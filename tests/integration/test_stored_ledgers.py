"""A ledger that an older version wrote: the server opens it and goes on with what was under way."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
from tests_support import begin, end, run_batch, wait_for_state, wait_for_step

STORED = Path(__file__).parent / "stored" / "ledger_0003.sql"
"""A server was killed at step 1 with two episodes of task c in its batch, and one of task d running."""
WITH_POLICIES = STORED.with_name("ledger_0005.sql")
"""A server was killed at step 1 with one episode in its batch. While step 1 was collected, the batch policy was changed
to one task a batch, and since then to three episodes a task."""

WITHOUT_EVALUATIONS = STORED.with_name("ledger_0006.sql")
"""A server was killed at step 1 of 4 with one episode of two in its batch; the learning rate was changed for step 2."""


@contextmanager
def going_on(home: Path, stored: Path) -> Iterator[httpx.Client]:
    """A server of today on the record of an older one."""
    with closing(sqlite3.connect(home / "ledger.db")) as database:
        database.executescript(stored.read_text())
    command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", str(home), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            with httpx.Client(base_url=json.loads(server.stdout.readline())["url"], timeout=60) as http:
                wait_for_state(http, "ROLLING")
                yield http
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def test_a_killed_run_of_an_older_version_goes_on(tmp_path: Path) -> None:
    with going_on(tmp_path, STORED) as http:
        status = http.get("/v1/swarm/status").json()
        assert (status["step"], status["weight_version"]) == (1, 1)
        assert (status["pool"]["episodes"], status["pool"]["tasks"]) == (2, 1)
        # Its time was over half an hour after it began, which a test may see or not.
        for episode in status["running"]:
            http.post(f"/v1/swarm/episodes/{episode['episode_id']}/abort", json={"reason": "too old"})
        for reward in (0.0, 1.0):
            end(http, begin(http), task_id="e", reward=reward, call=True)
        wait_for_step(http, 2)
        assert [point["step"] for point in http.get("/v1/swarm/metrics").json()["points"]] == [1, 2]
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        assert database.execute("PRAGMA user_version").fetchone() > (3,)
        trained = database.execute("SELECT task_id, count(*) FROM episodes WHERE batch_id IS NOT NULL GROUP BY task_id")
        assert dict(trained.fetchall()) == {"a": 2, "b": 2, "c": 2, "e": 2}


def test_batch_policies_of_an_older_version_hold_for_the_batches_that_they_were_meant_for(tmp_path: Path) -> None:
    with going_on(tmp_path, WITH_POLICIES) as http:
        policies = http.get("/v1/swarm/batch/policy").json()
        assert (policies["active"]["batch_size"], policies["active"]["num_repeat"]) == (1, 2)
        assert (policies["next"]["batch_size"], policies["next"]["num_repeat"]) == (1, 3)
        changes = http.get("/v1/swarm/job").json()["changes"]
        assert [(change["revision"], change["at_step"]) for change in changes] == [(1, 2), (2, 3)]
        end(http, begin(http), task_id="second", reward=1.0, call=True)
        wait_for_step(http, 2)
        run_batch(http, tasks=1, repeats=3, name="third")
        wait_for_step(http, 3)
        changed = http.patch("/v1/swarm/batch/policy", json={"num_repeat": 2})
        assert changed.json()["next"]["num_repeat"] == 2


def test_a_run_of_an_older_version_gets_scores_from_the_step_that_asks_for_them(tmp_path: Path) -> None:
    with going_on(tmp_path, WITHOUT_EVALUATIONS) as http:
        assert http.get("/v1/swarm/evaluations").json()["evaluations"] == []
        changed = http.patch("/v1/swarm/job", json={"settings": {"eval_every": 2}}).json()
        assert [(change["revision"], change["at_step"]) for change in changed["changes"]] == [(1, 2), (2, 2)]
        end(http, begin(http, task_id="second"), task_id="second", reward=0.0, call=True)
        wait_for_step(http, 2)
        [due] = http.get("/v1/swarm/evaluations").json()["evaluations"]
        assert (due["step"], due["state"]) == (2, "due")
