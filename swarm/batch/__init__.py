"""The way from finished episodes to a complete batch: admission, groups, quotas and stop rules."""

from swarm.batch.diagnostics import ClientWarning as ClientWarning
from swarm.batch.diagnostics import Diagnostics as Diagnostics
from swarm.batch.groups import assemble as assemble
from swarm.batch.policy import BatchPolicy as BatchPolicy
from swarm.batch.policy import DroppedEpisode as DroppedEpisode
from swarm.batch.policy import DropReason as DropReason
from swarm.batch.pool import BatchPool as BatchPool
from swarm.batch.pool import ClosedBatch as ClosedBatch
from swarm.batch.pool import Place as Place
from swarm.batch.pool import PoolProgress as PoolProgress
from swarm.batch.pool import SourceProgress as SourceProgress
