"""From finished episodes to a sealed batch: admission, groups and stop rules."""

from swarm.batch.admission import DroppedEpisode, DropReason
from swarm.batch.pool import BatchPool, PoolProgress, SealedBatch

__all__ = ["BatchPool", "DropReason", "DroppedEpisode", "PoolProgress", "SealedBatch"]
