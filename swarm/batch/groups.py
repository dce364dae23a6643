"""The episodes of one task that wait together, counted as they come and go.

Place in the flow: inside the pool, which keeps one `WaitingGroup` per task and one `SourceCount` per data source. It
knows nothing of weight versions: only episodes that may be trained are ever in here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar

from swarm.batch.policy import BatchPolicy
from swarm.types import FinishedEpisode

Countable = TypeVar("Countable")

GroupKey = tuple[str, str]
"""Data source and task id."""

Returns = tuple[float, tuple[float, ...]]
"""A reward and its turn rewards, trailing zeros left out: equal exactly if all returns are equal, turn by turn."""


def key_of(episode: FinishedEpisode) -> GroupKey:
    return episode.data_source, episode.task_id


def returns_of(episode: FinishedEpisode) -> Returns:
    turn_rewards = list(episode.turn_rewards or ())
    while turn_rewards and not turn_rewards[-1]:
        turn_rewards.pop()
    return episode.reward, tuple(turn_rewards)


@dataclass(slots=True)
class WaitingGroup:
    """Episodes of one task by id, and how many of them have the same returns."""

    episodes: dict[str, FinishedEpisode] = field(default_factory=dict[str, FinishedEpisode])
    returns: Counter[Returns] = field(default_factory=Counter[Returns])

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def is_constant(self) -> bool:
        """Whether nothing can be learned from it."""
        return len(self.returns) < 2

    def add(self, episode: FinishedEpisode) -> None:
        self.episodes[episode.episode_id] = episode
        self.returns[returns_of(episode)] += 1

    def remove(self, episode: FinishedEpisode) -> None:
        del self.episodes[episode.episode_id]
        _count_down(self.returns, returns_of(episode))


@dataclass(slots=True)
class SourceCount:
    """The groups of one data source.

    `tasks` are those that count towards the target, `trainable` those that a step could learn from, `unfinished` the
    sizes of those that are not full yet.
    """

    episodes: int = 0
    tasks: int = 0
    trainable: int = 0
    unfinished: Counter[int] = field(default_factory=Counter[int])

    def missing_episodes(self, tasks: int, num_repeat: int) -> int:
        """How many more episodes make `tasks` more groups full, at best: the fullest come first. O(num_repeat)."""
        missing = tasks * num_repeat
        for size in sorted(self.unfinished, reverse=True):
            groups = min(tasks, self.unfinished[size])
            missing -= groups * size
            tasks -= groups
        return missing


class GroupCounts:
    """All waiting groups, and per data source how many count. O(1) per episode added or removed."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._need_contrast = policy.stop_rule == "enough_non_constant_tasks"
        self.groups: dict[GroupKey, WaitingGroup] = {}
        self.sources: dict[str, SourceCount] = {}

    @property
    def episodes(self) -> int:
        return sum(source.episodes for source in self.sources.values())

    @property
    def tasks(self) -> int:
        return sum(source.tasks for source in self.sources.values())

    @property
    def total(self) -> SourceCount:
        """All data sources together."""
        total = SourceCount()
        for source in self.sources.values():
            total.episodes += source.episodes
            total.tasks += source.tasks
            total.trainable += source.trainable
            total.unfinished.update(source.unfinished)
        return total

    def source(self, name: str) -> SourceCount:
        return self.sources.get(name) or SourceCount()

    def add(self, episode: FinishedEpisode) -> None:
        group = self.groups.setdefault(key_of(episode), WaitingGroup())
        source = self.sources.setdefault(episode.data_source, SourceCount())
        self._count(source, group, -1)
        group.add(episode)
        source.episodes += 1
        self._count(source, group, +1)

    def remove(self, episode: FinishedEpisode) -> None:
        key = key_of(episode)
        group, source = self.groups[key], self.sources[episode.data_source]
        self._count(source, group, -1)
        group.remove(episode)
        source.episodes -= 1
        self._count(source, group, +1)
        if not group:
            del self.groups[key]
        if not source.episodes:
            del self.sources[episode.data_source]

    def is_full(self, group: WaitingGroup) -> bool:
        return len(group) >= self._policy.num_repeat

    def lacks_contrast(self, group: WaitingGroup) -> bool:
        """Whether its rewards are equal where the stop rule asks for others."""
        return self._need_contrast and group.is_constant

    def is_trainable(self, group: WaitingGroup) -> bool:
        return len(group) >= self._policy.min_group and not self.lacks_contrast(group)

    def counts(self, group: WaitingGroup) -> bool:
        """Whether the group is one of the tasks that the target asks for."""
        return self.is_full(group) and not self.lacks_contrast(group)

    def _count(self, source: SourceCount, group: WaitingGroup, sign: int) -> None:
        source.trainable += sign * self.is_trainable(group)
        source.tasks += sign * self.counts(group)
        if 0 < len(group) < self._policy.num_repeat:
            if sign > 0:
                source.unfinished[len(group)] += 1
            else:
                _count_down(source.unfinished, len(group))


def _count_down(counter: Counter[Countable], key: Countable) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
