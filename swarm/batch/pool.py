"""The batch being filled: finished episodes wait here until the stop rule is met, then leave together.

Place in the flow: the rollout adds every ended train episode, the training loop seals; the sealed batch goes to the
trainer. The pool knows nothing of HTTP, leases or the ledger, and keeps nothing on disk: after a crash the server
restores it from the ledger. Time is given to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from swarm.batch.admission import DroppedEpisode, DropReason, VersionSpan, refuse, version_span
from swarm.batch.groups import GroupCounts, GroupKey, WaitingGroup, key_of
from swarm.batch.policy import BatchPolicy
from swarm.batch.quotas import share_out
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
        self._trained = dict(trained_groups or {})
        self._leaving: dict[str, int] = {}
        self._episodes: dict[str, FinishedEpisode] = {}
        self._spans: dict[str, VersionSpan | None] = {}
        self._agreed: dict[str, None] = {}
        self._first_at: float | None = None
        self._counts = self._new_counts()
        self._quotas = self._new_quotas()

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
    def clients(self) -> set[str]:
        """Whose episodes wait here."""
        return {episode.client_id for episode in self._episodes.values()}

    @property
    def deadline(self) -> float | None:
        """When the batch is sealed whatever the rule says, in seconds since the epoch; None if never."""
        if self._policy.batch_timeout_s is None or self._first_at is None:
            return None
        return self._first_at + self._policy.batch_timeout_s

    def publish(self, weight_version: int) -> None:
        """Tell the pool which weights are now trained. Call it after every step and every checkpoint load."""
        self._weight_version = weight_version
        for source, groups in self._leaving.items():
            self._trained[source] = self._trained.get(source, 0) + groups
        self._leaving = {}
        self._quotas = self._new_quotas()
        self._recount()

    def add(self, episode: FinishedEpisode) -> DropReason | None:
        """Take an ended train episode. Raises Conflict if it is here already.

        Returns why it will not count, if so; it is kept all the same and reported as dropped by the next `seal`.
        """
        if episode.episode_id in self._episodes:
            raise Conflict(f"episode {episode.episode_id} is already in the pool")
        self._episodes[episode.episode_id] = episode
        self._spans[episode.episode_id] = version_span(episode)
        reason = self._refuse(episode.episode_id)
        if reason is None:
            self._counts.add(episode)
            if self._first_at is None:
                self._first_at = episode.ended_at
        return reason

    def restore(self, episodes: Iterable[FinishedEpisode]) -> None:
        """Put back episodes that were acknowledged before a restart or a failed step. Raises Conflict as `add`."""
        for episode in episodes:
            self.add(episode)

    def replace(self, episode: FinishedEpisode) -> bool:
        """Another result for an episode that waits here. False if it does not."""
        present = self._episodes.get(episode.episode_id)
        if present is None:
            return False
        self._discard(present)
        self.add(episode)
        return True

    def may_begin(self, data_source: str, running: int) -> bool:
        """Whether this batch has use for one more episode of a data source of which `running` are under way.

        Without a mixture it always has. When none runs and groups are left incomplete, one more may always begin: lost
        episodes cannot block a batch. Raises BadRequest for a data source outside the mixture.
        """
        if self._quotas is None:
            return True
        if data_source not in self._quotas:
            known = ", ".join(sorted(self._quotas))
            raise BadRequest(f"data source {data_source!r} is not in the mixture ({known})", param="data_source")
        quota, source = self._quotas[data_source], self._counts.source(data_source)
        if self._policy.stop_rule == "enough_episodes":
            return source.episodes + running < quota * self._policy.num_repeat
        missing = quota - source.tasks
        if missing <= 0:
            return False
        return running == 0 or running + source.unfinished < missing * self._policy.num_repeat

    def is_ready(self, now: float, live_clients: Collection[str]) -> bool:
        """Whether the batch can be sealed, by the stop rule or because its time is over.

        `live_clients` are those whose agreement "all_clients_agree" waits for. Nothing is sealed while no episode may
        be trained.
        """
        if not self._counts.episodes:
            return False
        if self.deadline is not None and now >= self.deadline and self._any_trainable():
            return True
        match self._policy.stop_rule:
            case "any_client_agrees":
                return bool(self._agreed)
            case "all_clients_agree":
                return bool(self._agreed) and all(client in self._agreed for client in live_clients)
            case "enough_episodes":
                return self._covered(
                    self._counts.episodes,
                    lambda name: self._counts.source(name).episodes,
                    self._policy.num_repeat,
                )
            case _:
                return self._covered(self._counts.tasks, lambda name: self._counts.source(name).tasks, 1)

    def progress(self) -> PoolProgress:
        names = sorted({*self._counts.sources, *(self._quotas or ())})
        sources = {name: self._source_progress(name) for name in names}
        return PoolProgress(
            stop_rule=self._policy.stop_rule,
            episodes=self._counts.episodes,
            episodes_target=self._policy.batch_size * self._policy.num_repeat,
            tasks=sum(min(item.tasks, _unless_none(item.tasks_target, item.tasks)) for item in sources.values()),
            tasks_target=self._policy.batch_size,
            sources=sources,
            agreed=self.agreed,
        )

    def seal(self, batch_id: str, step: int) -> SealedBatch:
        """Take a batch out of the pool; the next policy is then in force. May be called before `is_ready`.

        Each episode leaves in a group, leaves as dropped, or stays for the next batch, which it may only if it will
        not be stale by then. A group trains on its survivors; one below `min_group` is dropped. Which groups of a data
        source stay within its quota, and the order of groups and of episodes, depend on what the episodes hold and not
        on when they arrived or how they are named.
        """
        reasons = {
            episode_id: reason for episode_id in self._episodes if (reason := self._refuse(episode_id)) is not None
        }
        taken, left = self._choose(self._counts.groups)
        reasons.update({episode.episode_id: reason for reason, episode in left if not self._may_stay(episode)})
        batch = rebuild(batch_id, step, [episode for group in taken for episode in group.episodes.values()])
        dropped = [_drop(self._episodes[episode_id], reason) for episode_id, reason in sorted(reasons.items())]
        self._leaving = _groups_by_source(batch)
        self._start_anew([*reasons, *(episode.episode_id for episode in batch.episodes)])
        return SealedBatch(batch, tuple(dropped))

    def _choose(
        self, groups: Mapping[GroupKey, WaitingGroup]
    ) -> tuple[list[WaitingGroup], list[tuple[DropReason, FinishedEpisode]]]:
        """Groups for the batch, and the episodes of the others with what keeps them out."""
        taken: list[WaitingGroup] = []
        left: list[tuple[DropReason, FinishedEpisode]] = []
        room = dict(self._quotas or {})
        # Full groups first, then by a digest: which tasks win must not depend on their speed or on their names.
        for key in sorted(groups, key=lambda key: (not self._counts.counts(groups[key]), _digest(key))):
            group = groups[key]
            reason = self._keep_out(key[0], group, room)
            if reason is not None:
                left.extend((reason, episode) for episode in group.episodes.values())
                continue
            taken.append(group)
            if self._quotas is not None:
                room[key[0]] -= 1
        return taken, left

    def _keep_out(self, source: str, group: WaitingGroup, room: Mapping[str, int]) -> DropReason | None:
        if len(group) < self._policy.min_group:
            return DropReason.GROUP_TOO_SMALL
        if self._policy.stop_rule == "enough_non_constant_tasks" and group.is_constant:
            return DropReason.CONSTANT_REWARD
        if self._quotas is not None and room.get(source, 0) <= 0:
            return DropReason.OVER_QUOTA
        if self._policy.max_staleness and self._by_tasks and not self._counts.is_full(group):
            # Its other episodes may still be running: they come to the next batch together.
            still = all(self._may_stay(episode) for episode in group.episodes.values())
            return DropReason.GROUP_TOO_SMALL if still else None
        return None

    @property
    def _by_tasks(self) -> bool:
        return self._policy.stop_rule in {"enough_tasks", "enough_non_constant_tasks"}

    def _may_stay(self, episode: FinishedEpisode) -> bool:
        """Whether an episode that this batch has no room for can still be trained on top of the next version.

        A group whose rewards do not differ, or whose time is over, is not kept: it would never leave.
        """
        group = self._counts.groups[key_of(episode)]
        if self._counts.is_full(group) and not self._counts.counts(group):
            return False
        span = self._spans[episode.episode_id]
        following = self._weight_version + 1
        return refuse(span, weight_version=following, max_staleness=self._policy.max_staleness) is None

    def _start_anew(self, gone: Iterable[str]) -> None:
        sealed_at = max((episode.ended_at for episode in self._episodes.values()), default=None)
        for episode_id in gone:
            del self._episodes[episode_id], self._spans[episode_id]
        self._agreed.clear()
        if self._next_policy is not None:
            if self._next_policy.mixture != self._policy.mixture:
                self._trained, self._leaving = {}, {}
            self._policy, self._next_policy = self._next_policy, None
        self._quotas = self._new_quotas()
        self._recount()
        self._first_at = sealed_at if self._counts.episodes else None

    def _recount(self) -> None:
        self._counts = self._new_counts()
        for episode_id, episode in self._episodes.items():
            if self._refuse(episode_id) is None:
                self._counts.add(episode)
        if not self._counts.episodes:
            self._first_at = None

    def _discard(self, episode: FinishedEpisode) -> None:
        if self._refuse(episode.episode_id) is None:
            self._counts.remove(episode)
        del self._episodes[episode.episode_id], self._spans[episode.episode_id]

    def _refuse(self, episode_id: str) -> DropReason | None:
        return refuse(
            self._spans[episode_id], weight_version=self._weight_version, max_staleness=self._policy.max_staleness
        )

    def _covered(self, total: int, of_source: Callable[[str], int], unit: int) -> bool:
        if self._quotas is None:
            return total >= self._policy.batch_size * unit
        return all(of_source(name) >= quota * unit for name, quota in self._quotas.items())

    def _any_trainable(self) -> bool:
        return any(len(group) >= self._policy.min_group for group in self._counts.groups.values())

    def _source_progress(self, name: str) -> SourceProgress:
        source = self._counts.source(name)
        return SourceProgress(
            source.episodes, source.tasks, None if self._quotas is None else self._quotas.get(name, 0)
        )

    def _new_counts(self) -> GroupCounts:
        policy = self._policy
        return GroupCounts(policy.num_repeat, non_constant=policy.stop_rule == "enough_non_constant_tasks")

    def _new_quotas(self) -> dict[str, int] | None:
        if self._policy.mixture is None:
            return None
        return share_out(self._policy.mixture, self._policy.batch_size, self._trained)


def rebuild(batch_id: str, step: int, episodes: Iterable[FinishedEpisode]) -> TrainBatch:
    """The batch of these episodes, grouped and ordered as `seal` does it."""
    groups: dict[GroupKey, list[FinishedEpisode]] = {}
    for episode in episodes:
        groups.setdefault(key_of(episode), []).append(episode)
    ordered = (Group(key[1], tuple(sorted(groups[key], key=_content))) for key in sorted(groups))
    return TrainBatch(batch_id=batch_id, step=step, groups=tuple(ordered))


def _groups_by_source(batch: TrainBatch) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in batch.groups:
        source = group.episodes[0].data_source
        found[source] = found.get(source, 0) + 1
    return found


def _unless_none(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _digest(key: GroupKey) -> bytes:
    return hashlib.sha256("\0".join(key).encode("utf-8", "surrogatepass")).digest()


def _drop(episode: FinishedEpisode, reason: DropReason) -> DroppedEpisode:
    return DroppedEpisode(episode.episode_id, reason, episode.trained_tokens)


def _content(episode: FinishedEpisode) -> tuple[tuple[tuple[int, ...], ...], float, str]:
    return tuple(sample.token_ids_T for sample in episode.samples), episode.reward, episode.episode_id
