"""The episodes of one task that wait together, counted as they come and go.

Place in the flow: inside the pool, which keeps one `WaitingGroup` per task and one `SourceCount` per data source. It
knows nothing of weight versions: only episodes that may be trained are ever in here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from swarm.types import FinishedEpisode

GroupKey = tuple[str, str]
"""Data source and task id."""


def key_of(episode: FinishedEpisode) -> GroupKey:
    return episode.data_source, episode.task_id


@dataclass(slots=True)
class WaitingGroup:
    """Episodes of one task by id, and how often each reward occurs among them."""

    episodes: dict[str, FinishedEpisode] = field(default_factory=dict[str, FinishedEpisode])
    rewards: Counter[float] = field(default_factory=Counter[float])

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def is_constant(self) -> bool:
        """Whether nothing can be learned from it: turn rewards count as differing."""
        return len(self.rewards) < 2 and not any(episode.turn_rewards for episode in self.episodes.values())

    def add(self, episode: FinishedEpisode) -> None:
        self.episodes[episode.episode_id] = episode
        self.rewards[episode.reward] += 1

    def remove(self, episode: FinishedEpisode) -> None:
        del self.episodes[episode.episode_id]
        self.rewards[episode.reward] -= 1
        if not self.rewards[episode.reward]:
            del self.rewards[episode.reward]


@dataclass(slots=True)
class SourceCount:
    """One data source. `tasks` are groups that count towards the target, `unfinished` the episodes of groups that are
    not full yet."""

    episodes: int = 0
    tasks: int = 0
    unfinished: int = 0


class GroupCounts:
    """All waiting groups, and per data source how many count. O(1) per episode added or removed."""

    def __init__(self, num_repeat: int, *, non_constant: bool) -> None:
        """With `non_constant`, a full group counts only if its rewards differ."""
        self._num_repeat = num_repeat
        self._non_constant = non_constant
        self.groups: dict[GroupKey, WaitingGroup] = {}
        self.sources: dict[str, SourceCount] = {}

    @property
    def episodes(self) -> int:
        return sum(source.episodes for source in self.sources.values())

    @property
    def tasks(self) -> int:
        return sum(source.tasks for source in self.sources.values())

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
        return len(group) >= self._num_repeat

    def counts(self, group: WaitingGroup) -> bool:
        """Whether the group is one of the tasks that the target asks for."""
        return self.is_full(group) and not (self._non_constant and group.is_constant)

    def _count(self, source: SourceCount, group: WaitingGroup, sign: int) -> None:
        if not self.is_full(group):
            source.unfinished += sign * len(group)
        elif self.counts(group):
            source.tasks += sign
