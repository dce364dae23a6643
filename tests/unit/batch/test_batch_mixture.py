"""The mixture: quotas, who may begin, and that every batch is completed with its shares."""

from __future__ import annotations

from collections import Counter

import pytest
from batch_support import begin, is_ready, make_episode, make_pool, reasons
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.batch import BatchPolicy, BatchPool, DropReason
from swarm.batch.policy import carry_over, share_out
from swarm.errors import BadRequest
from swarm.job import TrainJob

MIXTURE = {"math": 0.4, "code": 0.3, "shell": 0.3}


def test_a_source_whose_quota_is_covered_may_not_begin_until_something_is_lost() -> None:
    pool = make_pool(batch_size=10, num_repeat=2, mixture=MIXTURE)
    first, second, *_ = begin(pool, 8, "math")
    assert not pool.may_begin("math")
    pool.add(make_episode("m-0", "m", source="math"), first)
    assert not pool.may_begin("math")
    pool.lose(second)
    begin(pool, 1, "math")
    assert not pool.may_begin("math")
    begin(pool, 6, "code")
    assert not pool.may_begin("code")


@settings(deadline=None, max_examples=examples(60))
@given(
    shares=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    batch_size=st.integers(1, 12),
    restart_after=st.integers(0, 15),
)
def test_long_run_shares_are_those_of_the_mixture_within_one_task(
    shares: list[int], batch_size: int, restart_after: int
) -> None:
    mixture = {f"s{number}": share / sum(shares) for number, share in enumerate(shares)}
    job = {"batch_size": batch_size, "num_repeat": 1, "mixture": mixture}
    pool = make_pool(**job)
    trained: Counter[str] = Counter()
    for step in range(1, 16):
        if step == restart_after:
            pool = BatchPool(BatchPolicy.of(TrainJob(**job)), weight_version=step - 1, trained_groups=trained)
        fill_quotas(pool, step)
        assert is_ready(pool)
        batch = pool.close_batch(f"b{step}", step).batch
        assert len(batch.groups) == batch_size
        trained.update(group.episodes[0].data_source for group in batch.groups)
        pool.publish(step)
        for name, share in mixture.items():
            assert abs(trained[name] - share * step * batch_size) < 1


def fill_quotas(pool: BatchPool, step: int) -> None:
    for name, source in pool.progress().sources.items():
        for number in range(source.tasks_target or 0):
            episode_id = f"{step}-{name}-{number}"
            pool.add(make_episode(episode_id, episode_id, (step - 1,), source=name))


def quotas_of(pool: BatchPool) -> dict[str, int | None]:
    return {name: source.tasks_target for name, source in pool.progress().sources.items()}


def test_many_small_shares_are_never_a_whole_task_away_either() -> None:
    """Here, rounding every batch by largest remainder ends up 1.2 tasks away."""
    mixture = {f"s{number}": share / 171 for number, share in enumerate((50, 50, 50, 10, 5, 3, 1, 1, 1))}
    carry: dict[str, float] = {}
    trained: Counter[str] = Counter()
    for batch in range(1, 500):
        quotas = share_out(mixture, 1, carry)
        carry = carry_over(mixture, carry, quotas)
        trained.update(quotas)
        assert max(abs(share * batch - trained[name]) for name, share in mixture.items()) < 1


def test_rounding_goes_on_only_after_batches_that_were_trained() -> None:
    pool = make_pool(batch_size=1, num_repeat=1, mixture={"math": 0.5, "code": 0.5})
    first = quotas_of(pool)
    fill_quotas(pool, 1)
    closed = pool.close_batch("b1", 1)
    assert quotas_of(pool) != first, "the batch in training counts already"
    pool.restore(closed.batch.episodes)
    pool.publish(0)
    assert quotas_of(pool) == first
    pool.close_batch("b1", 1)
    pool.publish(1)
    assert quotas_of(pool) != first


def test_a_source_that_was_silent_does_not_crowd_the_others_out_when_it_returns() -> None:
    mixture = {"math": 0.5, "code": 0.5}
    policy = BatchPolicy.of(TrainJob(batch_size=8, num_repeat=1, mixture=mixture))
    pool = BatchPool(policy, weight_version=0, trained_groups={"math": 100})
    assert quotas_of(pool) == {"code": 5, "math": 3}
    fill_quotas(pool, 1)
    pool.close_batch("b1", 1)
    pool.publish(1)
    assert quotas_of(pool) == {"code": 4, "math": 4}


def test_surplus_stays_for_the_next_batch_if_it_may_be_older_then() -> None:
    pool = make_pool(batch_size=2, num_repeat=1, mixture={"math": 0.5, "code": 0.5}, max_staleness=1)
    for number in range(3):
        pool.add(make_episode(f"m{number}", f"m{number}", source="math"))
    pool.add(make_episode("c0", "c0", source="code"))
    assert pool.close_batch("b1", 1).dropped == ()
    pool.publish(1)
    assert not pool.may_begin("math")
    pool.add(make_episode("c1", "c1", (1,), source="code"))
    assert is_ready(pool)
    closed = pool.close_batch("b2", 2)
    assert [group.episodes[0].data_source for group in closed.batch.groups] == ["code", "math"]
    assert set(reasons(closed).values()) == {DropReason.OVER_QUOTA}, "one of them would be too old next time"


def test_the_fullest_groups_have_the_first_claim_on_a_quota() -> None:
    for task_ids in ("aabbb", "aaabb"):
        pool = make_pool(batch_size=1, num_repeat=4, mixture={"math": 1.0})
        for number, task_id in enumerate(task_ids):
            pool.add(make_episode(f"e{number}", task_id, source="math"))
        begin(pool, 1, "math")
        assert not pool.may_begin("math"), "one is missing of the fullest"
        (group,) = pool.close_batch("b1", 1).batch.groups
        assert len(group.episodes) == 3


def test_the_oldest_groups_have_the_first_claim_on_a_quota() -> None:
    for oldest in "abc":
        pool = make_pool(batch_size=1, num_repeat=1, mixture={"math": 1.0}, max_staleness=1, weight_version=1)
        for task_id in "abc":
            pool.add(make_episode(task_id, task_id, (int(task_id != oldest),), source="math"))
        assert [group.task_id for group in pool.close_batch("b1", 1).batch.groups] == [oldest]


def test_not_the_same_tasks_lose_in_every_batch() -> None:
    winners: Counter[str] = Counter()
    for step in range(40):
        pool = make_pool(batch_size=1, num_repeat=1, mixture={"math": 1.0})
        for task_id in "abcd":
            pool.add(make_episode(task_id, task_id, source="math"))
        winners.update(group.task_id for group in pool.close_batch("b1", step).batch.groups)
    assert set(winners) == set("abcd")


def test_groups_that_were_given_up_do_not_make_the_others_wait_in_line() -> None:
    pool = make_pool(batch_size=2, num_repeat=4, mixture={"math": 1.0})
    for number in range(20):
        pool.add(make_episode(f"e{number}", f"t{number}", source="math"))
    begin(pool, 6, "math")
    assert not pool.may_begin("math"), "the two fullest groups lacked six"


@pytest.mark.parametrize("rule", ["any_client_agrees", "all_clients_agree"])
def test_nobody_is_held_by_quotas_where_clients_agree_on_the_end(rule: str) -> None:
    pool = make_pool(batch_size=1, num_repeat=1, mixture={"math": 0.5, "code": 0.5}, stop_rule=rule)
    begin(pool, 51, "math")
    with pytest.raises(BadRequest):
        pool.may_begin("shell")


def test_staleness_lets_each_source_begin_its_share_of_the_batches_ahead() -> None:
    pool = make_pool(mixture={"math": 0.5, "code": 0.5}, batch_size=2, num_repeat=2, max_staleness=2)
    places = begin(pool, 6, "math")
    assert not pool.may_begin("math")
    for place in places:
        pool.lose(place)
    for source, task in (("math", "a"), ("math", "b"), ("math", "c"), ("code", "d")):
        for number in range(2):
            pool.add(make_episode(f"{task}-{number}", task, source=source))
    assert not pool.may_begin("math")
    closed = pool.close_batch("batch-1", step=1)
    assert sorted(group.task_id for group in closed.batch.groups)[1:] == ["d"]
    assert (len(pool), closed.dropped) == (4, ())
    assert not pool.may_begin("math"), "two of its four tasks wait, and one more batch may be begun"
    pool.publish(1)
    begin(pool, 2, "math")
    assert not pool.may_begin("math")
