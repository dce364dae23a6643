"""The batch being filled: finished episodes wait here until the stop rule is met, then leave together.

Place in the flow: the rollout adds every ended train episode, the training loop seals; the sealed batch goes to the
trainer. The pool knows nothing of HTTP, leases or the ledger, and keeps nothing on disk: after a crash the server
restores it from the ledger. Time is given to it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from swarm.batch.admission import DroppedEpisode, DropReason, VersionSpan, refuse, version_span
from swarm.batch.groups import GroupCounts, GroupKey, Returns, SourceCount, WaitingGroup, key_of, returns_of
from swarm.batch.policy import BatchPolicy
from swarm.batch.quotas import carry_over, share_out
from swarm.errors import BadRequest, Conflict
from swarm.types import FinishedEpisode, Group, TrainBatch


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One data source. `tasks_target` is its quota of this batch; None without a mixture."""

    episodes: int
    tasks: int
    tasks_target: int | None


@dataclass(frozen=True, slots=True)
class PoolProgress:
    """How full the batch is. Only episodes that may be trained count; `tasks` are those with a full group, per data
    source at most its quota."""

    stop_rule: str
    episodes: int
    episodes_target: int
    tasks: int
    tasks_target: int
    sources: Mapping[str, SourceProgress] = field(default_factory=dict[str, SourceProgress])
    agreed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SealedBatch:
    """What left the pool: in `batch`, or in `dropped` with a reason. `batch.groups` is empty when nothing survived."""

    batch: TrainBatch
    dropped: tuple[DroppedEpisode, ...]


class BatchPool:
    """Episodes of the next batch, by id. Used from one thread."""

    def __init__(
        self, policy: BatchPolicy, *, weight_version: int, trained_groups: Mapping[str, int] | None = None
    ) -> None:
        """`weight_version` is the version the batch will be trained on top of; `publish` moves it on.

        `trained_groups` counts what the job has trained so far by data source, so that the rounding of quotas goes on
        where it was.
        """
        self._policy = policy
        self._next_policy: BatchPolicy | None = None
        self._weight_version = weight_version
        self._carry = {} if policy.mixture is None else carry_over(policy.mixture, {}, trained_groups or {})
        self._leaving: dict[str, int] = {}
        self._episodes: dict[str, FinishedEpisode] = {}
        self._spans: dict[str, VersionSpan | None] = {}
        self._clients: Counter[str] = Counter()
        self._agreed: dict[str, None] = {}
        self._first_at: float | None = None
        self._counts = GroupCounts(policy)
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
        """The policy that takes over when this batch is sealed, if it is another one."""
        return self._next_policy

    def propose(self, policy: BatchPolicy) -> None:
        """Change the policy from the next batch on."""
        self._next_policy = None if policy == self._policy else policy

    @property
    def agreed(self) -> tuple[str, ...]:
        return tuple(self._agreed)

    def agree(self, client_id: str) -> None:
        """Note that a client has sent what it has for this batch. The seal forgets it."""
        self._agreed[client_id] = None

    @property
    def clients(self) -> Collection[str]:
        """Whose episodes wait here."""
        return self._clients.keys()

    @property
    def deadline(self) -> float | None:
        """When the batch is sealed whatever the rule says, in seconds since the epoch; None if never."""
        if self._policy.batch_timeout_s is None or self._first_at is None:
            return None
        return self._first_at + self._policy.batch_timeout_s

    def publish(self, weight_version: int) -> None:
        """Tell the pool which weights are now trained. Call it after every step and every checkpoint load.

        What the last seal took out counts as trained then, unless it was restored.
        """
        if self._policy.mixture is not None:
            self._carry = carry_over(self._policy.mixture, self._carry, self._leaving)
        self._leaving = {}
        self._weight_version = weight_version
        self._renew_quotas()
        self._recount()

    def add(self, episode: FinishedEpisode) -> DropReason | None:
        """Take an ended train episode. Raises Conflict if it is here already.

        Returns why it will not count, if so; it is kept all the same and reported as dropped by the next `seal`.
        """
        if episode.episode_id in self._episodes:
            raise Conflict(f"episode {episode.episode_id} is already in the pool")
        self._episodes[episode.episode_id] = episode
        self._spans[episode.episode_id] = version_span(episode)
        self._clients[episode.client_id] += 1
        reason = self._refuse(episode.episode_id)
        if reason is None:
            self._counts.add(episode)
            if self._first_at is None:
                self._first_at = episode.ended_at
        return reason

    def restore(self, episodes: Iterable[FinishedEpisode]) -> None:
        """Put back episodes that were acknowledged before a restart, or all of a batch that was not trained after all.

        Raises Conflict as `add`.
        """
        self._leaving = {}
        self._renew_quotas()
        for episode in episodes:
            self.add(episode)

    def replace(self, episode: FinishedEpisode) -> bool:
        """Another result for an episode that waits here. False if it does not."""
        present = self._episodes.get(episode.episode_id)
        if present is None:
            return False
        if self._refuse(episode.episode_id) is None:
            self._counts.remove(present)
        self._forget(present)
        self.add(episode)
        return True

    def may_begin(self, data_source: str, running: Mapping[str, int]) -> bool:
        """Whether there is use for one more episode of a data source, while so many of each are `running`.

        There is, unless what waits and what runs can already cover the batches that may be begun: this one, and as many
        more as `max_staleness` allows, the one in training included. Were more begun, they would be too old when their
        turn came (as AReaL bounds it, arXiv:2505.24298, section 5.1). In a mixture each data source has its share of
        them; without one and without staleness there is no bound, because a batch takes all that was begun for it.

        Lost episodes cannot block a batch: when none runs and groups are left incomplete, one more may always begin.
        Where clients agree on the end of a batch it is for them to know. Raises BadRequest for a data source outside
        the mixture.
        """
        if self._quotas is not None and data_source not in self._quotas:
            known = ", ".join(sorted(self._quotas))
            raise BadRequest(f"data source {data_source!r} is not in the mixture ({known})", param="data_source")
        if self._by_agreement or (self._quotas is None and not self._policy.max_staleness):
            return True
        if self._open_quotas is None:
            return self._has_room(
                self._policy.batch_size * self._open_batches, self._counts.total, sum(running.values())
            )
        source = self._counts.source(data_source)
        return self._has_room(self._open_quotas[data_source], source, running.get(data_source, 0))

    def _has_room(self, tasks: int, source: SourceCount, running: int) -> bool:
        """Whether `tasks` of a data source take more than what waits of it and what runs."""
        num_repeat = self._policy.num_repeat
        if self._policy.stop_rule == "enough_episodes":
            return source.episodes + running < tasks * num_repeat
        return running < source.missing_episodes(max(0, tasks - source.tasks), num_repeat)

    def is_ready(self, now: float, live_clients: Collection[str]) -> bool:
        """Whether the batch can be sealed, by the stop rule or because its time is over.

        `live_clients` are those whose agreement "all_clients_agree" waits for. Nothing is sealed while no episode may
        be trained, and nothing for its time while no group is large enough.
        """
        if not self._counts.sources:
            return False
        if self.deadline is not None and now >= self.deadline and self._is_any_trainable():
            return True
        if self._policy.stop_rule == "any_client_agrees":
            return bool(self._agreed)
        if self._policy.stop_rule == "all_clients_agree":
            return bool(self._agreed) and all(client in self._agreed for client in live_clients)
        return self._is_target_met()

    def progress(self) -> PoolProgress:
        names = sorted({*self._counts.sources, *(self._quotas or ())})
        sources = {name: self._source_progress(name) for name in names}
        return PoolProgress(
            stop_rule=self._policy.stop_rule,
            episodes=self._counts.episodes,
            episodes_target=self._policy.batch_size * self._policy.num_repeat,
            tasks=sum(_at_most(item.tasks, item.tasks_target) for item in sources.values()),
            tasks_target=self._policy.batch_size,
            sources=sources,
            agreed=self.agreed,
        )

    def seal(self, batch_id: str, step: int) -> SealedBatch:
        """Take a batch out of the pool; the next policy is then in force. May be called before `is_ready`.

        Each episode leaves in a group, leaves as dropped, or stays for the next batch, which it may only if it will
        not be stale by then and if something leaves in a group. A group trains on its survivors; one below `min_group`
        is dropped. On-policy all groups leave; where staleness is allowed a batch is no larger than its target, except
        by what the next one could not hold. Which groups stay, and the order of groups and of episodes, depend on what
        the episodes hold and not on when they arrived or how they are named.
        """
        taken, left = self._choose(step)
        reasons = {
            episode_id: reason for episode_id in self._episodes if (reason := self._refuse(episode_id)) is not None
        }
        for reason, group in left:
            stays = taken and self._is_of_use(group)
            reasons.update({episode: reason for episode in group.episodes if not (stays and self._is_fresh(episode))})
        batch = rebuild(batch_id, step, [episode for group in taken for episode in group.episodes.values()])
        dropped = [_drop(self._episodes[episode_id], reason) for episode_id, reason in sorted(reasons.items())]
        self._leaving = Counter(group.episodes[0].data_source for group in batch.groups)
        self._start_anew([*reasons, *(episode.episode_id for episode in batch.episodes)])
        return SealedBatch(batch, tuple(dropped))

    def _choose(self, step: int) -> tuple[list[WaitingGroup], list[tuple[DropReason, WaitingGroup]]]:
        """Groups for the batch, and the others with what keeps them out."""
        taken: list[WaitingGroup] = []
        left: list[tuple[DropReason, WaitingGroup]] = []
        room = None if self._quotas is None else dict(self._quotas)
        # Beyond its target a batch would only grow with what the clients are faster than the trainer. Groups that are
        # not full may find their other episodes, still running, in the next one.
        is_bounded = bool(self._policy.max_staleness) and not self._by_agreement and self._is_target_met()
        by_episodes = self._policy.stop_rule == "enough_episodes"
        lacking = self._policy.batch_size * (self._policy.num_repeat if by_episodes else 1)
        for key, group in sorted(self._counts.groups.items(), key=lambda item: self._rank(step, *item)):
            reason = self._keep_out(key[0], group, room)
            if reason is None and is_bounded and lacking <= 0 and all(map(self._is_fresh, group.episodes)):
                reason = DropReason.OVER_QUOTA
            if reason is not None:
                left.append((reason, group))
                continue
            taken.append(group)
            lacking -= len(group) if by_episodes else 1
            if room is not None:
                room[key[0]] -= 1
        return taken, left

    def _keep_out(self, source: str, group: WaitingGroup, room: Mapping[str, int] | None) -> DropReason | None:
        if len(group) < self._policy.min_group:
            return DropReason.GROUP_TOO_SMALL
        if self._counts.lacks_contrast(group):
            return DropReason.CONSTANT_REWARD
        if room is not None and room.get(source, 0) <= 0:
            return DropReason.OVER_QUOTA
        return None

    def _rank(self, step: int, key: GroupKey, group: WaitingGroup) -> tuple[int, int, bytes]:
        """Full groups come first, then those that would be stale soonest, then chance.

        The chance is the same for everybody who knows the step, but not for the task at every step: speed must not
        decide, nor must the same tasks lose each time.
        """
        oldest = 0
        if self._policy.max_staleness:
            spans = (self._spans[episode_id] for episode_id in group.episodes)
            oldest = min(span.oldest for span in spans if span is not None)
        digest = hashlib.sha256("\0".join((str(step), *key)).encode("utf-8", "surrogatepass")).digest()
        return -min(len(group), self._policy.num_repeat), oldest, digest

    @property
    def _by_agreement(self) -> bool:
        return self._policy.stop_rule in {"any_client_agrees", "all_clients_agree"}

    def _is_of_use(self, group: WaitingGroup) -> bool:
        """Whether the next batch could take the group. One without contrast that is full would never leave."""
        mixture = (self._next_policy or self._policy).mixture
        source, _ = key_of(next(iter(group.episodes.values())))
        is_hopeless = self._counts.is_full(group) and self._counts.lacks_contrast(group)
        return not is_hopeless and (mixture is None or source in mixture)

    def _is_fresh(self, episode_id: str) -> bool:
        """Whether the next batch may hold the episode."""
        allowed = (self._next_policy or self._policy).max_staleness
        span = self._spans[episode_id]
        return refuse(span, weight_version=self._weight_version + 1, max_staleness=allowed) is None

    def _start_anew(self, gone: Iterable[str]) -> None:
        sealed_at = max((episode.ended_at for episode in self._episodes.values()), default=None)
        for episode_id in gone:
            self._forget(self._episodes[episode_id])
        self._agreed.clear()
        if self._next_policy is not None:
            if self._next_policy.mixture != self._policy.mixture:
                self._carry, self._leaving = {}, {}
            self._policy, self._next_policy = self._next_policy, None
        self._renew_quotas()
        self._first_at = sealed_at
        self._recount()

    def _recount(self) -> None:
        self._counts = GroupCounts(self._policy)
        admitted = [episode for episode_id, episode in self._episodes.items() if self._refuse(episode_id) is None]
        for episode in admitted:
            self._counts.add(episode)
        if not admitted:
            self._first_at = None
        elif self._first_at is None:
            self._first_at = min(episode.ended_at for episode in admitted)

    def _forget(self, episode: FinishedEpisode) -> None:
        del self._episodes[episode.episode_id], self._spans[episode.episode_id]
        self._clients[episode.client_id] -= 1
        if not self._clients[episode.client_id]:
            del self._clients[episode.client_id]

    def _refuse(self, episode_id: str) -> DropReason | None:
        return refuse(
            self._spans[episode_id], weight_version=self._weight_version, max_staleness=self._policy.max_staleness
        )

    def _is_target_met(self) -> bool:
        """Whether there are as many episodes or tasks as the policy asks for, of each data source in a mixture."""
        by_episodes = self._policy.stop_rule == "enough_episodes"
        unit = self._policy.num_repeat if by_episodes else 1

        def number(source: SourceCount) -> int:
            return source.episodes if by_episodes else source.tasks

        if self._quotas is None:
            return sum(map(number, self._counts.sources.values())) >= self._policy.batch_size * unit
        return all(number(self._counts.source(name)) >= quota * unit for name, quota in self._quotas.items())

    def _is_any_trainable(self) -> bool:
        return any(
            source.trainable and (self._quotas is None or self._quotas.get(name, 0))
            for name, source in self._counts.sources.items()
        )

    def _source_progress(self, name: str) -> SourceProgress:
        source = self._counts.source(name)
        target = None if self._quotas is None else self._quotas.get(name, 0)
        return SourceProgress(source.episodes, source.tasks, target)

    @property
    def _open_batches(self) -> int:
        """How many may be begun at present: the one being filled and those after it."""
        return 1 + max(0, self._policy.max_staleness - bool(self._leaving))

    def _renew_quotas(self) -> None:
        """Share out the batch being filled and all that may be begun; the one in training counts as trained."""
        mixture, size = self._policy.mixture, self._policy.batch_size
        if mixture is None:
            self._quotas = self._open_quotas = None
            return
        carry = carry_over(mixture, self._carry, self._leaving)
        self._quotas = share_out(mixture, size, carry)
        self._open_quotas = share_out(mixture, size * self._open_batches, carry)


def rebuild(batch_id: str, step: int, episodes: Iterable[FinishedEpisode]) -> TrainBatch:
    """The batch of these episodes, grouped and ordered as `seal` does it."""
    groups: dict[GroupKey, list[FinishedEpisode]] = {}
    for episode in episodes:
        groups.setdefault(key_of(episode), []).append(episode)
    ordered = (Group(key[1], tuple(sorted(groups[key], key=_content))) for key in sorted(groups))
    return TrainBatch(batch_id=batch_id, step=step, groups=tuple(ordered))


def _at_most(value: int, limit: int | None) -> int:
    return value if limit is None else min(value, limit)


def _drop(episode: FinishedEpisode, reason: DropReason) -> DroppedEpisode:
    return DroppedEpisode(episode.episode_id, reason, episode.trained_tokens)


def _content(episode: FinishedEpisode) -> tuple[tuple[tuple[int, ...], ...], Returns, str]:
    return tuple(sample.token_ids_T for sample in episode.samples), returns_of(episode), episode.episode_id
