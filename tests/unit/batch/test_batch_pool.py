"""The pool: stop rules, survivors, and that no episode is lost uncounted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.batch import BatchPool, DropReason, SealedBatch
from swarm.config import TrainJob
from swarm.errors import Conflict
from swarm.types import FinishedEpisode, Sample


def make_sample(episode_id: str, versions: tuple[int, ...], token: int = 7) -> Sample:
    """One prompt token, then one sampled token per entry of `versions`."""
    sampled = len(versions)
    return Sample(
        episode_id=episode_id,
        token_ids_T=(1, *(token,) * sampled),
        loss_mask_T=(False, *(True,) * sampled),
        logprobs_T=(0.0, *(-0.5,) * sampled),
        weight_versions_T=(-1, *versions),
        turn_indices_T=(-1, *(0,) * sampled),
        temperatures_T=(1.0,) * (1 + sampled),
    )


def make_episode(
    episode_id: str, task_id: str, versions: tuple[int, ...] = (0, 0), reward: float = 1.0, token: int = 7
) -> FinishedEpisode:
    return FinishedEpisode(
        episode_id=episode_id,
        task_id=task_id,
        client_id="client",
        reward=reward,
        is_success=None,
        samples=(make_sample(episode_id, versions, token),),
        ended_at=0.0,
    )


def fill(pool: BatchPool, sizes: dict[str, int]) -> None:
    for task_id, size in sizes.items():
        for repeat in range(size):
            pool.add(make_episode(f"{task_id}-{repeat}", task_id))


def reasons(sealed: SealedBatch) -> dict[str, DropReason]:
    return {drop.episode_id: drop.reason for drop in sealed.dropped}


def test_enough_tasks_waits_for_full_groups() -> None:
    pool = BatchPool(TrainJob(batch_size=2, num_repeat=3), weight_version=0)
    fill(pool, {"a": 3, "b": 2, "c": 2})
    assert not pool.ready
    pool.add(make_episode("b-2", "b"))
    assert pool.ready
    progress = pool.progress()
    assert (progress.tasks, progress.tasks_target) == (2, 2)
    assert (progress.episodes, progress.episodes_target) == (8, 6)
    assert progress.stop_rule == "enough_tasks"


def test_enough_episodes_counts_episodes_of_any_task() -> None:
    pool = BatchPool(TrainJob(batch_size=2, num_repeat=3, stop_rule="enough_episodes"), weight_version=0)
    fill(pool, {"a": 1, "b": 4})
    assert not pool.ready
    pool.add(make_episode("c-0", "c"))
    assert pool.ready


def test_group_trains_on_its_survivors_and_a_small_one_is_dropped_and_counted() -> None:
    pool = BatchPool(TrainJob(batch_size=2, num_repeat=4, min_group=2), weight_version=0)
    fill(pool, {"a": 4, "b": 2, "c": 1})
    sealed = pool.seal("batch-1", step=5)
    assert sealed.batch.batch_id == "batch-1"
    assert sealed.batch.step == 5
    assert [(group.task_id, len(group.episodes)) for group in sealed.batch.groups] == [("a", 4), ("b", 2)]
    assert reasons(sealed) == {"c-0": DropReason.GROUP_TOO_SMALL}
    assert sealed.dropped[0].trained_tokens == 2


def test_pool_is_empty_after_seal() -> None:
    pool = BatchPool(TrainJob(batch_size=1, num_repeat=1), weight_version=0)
    fill(pool, {"a": 1})
    pool.seal("batch-1", step=1)
    assert len(pool) == 0
    assert not pool.ready
    assert pool.seal("batch-2", step=2).batch.groups == ()


def test_single_repeat_job_trains_single_episodes() -> None:
    pool = BatchPool(TrainJob(batch_size=2, num_repeat=1), weight_version=0)
    fill(pool, {"a": 1, "b": 1})
    sealed = pool.seal("batch-1", step=1)
    assert len(sealed.batch.episodes) == 2
    assert sealed.dropped == ()


@pytest.mark.parametrize(
    ("versions", "max_staleness", "reason"),
    [
        ((3, 3), 0, None),
        ((2, 3), 0, DropReason.STALE),
        ((2, 3), 1, None),
        ((1, 3), 1, DropReason.STALE),
        ((4, 4), 0, DropReason.STALE),
        ((), 0, DropReason.NO_TOKENS),
    ],
)
def test_an_episode_counts_only_if_every_token_is_fresh_enough(
    versions: tuple[int, ...], max_staleness: int, reason: DropReason | None
) -> None:
    pool = BatchPool(TrainJob(batch_size=1, num_repeat=1), weight_version=3, max_staleness=max_staleness)
    assert pool.add(make_episode("e", "a", versions)) is reason
    assert pool.ready is (reason is None)
    sealed = pool.seal("batch-1", step=1)
    assert reasons(sealed) == ({} if reason is None else {"e": reason})


def test_episodes_of_older_weights_stop_counting_once_new_weights_are_published() -> None:
    pool = BatchPool(TrainJob(batch_size=1, num_repeat=2), weight_version=0)
    fill(pool, {"a": 2})
    assert pool.ready
    pool.publish(1)
    assert not pool.ready
    assert set(reasons(pool.seal("batch-1", step=1)).values()) == {DropReason.STALE}


def test_prompt_tokens_do_not_make_an_episode_stale() -> None:
    pool = BatchPool(TrainJob(batch_size=1, num_repeat=1), weight_version=9)
    assert pool.add(make_episode("e", "a", (9,))) is None


def test_the_same_episode_twice_is_a_conflict() -> None:
    pool = BatchPool(TrainJob(batch_size=1, num_repeat=2), weight_version=0)
    pool.add(make_episode("e", "a"))
    with pytest.raises(Conflict, match="already in the pool"):
        pool.restore([make_episode("e", "a")])
    assert len(pool) == 1


def test_a_failed_step_can_be_sealed_again_from_its_batch() -> None:
    pool = BatchPool(TrainJob(batch_size=1, num_repeat=2), weight_version=0)
    fill(pool, {"a": 2})
    first = pool.seal("batch-1", step=1)
    pool.restore(first.batch.episodes)
    assert pool.seal("batch-1", step=1) == first


EPISODES = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.integers(0, 2),
    ),
    max_size=24,
).map(
    lambda rows: [
        make_episode(f"{number:02d}", task, versions, reward, token)
        for number, (task, versions, reward, token) in enumerate(rows)
    ]
)


@settings(deadline=None)
@given(episodes=EPISODES, min_group=st.integers(1, 3), max_staleness=st.integers(0, 2))
def test_every_episode_is_trained_or_dropped_exactly_once(
    episodes: list[FinishedEpisode], min_group: int, max_staleness: int
) -> None:
    job = TrainJob(batch_size=2, num_repeat=3, min_group=min_group)
    pool = BatchPool(job, weight_version=2, max_staleness=max_staleness)
    pool.restore(episodes)
    admissible = pool.progress().episodes
    sealed = pool.seal("batch-1", step=1)
    trained = [episode.episode_id for episode in sealed.batch.episodes]
    dropped = [drop.episode_id for drop in sealed.dropped]
    assert sorted(trained + dropped) == sorted(episode.episode_id for episode in episodes)
    tokens = sum(episode.trained_tokens for episode in sealed.batch.episodes)
    lost = sum(drop.trained_tokens for drop in sealed.dropped)
    assert tokens + lost == sum(episode.trained_tokens for episode in episodes)
    too_small = sum(drop.reason is DropReason.GROUP_TOO_SMALL for drop in sealed.dropped)
    assert admissible == len(trained) + too_small
    for group in sealed.batch.groups:
        assert len(group.episodes) >= min_group
        assert {episode.task_id for episode in group.episodes} == {group.task_id}


@settings(deadline=None)
@given(episodes=EPISODES, data=st.data())
def test_batch_does_not_depend_on_the_order_of_arrival(episodes: list[FinishedEpisode], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(episodes))
    pools = [BatchPool(TrainJob(batch_size=2, num_repeat=3), weight_version=2, max_staleness=2) for _ in range(2)]
    pools[0].restore(episodes)
    pools[1].restore(shuffled)
    assert pools[0].seal("batch-1", step=1) == pools[1].seal("batch-1", step=1)
