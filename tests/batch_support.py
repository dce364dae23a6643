"""Batch pools and finished episodes for tests."""

from __future__ import annotations

from typing import Any

from swarm.batch import BatchPolicy, BatchPool, ClosedBatch, DropReason, Place
from swarm.job import TrainJob
from swarm.types import FinishedEpisode, Sample


class Clock:
    """Stands still unless it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_pool(*, weight_version: int = 0, clock: Clock | None = None, **job: Any) -> BatchPool:
    return BatchPool(BatchPolicy.of(TrainJob(**job)), weight_version=weight_version, clock=clock or Clock())


def is_ready(pool: BatchPool, live: tuple[str, ...] = ()) -> bool:
    return pool.is_ready(live)


def begin(pool: BatchPool, number: int, source: str = "default", task: str | None = None) -> list[Place]:
    """So many episodes begin that may."""
    places: list[Place] = []
    for _ in range(number):
        assert pool.may_begin(source, task)
        places.append(pool.begin(source, task))
    return places


def make_sample(episode_id: str, versions: tuple[int, ...], token: int = 7) -> Sample:
    """One prompt token, then one sampled token per entry of `versions`."""
    sampled = len(versions)
    return Sample(
        episode_id=episode_id,
        token_ids_T=(1, *(token,) * sampled),
        loss_mask_T=(False, *(True,) * sampled),
        logprobs_T=(0.0, *(-0.5,) * sampled),
        weight_versions_T=(-1, *versions),
        turn_indices_T=(-1, *(0,) * sampled),
        temperatures_T=(1.0,) * (1 + sampled),
    )


def make_episode(
    episode_id: str,
    task_id: str,
    versions: tuple[int, ...] = (0, 0),
    reward: float = 1.0,
    token: int = 7,
    *,
    source: str = "default",
    client: str = "client",
    turn_rewards: tuple[float, ...] | None = None,
    rewards: dict[str, float] | None = None,
    ended_at: float = 0.0,
) -> FinishedEpisode:
    return FinishedEpisode(
        episode_id=episode_id,
        task_id=task_id,
        client_id=client,
        reward=reward,
        is_success=None,
        samples=(make_sample(episode_id, versions, token),),
        ended_at=ended_at,
        data_source=source,
        turn_rewards=turn_rewards,
        rewards=rewards,
    )


def fill(pool: BatchPool, sizes: dict[str, int]) -> None:
    for task_id, size in sizes.items():
        for repeat in range(size):
            pool.add(make_episode(f"{task_id}-{repeat}", task_id))


def reasons(closed: ClosedBatch) -> dict[str, DropReason]:
    return {drop.episode_id: drop.reason for drop in closed.dropped}
