"""Who may begin, who waits, and in what order they are let in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rollout_support import Stage, eventually

from swarm.errors import BadRequest, EngineFailure, EngineNotReady, RolloutPaused, SwarmError, TrainingComplete
from swarm.schemas import BeginEpisodeRequest, EngineState, UpdateBatchPolicyRequest
from swarm.types import EpisodeType, WeightVersion

pytestmark = pytest.mark.anyio

MIXED = {"batch_size": 2, "num_repeat": 2, "mixture": {"math": 0.5, "code": 0.5}}


async def test_begins_are_held_while_the_engine_is_busy_and_let_in_by_its_next_move(stage: Stage) -> None:
    await stage.lifecycle.move(EngineState.DRAINING)
    with pytest.raises(RolloutPaused, match="DRAINING"):
        await stage.begin()
    waiting = [await stage.begin_waiting() for _ in range(3)]
    await stage.begin(episode_type="eval")
    await stage.lifecycle.move(EngineState.ROLLING)
    await asyncio.gather(*waiting)
    assert stage.episodes.running(EpisodeType.TRAIN) == 3
    assert stage.episodes.running(EpisodeType.EVAL) == 1


@pytest.mark.parametrize(
    ("state", "error"), [(EngineState.FAILED, EngineFailure), (EngineState.OFFLINE, EngineNotReady)]
)
async def test_waiting_begins_hear_at_once_that_the_engine_is_gone(
    stage: Stage, state: EngineState, error: type[SwarmError]
) -> None:
    await stage.lifecycle.move(EngineState.DRAINING)
    waiting = await stage.begin_waiting()
    await stage.lifecycle.move(state, "the disk burned")
    with pytest.raises(error):
        await asyncio.wait_for(waiting, 1)


async def test_waiting_begins_outlast_a_worker_that_is_healed(stage: Stage) -> None:
    await stage.lifecycle.move(EngineState.BOOTING, "the engine worker died: starting another")
    waiting = await stage.begin_waiting()
    await stage.lifecycle.move(EngineState.ROLLING)
    await asyncio.wait_for(waiting, 1)


@pytest.mark.job(total_steps=1)
async def test_waiting_begins_hear_that_the_last_step_is_done(stage: Stage) -> None:
    await stage.lifecycle.move(EngineState.DRAINING)
    waiting = await stage.begin_waiting()
    stage.lifecycle.publish(WeightVersion(version=1, step=1, published_at=0.0))
    await stage.lifecycle.move(EngineState.ROLLING)
    with pytest.raises(TrainingComplete):
        await asyncio.wait_for(waiting, 1)
    await stage.begin(episode_type="eval")


@pytest.mark.job(max_staleness=1, total_steps=2)
async def test_a_stale_policy_may_begin_while_a_batch_trains_but_not_in_the_last_step(stage: Stage) -> None:
    for state in (EngineState.DRAINING, EngineState.TRAINING):
        await stage.lifecycle.move(state)
    await stage.begin()
    stage.lifecycle.publish(WeightVersion(version=1, step=1, published_at=0.0))
    with pytest.raises(RolloutPaused, match="TRAINING"):
        await stage.begin()


@pytest.mark.job(max_running=2)
async def test_beyond_the_limit_of_running_episodes_begins_are_held_until_one_is_over(stage: Stage) -> None:
    first, second = await stage.begin(), await stage.begin(episode_type="eval")
    with pytest.raises(RolloutPaused, match="2 episodes run already"):
        await stage.begin()
    waiting = await stage.begin_waiting()
    await stage.end(first.episode_id)
    third = await asyncio.wait_for(waiting, 1)
    for episode in (second, third):
        await stage.episodes.abort(episode.episode_id, "enough")
    await stage.begin()


@pytest.mark.job(max_running=1)
async def test_waiting_begins_of_one_kind_are_let_in_by_arrival_and_kinds_take_turns(stage: Stage) -> None:
    running = await stage.begin()
    order: list[str] = []
    waiting: list[asyncio.Task[Any]] = []
    for number, source in enumerate(("math", "math", "math", "code", "code")):
        task = await stage.begin_waiting(data_source=source)
        task.add_done_callback(lambda _, name=f"{source}{number}": order.append(name))
        waiting.append(task)
    for _ in range(5):
        await stage.episodes.abort(running.episode_id, "next")
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=2)
        [task], waiting = done, list(pending)
        running = task.result()
    assert order == ["math0", "code3", "math1", "code4", "math2"]


Leave = Callable[[], Awaitable[None]]


async def begin_and_leave(stage: Stage, is_cancelled: bool) -> Leave:
    """A begin that waits, and how its caller goes away: its task is cancelled, or its connection is gone."""
    connection = asyncio.Event()

    async def departure() -> None:
        await connection.wait()

    gone = asyncio.create_task(stage.episodes.begin(BeginEpisodeRequest(wait_s=20), departure))
    await asyncio.sleep(0.02)

    async def leave() -> None:
        if is_cancelled:
            gone.cancel()
            return
        connection.set()
        with pytest.raises(RolloutPaused, match="gone away"):
            await asyncio.wait_for(gone, 1)

    return leave


BOTH_WAYS = pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "connection gone"])


@BOTH_WAYS
@pytest.mark.job(max_running=1)
async def test_a_held_caller_that_goes_away_takes_no_place(stage: Stage, is_cancelled: bool) -> None:
    running = await stage.begin()
    leave = await begin_and_leave(stage, is_cancelled)
    waiting = await stage.begin_waiting()
    await leave()
    await stage.episodes.abort(running.episode_id, "next")
    await asyncio.wait_for(waiting, 1)
    assert stage.episodes.running(EpisodeType.TRAIN) == 1


@BOTH_WAYS
@pytest.mark.job(max_running=1)
async def test_a_caller_let_in_as_it_goes_away_gives_its_place_on(stage: Stage, is_cancelled: bool) -> None:
    running = await stage.begin()
    leave = await begin_and_leave(stage, is_cancelled)
    waiting = await stage.begin_waiting()
    aborting = asyncio.create_task(stage.episodes.abort(running.episode_id, "next"))
    while stage.episodes._admission.waiting == 2:
        await asyncio.sleep(0)
    await leave()
    await asyncio.wait_for(waiting, 1)
    await aborting
    assert stage.episodes.running(EpisodeType.TRAIN) == 1


async def test_a_begin_that_waits_in_vain_says_what_it_waited_for(stage: Stage) -> None:
    await stage.lifecycle.move(EngineState.DRAINING)
    with pytest.raises(RolloutPaused, match="DRAINING: try again"):
        await stage.begin(wait_s=0.05)
    assert stage.episodes._admission.waiting == 0


@pytest.mark.job(**MIXED)
async def test_a_source_whose_quota_is_covered_is_held_while_the_others_go_on(stage: Stage) -> None:
    for reward in (0.0, 1.0):
        await stage.finish(task_id="m", data_source="math", reward=reward)
    with pytest.raises(RolloutPaused, match="enough of data source 'math'"):
        await stage.begin(data_source="math")
    waiting = await stage.begin_waiting(data_source="math")
    for reward in (0.0, 1.0):
        await stage.finish(task_id="c", data_source="code", reward=reward)
    assert stage.episodes.batch_ready.is_set()
    assert not waiting.done()
    assert len(await stage.close_batch()) == 4
    await asyncio.wait_for(waiting, 1)


@pytest.mark.job(**MIXED)
async def test_a_lost_episode_makes_room_for_another_of_its_source(stage: Stage) -> None:
    first, _ = [await stage.begin(data_source="math") for _ in range(2)]
    waiting = await stage.begin_waiting(data_source="math")
    await stage.episodes.abort(first.episode_id, "crashed")
    await asyncio.wait_for(waiting, 1)


@pytest.mark.job(**MIXED)
async def test_a_source_outside_the_mixture_is_refused_by_name_and_eval_is_not_concerned(stage: Stage) -> None:
    with pytest.raises(BadRequest, match="terminal"):
        await stage.begin(data_source="terminal", wait_s=20)
    await stage.begin(data_source="terminal", episode_type="eval")


@pytest.mark.job(**MIXED)
async def test_a_source_that_joins_with_the_next_batch_is_held_until_then(stage: Stage) -> None:
    change = UpdateBatchPolicyRequest(mixture={"math": 0.5, "terminal": 0.5})
    await stage.episodes.batch.propose_policy(change)
    with pytest.raises(RolloutPaused, match="next batch"):
        await stage.begin(data_source="terminal")
    joining = await stage.begin_waiting(data_source="terminal")
    for source in ("math", "code"):
        for reward in (0.0, 1.0):
            await stage.finish(task_id=source, data_source=source, reward=reward)
    leaving = await stage.begin_waiting(data_source="code")
    await stage.close_batch()
    await asyncio.wait_for(joining, 1)
    with pytest.raises(BadRequest, match="code"):
        await asyncio.wait_for(leaving, 1)


async def test_draining_ends_with_the_last_running_train_episode(stage: Stage) -> None:
    first, second = await stage.begin(), await stage.begin()
    await stage.begin(episode_type="eval")
    assert not await stage.episodes.drained(0.05)
    drained = asyncio.create_task(stage.episodes.drained(10))
    await stage.end(first.episode_id)
    await asyncio.sleep(0.02)
    assert not drained.done()
    await stage.episodes.abort(second.episode_id, "crashed")
    await eventually(drained.done, 1)
    assert drained.result()
