"""A batch with its episodes or samples changed, for the tests of what trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from swarm.types import FinishedEpisode, Sample, TrainBatch


def with_episodes(batch: TrainBatch, change: Callable[[int, FinishedEpisode], FinishedEpisode]) -> TrainBatch:
    """`change` gets each episode with its number in its group."""
    groups = (
        replace(group, episodes=tuple(change(number, each) for number, each in enumerate(group.episodes)))
        for group in batch.groups
    )
    return replace(batch, groups=tuple(groups))


def with_samples(batch: TrainBatch, change: Callable[[Sample], Sample]) -> TrainBatch:
    return with_episodes(batch, lambda _, each: replace(each, samples=tuple(map(change, each.samples))))


def with_named_rewards(batch: TrainBatch) -> TrainBatch:
    """Two rewards for each episode, `right` and `short`, which pull in different directions."""
    return with_episodes(
        batch, lambda number, each: replace(each, rewards={"right": each.reward, "short": 0.3 * number})
    )


def with_greedy(batch: TrainBatch) -> TrainBatch:
    """The last episode of each group is its greedy one."""
    groups = (
        replace(group, episodes=group.episodes[:-1], greedy=replace(group.episodes[-1], is_greedy=True))
        for group in batch.groups
    )
    return replace(batch, groups=tuple(groups))
