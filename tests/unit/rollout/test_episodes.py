"""An episode from begin to what became of it: exactly once, through aborts, expiry, a full disk and a restart."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from rollout_support import Stage, eventually, rolling, sampled_turn

from swarm.errors import BadRequest, EpisodeEnded, IdempotencyMismatch, LedgerError, NotFound, Unauthorized
from swarm.ledger import ReportedResult
from swarm.rollout.results import align_turn_rewards
from swarm.schemas import EpisodeState
from swarm.types import EpisodeType, FinishReason

pytestmark = pytest.mark.anyio


@pytest.mark.job(min_group=1)
async def test_an_ended_episode_waits_in_the_pool_with_its_source_and_turn_rewards(stage: Stage) -> None:
    episode = await stage.begin(data_source="math", client_id="laptop")
    for _ in range(2):
        await stage.call(episode)
    receipt = await stage.end(episode.episode_id, turn_rewards=[0.5, -1])
    assert (receipt.episode.state, receipt.replayed) == (EpisodeState.COMPLETED, False)
    [finished] = stage.pool.close_batch("batch-1", 1).batch.episodes
    assert (finished.data_source, finished.client_id, finished.turn_rewards) == ("math", "laptop", (0.5, -1))
    row = await stage.ledger.episode(episode.episode_id)
    assert (row.turn_rewards, row.data_source) == ((0.5, -1), "math")


async def test_turn_rewards_of_the_wrong_length_are_refused_and_the_episode_goes_on(stage: Stage) -> None:
    episode = await stage.begin()
    await stage.call(episode)
    with pytest.raises(BadRequest, match=r"2 given.*1 recorded turns") as refused:
        await stage.end(episode.episode_id, turn_rewards=[1, 2])
    assert refused.value.param == "turn_rewards"
    await stage.call(episode)
    await stage.end(episode.episode_id, turn_rewards=[1, 2])


def test_turn_rewards_stand_at_the_index_of_their_turn() -> None:
    turns = [
        sampled_turn("ep", 0),
        sampled_turn("ep", 1, finish_reason=FinishReason.ABORT),
        sampled_turn("ep", 3),
    ]
    assert align_turn_rewards([1, 2], turns) == (1, 0, 0, 2)
    assert align_turn_rewards([1, 5, 2], turns) == (1, 5, 0, 2)
    assert align_turn_rewards(None, turns) is None
    assert align_turn_rewards([], []) == ()
    with pytest.raises(BadRequest, match="2 recorded turns \\(and 1 aborted\\)"):
        align_turn_rewards([1], turns)


async def test_ends_sent_at_once_count_once(stage: Stage) -> None:
    episode = await stage.begin()
    await stage.call(episode)
    receipts = await asyncio.gather(*(stage.end(episode.episode_id) for _ in range(8)))
    assert sorted(receipt.replayed for receipt in receipts) == [False] + [True] * 7
    assert stage.pool.progress().episodes == 1
    assert stage.episodes.running(EpisodeType.TRAIN) == 0
    with pytest.raises(IdempotencyMismatch):
        await stage.end(episode.episode_id, reward=0)


async def test_an_end_whose_caller_was_cut_off_counts_when_it_is_sent_again(stage: Stage) -> None:
    episode = await stage.begin()
    await stage.call(episode)
    cut_off = asyncio.create_task(stage.end(episode.episode_id))
    await asyncio.sleep(0)
    cut_off.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut_off
    receipt = await stage.end(episode.episode_id)
    assert receipt.episode.state is EpisodeState.COMPLETED
    assert stage.pool.progress().episodes == 1


@pytest.mark.job(min_group=1)
async def test_an_end_whose_caller_never_came_back_is_found_when_the_episode_would_expire(stage: Stage) -> None:
    episode = await stage.begin(lease_s=1)
    await stage.call(episode)
    # What is left of an end that was cut off between the ledger's commit and its answer.
    await stage.ledger.end_episode(
        ReportedResult(
            episode.episode_id,
            idempotency_key=episode.episode_id,
            payload_digest="",
            task_id="task",
            reward=0.5,
            is_success=None,
            metadata={},
            ended_at=time.time(),
        )
    )
    await eventually(lambda: stage.episodes.running(EpisodeType.TRAIN) == 0)
    [finished] = stage.pool.close_batch("batch-1", 1).batch.episodes
    assert (finished.reward, finished.trained_tokens) == (0.5, 2)
    [client] = stage.episodes.client_views()
    assert (client.completed, client.lost) == (1, 0)


@pytest.mark.job(min_group=1)
async def test_an_end_during_a_call_trains_what_is_on_record(stage: Stage) -> None:
    episode = await stage.begin()
    running = stage.episodes.authorize(episode.api_key)
    running.calls_in_flight += 1
    await stage.ledger.add_turns([sampled_turn(episode.episode_id, 0)])
    await stage.end(episode.episode_id)
    [finished] = stage.pool.close_batch("batch-1", 1).batch.episodes
    assert [sample.token_ids_T for sample in finished.samples] == [(1, 2, 10, 4, 5)]


def refuse_updates(home: Path, refuse: bool) -> None:
    """Make the database refuse every change of an episode, as a broken disk would, or let them through again."""
    with closing(sqlite3.connect(home / "ledger.db", timeout=5)) as connection:
        connection.execute(
            "CREATE TRIGGER broken BEFORE UPDATE ON episodes BEGIN SELECT RAISE(ABORT, 'disk on fire'); END"
            if refuse
            else "DROP TRIGGER broken"
        )
        connection.commit()


async def test_an_end_or_abort_that_the_ledger_refuses_leaves_the_episode_running(stage: Stage, tmp_path: Path) -> None:
    episode = await stage.begin()
    await stage.call(episode)
    refuse_updates(tmp_path, True)
    with pytest.raises(LedgerError):
        await stage.end(episode.episode_id)
    with pytest.raises(LedgerError):
        await stage.episodes.abort(episode.episode_id, "tool_crashed")
    assert stage.episodes.authorize(episode.api_key).closed is None
    refuse_updates(tmp_path, False)
    await stage.end(episode.episode_id)
    assert stage.pool.progress().episodes == 1


async def test_an_expiry_that_the_ledger_refuses_is_tried_again(stage: Stage, tmp_path: Path) -> None:
    episode = await stage.begin(idle_timeout_s=0.2)
    refuse_updates(tmp_path, True)
    await asyncio.sleep(0.6)
    assert stage.episodes.running(EpisodeType.TRAIN) == 1
    refuse_updates(tmp_path, False)
    await eventually(lambda: stage.episodes.running(EpisodeType.TRAIN) == 0)
    assert (await stage.ledger.episode(episode.episode_id)).outcome == "idle_timeout"


@pytest.mark.job(batch_size=3)
async def test_silence_ends_an_episode_with_its_reason_and_its_key_hears_it(stage: Stage) -> None:
    leased = await stage.begin(lease_s=1, client_id="dead")
    idle = await stage.begin(idle_timeout_s=0.3)
    kept, calling = await stage.begin(lease_s=1), await stage.begin(lease_s=1, idle_timeout_s=1)
    hung = await stage.begin(lease_s=1, idle_timeout_s=1.2, client_id="hung")
    until = time.monotonic() + 1.8
    while time.monotonic() < until:
        stage.episodes.heartbeat(kept.episode_id)
        stage.episodes.authorize(calling.api_key)
        assert stage.episodes.heartbeat_client("hung", [kept.episode_id]) == {}
        stage.episodes.heartbeat_client("hung", [hung.episode_id])
        await asyncio.sleep(0.1)
    for episode, reason in ((leased, "lease_expired"), (idle, "idle_timeout"), (hung, "idle_timeout")):
        row = await stage.ledger.episode(episode.episode_id)
        assert (row.state, row.outcome) == (EpisodeState.EXPIRED, reason)
        with pytest.raises(EpisodeEnded, match=reason):
            stage.episodes.authorize(episode.api_key)
        with pytest.raises(EpisodeEnded, match=reason):
            await stage.end(episode.episode_id)
    with pytest.raises(EpisodeEnded, match="lease_expired"):
        stage.episodes.heartbeat(leased.episode_id)
    assert stage.episodes.running(EpisodeType.TRAIN) == 2
    lost = {client.client_id: client.lost for client in stage.episodes.client_views()}
    assert (lost["dead"], lost["hung"]) == (1, 1)


async def test_a_server_that_stood_still_hears_its_clients_before_it_gives_them_up(stage: Stage) -> None:
    kept, dead = await stage.begin(lease_s=1), await stage.begin(lease_s=1)
    await asyncio.sleep(0.05)
    time.sleep(3.5)
    await asyncio.sleep(0.3)
    stage.episodes.heartbeat(kept.episode_id)
    await eventually(lambda: stage.episodes.running(EpisodeType.TRAIN) == 1, 2)
    assert [view.episode_id for view in stage.episodes.running_views()] == [kept.episode_id] != [dead.episode_id]


async def test_a_bulk_heartbeat_names_what_does_not_run_and_why(stage: Stage) -> None:
    running, ended, aborted = [await stage.begin() for _ in range(3)]
    await stage.end(ended.episode_id)
    await stage.episodes.abort(aborted.episode_id, "tool_crashed")
    listed = [running.episode_id, ended.episode_id, aborted.episode_id, "ep-nobody-knows"]
    assert stage.episodes.heartbeat_client("laptop", listed) == {
        ended.episode_id: "ended",
        aborted.episode_id: "tool_crashed",
        "ep-nobody-knows": "unknown",
    }


async def test_an_abort_may_be_repeated_and_nothing_else_follows_it(stage: Stage) -> None:
    episode = await stage.begin()
    for _ in range(2):
        await stage.episodes.abort(episode.episode_id, "tool_crashed")
    with pytest.raises(EpisodeEnded):
        await stage.end(episode.episode_id)
    with pytest.raises(NotFound):
        await stage.episodes.abort("ep-nobody-knows", "x")
    with pytest.raises(Unauthorized):
        stage.episodes.authorize("sk-swarm-nobody-knows")


@pytest.mark.job(max_running=1000, batch_size=400)
async def test_hundreds_of_episodes_that_fall_due_together_are_gone_at_once(stage: Stage) -> None:
    await asyncio.gather(*(stage.begin(idle_timeout_s=1.0) for _ in range(800)))
    await eventually(lambda: stage.episodes.running(EpisodeType.TRAIN) == 0)
    assert (await stage.ledger.failures()) == {"idle_timeout": 800}


async def test_closing_aborts_whatever_runs(stage: Stage) -> None:
    for _ in range(3):
        await stage.begin()
    await stage.episodes.close("engine_stopped")
    assert (await stage.ledger.failures()) == {"engine_stopped": 3}


async def test_running_episodes_go_on_after_a_crash_with_key_turns_and_source(tmp_path: Path) -> None:
    async with rolling(tmp_path) as stage:
        first, second = [await stage.begin(data_source="math", lease_s=5, client_id="laptop") for _ in range(2)]
        await stage.call(first)
    async with rolling(tmp_path) as stage:
        assert stage.episodes.running(EpisodeType.TRAIN) == 2
        [client] = stage.episodes.client_views()
        assert (client.client_id, client.running) == ("laptop", 2)
        assert stage.episodes.pool_view().sources["math"].running == 2
        assert stage.episodes.heartbeat_client("laptop", [first.episode_id, second.episode_id]) == {}
        assert stage.episodes.authorize(first.api_key).tree.turns[0].output_ids_T == (4, 5)
        await stage.call(first)
        await stage.end(first.episode_id, turn_rewards=[1, 0])
        assert stage.pool.progress().episodes == 1
        await stage.episodes.abort(second.episode_id, "enough")


async def test_an_episode_whose_record_has_a_hole_is_given_up_after_a_crash(tmp_path: Path) -> None:
    async with rolling(tmp_path) as stage:
        episode_id = (await stage.begin()).episode_id
        await stage.ledger.add_turns([sampled_turn(episode_id, 1, parent=0, fork_reason=None)])
    async with rolling(tmp_path) as stage:
        await eventually(lambda: stage.episodes.running(EpisodeType.TRAIN) == 0)
        assert (await stage.ledger.episode(episode_id)).outcome == "record_incomplete"


@pytest.mark.job(batch_size=6)
async def test_the_status_lists_the_longest_silent_and_counts_by_source(stage: Stage) -> None:
    episodes = [await stage.begin(data_source=f"s{number % 2}", task_id=f"t{number}") for number in range(6)]
    stage.episodes.heartbeat(episodes[0].episode_id)
    views = stage.episodes.running_views(limit=2)
    assert [view.episode_id for view in views] == [episodes[1].episode_id, episodes[2].episode_id]
    assert (views[0].task_id, views[0].data_source, views[0].turns) == ("t1", "s1", 0)
    pool = stage.episodes.pool_view()
    assert (pool.running_train, pool.running_eval) == (6, 0)
    assert {name: source.running for name, source in pool.sources.items()} == {"s0": 3, "s1": 3}
    for episode in episodes:
        await stage.end(episode.episode_id)
    assert stage.episodes.running_views() == []
