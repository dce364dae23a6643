"""Named rewards: reported once, kept, revised, and asked for by a job of algorithm gdpo."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
from rollout_support import Stage, rolling

from swarm.errors import BadRequest, IdempotencyMismatch
from swarm.schemas import EpisodeState, PrepareEpisodeRequest, ReviseRewardRequest

pytestmark = pytest.mark.anyio

GDPO: dict[str, Any] = {"algorithm": "gdpo", "gdpo_reward_keys": ["right", "short"]}
REWARDS = {"right": 1.0, "short": -0.5, "seen": 3.0}


async def run(stage: Stage, **begin: Any) -> str:
    """An episode of one call, still running."""
    episode = await stage.begin(**begin)
    await stage.call(episode)
    return episode.episode_id


@pytest.mark.job(min_group=1)
async def test_they_are_in_the_batch_and_on_record_and_replay_exactly_once(stage: Stage) -> None:
    episode_id = await run(stage)
    first = await stage.end(episode_id, rewards=REWARDS)
    again = await stage.end(episode_id, rewards=dict(reversed(REWARDS.items())))
    assert (first.episode.state, first.replayed, again.replayed) == (EpisodeState.COMPLETED, False, True)
    with pytest.raises(IdempotencyMismatch):
        await stage.end(episode_id, rewards={**REWARDS, "right": 0.0})
    [finished] = stage.pool.close_batch("batch-1", 1).batch.episodes
    assert finished.rewards == (await stage.ledger.episode(episode_id)).rewards == REWARDS


async def test_a_server_that_comes_back_has_them_in_its_half_filled_batch(tmp_path: Path) -> None:
    async with rolling(tmp_path, **GDPO) as stage:
        await stage.end(await run(stage), rewards=REWARDS)
    async with rolling(tmp_path, **GDPO) as stage:
        [recorded] = (await stage.ledger.recover()).completed
    assert recorded.row.rewards == REWARDS


@pytest.mark.parametrize("rewards", [None, {}, {"right": 1.0}])
@pytest.mark.job(**GDPO)
async def test_a_train_episode_that_lacks_one_the_job_asks_for_is_refused_by_name_and_goes_on(
    stage: Stage, rewards: dict[str, float] | None
) -> None:
    episode_id = await run(stage)
    with pytest.raises(BadRequest, match=r"gdpo_reward_keys ask for .*short, which") as refused:
        await stage.end(episode_id, rewards=rewards)
    assert refused.value.param == "rewards"
    assert (await stage.end(episode_id, rewards=REWARDS)).episode.state is EpisodeState.COMPLETED


@pytest.mark.job(**GDPO)
async def test_an_eval_episode_needs_none(stage: Stage) -> None:
    assert (await stage.end(await run(stage, episode_type="eval"))).episode.state is EpisodeState.COMPLETED


@pytest.mark.job(**GDPO)
async def test_turn_rewards_are_refused_where_named_rewards_are_learned_from(stage: Stage) -> None:
    with pytest.raises(BadRequest, match="turn_rewards: algorithm gdpo"):
        await stage.end(await run(stage), rewards=REWARDS, turn_rewards=[1.0])


@pytest.mark.job(min_group=1, **GDPO)
async def test_they_are_revised_as_a_whole_and_kept_if_left_out(stage: Stage) -> None:
    episode_id = await run(stage)
    await stage.end(episode_id, rewards=REWARDS)
    kept = await stage.episodes.revise(episode_id, ReviseRewardRequest(reward=0.0, reason="a second look"))
    assert (kept.reward, kept.rewards) == (0.0, REWARDS)
    with pytest.raises(BadRequest, match="short"):
        await stage.episodes.revise(
            episode_id, ReviseRewardRequest(reward=0.0, rewards={"right": 0.0}, reason="a third look")
        )
    other = {"right": 0.0, "short": 0.25}
    await stage.episodes.revise(episode_id, ReviseRewardRequest(reward=0.0, rewards=other, reason="a fourth look"))
    [finished] = stage.pool.close_batch("batch-1", 1).batch.episodes
    assert finished.rewards == other


@pytest.mark.job(min_group=1, **GDPO)
async def test_a_transaction_commits_them(stage: Stage) -> None:
    episode_id, secret = await run(stage), secrets.token_urlsafe(32)
    body = {"task_id": "task", "reward": 1.0, "transaction_id": secret}
    with pytest.raises(BadRequest, match="right, short"):
        await stage.episodes.transactions.prepare(episode_id, PrepareEpisodeRequest.model_validate(body))
    request = PrepareEpisodeRequest.model_validate({**body, "rewards": REWARDS})
    await stage.episodes.transactions.prepare(episode_id, request)
    await stage.episodes.transactions.commit(episode_id, secret)
    [finished] = stage.pool.close_batch("batch-1", 1).batch.episodes
    assert finished.rewards == REWARDS
