"""The durable record of a server: SQLite, one writer, group commit."""

from swarm.ledger.evaluations import Report
from swarm.ledger.ledger import Ledger
from swarm.ledger.rows import (
    AuditRow,
    BatchRow,
    BatchState,
    ClosedEpisode,
    EndReceipt,
    EpisodeRow,
    EpisodeSlice,
    EvaluationRow,
    EvaluationState,
    EventRow,
    JobRow,
    LaunchRow,
    LeaseRow,
    MetricRow,
    OpenWork,
    RecordedEpisode,
    StateRow,
    TaskRow,
)
from swarm.ledger.writer import CommitCount
from swarm.ledger.writes import Ending

__all__ = [
    "AuditRow",
    "BatchRow",
    "BatchState",
    "ClosedEpisode",
    "CommitCount",
    "EndReceipt",
    "Ending",
    "EpisodeRow",
    "EpisodeSlice",
    "EvaluationRow",
    "EvaluationState",
    "EventRow",
    "JobRow",
    "LaunchRow",
    "LeaseRow",
    "Ledger",
    "MetricRow",
    "OpenWork",
    "RecordedEpisode",
    "Report",
    "StateRow",
    "TaskRow",
]
