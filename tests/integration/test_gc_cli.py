"""`swarm gc`: the tokens of old episodes go, and a server goes on from what is left as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from batch_support import make_episode
from tests_support import run_batch, wait_for_state, wait_for_step
from typer.testing import CliRunner

from swarm.backends.fake import FakeSampler, FakeTrainer
from swarm.cli import app
from swarm.job import TrainJob
from swarm.ledger import EpisodeRow, Ledger, ReportedResult
from swarm.schemas import EngineState, EpisodeState
from swarm.trainer.checkpoints import run_directory
from swarm.types import (
    EpisodeType,
    FinishReason,
    ForkReason,
    Group,
    SamplingParams,
    StepReport,
    TrainBatch,
    Turn,
    WeightVersion,
)

pytestmark = pytest.mark.timeout(400)

JOB = TrainJob(engine="fake", batch_size=1, num_repeat=2, drain_timeout_s=1)
TEXT = "Please tell me which of these words is the longest one, and why that is so: apple, banana, strawberry. "


@dataclass
class Filler:
    """Writes what a server would have written, without one."""

    ledger: Ledger
    calls: int = 1
    """How many calls each episode has."""

    async def episode(self, name: str, step: int, *, is_ended: bool = True) -> None:
        now = time.time()
        await self.ledger.begin_episode(
            EpisodeRow(name, EpisodeType.TRAIN, "laptop", f"{hash(name) & 2**256 - 1:064x}", now, 240.0, now + 1800)
        )
        for index in range(self.calls):
            await self.ledger.add_turns([_turn(name, step, index)])
        if is_ended:
            await self.ledger.end_episode(
                ReportedResult(
                    name,
                    idempotency_key=name,
                    payload_digest="0" * 64,
                    task_id=f"task-{step}",
                    reward=1.0,
                    is_success=True,
                    metadata={},
                    ended_at=now,
                )
            )

    async def step(self, step: int, episodes: int) -> None:
        names = [f"episode-{step}-{number}" for number in range(episodes)]
        await asyncio.gather(*(self.episode(name, step) for name in names))
        await self.ledger.close_batch(f"batch-{step}", step, [names], [])
        version = WeightVersion(version=step, step=step, published_at=time.time())
        await self.ledger.finish_batch(StepReport(f"batch-{step}", step, version, {"critic/score/mean": 1.0}, {}))


def _turn(name: str, step: int, index: int) -> Turn:
    """One of several calls, each of which reads what the ones before read and sampled."""
    read = tuple(40 + number % 50 for number in range(80))
    prompt = (*(read + read[:40]) * index, *read)
    said = [{"role": "user", "content": TEXT + name}, {"role": "assistant", "content": TEXT[:60]}]
    return Turn(
        episode_id=name, index=index, prompt_ids=prompt, output_ids_T=read[:40],
        logprobs_T=tuple(-0.01 * number for number in range(40)), weight_versions_T=(step - 1,) * 40,
        finish_reason=FinishReason.STOP, params=SamplingParams(max_tokens=64),
        messages=(*(said * index), said[0]), reply=said[1],
        tools=(), parent=index - 1 if index else None, fork_reason=None if index else ForkReason.NEW_CONVERSATION,
        started_at=1.0, ended_at=2.0,
    )  # fmt: skip


async def fill(home: Path, *, steps: int, episodes: int, checkpoint_at: int, calls: int = 1) -> None:
    """A server's home that was killed after `steps` steps of so many episodes, with two episodes of the next batch."""
    ledger = Ledger.open(home / "ledger.db")
    try:
        row = await ledger.record_job(
            JOB.model_dump(mode="json", exclude_defaults=True), JOB.resolve().model_dump(mode="json")
        )
        filler = Filler(ledger, calls)
        for step in range(1, steps + 1):
            await filler.step(step, episodes)
        await filler.episode("waits", steps + 1)
        await filler.episode("runs", steps + 1, is_ended=False)
        await ledger.record_state(EngineState.ROLLING)
    finally:
        ledger.close()
    engine = FakeSampler()
    await engine.start()
    engine.weight_version = checkpoint_at - 1
    trainer = FakeTrainer(engine, JOB)
    await trainer.train(TrainBatch("b", checkpoint_at, (Group("t", (make_episode("e", "t"),)),)))
    run = run_directory(home, JOB.project_name, JOB.experiment_name, row.job_id)
    await trainer.save(run / "recovery" / f"step-{checkpoint_at:06d}")


def gc(home: Path, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["gc", "--home", str(home), "--json", *words])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def tokens_of(home: Path) -> dict[str, int]:
    """How many turns each episode has on record, of those that have had any."""
    ledger = Ledger.open(home / "ledger.db")
    try:

        async def count() -> dict[str, int]:
            rows = (await ledger.episodes(limit=1000)).episodes
            return {row.episode_id: len(await ledger.turns(row.episode_id)) for row in rows}

        return asyncio.run(count())
    finally:
        ledger.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    asyncio.run(fill(tmp_path / "home", steps=6, episodes=40, checkpoint_at=4, calls=2))
    yield tmp_path / "home"


def test_what_a_server_needs_stays_and_the_rest_of_the_tokens_go(home: Path) -> None:
    before = (home / "ledger.db").stat().st_size
    would = gc(home, "--dry-run")
    assert (home / "ledger.db").stat().st_size == before and all(tokens_of(home).values())
    done = gc(home)
    assert (would["episodes"], done["episodes"], done["turns"], done["kept_after_step"]) == (160, 160, 320, 4)
    assert done["ledger_bytes_before"] == before > done["ledger_bytes_after"] == (home / "ledger.db").stat().st_size
    assert would["ledger_bytes_after"] == pytest.approx(done["ledger_bytes_after"], rel=0.2)
    left = tokens_of(home)
    assert {name for name, turns in left.items() if turns} == {
        "runs", "waits", *(f"episode-{step}-{number}" for step in (5, 6) for number in range(40)),
    }  # fmt: skip
    assert len(left) == 242
    assert gc(home)["episodes"] == 0


def test_a_server_goes_on_after_it_and_goes_back_only_to_steps_that_are_left(home: Path, start_server: Any) -> None:
    gc(home)
    with httpx.Client(base_url=start_server(home=home).url, timeout=60) as http:
        status = wait_for_state(http, "ROLLING")
        assert (status["step"], status["weight_version"], status["pool"]["episodes"]) == (6, 6, 1)
        assert status["disk"]["ledger_bytes"] > 0 and status["disk"]["recovery_bytes"] > 0
        lost = http.post("/v1/swarm/engine/load", json={"step": 2})
        assert lost.status_code == 404 and "`swarm gc` deleted the tokens of step 1" in lost.json()["error"]["message"]
        old = http.get("/v1/swarm/episodes/episode-1-0").json()
        assert (old["episode"]["state"], old["episode"]["reward"], old["turns"]) == (EpisodeState.TRAINED, 1.0, [])
        assert http.post("/v1/swarm/engine/load", json={"step": 5}).status_code == 200
        assert wait_for_state(http, "ROLLING")["step"] == 5
        run_batch(http, tasks=1, repeats=2)
        wait_for_step(http, 6)


def test_tokens_of_the_last_days_stay_if_that_is_asked_for(home: Path) -> None:
    assert gc(home, "--keep-days", "1")["episodes"] == 0


def test_without_a_whole_checkpoint_every_trained_batch_is_needed(home: Path) -> None:
    (checkpoint,) = (home / "swarm" / "default" / "run-0001" / "recovery").iterdir()
    state = checkpoint / "fake_trainer.json"
    state.write_text(state.read_text() + " ")
    done = gc(home)
    assert (done["episodes"], done["kept_after_step"]) == (0, 0)


def test_the_run_before_gives_up_its_tokens_and_all_but_its_newest_checkpoint(home: Path) -> None:
    run = home / "swarm" / "default" / "run-0001"
    (run / "recovery" / "step-000002").mkdir()
    ledger = Ledger.open(home / "ledger.db")
    asyncio.run(ledger.record_job({"engine": "fake", "seed": 1}, JOB.resolve().model_dump(mode="json")))
    ledger.close()
    done = gc(home)
    assert done["removed"] == [str(run / "recovery" / "step-000002")]
    assert [path.name for path in (run / "recovery").iterdir()] == ["step-000004"]
    assert not any(tokens_of(home).values())


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_a_home_without_a_ledger_is_not_found_and_left_alone(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["gc", "--home", str(tmp_path / "none"), *words])
    assert done.exit_code == 3 and "holds no ledger" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_running_server_keeps_its_ledger_and_only_a_dry_run_looks_at_it(tmp_path: Path, start_server: Any) -> None:
    server = start_server(JOB)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=1, repeats=2)
        wait_for_step(http, 1)
    refused = CliRunner().invoke(app, ["gc", "--home", str(server.home)])
    assert refused.exit_code == 75 and "in use by process" in refused.stderr
    assert gc(server.home, "--dry-run")["dry_run"] is True
