"""The groups of the batches being filled, and which of them make up a batch."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from swarm.batch.policy import BatchPolicy, DropReason
from swarm.types import FinishedEpisode, Group, TrainBatch

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


def compared_of(episode: FinishedEpisode, policy: BatchPolicy) -> Returns:
    """Return the values by which a group compares its episodes: returns, or the named rewards of the policy."""
    if policy.reward_keys is None:
        return returns_of(episode)
    return 0.0, tuple((episode.rewards or {}).get(key, 0.0) for key in policy.reward_keys)


@dataclass(slots=True, eq=False)
class WaitingGroup:
    """Episodes of one task by id, how many of them have equal values, and what takes the other places.

    `running` episodes have begun and not ended. `given_up` is how many repeats will never come, because their client
    declared so or their episodes were dropped. `greedy` counts the greedy episode from its begin. A closed group has
    left the pool. `heir` is the group whose episode took a place here, and which lacks that episode instead.

    A group without running episodes is idle since `idle_since`, in seconds of the pool's clock. After too long it is
    overdue and counts with the episodes it has.
    """

    key: GroupKey
    episodes: dict[str, FinishedEpisode] = field(default_factory=dict[str, FinishedEpisode])
    returns: Counter[Returns] = field(default_factory=Counter[Returns])
    running: int = 0
    given_up: int = 0
    greedy: int = 0
    idle_since: float = 0.0
    is_overdue: bool = False
    is_closed: bool = False
    heir: WaitingGroup | None = None

    @property
    def size(self) -> int:
        """Number of its episodes that have ended."""
        return len(self.episodes)

    @property
    def is_constant(self) -> bool:
        """True if all its values are equal, so that nothing can be learned from it."""
        return len(self.returns) < 2


@dataclass(slots=True)
class SourceCount:
    """The counts of the groups of one data source, or of all.

    `tasks` counts the groups that count towards the target, `trainable` those that a step could learn from.
    `open_places` counts the unfinished groups that are not overdue, by how many more episodes each admits.
    """

    episodes: int = 0
    tasks: int = 0
    trainable: int = 0
    open_places: Counter[int] = field(default_factory=Counter[int])

    @property
    def unfinished(self) -> int:
        """Number of groups that wait for more episodes."""
        return sum(self.open_places.values())

    def places(self, tasks: int, num_repeat: int) -> int:
        """Return how many more episodes may begin until `tasks` groups are full, the fullest first. O(num_repeat)."""
        tasks = max(0, tasks - self.tasks)
        places = 0
        for open_places in sorted(self.open_places):
            groups = min(tasks, self.open_places[open_places])
            places += groups * open_places
            tasks -= groups
        return places + tasks * num_repeat

    def all_open_places(self) -> int:
        return sum(places * groups for places, groups in self.open_places.items())


class Groups:
    """All waiting groups, and how many count, per data source and in all. O(1) per episode that comes or goes.

    `clock` returns seconds.
    """

    def __init__(self, policy: BatchPolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._by_key: dict[GroupKey, list[WaitingGroup]] = {}
        self._unfinished: dict[WaitingGroup, None] = {}
        self._idle: OrderedDict[WaitingGroup, None] = OrderedDict()
        self.sources: dict[str, SourceCount] = {}
        self.total = SourceCount()

    def __iter__(self) -> Generator[WaitingGroup]:
        for groups in self._by_key.values():
            yield from groups

    @property
    def unfinished(self) -> list[WaitingGroup]:
        """Return the groups that may take more episodes and are not overdue, the oldest first."""
        return list(self._unfinished)

    def source(self, name: str) -> SourceCount:
        return self.sources.get(name) or SourceCount()

    def with_place(self, key: GroupKey) -> WaitingGroup | None:
        """Return the oldest group of a task that has a place for one more episode, or None."""
        return next((group for group in self._by_key.get(key, ()) if self.places(group)), None)

    def find(self, key: GroupKey, *, is_greedy: bool | None = None) -> WaitingGroup:
        """Return a group of a task that has a place, or else a new group without members.

        `is_greedy` tells whether the place is for the greedy episode or for another one; None takes the one it lacks
        first. A group is forgotten once it has no members left and all may still come.
        """
        for group in self._by_key.get(key, ()):
            if self.places(group) if is_greedy is None else self.has_place(group, is_greedy=is_greedy):
                return group
        group = WaitingGroup(key, idle_since=self._clock())
        self._by_key.setdefault(key, []).append(group)
        self._count(group, +1)
        return group

    def begin(self, group: WaitingGroup, *, is_greedy: bool) -> None:
        """Count one more running episode in the group."""
        with self._changing(group):
            group.running += 1
            group.greedy += is_greedy

    def lose(self, group: WaitingGroup, *, is_final: bool, is_greedy: bool) -> None:
        """Count a running episode of the group as given up; with `is_final` nobody will make another attempt."""
        with self._changing(group):
            group.running -= 1
            group.given_up += is_final
            group.greedy -= is_greedy

    def give_up(self, key: GroupKey) -> None:
        """Count one of the repeats of a task that are still to come as never coming."""
        group = self.find(key)
        with self._changing(group):
            group.given_up += 1

    def add(self, group: WaitingGroup, episode: FinishedEpisode, *, was_running: bool) -> None:
        self._count_episodes(episode.data_source, +1)
        with self._changing(group):
            group.running -= was_running
            group.greedy += episode.is_greedy and not was_running
            group.episodes[episode.episode_id] = episode
            group.returns[compared_of(episode, self._policy)] += 1

    def remove(self, group: WaitingGroup, episode: FinishedEpisode, *, is_final: bool = False) -> None:
        """Remove an ended episode; with `is_final` nobody will make another attempt in its place."""
        with self._changing(group):
            group.given_up += is_final
            group.greedy -= episode.is_greedy
            del group.episodes[episode.episode_id]
            add_count(group.returns, compared_of(episode, self._policy), -1)
        self._count_episodes(episode.data_source, -1)

    def replace(self, group: WaitingGroup, present: FinishedEpisode, other: FinishedEpisode) -> None:
        """Replace the result of an episode in the group."""
        with self._changing(group):
            add_count(group.returns, compared_of(present, self._policy), -1)
            group.returns[compared_of(other, self._policy)] += 1
            group.episodes[other.episode_id] = other

    def pack(self, key: GroupKey) -> dict[str, WaitingGroup]:
        """Move ended episodes between the groups of a task until at most one group lacks some. Return what was moved.

        Two groups may each have lost episodes that nobody attempts again, because their client is gone, while together
        they make a whole group. Without the move, both would take a place of the batch for nothing.
        """
        moved: dict[str, WaitingGroup] = {}
        while (move := self._next_move(key)) is not None:
            target, source, episode = move
            self.remove(source, episode)
            self.add(target, episode, was_running=False)
            target.heir = source
            moved[episode.episode_id] = target
        return moved

    def _next_move(self, key: GroupKey) -> tuple[WaitingGroup, WaitingGroup, FinishedEpisode] | None:
        """Return an older group, a younger one, and an episode of the younger for which the older has a place."""
        lacking = [each for each in self._by_key.get(key, ()) if each.episodes and self.places(each)]
        for number, target in enumerate(lacking):
            for source in reversed(lacking[number + 1 :]):
                for episode in reversed(source.episodes.values()):
                    if self.has_place(target, is_greedy=episode.is_greedy):
                        return target, source, episode
        return None

    def close(self, group: WaitingGroup) -> None:
        """Remove the group with all its members; episodes that still run in it come too late."""
        self._count(group, -1)
        self._forget(group)
        self._count_episodes(group.key[0], -group.size)
        group.is_closed = True

    def adopt(self, policy: BatchPolicy) -> None:
        """Count by another policy from now on."""
        for group in self:
            self._count(group, -1)
        self._policy = policy
        self.restart_idle()
        for group in list(self):
            group.is_overdue = False
            self._keep(group)

    def restart_idle(self) -> None:
        """Restart the idle time of all groups, since nobody could begin an episode until now."""
        now = self._clock()
        for group in self:
            group.idle_since = now

    def next_overdue(self) -> float | None:
        """Return when the group that has been idle longest is overdue; None if none ever is.

        The time is in seconds of the clock.
        """
        group = next(iter(self._idle), None) if self._policy.is_grouped else None
        return None if group is None else group.idle_since + self._policy.group_timeout_s

    def expire(self, is_wanted: Callable[[GroupKey], bool]) -> bool:
        """Mark the groups that have been idle for too long as overdue. Return whether there was one.

        A group for which `is_wanted` is true is not idle: a caller waits to begin an episode of it, or may be running
        one.
        """
        is_any, now = False, self._clock()
        while (due := self.next_overdue()) is not None and due <= now:
            group = next(iter(self._idle))
            if is_wanted(group.key):
                group.idle_since = now
                self._idle.move_to_end(group)
                continue
            is_any = True
            self._count(group, -1)
            if group.episodes:
                group.is_overdue = True
                self._count(group, +1)
            else:
                self._forget(group)
        return is_any

    def places(self, group: WaitingGroup) -> int:
        """Return how many more episodes may begin in the group."""
        if not self._policy.is_grouped:
            return 1
        return max(0, self._policy.num_repeat - group.size - group.running - group.given_up)

    def has_place(self, group: WaitingGroup, *, is_greedy: bool) -> bool:
        """Return whether one more episode, greedy or not, may begin in the group.

        One place is reserved for the greedy episode.
        """
        kept = self._policy.has_greedy and not group.greedy
        return bool(kept and self.places(group)) if is_greedy else self.places(group) > kept

    def is_full(self, group: WaitingGroup) -> bool:
        """Return whether no episode of the group is still to come."""
        return group.size + group.given_up >= self._policy.num_repeat

    def is_done(self, group: WaitingGroup) -> bool:
        """Return whether the group waits for nothing more."""
        return self.is_full(group) or group.is_overdue

    def lacks_contrast(self, group: WaitingGroup) -> bool:
        """Return whether all rewards of the group are equal although the stop rule asks for different ones."""
        return self._policy.rule.needs_contrast and group.is_constant

    def lacks_baseline(self, group: WaitingGroup) -> bool:
        """Return whether the greedy episode has not ended, or is the only one; the others are compared with it."""
        if not self._policy.has_greedy:
            return False
        return group.size < 2 or not any(episode.is_greedy for episode in group.episodes.values())

    def is_trainable(self, group: WaitingGroup) -> bool:
        is_large = group.size >= self._policy.min_group
        return is_large and not self.lacks_baseline(group) and not self.lacks_contrast(group)

    @contextmanager
    def _changing(self, group: WaitingGroup) -> Generator[None]:
        """Keep the counts right over a change of a group. Any change is activity in the group."""
        self._count(group, -1)
        yield
        group.is_overdue = False
        group.idle_since = self._clock()
        self._keep(group)

    def _keep(self, group: WaitingGroup) -> None:
        """Count a group if it has members or running episodes, or if its task continues in it."""
        if group.episodes or group.running or (group.given_up and not self.is_full(group)):
            self._count(group, +1)
        else:
            self._forget(group)

    def _count(self, group: WaitingGroup, sign: int) -> None:
        is_done, is_trainable = self.is_done(group), self.is_trainable(group)
        for count in (self._source(group.key[0]), self.total):
            count.trainable += sign * is_trainable
            count.tasks += sign * (is_done and is_trainable)
            if not is_done:
                add_count(count.open_places, self.places(group), sign)
        if sign > 0 and not is_done:
            self._unfinished[group] = None
            if not group.running:
                self._idle[group] = None
        elif sign < 0:
            self._unfinished.pop(group, None)
            self._idle.pop(group, None)

    def _count_episodes(self, source: str, number: int) -> None:
        self._source(source).episodes += number
        self.total.episodes += number
        if self.sources[source] == SourceCount():
            # Clients may name any number of data sources, so an empty one must not take memory.
            del self.sources[source]

    def _source(self, name: str) -> SourceCount:
        return self.sources.setdefault(name, SourceCount())

    def _forget(self, group: WaitingGroup) -> None:
        groups = self._by_key[group.key]
        groups.remove(group)
        if not groups:
            del self._by_key[group.key]
            self._count_episodes(group.key[0], 0)


def add_count(counter: Counter[Countable], key: Countable, number: int) -> None:
    """Change a count, and remove it once it is 0."""
    counter[key] += number
    if not counter[key]:
        del counter[key]


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
