"""The database of studies, with their plans, runs, measurements, findings and decisions; `open_store` opens it.

SQLAlchemy is loaded when a store is first opened: a program that only knows records and errors goes without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments_db.errors import (
    FrozenCharter,
    IllegalMove,
    InvalidRecord,
    LeaseHeld,
    NotAStore,
    ReadOnlyStore,
    RecordNotFound,
    SchemaMismatch,
    StoreConflict,
    StoreError,
    StoreLeaseLost,
    StoreUnavailable,
    TestSplitOpened,
)
from experiments_db.exploration import (
    ArmFailure,
    ExploringRun,
    SearchArm,
    lay_out_experiments,
    read_search_arms,
)
from experiments_db.kinds import (
    RUN_MOVES,
    Author,
    BudgetKind,
    EpisodeOrder,
    ExperimentStatus,
    NoteKind,
    Operator,
    Outcome,
    QuestionStatus,
    RunStatus,
    Severity,
    StudyStatus,
    Verdict,
)
from experiments_db.numerals import number_as_text
from experiments_db.opening import open_store
from experiments_db.records import (
    Artifact,
    Changes,
    DetailedEvaluation,
    EpisodeFilter,
    EpisodeSample,
    EpisodeSummary,
    EvaluationSummary,
    Event,
    Experiment,
    Finding,
    IterationDocument,
    JsonObject,
    Lease,
    LLMCall,
    LLMUsage,
    MetricPoint,
    MetricSpan,
    NotebookEntry,
    PlannerQuestion,
    ProgramTrial,
    Review,
    Run,
    RunMean,
    RunSummary,
    StoredCharter,
    StoredDecision,
    StoredHypothesis,
    Study,
    hash_json,
)
from experiments_db.run_log import FILE_LOGGED, RunLog, record_run
from experiments_db.study_work import StudyWork, find_work, judge_work, lease_name
from experiments_db.trainings import (
    LONGEST_NOTE,
    MOST_TAGS,
    RecordedServer,
    RecordedTraining,
    ServerEvent,
    SystemPoint,
    TrainedEpisode,
    TrainedEpisodeSummary,
    TrainingNews,
    TrainingPoint,
    TrainingScore,
)

if TYPE_CHECKING:
    from experiments_db.store import ExperimentStore

__all__ = [
    "FILE_LOGGED",
    "LONGEST_NOTE",
    "MOST_TAGS",
    "RUN_MOVES",
    "ArmFailure",
    "Artifact",
    "Author",
    "BudgetKind",
    "Changes",
    "DetailedEvaluation",
    "EpisodeFilter",
    "EpisodeOrder",
    "EpisodeSample",
    "EpisodeSummary",
    "EvaluationSummary",
    "Event",
    "Experiment",
    "ExperimentStatus",
    "ExperimentStore",
    "ExploringRun",
    "Finding",
    "FrozenCharter",
    "IllegalMove",
    "InvalidRecord",
    "IterationDocument",
    "JsonObject",
    "LLMCall",
    "LLMUsage",
    "Lease",
    "LeaseHeld",
    "MetricPoint",
    "MetricSpan",
    "NotAStore",
    "NoteKind",
    "NotebookEntry",
    "Operator",
    "Outcome",
    "PlannerQuestion",
    "ProgramTrial",
    "QuestionStatus",
    "ReadOnlyStore",
    "RecordNotFound",
    "RecordedServer",
    "RecordedTraining",
    "Review",
    "Run",
    "RunLog",
    "RunMean",
    "RunStatus",
    "RunSummary",
    "SchemaMismatch",
    "SearchArm",
    "ServerEvent",
    "Severity",
    "StoreConflict",
    "StoreError",
    "StoreLeaseLost",
    "StoreUnavailable",
    "StoredCharter",
    "StoredDecision",
    "StoredHypothesis",
    "Study",
    "StudyStatus",
    "StudyWork",
    "SystemPoint",
    "TestSplitOpened",
    "TrainedEpisode",
    "TrainedEpisodeSummary",
    "TrainingNews",
    "TrainingPoint",
    "TrainingScore",
    "Verdict",
    "find_work",
    "hash_json",
    "judge_work",
    "lay_out_experiments",
    "lease_name",
    "number_as_text",
    "open_store",
    "read_search_arms",
    "record_run",
]


def __getattr__(name: str) -> object:
    if name != "ExperimentStore":
        raise AttributeError(f"module 'experiments_db' has no attribute {name!r}")
    from experiments_db.store import ExperimentStore

    return ExperimentStore
