"""The pool: stop rules, survivors, mixture, and that no episode is lost uncounted."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.batch import BatchPolicy, BatchPool, DropReason, SealedBatch, rebuild
from swarm.config import TrainJob
from swarm.errors import BadRequest, Conflict
from swarm.types import FinishedEpisode, Sample


def make_pool(*, weight_version: int = 0, **job: Any) -> BatchPool:
    return BatchPool(BatchPolicy.of(TrainJob(**job)), weight_version=weight_version)


def is_ready(pool: BatchPool, now: float = 0.0, live: tuple[str, ...] = ()) -> bool:
    return pool.is_ready(now, live)


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
    episode_id: str,
    task_id: str,
    versions: tuple[int, ...] = (0, 0),
    reward: float = 1.0,
    token: int = 7,
    *,
    source: str = "default",
    ended_at: float = 0.0,
) -> FinishedEpisode:
    return FinishedEpisode(
        episode_id=episode_id,
        task_id=task_id,
        client_id="client",
        reward=reward,
        is_success=None,
        samples=(make_sample(episode_id, versions, token),),
        ended_at=ended_at,
        data_source=source,
    )


def fill(pool: BatchPool, sizes: dict[str, int]) -> None:
    for task_id, size in sizes.items():
        for repeat in range(size):
            pool.add(make_episode(f"{task_id}-{repeat}", task_id))


def reasons(sealed: SealedBatch) -> dict[str, DropReason]:
    return {drop.episode_id: drop.reason for drop in sealed.dropped}


def test_enough_tasks_waits_for_full_groups() -> None:
    pool = make_pool(batch_size=2, num_repeat=3, weight_version=0)
    fill(pool, {"a": 3, "b": 2, "c": 2})
    assert not is_ready(pool)
    pool.add(make_episode("b-2", "b"))
    assert is_ready(pool)
    progress = pool.progress()
    assert (progress.tasks, progress.tasks_target) == (2, 2)
    assert (progress.episodes, progress.episodes_target) == (8, 6)
    assert progress.stop_rule == "enough_tasks"


def test_enough_episodes_counts_episodes_of_any_task() -> None:
    pool = make_pool(batch_size=2, num_repeat=3, stop_rule="enough_episodes", weight_version=0)
    fill(pool, {"a": 1, "b": 4})
    assert not is_ready(pool)
    pool.add(make_episode("c-0", "c"))
    assert is_ready(pool)


def test_group_trains_on_its_survivors_and_a_small_one_is_dropped_and_counted() -> None:
    pool = make_pool(batch_size=2, num_repeat=4, min_group=2, weight_version=0)
    fill(pool, {"a": 4, "b": 2, "c": 1})
    sealed = pool.seal("batch-1", step=5)
    assert sealed.batch.batch_id == "batch-1"
    assert sealed.batch.step == 5
    assert [(group.task_id, len(group.episodes)) for group in sealed.batch.groups] == [("a", 4), ("b", 2)]
    assert reasons(sealed) == {"c-0": DropReason.GROUP_TOO_SMALL}
    assert sealed.dropped[0].trained_tokens == 2


def test_pool_is_empty_after_seal() -> None:
    pool = make_pool(batch_size=1, num_repeat=1, weight_version=0)
    fill(pool, {"a": 1})
    pool.seal("batch-1", step=1)
    assert len(pool) == 0
    assert not is_ready(pool)
    assert pool.seal("batch-2", step=2).batch.groups == ()


def test_single_repeat_job_trains_single_episodes() -> None:
    pool = make_pool(batch_size=2, num_repeat=1, weight_version=0)
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
    pool = make_pool(batch_size=1, num_repeat=1, weight_version=3, max_staleness=max_staleness)
    assert pool.add(make_episode("e", "a", versions)) is reason
    assert is_ready(pool) is (reason is None)
    sealed = pool.seal("batch-1", step=1)
    assert reasons(sealed) == ({} if reason is None else {"e": reason})


def test_episodes_of_older_weights_stop_counting_once_new_weights_are_published() -> None:
    pool = make_pool(batch_size=1, num_repeat=2, weight_version=0)
    fill(pool, {"a": 2})
    assert is_ready(pool)
    pool.publish(1)
    assert not is_ready(pool)
    assert set(reasons(pool.seal("batch-1", step=1)).values()) == {DropReason.STALE}


def test_prompt_tokens_do_not_make_an_episode_stale() -> None:
    pool = make_pool(batch_size=1, num_repeat=1, weight_version=9)
    assert pool.add(make_episode("e", "a", (9,))) is None


def test_the_same_episode_twice_is_a_conflict() -> None:
    pool = make_pool(batch_size=1, num_repeat=2, weight_version=0)
    pool.add(make_episode("e", "a"))
    with pytest.raises(Conflict, match="already in the pool"):
        pool.restore([make_episode("e", "a")])
    assert len(pool) == 1


def test_a_failed_step_can_be_sealed_again_from_its_batch() -> None:
    pool = make_pool(batch_size=1, num_repeat=2, weight_version=0)
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
    pool = make_pool(batch_size=2, num_repeat=3, min_group=min_group, max_staleness=max_staleness, weight_version=2)
    pool.restore(episodes)
    admissible = pool.progress().episodes
    sealed = pool.seal("batch-1", step=1)
    trained = [episode.episode_id for episode in sealed.batch.episodes]
    stayed = len(pool)
    assert stayed == 0 or max_staleness > 0
    pool.publish(10)
    dropped = [*sealed.dropped, *pool.seal("batch-2", step=2).dropped]
    assert sorted([*trained, *(drop.episode_id for drop in dropped)]) == sorted(e.episode_id for e in episodes)
    tokens = sum(episode.trained_tokens for episode in sealed.batch.episodes)
    assert tokens + sum(drop.trained_tokens for drop in dropped) == sum(e.trained_tokens for e in episodes)
    too_small = sum(drop.reason is DropReason.GROUP_TOO_SMALL for drop in sealed.dropped)
    assert admissible == len(trained) + too_small + stayed
    for group in sealed.batch.groups:
        assert len(group.episodes) >= min_group
        assert {episode.task_id for episode in group.episodes} == {group.task_id}


@settings(deadline=None)
@given(episodes=EPISODES, data=st.data())
def test_batch_does_not_depend_on_the_order_of_arrival(episodes: list[FinishedEpisode], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(episodes))
    pools = [make_pool(batch_size=2, num_repeat=3, weight_version=2, max_staleness=2) for _ in range(2)]
    pools[0].restore(episodes)
    pools[1].restore(shuffled)
    assert pools[0].seal("batch-1", step=1) == pools[1].seal("batch-1", step=1)


def test_groups_without_a_difference_do_not_count_and_are_dropped_under_dynamic_sampling() -> None:
    pool = make_pool(batch_size=2, num_repeat=2, stop_rule="enough_non_constant_tasks")
    fill(pool, {"a": 2, "b": 2})
    for task_id in ("c", "d"):
        assert not is_ready(pool)
        pool.add(make_episode(f"{task_id}-0", task_id, reward=0.0))
        pool.add(make_episode(f"{task_id}-1", task_id, reward=1.0))
    assert is_ready(pool)
    sealed = pool.seal("batch-1", step=1)
    assert [group.task_id for group in sealed.batch.groups] == ["c", "d"]
    assert set(reasons(sealed).values()) == {DropReason.CONSTANT_REWARD}
    assert len(sealed.dropped) == 4


def test_one_client_that_agrees_is_enough_for_any_and_not_for_all() -> None:
    for rule, expected in (("any_client_agrees", True), ("all_clients_agree", False)):
        pool = make_pool(batch_size=4, num_repeat=2, stop_rule=rule)
        pool.agree("one")
        assert not is_ready(pool, live=("one",)), "nothing could be trained"
        fill(pool, {"a": 2})
        assert is_ready(pool, live=("one", "two")) is expected
        pool.agree("two")
        assert is_ready(pool, live=("one", "two"))
        assert pool.agreed == ("one", "two")
        pool.seal("batch-1", step=1)
        assert pool.agreed == ()


def test_batch_is_sealed_by_its_time_whatever_the_rule_says() -> None:
    pool = make_pool(batch_size=4, num_repeat=2, batch_timeout_s=60)
    assert pool.deadline is None
    pool.add(make_episode("a-0", "a", ended_at=100.0))
    pool.add(make_episode("b-0", "b", ended_at=110.0))
    assert pool.deadline == 160.0
    assert not is_ready(pool, now=161.0), "no group is large enough to train"
    pool.add(make_episode("a-1", "a", ended_at=120.0))
    assert not is_ready(pool, now=159.0)
    assert is_ready(pool, now=161.0)
    pool.seal("batch-1", step=1)
    assert pool.deadline is None


def test_policy_takes_over_when_the_batch_is_sealed() -> None:
    pool = make_pool(batch_size=1, num_repeat=2)
    upcoming = BatchPolicy.of(TrainJob(batch_size=2, num_repeat=2))
    pool.propose(upcoming)
    fill(pool, {"a": 2})
    assert (pool.policy.batch_size, pool.next_policy) == (1, upcoming)
    assert is_ready(pool)
    pool.seal("batch-1", step=1)
    assert (pool.policy, pool.next_policy) == (upcoming, None)
    fill(pool, {"b": 2})
    assert not is_ready(pool)
    pool.propose(upcoming)
    assert pool.next_policy is None


def test_a_revised_reward_replaces_the_first_one_and_changes_what_counts() -> None:
    pool = make_pool(batch_size=1, num_repeat=2, stop_rule="enough_non_constant_tasks")
    fill(pool, {"a": 2})
    assert not is_ready(pool)
    assert pool.replace(make_episode("a-0", "a", reward=0.0))
    assert is_ready(pool)
    assert not pool.replace(make_episode("elsewhere", "a"))
    assert [episode.reward for episode in pool.seal("batch-1", step=1).batch.episodes] == [0.0, 1.0]


def test_a_complete_batch_takes_full_groups_and_leaves_the_others_to_the_next_if_they_may_be_older() -> None:
    pool = make_pool(batch_size=1, num_repeat=3, max_staleness=1)
    fill(pool, {"a": 3, "b": 2})
    first = pool.seal("batch-1", step=1)
    assert ([group.task_id for group in first.batch.groups], first.dropped) == (["a"], ())
    pool.publish(1)
    pool.add(make_episode("b-2", "b", versions=(0, 1)))
    assert is_ready(pool)
    assert len(pool.seal("batch-2", step=2).batch.episodes) == 3
    fill(pool, {"c": 1})
    pool.publish(2)
    assert set(reasons(pool.seal("batch-3", step=3)).values()) == {DropReason.STALE}


MIXTURE = {"math": 0.4, "code": 0.3, "shell": 0.3}


def test_source_outside_the_mixture_is_refused_by_name() -> None:
    pool = make_pool(batch_size=10, num_repeat=2, mixture=MIXTURE)
    with pytest.raises(BadRequest, match="'poetry' is not in the mixture \\(code, math, shell\\)"):
        pool.may_begin("poetry", 0)


def test_a_source_whose_quota_is_covered_may_not_begin_until_something_is_lost() -> None:
    pool = make_pool(batch_size=10, num_repeat=2, mixture=MIXTURE)
    assert pool.may_begin("math", 7)
    assert not pool.may_begin("math", 8)
    pool.add(make_episode("m-0", "m", source="math"))
    assert not pool.may_begin("math", 7)
    assert pool.may_begin("math", 6), "one of those that ran was lost"
    assert pool.may_begin("code", 5)
    assert not pool.may_begin("code", 6)


def test_surplus_of_a_source_is_dropped_as_over_quota() -> None:
    pool = make_pool(batch_size=2, num_repeat=1, mixture={"math": 0.5, "code": 0.5})
    for number in range(3):
        pool.add(make_episode(f"m{number}", f"m{number}", source="math"))
    assert not is_ready(pool)
    assert (pool.progress().tasks, pool.progress().sources["math"].tasks) == (1, 3)
    pool.add(make_episode("c", "c", source="code"))
    assert is_ready(pool)
    sealed = pool.seal("batch-1", step=1)
    assert Counter(episode.data_source for episode in sealed.batch.episodes) == {"math": 1, "code": 1}
    assert list(reasons(sealed).values()) == [DropReason.OVER_QUOTA] * 2


@settings(deadline=None, max_examples=30)
@given(
    shares=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    batch_size=st.integers(1, 12),
    restart_after=st.integers(0, 30),
)
def test_long_run_shares_are_those_of_the_mixture_within_one_task(
    shares: list[int], batch_size: int, restart_after: int
) -> None:
    mixture = {f"s{number}": share / sum(shares) for number, share in enumerate(shares)}
    job = {"batch_size": batch_size, "num_repeat": 1, "mixture": mixture}
    pool = make_pool(**job)
    trained: Counter[str] = Counter()
    for step in range(1, 31):
        if step == restart_after:
            pool = BatchPool(BatchPolicy.of(TrainJob(**job)), weight_version=step - 1, trained_groups=trained)
        for name, source in pool.progress().sources.items():
            for number in range(source.tasks_target or 0):
                episode_id = f"{step}-{name}-{number}"
                pool.add(make_episode(episode_id, episode_id, (step - 1,), source=name))
        assert is_ready(pool)
        batch = pool.seal(f"b{step}", step).batch
        assert len(batch.groups) == batch_size
        trained.update(group.episodes[0].data_source for group in batch.groups)
        pool.publish(step)
        for name, share in mixture.items():
            assert abs(trained[name] - share * step * batch_size) <= 1.0 + 1e-9


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.3, 0.6]), repeat=st.integers(1, 4))
def test_batches_are_completed_whoever_is_faster_and_whatever_is_lost(seed: int, loss: float, repeat: int) -> None:
    """Clients of different speed, each with its own source, whose episodes get lost at random."""
    dice = random.Random(seed)
    pool = make_pool(batch_size=5, num_repeat=repeat, mixture=MIXTURE)
    running: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for _ in range(20_000):
        if is_ready(pool) and not running.total():
            break
        source = dice.choices(list(MIXTURE), [25, 5, 1])[0]
        if dice.random() < 0.5:
            if not is_ready(pool) and pool.may_begin(source, running[source]):
                running[source] += 1
        elif running[source]:
            running[source] -= 1
            if dice.random() >= loss:
                # One task after the other, however many of its episodes were lost.
                task = ended[source] // repeat
                ended[source] += 1
                pool.add(make_episode(f"{source}-{ended[source]}", f"{source}-{task}", source=source))
    assert is_ready(pool)
    sealed = pool.seal("batch-1", step=1)
    quotas = {"math": 2, "code": 2, "shell": 1}
    assert Counter(group.episodes[0].data_source for group in sealed.batch.groups) in (
        quotas,
        {"math": 2, "code": 1, "shell": 2},
    )


@settings(deadline=None)
@given(episodes=EPISODES, data=st.data())
def test_rebuilt_batch_equals_the_sealed_one(episodes: list[FinishedEpisode], data: st.DataObject) -> None:
    pool = make_pool(batch_size=2, num_repeat=3, weight_version=2)
    pool.restore(episodes)
    sealed = pool.seal("batch-1", step=1).batch
    assert rebuild("batch-1", 1, data.draw(st.permutations(sealed.episodes))) == sealed


def test_adding_to_a_large_pool_costs_no_more_than_to_a_small_one() -> None:
    pool = make_pool(batch_size=100_000, num_repeat=8)
    for number in range(20_000):
        pool.add(make_episode(f"e{number}", f"t{number // 8}"))
        assert not is_ready(pool)
    assert pool.progress().tasks == 2_500
