"""An engine that dies is replaced behind the clients' backs; one that keeps dying ends the run with a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarm.backends.fake import Fault, FaultKind
from swarm.errors import EngineFailure, EngineNotReady, EpisodeEnded, IllegalTransition, NotFound
from swarm.job import TrainJob
from swarm.ledger import BatchState
from swarm.schemas import EngineState, EpisodeState

pytestmark = pytest.mark.anyio

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, drain_timeout_s=5)


async def kinds(hosted: Any) -> list[str]:
    return [event.kind for event in await hosted.ledger.events(limit=1000)]


async def wait_for_recoveries(hosted: Any, count: int) -> None:
    async with asyncio.timeout(60):
        while (await hosted.server.status()).recoveries < count:
            await asyncio.sleep(0.01)


async def test_an_idle_engine_that_dies_is_replaced_and_nothing_else_changes(host: Any) -> None:
    hosted = host()
    await hosted.start(JOB)
    await hosted.run_batch("one")
    await hosted.wait_for(EngineState.ROLLING, step=1)
    episode = await hosted.begin()
    await hosted.call(episode)
    hosted.sampler.die("out of memory")
    await wait_for_recoveries(hosted, 1)
    assert hosted.server.lifecycle.state is EngineState.ROLLING
    assert (hosted.server.lifecycle.weights.step, hosted.sampler.weight_version) == (1, 1)
    await hosted.call(episode)
    await hosted.end(episode, "task", 1.0)
    [event] = [event for event in await hosted.ledger.events(limit=1000) if event.kind == "engine.recovered"]
    assert (event.detail["step"], event.detail["replayed"]) == (1, 0)
    assert event.detail["seconds"] >= 0
    states = [(row.state, row.reason) for row in await hosted.ledger.states()]
    assert ("BOOTING", "the engine worker died (out of memory): starting another") in states


async def test_a_call_whose_engine_dies_is_answered_by_the_next_engine(host: Any) -> None:
    hosted = host()
    await hosted.start(JOB)
    episode = await hosted.begin()
    hosted.sampler.fault = Fault(FaultKind.HANG)
    calls = [asyncio.create_task(hosted.call(episode, f"Question {number}")) for number in range(3)]
    await asyncio.sleep(0.05)
    hosted.sampler.fault = None
    hosted.sampler.die("killed")
    replies = await asyncio.gather(*calls)
    assert all(reply["choices"][0]["finish_reason"] == "stop" for reply in replies)
    turns = await hosted.ledger.turns(episode.episode_id)
    assert len(turns) == 3
    assert sorted(len(turn.output_ids_T) for turn in turns) == sorted(
        reply["usage"]["completion_tokens"] for reply in replies
    )


async def test_a_batch_in_training_goes_back_to_the_pool_and_is_trained_once(host: Any) -> None:
    hosted = host()
    await hosted.start(JOB)
    hosted.backends.gate.before.clear()
    await hosted.run_batch("one")
    await asyncio.wait_for(hosted.backends.gate.reached.wait(), 60)
    hosted.sampler.die("killed")
    hosted.backends.gate.before.set()
    await hosted.wait_for(EngineState.ROLLING, step=1)
    states = [batch.state for batch in await hosted.ledger.batches()]
    assert states == [BatchState.TRAINED, BatchState.FAILED]
    assert len((await hosted.ledger.episodes(state=EpisodeState.TRAINED)).episodes) == 4


async def test_a_drain_does_not_keep_a_dead_engine_waiting(host: Any) -> None:
    hosted = host()
    await hosted.start(JOB.model_copy(update={"drain_timeout_s": 60, "stop_rule": "any_client_agrees"}))
    straggler = await hosted.begin()
    await hosted.run_batch("one")
    hosted.service.episodes.agree("anonymous")
    await hosted.wait_for(EngineState.DRAINING)
    hosted.sampler.die("killed")
    await wait_for_recoveries(hosted, 1)
    await hosted.end(straggler, "late", 0.0)
    await hosted.wait_for(EngineState.ROLLING, step=1)


async def test_deaths_without_progress_end_the_run_with_the_reason(host: Any) -> None:
    hosted = host()
    await hosted.start(JOB)
    episode = await hosted.begin()
    hosted.sampler.fault = Fault(FaultKind.DIE, after_tokens=1)
    with pytest.raises((EngineFailure, EpisodeEnded, EngineNotReady)):
        await hosted.call(episode)
    await hosted.wait_for(EngineState.FAILED)
    assert "died 4 times without a finished step" in (hosted.server.lifecycle.reason or "")
    assert "the fake engine died after 1 tokens" in (hosted.server.lifecycle.reason or "")
    hosted.sampler.fault = None
    await hosted.server.start_engine()
    await hosted.wait_for(EngineState.ROLLING)


async def test_finished_steps_forgive_earlier_deaths(host: Any) -> None:
    hosted = host()
    await hosted.start(JOB)
    for step in range(1, 4):
        for _ in range(2):
            before = (await hosted.server.status()).recoveries
            hosted.sampler.die("killed")
            await wait_for_recoveries(hosted, before + 1)
        await hosted.run_batch(f"batch-{step}")
        await hosted.wait_for(EngineState.ROLLING, step=step)
    assert (await hosted.server.status()).recoveries == 6


async def test_a_failure_that_no_new_engine_mends_ends_the_run(host: Any) -> None:
    hosted = host()
    await hosted.start(JOB)
    episode = await hosted.begin()
    hosted.sampler.fault = Fault(FaultKind.RAISE)
    with pytest.raises(EngineFailure, match="fake fault"):
        await hosted.call(episode)
    await hosted.wait_for(EngineState.FAILED)
    reason = hosted.server.lifecycle.reason or ""
    assert all(each in reason for each in ("fake fault after 0 tokens", episode.episode_id, "of client anonymous"))


async def test_going_back_forgets_later_steps_and_their_checkpoints_and_aborts_their_episodes(host: Any) -> None:
    hosted = host()
    await hosted.start(JOB)
    for step in (1, 2, 3):
        await hosted.run_batch(f"batch-{step}")
        await hosted.wait_for(EngineState.ROLLING, step=step)
    checkpoint = await hosted.server.checkpoint()
    running, evaluation = await hosted.begin(), await hosted.begin(episode_type="eval")
    await hosted.server.load(1)
    assert (hosted.server.lifecycle.weights.step, hosted.sampler.weight_version) == (1, 1)
    assert [batch.state for batch in await hosted.ledger.batches()] == [
        BatchState.REWOUND,
        BatchState.REWOUND,
        BatchState.TRAINED,
    ]
    row = await hosted.ledger.episode(running.episode_id)
    assert (row.state, row.outcome) == (EpisodeState.ABORTED, "weights_rewound")
    await hosted.call(evaluation)
    assert not [path for path in (checkpoint.path,) if path in await _loadable(hosted)]
    await hosted.run_batch("again")
    await hosted.wait_for(EngineState.ROLLING, step=2)
    hosted.sampler.die("killed")
    await wait_for_recoveries(hosted, 1)
    assert hosted.server.lifecycle.weights.step == 2


async def _loadable(hosted: Any) -> list[str]:
    assert hosted.server._run is not None
    return [str(path.resolve()) for path in hosted.server._run.recovery.checkpoints.candidates(1000)]


async def test_a_step_that_was_not_reached_cannot_be_loaded(host: Any) -> None:
    hosted = host()
    with pytest.raises(EngineNotReady):
        await hosted.server.load(0)
    await hosted.start(JOB)
    with pytest.raises(NotFound, match="0 steps"):
        await hosted.server.load(1)
    hosted.backends.gate.before.clear()
    await hosted.run_batch("one")
    await asyncio.wait_for(hosted.backends.gate.reached.wait(), 60)
    with pytest.raises(IllegalTransition, match="TRAINING"):
        await hosted.server.load(0)
    with pytest.raises(IllegalTransition, match="TRAINING"):
        await hosted.server.checkpoint()
    hosted.backends.gate.before.set()
    await hosted.wait_for(EngineState.ROLLING, step=1)


async def test_checkpoints_of_recovery_are_on_record_and_only_two_stay(host: Any) -> None:
    hosted = host(recovery_overhead=1.0)
    await hosted.start(JOB)
    for step in range(1, 6):
        await hosted.run_batch(f"batch-{step}")
        await hosted.wait_for(EngineState.ROLLING, step=step)
    saved = [event.detail for event in await hosted.ledger.events(limit=1000) if event.kind == "checkpoint.saved"]
    assert saved[0]["step"] == 1
    assert not any(detail["kept"] for detail in saved)
    assert len(await _loadable(hosted)) == min(2, len(saved))
