"""The metrics of a batch that the server computes: whether its rewards agree with what its clients call a success."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import correlation

import pytest
from batch_support import make_sample
from hypothesis import given
from hypothesis import strategies as st

from swarm.batch.pool import ClosedBatch
from swarm.batch.step_metrics import batch_metrics
from swarm.guard import AGREEMENT, GRADED_GROUPS, SUCCESS
from swarm.types import FinishedEpisode, Group, TrainBatch

SAMPLES = (make_sample("ep", (0,)),)
Outcome = tuple[float, bool | None]


def episode(outcome: Outcome, **more: object) -> FinishedEpisode:
    reward, is_success = outcome
    return FinishedEpisode("ep", "t", "c", reward, is_success, SAMPLES, 0.0, **more)  # type: ignore[arg-type]


def metrics_of(*groups: Sequence[FinishedEpisode]) -> dict[str, float]:
    batch = TrainBatch("b", 1, tuple(Group(f"t{place}", tuple(group)) for place, group in enumerate(groups)))
    return batch_metrics(ClosedBatch(batch, ()), 0.0)


@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=2, max_size=8))
def test_within_one_group_it_is_the_correlation_of_reward_and_success(outcomes: list[Outcome]) -> None:
    found = metrics_of([episode(each) for each in outcomes])
    rewards, successes = zip(*outcomes, strict=True)
    if max(rewards) - min(rewards) > 1e-6 and len(set(successes)) > 1:
        assert found[AGREEMENT] == pytest.approx(correlation(rewards, [float(each) for each in successes]), abs=1e-6)
        assert found[GRADED_GROUPS] == 1


def test_easy_and_hard_tasks_do_not_hide_that_a_reward_is_turned_around() -> None:
    """Over all episodes the reward and the success agree, because one task is easy and well paid."""
    easy = [episode(each) for each in [(9.0, True), (9.0, True), (9.5, False)]]
    hard = [episode(each) for each in [(0.0, True), (0.5, False), (0.5, False)]]
    found = metrics_of(easy, hard)
    assert found[AGREEMENT] == pytest.approx(-1) and found[SUCCESS] == 0.5


@pytest.mark.parametrize(
    "outcomes",
    [[(1.0, True), (0.5, True)], [(1.0, True), (1.0, False)], [(1.0, None), (0.0, None)], [(1.0, True), (0.0, None)]],
    ids=["one outcome", "one reward", "no outcome", "half of the outcomes"],
)
def test_a_group_that_cannot_tell_is_not_counted(outcomes: list[Outcome]) -> None:
    assert AGREEMENT not in metrics_of([episode(each) for each in outcomes])
    told = metrics_of([episode(each) for each in outcomes], [episode((1.0, True)), episode((0.0, False))])
    assert (told[AGREEMENT], told[GRADED_GROUPS]) == (pytest.approx(1), 1)


def test_turn_rewards_count_and_named_rewards_are_left_out() -> None:
    by_turns = [episode((0.0, True), turn_rewards=(1.0, 1.0)), episode((1.0, False))]
    assert metrics_of(by_turns)[AGREEMENT] == pytest.approx(1)
    named = [episode((1.0, False), rewards={"form": 1.0}), episode((0.0, True), rewards={"form": 0.0})]
    assert AGREEMENT not in metrics_of(named)
