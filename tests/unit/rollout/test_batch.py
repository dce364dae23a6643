"""What clients may change about the batch being filled: agreement, policy, revised rewards; and what time completes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from rollout_support import Stage, eventually

from swarm.errors import BadRequest, Conflict, EpisodeEnded, NotFound
from swarm.rollout.clients import LIVE_S, MAX_SHOWN_WARNINGS, MEMORY_S, Clients
from swarm.schemas import EpisodeState, ReviseRewardRequest, UpdateBatchPolicyRequest
from swarm.types import EpisodeType

pytestmark = pytest.mark.anyio


async def recorded_policies(stage: Stage) -> list[Any]:
    """Oldest first: those that a server after this one would go on with."""
    return [event.detail for event in await stage.ledger.events(0, 100) if event.kind == "job.changed"]


def revision(reward: float, **fields: Any) -> ReviseRewardRequest:
    return ReviseRewardRequest(reward=reward, reason="the checker was wrong", **fields)


@pytest.mark.job(min_group=1)
async def test_a_revised_reward_is_what_the_batch_trains_and_the_ledger_shows(stage: Stage) -> None:
    episode = await stage.begin()
    await stage.call(episode)
    await stage.end(episode.episode_id, reward=0.0, is_success=False, turn_rewards=[0.25])
    row = await stage.episodes.revise(episode.episode_id, revision(1.0, is_success=True))
    assert (row.reward, row.is_success, row.turn_rewards) == (1.0, True, (0.25,))
    [finished] = stage.pool.close_batch("batch-1", 1).batch.episodes
    assert (finished.reward, finished.is_success, finished.turn_rewards) == (1.0, True, (0.25,))


@pytest.mark.job(batch_size=1, stop_rule="enough_non_constant_tasks")
async def test_a_revised_reward_may_complete_a_batch_of_non_constant_tasks(stage: Stage) -> None:
    first, _ = await stage.finish(reward=1.0), await stage.finish(reward=1.0)
    assert not stage.episodes.batch_ready.is_set()
    await stage.episodes.revise(first, revision(0.0))
    assert stage.episodes.batch_ready.is_set()


async def test_revised_turn_rewards_must_fit_the_recorded_turns(stage: Stage) -> None:
    episode_id = await stage.finish(reward=0.0)
    with pytest.raises(BadRequest, match="turn_rewards"):
        await stage.episodes.revise(episode_id, revision(1.0, turn_rewards=[1, 2]))
    row = await stage.episodes.revise(episode_id, revision(1.0, turn_rewards=[2]))
    assert row.turn_rewards == (2,)


async def test_a_reward_is_final_once_the_batch_is_closed_or_where_none_is_awaited(stage: Stage) -> None:
    closed = [await stage.finish(reward=reward) for reward in (0.0, 1.0)]
    await stage.close_batch()
    with pytest.raises(EpisodeEnded, match="closed"):
        await stage.episodes.revise(closed[0], revision(0.5))
    tested = await stage.finish(episode_type="eval")
    with pytest.raises(Conflict, match="eval"):
        await stage.episodes.revise(tested, revision(0.5))
    running = await stage.begin()
    with pytest.raises(Conflict, match="running"):
        await stage.episodes.revise(running.episode_id, revision(0.5))
    await stage.episodes.abort(running.episode_id, "tool_crashed")
    with pytest.raises(EpisodeEnded, match="tool_crashed"):
        await stage.episodes.revise(running.episode_id, revision(0.5))
    with pytest.raises(NotFound):
        await stage.episodes.revise("ep-nobody-knows", revision(0.5))


async def test_revisions_while_a_batch_is_closed_leave_ledger_and_batch_agreed(stage: Stage) -> None:
    for trial in range(10):
        ids = [await stage.finish(task_id=f"t{trial}", reward=reward) for reward in (0.0, 1.0)]
        revising = [
            asyncio.create_task(stage.episodes.revise(episode_id, revision(0.5 + number)))
            for number, episode_id in enumerate(ids)
        ]
        await asyncio.sleep(0.001 * trial)
        closed = stage.pool.close_batch(f"batch-{trial}", trial + 1)
        await stage.ledger.close_batch(f"batch-{trial}", trial + 1, [ids], [])
        answers = await asyncio.gather(*revising, return_exceptions=True)
        assert all(isinstance(answer, EpisodeEnded) for answer in answers if isinstance(answer, BaseException))
        for episode in closed.batch.episodes:
            row = await stage.ledger.episode(episode.episode_id)
            assert (row.reward, row.state) == (episode.reward, EpisodeState.COMPLETED)


@pytest.mark.job(stop_rule="any_client_agrees")
async def test_any_client_may_agree_and_nothing_is_ready_without_an_episode(stage: Stage) -> None:
    assert stage.episodes.agree("laptop") == (("laptop",), False)
    await stage.finish(client_id="laptop")
    assert stage.episodes.batch_ready.is_set()
    assert stage.episodes.agree("laptop") == (("laptop",), True)


@pytest.mark.job(stop_rule="all_clients_agree")
async def test_all_clients_must_agree_but_those_that_never_trained_or_fell_silent(stage: Stage) -> None:
    await stage.finish(client_id="a")
    episode = await stage.begin(client_id="b")
    await stage.begin(client_id="judge", episode_type="eval")
    assert stage.episodes.agree("a") == (("a",), False)
    await stage.episodes.abort(episode.episode_id, "crashed")
    assert not stage.episodes.is_batch_ready()
    # As if b had been silent for long.
    stage.episodes._clients.see("b").seen -= LIVE_S - 0.3
    stage.episodes.agree("a")
    await eventually(stage.episodes.batch_ready.is_set, 3)


def test_a_silent_client_is_waited_for_longer_with_episodes_in_the_batch_and_never_for_good() -> None:
    clients, now = Clients(), time.monotonic()
    clients.began("running", EpisodeType.TRAIN)
    for name in ("recent", "pooled"):
        clients.began(name, EpisodeType.TRAIN)
        clients.left(name, EpisodeType.TRAIN)
    clients.began("judge", EpisodeType.EVAL)

    def awaited(after_s: float) -> set[str]:
        return set(clients.awaited(now + after_s, {"pooled", "restored"}))

    assert awaited(1) == {"running", "recent", "pooled", "restored"}
    assert awaited(LIVE_S + 1) == {"running", "pooled", "restored"}
    assert awaited(MEMORY_S + 1) == {"running"}


@pytest.mark.job(batch_timeout_s=0.5)
async def test_a_batch_is_ready_when_its_time_is_over_though_nobody_calls(stage: Stage) -> None:
    began = time.monotonic()
    for reward in (0.0, 1.0):
        await stage.finish(reward=reward)
    assert not stage.episodes.is_batch_ready()
    await asyncio.wait_for(stage.episodes.batch_ready.wait(), 5)
    assert time.monotonic() - began == pytest.approx(0.5, abs=0.3)
    assert stage.episodes.is_batch_ready()


async def test_a_changed_policy_is_durable_and_waits_for_the_next_batch(stage: Stage) -> None:
    policies = await stage.episodes.batch.propose_policy(UpdateBatchPolicyRequest(batch_size=1, num_repeat=3))
    assert policies.active.batch_size == 2
    assert policies.next is not None
    assert (policies.next.batch_size, policies.next.num_repeat, policies.next.min_group) == (1, 3, 2)
    policies = await stage.episodes.batch.propose_policy(UpdateBatchPolicyRequest(mixture={"math": 1.0}))
    assert policies.next is not None
    assert (policies.next.batch_size, policies.next.mixture) == (1, {"math": 1.0})
    first, second = await recorded_policies(stage)
    assert first == {
        "job_id": 1, "revision": 1, "at_step": 2, "settings": {"batch_size": 1, "num_repeat": 3}
    }  # fmt: skip
    assert (second["revision"], second["settings"]) == (2, {"mixture": {"math": 1.0}})
    for task in range(2):
        for _ in range(2):
            await stage.finish(task_id=f"t{task}")
    await stage.close_batch()
    assert stage.episodes.batch.policies().active.num_repeat == 3
    assert stage.episodes.batch.policies().next is None
    policies = await stage.episodes.batch.propose_policy(UpdateBatchPolicyRequest(mixture={}))
    assert policies.next is not None
    assert policies.next.mixture is None
    kinds = [event.kind for event in await stage.ledger.events(0, 100)]
    assert kinds.count("job.changed") == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_group": 3}, r"min_group \(3\) must not exceed num_repeat \(2\)"),
        ({"mixture": {"math": 0.5}}, "shares must sum to 1"),
        ({"mixture": {"math": 1.5, "code": -0.5}}, "share above 0"),
        ({"batch_size": 1, "num_repeat": 2}, "mini_batch_num must not exceed"),
    ],
)
@pytest.mark.job(mini_batch_num=4)
async def test_a_policy_is_checked_as_a_whole_and_a_wrong_one_changes_nothing(
    stage: Stage, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        await stage.episodes.batch.propose_policy(UpdateBatchPolicyRequest.model_validate(change))
    assert stage.episodes.batch.policies().next is None
    assert await recorded_policies(stage) == []


async def test_a_proposal_that_changes_nothing_is_not_recorded(stage: Stage) -> None:
    policies = await stage.episodes.batch.propose_policy(UpdateBatchPolicyRequest(batch_size=2))
    assert policies.next is None
    assert await recorded_policies(stage) == []


def test_a_client_is_forgotten_after_long_silence_unless_it_has_running_episodes() -> None:
    clients = Clients()
    for name in ("gone", "running"):
        clients.see(name)
    clients.began("running", EpisodeType.EVAL)
    now = time.monotonic() + MEMORY_S + 1
    clients.forget_silent(now)
    assert [view.client_id for view in clients.views()] == ["running"]
    clients.left("running", EpisodeType.EVAL)
    clients.forget_silent(now)
    assert clients.views() == []


async def test_warnings_about_a_client_reach_the_status(stage: Stage) -> None:
    for _ in range(40):
        await stage.finish(task_id="same", reward=1.0, client_id="careless")
        if stage.episodes.is_batch_ready():
            await stage.close_batch()
    warnings = stage.episodes.warnings()
    assert {warning.client_id for warning in warnings} == {"careless"}
    assert all(warning.message and warning.count >= 1 for warning in warnings)


@pytest.mark.job(stop_rule="all_clients_agree")
async def test_status_shows_the_newest_warnings_only(stage: Stage) -> None:
    for number in range(MAX_SHOWN_WARNINGS + 1):
        for _ in range(2):
            await stage.finish(task_id="none", client_id=f"careless-{number}")
    shown = stage.episodes.warnings()
    assert len(shown) == MAX_SHOWN_WARNINGS
    assert "careless-0" not in {warning.client_id for warning in shown}
