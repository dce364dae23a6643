"""The durable record of a server: SQLite, one writer, group commit."""

from swarm.ledger.ledger import Ledger
from swarm.ledger.operations import Ending
from swarm.ledger.rows import (
    AuditRow,
    BatchRow,
    BatchState,
    ClosedEpisode,
    CompletedEpisode,
    EndReceipt,
    EpisodeRow,
    EpisodeSlice,
    EventRow,
    JobRow,
    MetricRow,
    OpenWork,
    StateRow,
)
from swarm.ledger.writer import CommitCount

__all__ = [
    "AuditRow",
    "BatchRow",
    "BatchState",
    "ClosedEpisode",
    "CommitCount",
    "CompletedEpisode",
    "EndReceipt",
    "Ending",
    "EpisodeRow",
    "EpisodeSlice",
    "EventRow",
    "JobRow",
    "Ledger",
    "MetricRow",
    "OpenWork",
    "StateRow",
]
