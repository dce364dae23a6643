"""`swarm gc`: the tokens of old episodes go, and a server goes on from what is left as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run_swarm
from server_processes import serving
from tests_support import begin, chat, end, run_batch, wait_for_state, wait_for_step

from swarm.job import TrainJob
from swarm.ledger import Ledger
from swarm.schemas import EpisodeState

pytestmark = pytest.mark.timeout(400)

JOB = TrainJob(engine="fake", batch_size=5, num_repeat=2, drain_timeout_s=1)
RUN = Path("swarm/default/run-0001")


@dataclass(frozen=True)
class Home:
    """The home of a server that was killed after six steps, with two episodes of the next batch.

    The newest checkpoint is that of step 4. `trained` are the episodes of each step.
    """

    path: Path
    trained: dict[int, set[str]]
    waits: str
    runs: str


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Home:
    directory = tmp_path_factory.mktemp("killed")
    home, trained = directory / "home", dict[int, set[str]]()
    with serving(home, "--job", str(JOB.dump_job_as_yaml(directory / "job.yaml"))) as (process, http, _):
        wait_for_state(http, "ROLLING")
        for step in range(1, 7):
            run_batch(http, tasks=5, repeats=2, name=f"step-{step}")
            wait_for_step(http, step)
            wait_for_state(http, "ROLLING")
            rows = http.get("/v1/swarm/episodes", params={"state": "trained", "limit": 1000}).json()["episodes"]
            trained[step] = {row["episode_id"] for row in rows} - set().union(*trained.values())
            if step == 4:
                http.post("/v1/swarm/engine/checkpoint").raise_for_status()
        waits, runs = begin(http), begin(http)
        end(http, waits, task_id="half", reward=1.0, call=True)
        chat(http, runs, "Hello")
        process.kill()
        process.wait(60)
    shutil.rmtree(home / RUN / "recovery", ignore_errors=True)
    (home / RUN / "recovery").mkdir()
    (home / RUN / "checkpoints" / "step-000004").rename(home / RUN / "recovery" / "step-000004")
    return Home(home, trained, waits["episode_id"], runs["episode_id"])


@pytest.fixture
def home(killed: Home, tmp_path: Path) -> Path:
    """A copy of that home."""
    return Path(shutil.copytree(killed.path, tmp_path / "home"))


def gc(home: Path, *words: str) -> dict[str, Any]:
    done = run_swarm("gc", "--home", str(home), "--json", *words)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def tokens_of(home: Path) -> dict[str, int]:
    """How many turns each episode has on record, of those that have had any."""
    with closing(Ledger.open(home / "ledger.db")) as ledger:

        async def count() -> dict[str, int]:
            rows = (await ledger.episodes(limit=1000)).episodes
            return {row.episode_id: len(await ledger.turns(row.episode_id)) for row in rows}

        return asyncio.run(count())


def test_what_a_server_needs_stays_and_the_rest_of_the_tokens_go(killed: Home, home: Path) -> None:
    would = gc(home, "--dry-run")
    assert all(tokens_of(home).values())
    before = (home / "ledger.db").stat().st_size
    done = gc(home)
    assert (would["episodes"], done["episodes"], done["turns"], done["kept_after_step"]) == (40, 40, 40, 4)
    assert done["ledger_bytes_before"] == before > done["ledger_bytes_after"] == (home / "ledger.db").stat().st_size
    left = tokens_of(home)
    kept = {killed.runs, killed.waits, *killed.trained[5], *killed.trained[6]}
    assert {name for name, turns in left.items() if turns} == kept and len(left) == 62
    assert gc(home)["episodes"] == 0


def test_a_server_goes_on_after_it_and_goes_back_only_to_steps_that_are_left(
    killed: Home, home: Path, start_server: Any
) -> None:
    gc(home)
    with httpx.Client(base_url=start_server(home=home).url, timeout=60) as http:
        status = wait_for_state(http, "ROLLING")
        assert (status["step"], status["weight_version"], status["pool"]["episodes"]) == (6, 6, 1)
        assert status["disk"]["ledger_bytes"] > 0 and status["disk"]["recovery_bytes"] > 0
        lost = http.post("/v1/swarm/engine/load", json={"step": 2})
        assert lost.status_code == 404 and "`swarm gc` deleted the tokens of step 1" in lost.json()["error"]["message"]
        old = http.get(f"/v1/swarm/episodes/{min(killed.trained[1])}").json()
        assert (old["episode"]["state"], old["turns"]) == (EpisodeState.TRAINED, [])
        assert http.post("/v1/swarm/engine/load", json={"step": 5}).status_code == 200
        assert wait_for_state(http, "ROLLING")["step"] == 5
        run_batch(http, tasks=5, repeats=2)
        wait_for_step(http, 6)


def test_tokens_of_the_last_days_stay_if_that_is_asked_for(home: Path) -> None:
    assert gc(home, "--keep-days", "1")["episodes"] == 0


def test_without_a_whole_checkpoint_every_trained_batch_is_needed(home: Path) -> None:
    (checkpoint,) = (home / RUN / "recovery").iterdir()
    state = checkpoint / "fake_trainer.json"
    state.write_text(state.read_text() + " ")
    done = gc(home)
    assert (done["episodes"], done["kept_after_step"]) == (0, 0)


def test_the_run_before_gives_up_its_tokens_and_all_but_its_newest_checkpoint(home: Path) -> None:
    run = home / RUN
    (run / "recovery" / "step-000002").mkdir()
    with closing(Ledger.open(home / "ledger.db")) as ledger:
        asyncio.run(ledger.record_job({"engine": "fake", "seed": 1}, JOB.resolve().model_dump(mode="json")))
    done = gc(home)
    assert done["removed"] == [str(run / "recovery" / "step-000002")]
    assert [path.name for path in (run / "recovery").iterdir()] == ["step-000004"]
    assert not any(tokens_of(home).values())


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_a_home_without_a_ledger_is_not_found_and_left_alone(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run_swarm("gc", "--home", str(tmp_path / "none"), *words)
    assert done.exit_code == 3 and "holds no ledger" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_running_server_keeps_its_ledger_and_only_a_dry_run_looks_at_it(tmp_path: Path, start_server: Any) -> None:
    server = start_server(JOB)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
    refused = run_swarm("gc", "--home", str(server.home))
    assert refused.exit_code == 75 and "in use by process" in refused.stderr
    assert gc(server.home, "--dry-run")["dry_run"] is True
