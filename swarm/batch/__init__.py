"""From finished episodes to a sealed batch: admission, groups, quotas and stop rules."""

from swarm.batch.admission import DroppedEpisode, DropReason
from swarm.batch.policy import BatchPolicy
from swarm.batch.pool import BatchPool, PoolProgress, SealedBatch, SourceProgress, rebuild
from swarm.batch.preflight import ClientWarning, Preflight

__all__ = [
    "BatchPolicy",
    "BatchPool",
    "ClientWarning",
    "DropReason",
    "DroppedEpisode",
    "PoolProgress",
    "Preflight",
    "SealedBatch",
    "SourceProgress",
    "rebuild",
]
