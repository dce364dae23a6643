"""The pool: stop rules, survivors, what stays for the next batch, live policy, revised rewards."""

from __future__ import annotations

from typing import Any

import pytest
from batch_support import Clock, begin, fill, is_ready, make_episode, make_pool, reasons

from swarm.batch import BatchPolicy, DropReason
from swarm.errors import Conflict
from swarm.job import TrainJob


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


def test_the_same_episode_twice_is_a_conflict() -> None:
    pool = make_pool(batch_size=1, num_repeat=2, weight_version=0)
    pool.add(make_episode("e", "a"))
    with pytest.raises(Conflict, match="already in the pool"):
        pool.restore([make_episode("e", "a")])
    assert len(pool) == 1


def test_batch_is_closed_by_its_time_whatever_the_rule_says() -> None:
    clock = Clock()
    pool = make_pool(batch_size=4, num_repeat=2, batch_timeout_s=60, clock=clock)
    assert pool.deadline is None
    pool.add(make_episode("a-0", "a", ended_at=100.0))
    pool.add(make_episode("b-0", "b", ended_at=110.0))
    assert pool.deadline == 160.0
    clock.now = 161.0
    assert not is_ready(pool), "no group is large enough to train"
    clock.now = 159.0
    pool.add(make_episode("a-1", "a", ended_at=120.0))
    assert not is_ready(pool)
    clock.now = 161.0
    assert is_ready(pool)
    pool.close_batch("batch-1", step=1)
    assert pool.deadline is None


def test_a_complete_batch_takes_full_groups_and_leaves_the_others_to_the_next_if_they_may_be_older() -> None:
    pool = make_pool(batch_size=1, num_repeat=3, max_staleness=1)
    fill(pool, {"a": 3, "b": 2})
    first = pool.close_batch("batch-1", step=1)
    assert ([group.task_id for group in first.batch.groups], first.dropped) == (["a"], ())
    pool.publish(1)
    pool.add(make_episode("b-2", "b", versions=(0, 1)))
    assert is_ready(pool)
    assert len(pool.close_batch("batch-2", step=2).batch.episodes) == 3
    fill(pool, {"c": 1})
    pool.publish(2)
    assert set(reasons(pool.close_batch("batch-3", step=3)).values()) == {DropReason.STALE}


@pytest.mark.parametrize("stop_rule", ["enough_tasks", "enough_episodes", "enough_non_constant_tasks"])
def test_where_tokens_may_be_older_a_batch_is_no_larger_than_its_target_and_the_oldest_groups_come_first(
    stop_rule: str,
) -> None:
    pool = make_pool(batch_size=2, num_repeat=2, stop_rule=stop_rule, max_staleness=2, weight_version=1)
    for version, task in ((1, "a"), (1, "b"), (0, "c"), (1, "d"), (1, "e")):
        for number in range(2):
            pool.add(make_episode(f"{task}-{number}", task, versions=(version,), reward=float(number)))
    seen: list[str] = []
    for step, size in ((2, 2), (3, 2)):
        closed = pool.close_batch(f"batch-{step}", step=step)
        pool.publish(step)
        assert (len(closed.batch.groups), closed.dropped) == (size, ())
        seen += [group.task_id for group in closed.batch.groups]
    assert "c" in seen[:2]
    assert len(set(seen)) == 4
    assert (len(pool), is_ready(pool)) == (2, False)


def test_groups_that_the_next_batch_could_not_hold_come_first_even_where_they_are_not_full() -> None:
    pool = make_pool(batch_size=1, num_repeat=3, max_staleness=1, weight_version=1)
    for version, task, size in ((0, "a", 2), (1, "c", 3)):
        for number in range(size):
            pool.add(make_episode(f"{task}-{number}", task, versions=(version,)))
    closed = pool.close_batch("batch-1", step=2)
    assert ([group.task_id for group in closed.batch.groups], closed.dropped) == (["a"], ())
    assert len(pool) == 3


def test_a_batch_is_no_larger_than_its_target_even_if_something_is_lost_by_that() -> None:
    pool = make_pool(batch_size=1, num_repeat=2, max_staleness=1, weight_version=1)
    for version, task in ((0, "a"), (0, "b"), (1, "c")):
        for number in range(2):
            pool.add(make_episode(f"{task}-{number}", task, versions=(version,)))
    closed = pool.close_batch("batch-1", step=2)
    assert len(closed.batch.groups) == 1
    assert set(reasons(closed).values()) == {DropReason.OVER_QUOTA}
    assert (len(closed.dropped), len(pool)) == (2, 2)


@pytest.mark.parametrize("stop_rule", ["enough_tasks", "enough_episodes"])
@pytest.mark.parametrize("max_staleness", [1, 3])
def test_no_more_is_begun_than_batches_can_take_before_it_is_too_old(stop_rule: str, max_staleness: int) -> None:
    pool = make_pool(batch_size=2, num_repeat=3, stop_rule=stop_rule, max_staleness=max_staleness)
    room = 2 * 3 * (1 + max_staleness)
    begin(pool, 1, "code")
    places = begin(pool, room - 1, "math")
    assert not pool.may_begin("math")
    for place in places[:6]:
        pool.lose(place)
    fill(pool, {"a": 3, "b": 3})
    assert not pool.may_begin("math")
    pool.lose(places[6])
    pool.close_batch("batch-1", step=1)
    begin(pool, 1, "math")
    assert not pool.may_begin("math"), "the batch in training is one of them"
    pool.publish(1)
    begin(pool, 6, "math")
    assert not pool.may_begin("math")


@pytest.mark.parametrize("stop_rule", ["any_client_agrees", "all_clients_agree"])
def test_clients_that_agree_on_the_end_of_a_batch_bound_it_themselves(stop_rule: str) -> None:
    pool = make_pool(batch_size=1, num_repeat=1, stop_rule=stop_rule, max_staleness=1)
    begin(pool, 1_000, "math")
    fill(pool, {"a": 1, "b": 1, "c": 1})
    pool.agree("client")
    assert len(pool.close_batch("batch-1", step=1).batch.groups) == 3


def test_adding_to_a_large_pool_costs_no_more_than_to_a_small_one() -> None:
    pool = make_pool(batch_size=100_000, num_repeat=8)
    for number in range(8_000):
        pool.add(make_episode(f"e{number}", f"t{number // 8}"))
        assert not is_ready(pool)
    assert pool.progress().tasks == 1_000


def test_an_unfinished_group_that_cannot_wait_trains_on_its_survivors() -> None:
    pool = make_pool(batch_size=2, num_repeat=3, max_staleness=1)
    fill(pool, {"a": 3, "b": 2, "c": 1})
    pool.propose(BatchPolicy.of(TrainJob(batch_size=1, num_repeat=3, max_staleness=0)))
    closed = pool.close_batch("batch-1", step=1)
    assert [group.task_id for group in closed.batch.groups] == ["a", "b"]
    assert reasons(closed) == {"c-0": DropReason.GROUP_TOO_SMALL}
    assert len(pool) == 0


def test_a_batch_whose_time_is_over_trains_unfinished_groups_even_if_they_could_wait() -> None:
    clock = Clock()
    pool = make_pool(batch_size=2, num_repeat=3, max_staleness=4, batch_timeout_s=60, clock=clock)
    fill(pool, {"a": 2, "b": 1})
    clock.now = 61.0
    assert is_ready(pool)
    closed = pool.close_batch("batch-1", step=1)
    assert [group.task_id for group in closed.batch.groups] == ["a"]
    assert (closed.dropped, len(pool)) == ((), 1)
    clock.now = 1000.0
    assert not is_ready(pool)


def test_a_group_that_may_still_differ_waits_and_one_that_cannot_is_dropped() -> None:
    pool = make_pool(batch_size=1, num_repeat=3, stop_rule="enough_non_constant_tasks", max_staleness=1)
    fill(pool, {"unfinished": 2, "constant": 3, "good": 2})
    pool.add(make_episode("good-2", "good", reward=0.0))
    closed = pool.close_batch("batch-1", step=1)
    assert [group.task_id for group in closed.batch.groups] == ["good"]
    assert reasons(closed) == {f"constant-{number}": DropReason.CONSTANT_REWARD for number in range(3)}
    assert len(pool) == 2


@pytest.mark.parametrize(
    ("first", "second", "is_constant"),
    [(None, (0.0, 0.0), True), ((0.5,), (0.5, 0.0), True), ((0.5,), None, False), ((0.5, 0.0), (0.0, 0.5), False)],
)
def test_turn_rewards_make_a_group_constant_only_if_all_returns_are_equal(
    first: tuple[float, ...] | None, second: tuple[float, ...] | None, is_constant: bool
) -> None:
    pool = make_pool(batch_size=1, num_repeat=2, stop_rule="enough_non_constant_tasks")
    pool.add(make_episode("a-0", "a", turn_rewards=first))
    pool.add(make_episode("a-1", "a", turn_rewards=second))
    assert is_ready(pool) is not is_constant


@pytest.mark.parametrize(
    ("keys", "second", "is_constant"),
    [
        (("right", "short"), {"right": 1.0, "short": 0.0, "other": 3.0}, True),
        (("right", "short"), {"right": 1.0, "short": 0.5, "other": 0.0}, False),
        (("right",), {"right": 1.0, "short": 0.5, "other": 0.0}, True),
        (None, {"right": 0.0, "short": 0.5, "other": 0.0}, True),
    ],
)
def test_episodes_are_compared_by_the_named_rewards_of_the_job_alone(
    keys: tuple[str, ...] | None, second: dict[str, float], is_constant: bool
) -> None:
    gdpo: dict[str, Any] = {} if keys is None else {"algorithm": "gdpo", "gdpo_reward_keys": list(keys)}
    pool = make_pool(batch_size=1, num_repeat=2, stop_rule="enough_non_constant_tasks", **gdpo)
    pool.add(make_episode("a-0", "a", rewards={"right": 1.0, "short": 0.0, "other": 0.0}))
    pool.add(make_episode("a-1", "a", reward=1.0 if keys is None else 0.0, rewards=second))
    assert is_ready(pool) is not is_constant


def test_an_episode_of_weights_about_to_be_published_counts_from_then_on_and_starts_the_clock() -> None:
    pool = make_pool(batch_size=1, num_repeat=1, batch_timeout_s=60, max_staleness=1)
    assert pool.add(make_episode("early", "a", versions=(1,), ended_at=100.0)) is DropReason.STALE
    assert pool.deadline is None
    pool.publish(1)
    assert (is_ready(pool), pool.deadline) == (True, 160.0)


def test_two_groups_of_a_task_that_lost_episodes_become_one_that_is_whole() -> None:
    pool = make_pool(batch_size=2, num_repeat=4)
    places = [*begin(pool, 4, task="a"), *begin(pool, 4, task="a")]
    assert not pool.may_begin("default", "b")
    for number in (0, 1, 4):
        pool.add(make_episode(f"a{number}", "a"), places[number])
    for number in (2, 3, 6, 7):
        pool.lose(places[number])
    assert pool.progress().tasks == 0
    pool.add(make_episode("a5", "a"), places[5])
    assert pool.progress().tasks == 1
    assert pool.may_begin("default", "b")


def test_a_repeat_given_up_for_good_is_missed_where_its_place_was_filled_from() -> None:
    pool = make_pool(batch_size=2, num_repeat=4)
    places = [*begin(pool, 4, task="a"), *begin(pool, 4, task="a")]
    for number in (0, 1, 2, 4, 5):
        pool.add(make_episode(f"a{number}", "a"), places[number])
    pool.lose(places[6])
    pool.lose(places[3])
    assert pool.progress().tasks == 1
    # The first group is whole without the repeat that was its own; the second lacks two others and one runs.
    pool.give_up(places[3])
    pool.give_up(places[6])
    pool.add(make_episode("a7", "a"), places[7])
    assert pool.progress().tasks == 2
