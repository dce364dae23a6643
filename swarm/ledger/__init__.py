"""The durable record of a server: SQLite, one writer, group commit."""

from swarm.ledger.ledger import Ledger
from swarm.ledger.rows import (
    AuditRow,
    BatchRow,
    BatchState,
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

__all__ = [
    "AuditRow",
    "BatchRow",
    "BatchState",
    "CompletedEpisode",
    "EndReceipt",
    "EpisodeRow",
    "EpisodeSlice",
    "EventRow",
    "JobRow",
    "Ledger",
    "MetricRow",
    "OpenWork",
    "StateRow",
]
