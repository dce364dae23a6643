"""The durable record of a server: SQLite, one writer, group commit."""

from swarm.ledger.evaluations import EvaluationReport as EvaluationReport
from swarm.ledger.integrity.openings import LOST_EPISODES as LOST_EPISODES
from swarm.ledger.integrity.openings import RecordLoss as RecordLoss
from swarm.ledger.ledger import Ledger as Ledger
from swarm.ledger.rows import MAX_SETTINGS as MAX_SETTINGS
from swarm.ledger.rows import NO_USE as NO_USE
from swarm.ledger.rows import AuditRow as AuditRow
from swarm.ledger.rows import BatchRow as BatchRow
from swarm.ledger.rows import BatchState as BatchState
from swarm.ledger.rows import ClosedEpisode as ClosedEpisode
from swarm.ledger.rows import EndReceipt as EndReceipt
from swarm.ledger.rows import EpisodeRow as EpisodeRow
from swarm.ledger.rows import EvaluationRow as EvaluationRow
from swarm.ledger.rows import EvaluationState as EvaluationState
from swarm.ledger.rows import EventRow as EventRow
from swarm.ledger.rows import JobRow as JobRow
from swarm.ledger.rows import JobUse as JobUse
from swarm.ledger.rows import LaunchRow as LaunchRow
from swarm.ledger.rows import LeaseRow as LeaseRow
from swarm.ledger.rows import ModelUse as ModelUse
from swarm.ledger.rows import OpenWork as OpenWork
from swarm.ledger.rows import RecordedEpisode as RecordedEpisode
from swarm.ledger.rows import StateRow as StateRow
from swarm.ledger.writer import CommitCount as CommitCount
from swarm.ledger.writes.episodes import ReportedResult as ReportedResult
