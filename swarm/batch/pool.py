"""The half-filled batch: finished episodes wait here until the stop rule is met, then leave together.

Place in the flow: server.py adds every ended train episode and seals when `ready`; the sealed batch goes to the
trainer. The pool knows nothing of HTTP, leases, clocks or the ledger, and keeps nothing on disk: after a crash the
server restores it from the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from swarm.batch.admission import DroppedEpisode, DropReason, VersionSpan, refuse, version_span
from swarm.config import TrainJob
from swarm.errors import Conflict
from swarm.types import FinishedEpisode, Group, TrainBatch


@dataclass(frozen=True, slots=True)
class PoolProgress:
    """How full the next batch is. Only episodes that may be trained count; `tasks` are those with a full group."""

    stop_rule: str
    episodes: int
    episodes_target: int
    tasks: int
    tasks_target: int


@dataclass(frozen=True, slots=True)
class SealedBatch:
    """What left the pool: every episode that was in it is either in `batch` or in `dropped`.

    `batch.groups` is empty when nothing survived.
    """

    batch: TrainBatch
    dropped: tuple[DroppedEpisode, ...]


class BatchPool:
    """Episodes of the next batch, by id. Used from one thread."""

    def __init__(self, job: TrainJob, *, weight_version: int, max_staleness: int = 0) -> None:
        """`weight_version` is the version the batch will be trained on top of; `publish` moves it on."""
        self._job = job.resolve()
        self._weight_version = weight_version
        self._max_staleness = max_staleness
        self._episodes: dict[str, FinishedEpisode] = {}
        self._spans: dict[str, VersionSpan | None] = {}

    def __len__(self) -> int:
        return len(self._episodes)

    def publish(self, weight_version: int) -> None:
        """Tell the pool which weights are now trained. Call it after every step and every checkpoint load."""
        self._weight_version = weight_version

    def add(self, episode: FinishedEpisode) -> DropReason | None:
        """Take an ended train episode. Raises Conflict if it is here already.

        Returns why it will not count, if so (for the answer to a late client); it is kept all the same and reported
        as dropped by the next `seal`.
        """
        if episode.episode_id in self._episodes:
            raise Conflict(f"episode {episode.episode_id} is already in the pool")
        self._episodes[episode.episode_id] = episode
        self._spans[episode.episode_id] = version_span(episode)
        return self._refuse(episode)

    def restore(self, episodes: Iterable[FinishedEpisode]) -> None:
        """Put back episodes that were acknowledged before a restart or a failed step. Raises Conflict as `add`."""
        for episode in episodes:
            self.add(episode)

    @property
    def ready(self) -> bool:
        """Whether the job's stop rule is met."""
        progress = self.progress()
        if progress.stop_rule == "enough_episodes":
            return progress.episodes >= progress.episodes_target
        return progress.tasks >= progress.tasks_target

    def progress(self) -> PoolProgress:
        groups = self._admissible_groups()
        return PoolProgress(
            stop_rule=self._job.stop_rule,
            episodes=sum(len(group) for group in groups.values()),
            episodes_target=self._job.batch_size * self._job.num_repeat,
            tasks=sum(len(group) >= self._job.num_repeat for group in groups.values()),
            tasks_target=self._job.batch_size,
        )

    def seal(self, batch_id: str, step: int) -> SealedBatch:
        """Empty the pool into one batch. Groups are ordered by task id, the episodes of a group by what they hold.

        The order therefore depends neither on arrival nor on random episode ids. A group trains on its survivors; one
        below `min_group` is dropped as a whole. May be called before `ready`, for instance at a deadline.
        """
        groups: list[Group] = []
        dropped = [
            _drop(episode, reason)
            for episode in self._episodes.values()
            if (reason := self._refuse(episode)) is not None
        ]
        for task_id, episodes in sorted(self._admissible_groups().items()):
            if len(episodes) < self._min_group:
                dropped.extend(_drop(episode, DropReason.GROUP_TOO_SMALL) for episode in episodes)
            else:
                groups.append(Group(task_id, tuple(sorted(episodes, key=_content))))
        self._episodes.clear()
        self._spans.clear()
        return SealedBatch(
            batch=TrainBatch(batch_id=batch_id, step=step, groups=tuple(groups)),
            dropped=tuple(sorted(dropped, key=lambda drop: drop.episode_id)),
        )

    @property
    def _min_group(self) -> int:
        assert self._job.min_group is not None, "a resolved job has min_group"
        return self._job.min_group

    def _refuse(self, episode: FinishedEpisode) -> DropReason | None:
        span = self._spans[episode.episode_id]
        return refuse(span, weight_version=self._weight_version, max_staleness=self._max_staleness)

    def _admissible_groups(self) -> dict[str, list[FinishedEpisode]]:
        groups: defaultdict[str, list[FinishedEpisode]] = defaultdict(list)
        for episode in self._episodes.values():
            if self._refuse(episode) is None:
                groups[episode.task_id].append(episode)
        return groups


def _drop(episode: FinishedEpisode, reason: DropReason) -> DroppedEpisode:
    return DroppedEpisode(episode.episode_id, reason, episode.trained_tokens)


def _content(episode: FinishedEpisode) -> tuple[tuple[tuple[int, ...], ...], float, str]:
    return tuple(sample.token_ids_T for sample in episode.samples), episode.reward, episode.episode_id
