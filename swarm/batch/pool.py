"""The batch being filled: train episodes take a place here from begin to end, and leave together in groups."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from swarm.batch.groups import GroupKey, Groups, Selection, SourceCount, WaitingGroup, add_count, assemble, key_of
from swarm.batch.policy import (
    BatchPolicy,
    DroppedEpisode,
    DropReason,
    VersionSpan,
    carry_over,
    refuse,
    share_out,
    version_span,
)
from swarm.errors import BadRequest, Conflict
from swarm.types import FinishedEpisode, TrainBatch


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a running train episode in the batch.

    `group` is None where the task is not known before the end, and where a batch is not made of groups of a fixed size.
    An episode whose place `is_greedy` samples at temperature 0.
    """

    data_source: str
    group: WaitingGroup | None
    is_greedy: bool = False


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Progress of one data source. `tasks_target` is its quota of this batch; None without a mixture."""

    episodes: int
    tasks: int
    tasks_target: int | None


@dataclass(frozen=True, slots=True)
class PoolProgress:
    """Progress of the batch. Only episodes that may be trained count.

    `tasks` counts the tasks with a full group, per data source at most its quota.
    """

    stop_rule: str
    episodes: int
    episodes_target: int
    tasks: int
    tasks_target: int
    sources: Mapping[str, SourceProgress] = field(default_factory=dict[str, SourceProgress])
    agreed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClosedBatch:
    """The episodes that left the pool: in `batch`, or in `dropped` with a reason.

    `batch.groups` is empty when no group is left to train. `short_groups` counts those that train with fewer episodes
    than the policy asks for, `missing_groups` how many groups the batch lacks. Both are 0 under a rule that does not
    ask for groups.
    """

    batch: TrainBatch
    dropped: tuple[DroppedEpisode, ...]
    short_groups: int = 0
    missing_groups: int = 0


class BatchPool:
    """Episodes of the next batches, by id. Use it from one thread."""

    def __init__(
        self,
        policy: BatchPolicy,
        *,
        weight_version: int,
        trained_groups: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Build an empty pool.

        The batch will be trained on top of `weight_version`, which `publish` updates. `trained_groups` counts what the
        job has trained so far by data source, so that the rounding of quotas continues. `clock` returns seconds since
        the epoch.
        """
        self._policy = policy
        self._next_policy: BatchPolicy | None = None
        self._weight_version = weight_version
        self._clock = clock
        self._carry = {} if policy.mixture is None else carry_over(policy.mixture, {}, trained_groups or {})
        self._sources_begun = set(trained_groups or {})
        self._leaving: dict[str, int] = {}
        self._episodes: dict[str, FinishedEpisode] = {}
        self._spans: dict[str, VersionSpan | None] = {}
        self._clients: Counter[str] = Counter()
        self._agreed: dict[str, None] = {}
        self._groups = Groups(policy, clock)
        self._group_of: dict[str, WaitingGroup] = {}
        self._early: dict[str, Place] = {}
        self._late: set[str] = set()
        self._running: Counter[str] = Counter()
        self._nameless: Counter[str] = Counter()
        self._first_at: float | None = None
        self._active_at = clock()
        self._quotas: dict[str, int] | None = None
        self._open_quotas: dict[str, int] | None = None
        self._renew_quotas()

    def __len__(self) -> int:
        return len(self._episodes)

    @property
    def policy(self) -> BatchPolicy:
        return self._policy

    @property
    def next_policy(self) -> BatchPolicy | None:
        """The policy of the next batch, if it differs from the present one."""
        return self._next_policy

    def propose(self, policy: BatchPolicy) -> None:
        """Change the policy from the next batch on."""
        self._next_policy = None if policy == self._policy else policy

    def adopt(self, policy: BatchPolicy) -> None:
        """Fill the present batch by `policy`, because an earlier batch has to be collected again."""
        self._next_policy = None
        if policy != self._policy:
            self._take_up(policy)
            self._renew_quotas()
            self._review()

    @property
    def agreed(self) -> tuple[str, ...]:
        return tuple(self._agreed)

    def agree(self, client_id: str) -> None:
        """Note that a client has sent all it has for this batch. The next `close_batch` forgets it."""
        self._agreed[client_id] = None

    @property
    def clients(self) -> Collection[str]:
        """Clients whose episodes wait here."""
        return self._clients.keys()

    @property
    def running(self) -> Mapping[str, int]:
        """Number of episodes that have a place, by data source."""
        return self._running

    @property
    def deadline(self) -> float | None:
        """Time at which the batch is complete whatever the rule, in seconds since the epoch; None if never."""
        if self._policy.batch_timeout_s is None or self._first_at is None:
            return None
        return self._first_at + self._policy.batch_timeout_s

    def next_due(self) -> float | None:
        """Next time at which the batch may be complete or an episode admitted without any event; None if never.

        It is in seconds since the epoch.
        """
        now, dues = self._clock(), (self.deadline, self._groups.next_overdue(), self._stalled_at())
        return min((due for due in dues if due is not None and due > now), default=None)

    def may_begin(self, data_source: str, task_id: str | None = None) -> bool:
        """Return whether there is a place for one more episode of a task; None is a task that is named only at the end.

        A batch is a fixed number of groups with a fixed number of places each, in a mixture per data source. There are
        places for this batch and for `max_staleness` more, the one in training included. Episodes of later batches
        would be too old when their turn came (as AReaL bounds it, arXiv:2505.24298, section 5.1).

        A task whose group has a place left may always begin. Another task may begin while its whole group fits. A
        caller that names no task is admitted by the number of places. Lost episodes cannot block a batch: their places
        are free again, and an overdue group that is too small makes way for another.

        Where clients agree on the end of a batch, the pool sets no limit. Raise BadRequest for a data source outside
        the mixture.
        """
        if self._quotas is not None and data_source not in self._quotas:
            known = ", ".join(sorted(self._quotas))
            raise BadRequest(f"data source {data_source!r} is not in the mixture ({known})", param="data_source")
        if self._policy.rule.agreeing:
            return True
        count, tasks, running, nameless = self._capacity_of(data_source)
        num_repeat = self._policy.num_repeat
        if not self._policy.is_grouped:
            return count.episodes + running < tasks * num_repeat
        if task_id is None:
            return nameless < count.places(tasks, num_repeat)
        if self._groups.with_place((data_source, task_id)) is not None:
            return True
        new_groups = tasks - count.tasks - count.unfinished
        return new_groups > 0 and nameless - count.all_open_places() <= (new_groups - 1) * num_repeat

    def begin(self, data_source: str, task_id: str | None = None, *, is_greedy: bool | None = None) -> Place:
        """Take a place for an episode, whether or not there is one left: ask `may_begin` first.

        Under a policy with greedy episodes, the first place of a group is the greedy one. Pass `is_greedy` for an
        episode that has begun before.
        """
        self._note_activity()
        if self._quotas is not None:
            self._sources_begun.add(data_source)
        self._running[data_source] += 1
        if task_id is None or not self._policy.is_grouped:
            self._nameless[data_source] += 1
            return Place(data_source, None)
        key = data_source, task_id
        group = self._groups.find(key, is_greedy=is_greedy)
        takes_greedy = self._policy.has_greedy and not group.greedy if is_greedy is None else is_greedy
        self._groups.begin(group, is_greedy=takes_greedy)
        return Place(data_source, group, takes_greedy)

    def lose(self, place: Place, *, is_final: bool = False) -> None:
        """Free the place of an episode that was given up; with `is_final` nobody will make another attempt."""
        self._note_activity()
        self._free(place)
        if place.group is not None and not place.group.is_closed:
            self._groups.lose(place.group, is_final=is_final, is_greedy=place.is_greedy)
            self._pack(place.group.key)

    def give_up(self, place: Place) -> None:
        """Note that nobody will make another attempt in the place of an episode that was lost before."""
        group = place.group
        while group is not None and (group.is_closed or not self._groups.places(group)):
            group = group.heir
        if group is not None:
            self._note_activity()
            self._groups.give_up(group.key)

    def tasks_with_place(self, data_source: str) -> list[str]:
        """Return the tasks whose groups have a place left and are not overdue, the oldest group first."""
        return [
            group.key[1]
            for group in self._groups.unfinished
            if group.key[0] == data_source and self._groups.places(group)
        ]

    def expire(self, is_wanted: Callable[[GroupKey], bool]) -> bool:
        """Mark groups that were idle for too long, so that they count as they are. Return whether there was one.

        A group is not idle if `is_wanted` reports that a caller waits to begin an episode of it. No group is idle while
        an episode runs whose task is not known.
        """
        return self._groups.expire(lambda key: self._nameless[key[0]] > 0 or is_wanted(key))

    def resume(self) -> None:
        """Restart all idle times, because episodes may begin again after a time in which none could."""
        self._note_activity()
        self._groups.restart_idle()

    def publish(self, weight_version: int) -> None:
        """Note which weights are now trained. Call it after every step and every checkpoint load.

        The last batch taken out then counts as trained, unless it was restored.
        """
        if self._policy.mixture is not None:
            self._carry = carry_over(self._policy.mixture, self._carry, self._leaving)
        self._leaving = {}
        self._weight_version = weight_version
        self._renew_quotas()
        self._review()

    def add(self, episode: FinishedEpisode, place: Place | None = None) -> DropReason | None:
        """Take an ended train episode in exchange for its place. Raise Conflict if it is here already.

        Return why it will not count, or None. An episode that will not count stays here until the next `close_batch`
        reports it as dropped.
        """
        episode_id = episode.episode_id
        if episode_id in self._episodes:
            raise Conflict(f"episode {episode_id} is already in the pool")
        self._note_activity()
        self._episodes[episode_id] = episode
        self._spans[episode_id] = version_span(episode)
        self._clients[episode.client_id] += 1
        if place is not None and place.group is not None and place.group.is_closed:
            self._late.add(episode_id)
        reason = self._refuse(episode_id)
        if reason is None:
            self._join(episode, place)
        elif place is not None and episode_id not in self._late and self._is_early(episode_id):
            self._early[episode_id] = place
        elif place is not None:
            self.lose(place)
        return reason

    def restore(self, episodes: Iterable[FinishedEpisode]) -> None:
        """Put back episodes that were acknowledged before a restart, or all episodes of a batch that was not trained.

        Raise Conflict as `add`.
        """
        self._leaving = {}
        self._renew_quotas()
        for episode in episodes:
            self.add(episode)

    def replace(self, episode: FinishedEpisode) -> bool:
        """Replace the result of an episode that waits here; return False if it does not."""
        present = self._episodes.get(episode.episode_id)
        if present is None:
            return False
        self._clients[episode.client_id] += 1
        add_count(self._clients, present.client_id, -1)
        group = self._group_of.get(episode.episode_id)
        self._episodes[episode.episode_id] = episode
        if group is not None:
            self._groups.replace(group, present, episode)
        return True

    def is_ready(self, live_clients: Collection[str]) -> bool:
        """Return whether the batch is complete, by the stop rule or because its time is over.

        A rule that all clients agree on waits for `live_clients`. No batch is complete while no episode may be trained.
        Time completes no batch while no group is large enough.
        """
        if not self._groups.total.episodes:
            return False
        now, ends = self._clock(), (self.deadline, self._stalled_at())
        if any(end is not None and now >= end for end in ends) and self._is_any_trainable():
            return True
        awaited = {None: None, "any": (), "all": live_clients}[self._policy.rule.agreeing]
        if awaited is None:
            return self._is_target_met()
        return bool(self._agreed) and all(client in self._agreed for client in awaited)

    def progress(self) -> PoolProgress:
        names = sorted({*self._groups.sources, *(self._quotas or ())})
        sources = {name: self._source_progress(name) for name in names}
        return PoolProgress(
            stop_rule=self._policy.stop_rule,
            episodes=self._groups.total.episodes,
            episodes_target=self._policy.batch_size * self._policy.num_repeat,
            tasks=sum(_at_most(item.tasks, item.tasks_target) for item in sources.values()),
            tasks_target=self._policy.batch_size,
            sources=sources,
            agreed=self.agreed,
        )

    def close_batch(self, batch_id: str, step: int) -> ClosedBatch:
        """Take a batch out of the pool; the next policy is then in force. It may be called before `is_ready`.

        A batch is `batch_size` groups, or fewer if its time was over. A group trains on its survivors; one below
        `min_group` is dropped. Each episode leaves in a group, leaves as dropped, or stays for the next batch. It stays
        only if it will not be stale by then and if a group leaves now. An episode that still runs when its group leaves
        is dropped when it ends.

        Which groups stay, and the order of groups and of episodes, depend on the contents of the episodes. They do not
        depend on when the episodes arrived or how they are named.
        """
        taken, left = self._choose(step)
        reasons = {
            episode_id: reason for episode_id in self._episodes if (reason := self._refuse(episode_id)) is not None
        }
        for reason, group in left:
            stays = taken and self._is_of_use(group)
            reasons.update({episode: reason for episode in group.episodes if not (stays and self._is_fresh(episode))})
        batch = assemble(batch_id, step, [group.episodes.values() for group in taken])
        dropped = [_drop(self._episodes[episode_id], reason) for episode_id, reason in sorted(reasons.items())]
        self._leaving = Counter(group.episodes[0].data_source for group in batch.groups)
        policy = self._policy
        short = sum(group.size < policy.num_repeat for group in taken) if policy.is_grouped else 0
        missing = policy.batch_size - len(taken) if policy.is_grouped else 0
        self._take_out(taken, reasons)
        self._start_anew()
        return ClosedBatch(batch, tuple(dropped), short, missing)

    def _choose(self, step: int) -> tuple[list[WaitingGroup], list[tuple[DropReason, WaitingGroup]]]:
        selection = Selection(
            policy=self._policy,
            quotas=self._quotas,
            groups=self._groups,
            step=step,
            is_complete=self._is_target_met(),
            may_wait=lambda group: all(map(self._is_fresh, group.episodes)),
            oldest=self._oldest_version,
        )
        return selection.choose()

    def _take_out(self, taken: Iterable[WaitingGroup], dropped: Iterable[str]) -> None:
        """Remove the members of a batch and the dropped episodes; the latest end starts the next clock."""
        closed_at = max((episode.ended_at for episode in self._episodes.values()), default=None)
        for group in taken:
            self._groups.close(group)
            for episode_id in group.episodes:
                self._forget(episode_id)
        for episode_id in dropped:
            group = self._group_of.get(episode_id)
            if group is not None:
                self._groups.remove(group, self._episodes[episode_id], is_final=self._policy.is_grouped)
            place = self._early.pop(episode_id, None)
            if place is not None:
                self.lose(place)
            self._forget(episode_id)
        self._first_at = closed_at

    def _start_anew(self) -> None:
        self._note_activity()
        self._agreed.clear()
        upcoming, self._next_policy = self._next_policy, None
        if upcoming is not None:
            self._take_up(upcoming)
        self._renew_quotas()
        self._review()

    def _take_up(self, policy: BatchPolicy) -> None:
        if policy.mixture != self._policy.mixture:
            self._carry, self._leaving = {}, {}
        self._policy = policy
        self._groups.adopt(policy)

    def _review(self) -> None:
        """Check every episode again, since other weights or another staleness let other episodes count."""
        for episode_id, episode in self._episodes.items():
            group, is_refused = self._group_of.get(episode_id), self._refuse(episode_id) is not None
            if group is not None and is_refused:
                self._groups.remove(group, episode)
                del self._group_of[episode_id]
            elif group is None and not is_refused:
                self._join(episode, self._early.pop(episode_id, None))
        for episode_id in [each for each in self._early if not self._is_early(each)]:
            self.lose(self._early.pop(episode_id))
        self._note_first()

    def _note_first(self) -> None:
        if not self._group_of:
            self._first_at = None
        elif self._first_at is None:
            self._first_at = min(self._episodes[episode_id].ended_at for episode_id in self._group_of)

    def _join(self, episode: FinishedEpisode, place: Place | None) -> None:
        """Count an episode: in the group where it has its place, else in the first of its task that has one."""
        key = key_of(episode)
        group = None if place is None else place.group
        is_expected = group is not None and group.key == key and not group.is_closed
        if place is not None and is_expected:
            self._free(place)
        elif place is not None:
            self.lose(place)
        if group is None or not is_expected:
            group = self._groups.find(key, is_greedy=episode.is_greedy)
        self._groups.add(group, episode, was_running=is_expected)
        self._group_of[episode.episode_id] = group
        if is_expected:
            self._pack(key)
        if self._first_at is None:
            self._first_at = episode.ended_at

    def _pack(self, key: GroupKey) -> None:
        if self._policy.is_grouped:
            self._group_of.update(self._groups.pack(key))

    def _free(self, place: Place) -> None:
        add_count(self._running, place.data_source, -1)
        if place.group is None:
            add_count(self._nameless, place.data_source, -1)

    def _forget(self, episode_id: str) -> None:
        episode = self._episodes.pop(episode_id)
        del self._spans[episode_id]
        self._group_of.pop(episode_id, None)
        self._late.discard(episode_id)
        add_count(self._clients, episode.client_id, -1)

    def _capacity_of(self, data_source: str) -> tuple[SourceCount, int, int, int]:
        """Return what counts towards the groups that may be begun where `data_source` belongs.

        These are the waiting groups, the limit of groups, the running episodes, and those of them whose task is not
        known.
        """
        if self._open_quotas is None:
            tasks = self._policy.batch_size * self._open_batches
            return self._groups.total, tasks, self._running.total(), self._nameless.total()
        count, tasks = self._groups.source(data_source), self._open_quotas[data_source]
        return count, tasks, self._running[data_source], self._nameless[data_source]

    def _is_of_use(self, group: WaitingGroup) -> bool:
        """Return whether the next batch could take the group. A full group without contrast would never leave."""
        mixture = (self._next_policy or self._policy).mixture
        is_hopeless = self._groups.is_done(group) and not self._groups.is_trainable(group)
        return not is_hopeless and (mixture is None or group.key[0] in mixture)

    def _is_fresh(self, episode_id: str) -> bool:
        """Return whether the next batch may contain the episode."""
        allowed = (self._next_policy or self._policy).max_staleness
        span = self._spans[episode_id]
        return refuse(span, weight_version=self._weight_version + 1, max_staleness=allowed) is None

    def _is_early(self, episode_id: str) -> bool:
        """Return whether the episode has tokens of the weights that are about to be published."""
        span = self._spans[episode_id]
        return span is not None and bool(self._leaving) and span.newest == self._weight_version + 1

    def _oldest_version(self, group: WaitingGroup) -> int:
        spans = (self._spans[episode_id] for episode_id in group.episodes)
        return min((span.oldest for span in spans if span is not None), default=0)

    def _refuse(self, episode_id: str) -> DropReason | None:
        if episode_id in self._late:
            return DropReason.GROUP_CLOSED
        return refuse(
            self._spans[episode_id], weight_version=self._weight_version, max_staleness=self._policy.max_staleness
        )

    def _is_target_met(self) -> bool:
        """Return whether there are as many episodes or tasks as the policy asks for.

        In a mixture, every data source has to reach its own number.
        """
        by_episodes = self._policy.rule.unit == "episodes"
        unit = self._policy.num_repeat if by_episodes else 1

        def number(source: SourceCount) -> int:
            return source.episodes if by_episodes else source.tasks

        if self._quotas is None:
            return number(self._groups.total) >= self._policy.batch_size * unit
        return all(number(self._groups.source(name)) >= quota * unit for name, quota in self._quotas.items())

    def _is_any_trainable(self) -> bool:
        if self._quotas is None:
            return self._groups.total.trainable > 0
        return any(quota and self._groups.source(name).trainable for name, quota in self._quotas.items())

    def _source_progress(self, name: str) -> SourceProgress:
        source = self._groups.source(name)
        target = None if self._quotas is None else self._quotas.get(name, 0)
        return SourceProgress(source.episodes, source.tasks, target)

    def _note_activity(self) -> None:
        self._active_at = self._clock()

    def _stalled_at(self) -> float | None:
        """Return when the batch stops waiting for groups that nobody makes; None if that is not in sight.

        The batch waits for a data source of the mixture that nobody has begun yet: its clients may take long to start.
        """
        awaited = [name for name, quota in (self._quotas or {}).items() if quota and name not in self._sources_begun]
        if self._policy.rule.agreeing or self._running.total() or awaited or not self._is_any_trainable():
            return None
        return self._active_at + self._policy.stall_timeout_s

    @property
    def _open_batches(self) -> int:
        """Return how many batches may be begun at present: the one being filled and those after it."""
        return 1 + max(0, self._policy.max_staleness - bool(self._leaving))

    def _renew_quotas(self) -> None:
        """Compute the quotas of the batch being filled and of all batches that may be begun.

        The batch in training counts as trained.
        """
        mixture, size = self._policy.mixture, self._policy.batch_size
        if mixture is None:
            self._quotas = self._open_quotas = None
            return
        carry = carry_over(mixture, self._carry, self._leaving)
        self._quotas = share_out(mixture, size, carry)
        self._open_quotas = share_out(mixture, size * self._open_batches, carry)


def _at_most(value: int, limit: int | None) -> int:
    return value if limit is None else min(value, limit)


def _drop(episode: FinishedEpisode, reason: DropReason) -> DroppedEpisode:
    return DroppedEpisode(episode.episode_id, reason, episode.trained_tokens)
