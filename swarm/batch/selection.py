"""The choice of the waiting groups that make up a batch, and the reasons that exclude the others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarm.batch.groups import GroupKey, Groups, Returns, WaitingGroup, key_of, returns_of
from swarm.batch.policy import BatchPolicy, DropReason
from swarm.types import FinishedEpisode, Group, TrainBatch

Rank = tuple[bool, bool, int, int, bytes]

Content = tuple[tuple[tuple[int, ...], ...], Returns, tuple[tuple[str, float], ...], str]


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice for one step. `quotas` are groups per data source, None without a mixture.

    `is_complete` tells whether the stop rule is met. If not, the batch's time is over and it takes what there is.
    `may_wait` returns whether all episodes of a group could still be trained in the next batch. `oldest` returns the
    oldest weight version in a group.
    """

    policy: BatchPolicy
    quotas: Mapping[str, int] | None
    groups: Groups
    step: int
    is_complete: bool
    may_wait: Callable[[WaitingGroup], bool]
    oldest: Callable[[WaitingGroup], int]

    def choose(self) -> tuple[list[WaitingGroup], list[tuple[DropReason, WaitingGroup]]]:
        """Return the groups of the batch, and the other groups with the reason that excludes each."""
        taken: list[WaitingGroup] = []
        left: list[tuple[DropReason, WaitingGroup]] = []
        capacity = None if self.quotas is None else dict(self.quotas)
        by_episodes = self.policy.rule.unit == "episodes"
        lacking = self.policy.batch_size * (self.policy.num_repeat if by_episodes else 1)
        for group in self._ranked():
            source = group.key[0]
            reason = self._keep_out(group)
            if reason is None and (
                (self._is_bounded and lacking <= 0) or (capacity is not None and not capacity.get(source))
            ):
                reason = DropReason.OVER_QUOTA
            if reason is not None:
                left.append((reason, group))
                continue
            taken.append(group)
            lacking -= group.size if by_episodes else 1
            if capacity is not None:
                capacity[source] -= 1
        return taken, left

    @property
    def _is_bounded(self) -> bool:
        """Return whether the batch takes no more than its target.

        On-policy, admission by count already limits the batch to the target.
        """
        return self.policy.is_grouped or (self.policy.rule.unit == "episodes" and self.policy.max_staleness > 0)

    def _keep_out(self, group: WaitingGroup) -> DropReason | None:
        if group.size < self.policy.min_group:
            return DropReason.GROUP_TOO_SMALL
        if self.groups.lacks_baseline(group):
            return DropReason.NO_BASELINE
        if self.groups.lacks_contrast(group):
            return DropReason.CONSTANT_REWARD
        is_early = self.policy.max_staleness and self.policy.is_grouped and not self.groups.is_done(group)
        if self.is_complete and is_early and self.may_wait(group):
            # It stays for the next batch, where its other episodes, still running, find it.
            return DropReason.OVER_QUOTA
        return None

    def _ranked(self) -> Iterable[WaitingGroup]:
        """Return the groups by rank.

        Groups that cannot wait for the next batch come first, then full ones, then the oldest, then by chance. The
        chance depends on the step and the task alone. So the fastest clients have no advantage, and no task loses every
        time.
        """
        by_key: dict[GroupKey, list[WaitingGroup]] = {}
        for group in self.groups:
            by_key.setdefault(group.key, []).append(group)
        ranks: list[tuple[Rank, WaitingGroup]] = []
        for key, groups in by_key.items():
            twins = groups if len(groups) == 1 else sorted(groups, key=_contents)
            ranks += [(self._rank(key, number, group), group) for number, group in enumerate(twins)]
        return [group for _, group in sorted(ranks, key=lambda ranked: ranked[0])]

    def _rank(self, key: GroupKey, number: int, group: WaitingGroup) -> Rank:
        is_async = self.policy.max_staleness > 0
        name = "\0".join((str(self.step), *key, *([str(number)] if number else [])))
        return (
            is_async and self.may_wait(group),
            not self.groups.is_done(group),
            -min(group.size, self.policy.num_repeat),
            self.oldest(group) if is_async else 0,
            hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest(),
        )


def assemble(batch_id: str, step: int, groups: Iterable[Iterable[FinishedEpisode]]) -> TrainBatch:
    """Return the batch of these groups, in an order that depends on what they hold and on nothing else."""
    ordered = [tuple(sorted(group, key=_content)) for group in groups]
    ordered.sort(key=lambda group: (key_of(group[0]), [_content(episode) for episode in group]))
    return TrainBatch(batch_id, step, tuple(map(_group, ordered)))


def _group(members: Sequence[FinishedEpisode]) -> Group:
    sampled = tuple(episode for episode in members if not episode.is_greedy)
    greedy = next((episode for episode in members if episode.is_greedy), None)
    return Group(members[0].task_id, sampled, greedy)


def _contents(group: WaitingGroup) -> list[Content]:
    return sorted(map(_content, group.episodes.values()))


def _content(episode: FinishedEpisode) -> Content:
    tokens = tuple(sample.token_ids_T for sample in episode.samples)
    return tokens, returns_of(episode), tuple(sorted((episode.rewards or {}).items())), episode.episode_id
