"""From finished episodes to a sealed batch: admission, groups, quotas and stop rules."""

from swarm.batch.diagnostics import ClientWarning, Diagnostics
from swarm.batch.eligibility import DroppedEpisode, DropReason
from swarm.batch.policy import BatchPolicy
from swarm.batch.pool import BatchPool, Place, PoolProgress, SealedBatch, SourceProgress
from swarm.batch.selection import rebuild

__all__ = [
    "BatchPolicy",
    "BatchPool",
    "ClientWarning",
    "Diagnostics",
    "DropReason",
    "DroppedEpisode",
    "Place",
    "PoolProgress",
    "SealedBatch",
    "SourceProgress",
    "rebuild",
]
