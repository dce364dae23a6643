"""What the server does when a training collapses, with the fake engine: the rewards are the client's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarm.backends.fake import Fault, FaultKind
from swarm.errors import EpisodeEnded, FailedEngine, JobInvalid, TrainingDiverged, WeightsNotFinite
from swarm.job import TrainJob, build_job
from swarm.ledger import BatchState
from swarm.schemas import ChangeJobRequest, EngineState, EpisodeState

pytestmark = pytest.mark.anyio

JOB = TrainJob(engine="fake", batch_size=4, num_repeat=1, drain_timeout_s=5, lr=0.004, total_steps=30)
GOOD = [0.5, 1.0, 1.0, 1.0]
"""The rewards of the first steps. With three steps of 0 behind them, the weights of step 3 were the last good ones."""


async def train(hosted: Any, rewards: list[float], *, state: EngineState = EngineState.ROLLING) -> None:
    """One step for each reward, from the present step on. The last one is not waited for if it ends elsewhere."""
    for reward in rewards:
        step = hosted.server.lifecycle.weights.step + 1
        before = len(await hosted.ledger.batches(limit=1000))
        for task in range(4):
            episode = await hosted.begin()
            await hosted.call(episode, f"step {step}", max_tokens=1)
            await hosted.end(episode, f"{before}-{task}", reward)
        while len(await hosted.ledger.batches(limit=1000)) == before:
            await asyncio.sleep(0.005)
        await hosted.wait_for(state)


async def guard_events(hosted: Any) -> list[tuple[str, dict[str, Any]]]:
    events = await hosted.ledger.events(limit=10_000)
    return [(event.kind, event.detail) for event in events if event.kind.startswith("guard.")]


async def start(hosted: Any, guard: str, **settings: Any) -> None:
    await hosted.start(JOB.model_copy(update={"guard": guard, **settings}))


async def test_a_fall_is_recorded_once_and_the_training_goes_on(host: Any) -> None:
    hosted = host()
    await start(hosted, "warn")
    await train(hosted, [*GOOD, 0.0, 0.0, 0.0, 0.0, 0.0])
    [(kind, detail)] = await guard_events(hosted)
    assert (kind, detail["fault"], detail["good_step"], detail["back_to"]) == ("guard.warned", "collapse", 3, None)
    assert detail["step"] == 7 and "load step 3" in detail["advice"]
    assert hosted.server.lifecycle.weights.step == 9


async def test_a_healthy_training_is_left_alone(host: Any) -> None:
    hosted = host()
    await start(hosted, "rollback", total_steps=16)
    await train(hosted, [*GOOD, 0.8, 0.4, 0.7, 0.9, 0.5, 0.8])
    assert await guard_events(hosted) == []


async def test_stop_ends_the_training_with_the_fault_as_its_reason(host: Any) -> None:
    hosted = host()
    await start(hosted, "stop")
    await train(hosted, [*GOOD, 0.0, 0.0])
    await train(hosted, [0.0], state=EngineState.COMPLETE)
    assert "collapsed" in (hosted.server.lifecycle.reason or "")
    [(kind, detail)] = await guard_events(hosted)
    assert (kind, detail["end"]) == ("guard.stopped", hosted.server.lifecycle.weights.step)
    # A restarted server says the same, and the weights before the fall can be loaded.
    await hosted.crash()
    restarted = host()
    assert await restarted.server.resume()
    await restarted.wait_for(EngineState.COMPLETE)
    assert "collapsed" in (restarted.server.lifecycle.reason or "")
    await restarted.server.load(detail["good_step"])
    assert restarted.server.lifecycle.weights.step == detail["good_step"] == 3


async def test_rollback_goes_on_before_the_fall_with_half_the_rate_and_ends_after_the_second_time(host: Any) -> None:
    hosted = host()
    await start(hosted, "rollback", save_freq=3)
    await train(hosted, [*GOOD, 0.0, 0.0])
    await train(hosted, [0.0])
    weights = hosted.server.lifecycle.weights
    assert (weights.step, hosted.server._run.job.at(4).lr) == (3, 0.002)
    states = [batch.state for batch in await hosted.ledger.batches()]
    assert states.count(BatchState.REWOUND) == 4
    assert len((await hosted.ledger.episodes(state=EpisodeState.TRAINED, limit=1000)).episodes) == 7 * 4
    await train(hosted, [1.0, 0.0, 0.0])
    await train(hosted, [0.0])
    assert hosted.server._run.job.at(4).lr == 0.001
    assert hosted.server.lifecycle.weights.step == 3
    await train(hosted, [0.0, 0.0])
    await train(hosted, [0.0], state=EngineState.COMPLETE)
    kinds = [kind for kind, _ in await guard_events(hosted)]
    assert kinds == ["guard.rolled_back", "guard.rolled_back", "guard.stopped"]
    # It ends with the weights before the fall, and with more steps it goes on there.
    assert hosted.server.lifecycle.weights.step == 2
    await hosted.server.change_job(ChangeJobRequest(settings={"total_steps": 4}))
    await hosted.wait_for(EngineState.ROLLING)
    await train(hosted, [1.0])
    await train(hosted, [1.0], state=EngineState.COMPLETE)
    assert "all 4 steps are done" in (hosted.server.lifecycle.reason or "")


@pytest.mark.parametrize("raised_at", [3, 5])
async def test_a_rate_that_was_raised_on_the_way_does_not_come_back(host: Any, raised_at: int) -> None:
    hosted = host()
    await start(hosted, "rollback")
    await hosted.server.change_job(ChangeJobRequest(settings={"lr": 1.0}, at_step=raised_at))
    await train(hosted, GOOD)
    await hosted.server.change_job(ChangeJobRequest(settings={"lr": 1e-4}, at_step=20))
    await train(hosted, [0.0, 0.0])
    await train(hosted, [0.0])
    job = hosted.server._run.job
    assert [job.at(step).lr for step in (2, 4, 5, 19, 20)] == [0.004, 0.002, 0.002, 0.002, 1e-4]


async def test_a_crash_after_a_rollback_finds_the_step_the_rate_and_the_count_again(host: Any) -> None:
    hosted = host()
    await start(hosted, "rollback")
    await train(hosted, [*GOOD, 0.0, 0.0])
    await train(hosted, [0.0])
    await hosted.crash()
    restarted = host()
    assert await restarted.server.resume()
    await restarted.wait_for(EngineState.ROLLING, step=3)
    assert restarted.server._run.job.at(4).lr == 0.002
    await train(restarted, [0.0, 0.0])
    await train(restarted, [0.0])
    assert [kind for kind, _ in await guard_events(restarted)] == ["guard.rolled_back"] * 2
    assert restarted.server._run.job.at(4).lr == 0.001


@pytest.mark.parametrize(("guard", "state"), [("rollback", EngineState.ROLLING), ("stop", EngineState.COMPLETE)])
async def test_weights_that_give_no_finite_numbers_are_left_for_those_before_them(
    host: Any, guard: str, state: EngineState
) -> None:
    hosted = host()
    await start(hosted, guard)
    await train(hosted, [0.5, 0.5])
    episode = await hosted.begin()
    hosted.sampler.fault = Fault(FaultKind.NOT_FINITE)
    with pytest.raises(EpisodeEnded, match="weights_rewound"):
        await hosted.call(episode)
    hosted.sampler.fault = None
    await hosted.wait_for(state)
    assert hosted.server.lifecycle.weights.step == 1
    [(_, detail)] = await guard_events(hosted)
    assert (detail["fault"], detail["step"], detail["back_to"]) == ("not_finite", 2, 1)


async def test_weights_that_give_no_finite_numbers_end_a_run_whose_guard_only_warns(host: Any) -> None:
    hosted = host()
    await start(hosted, "warn")
    await train(hosted, [0.5])
    episode = await hosted.begin()
    hosted.sampler.fault = Fault(FaultKind.NOT_FINITE)
    with pytest.raises(WeightsNotFinite):
        await hosted.call(episode)
    await hosted.wait_for(EngineState.FAILED)
    assert (await hosted.server.status()).has_diverged
    assert type(hosted.server.lifecycle.refusal()) is TrainingDiverged


async def test_a_model_that_gives_no_finite_numbers_before_any_training_has_not_diverged(host: Any) -> None:
    hosted = host()
    await start(hosted, "warn")
    episode = await hosted.begin()
    hosted.sampler.fault = Fault(FaultKind.NOT_FINITE)
    with pytest.raises(WeightsNotFinite):
        await hosted.call(episode)
    await hosted.wait_for(EngineState.FAILED)
    assert not (await hosted.server.status()).has_diverged
    assert type(hosted.server.lifecycle.refusal()) is FailedEngine


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"guard": "rollback"}, "set guard to stop"),
        ({"guard": "stop", "lr_scheduler_type": "cosine", "total_steps": 5}, "set guard to warn"),
        ({"guard": "pause"}, "guard"),
    ],
)
async def test_what_an_engine_cannot_carry_out_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(JobInvalid, match=message):
        build_job({"engine": "verl", "n_gpu": 2, **settings})
