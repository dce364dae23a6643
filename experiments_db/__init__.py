"""The database of studies, with their plans, runs, measurements, findings and decisions; `open_store` opens it.

The store itself is imported when it is first named: a program that only knows records and errors loads no SQLAlchemy.
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
    SchemaTooNew,
    SchemaTooOld,
    StoreConflict,
    StoreError,
    StoreLeaseLost,
    StoreUnavailable,
    TestSplitOpened,
)
from experiments_db.exploration import (
    ArmFailure,
    CheckCount,
    ExploringRun,
    SearchArm,
    lay_out_experiments,
    read_search_arms,
)
from experiments_db.numerals import number_as_text
from experiments_db.records import (
    RUN_MOVES,
    Artifact,
    Author,
    BudgetEntry,
    BudgetKind,
    Changes,
    DetailedEvaluation,
    EpisodeSample,
    EpisodeSummary,
    EvaluationSummary,
    Event,
    Experiment,
    ExperimentStatus,
    Finding,
    IterationDocument,
    JsonObject,
    Lease,
    LLMCall,
    LLMUsage,
    MetricPoint,
    MetricSpan,
    NotebookEntry,
    NoteKind,
    Operator,
    Outcome,
    PlannerQuestion,
    ProgramTrial,
    QuestionStatus,
    Review,
    Run,
    RunOrder,
    RunStatus,
    Severity,
    StoredCharter,
    StoredDecision,
    StoredHypothesis,
    Study,
    StudyDigest,
    StudyStatus,
    TableDigest,
    Verdict,
    hash_json,
)
from experiments_db.study_work import StudyWork, find_work, judge_work, lease_name

if TYPE_CHECKING:
    from experiments_db.store import ExperimentStore, open_store

__all__ = [
    "RUN_MOVES",
    "ArmFailure",
    "Artifact",
    "Author",
    "BudgetEntry",
    "BudgetKind",
    "Changes",
    "CheckCount",
    "DetailedEvaluation",
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
    "Review",
    "Run",
    "RunOrder",
    "RunStatus",
    "SchemaMismatch",
    "SchemaTooNew",
    "SchemaTooOld",
    "SearchArm",
    "Severity",
    "StoreConflict",
    "StoreError",
    "StoreLeaseLost",
    "StoreUnavailable",
    "StoredCharter",
    "StoredDecision",
    "StoredHypothesis",
    "Study",
    "StudyDigest",
    "StudyStatus",
    "StudyWork",
    "TableDigest",
    "TestSplitOpened",
    "Verdict",
    "find_work",
    "hash_json",
    "judge_work",
    "lay_out_experiments",
    "lease_name",
    "number_as_text",
    "open_store",
    "read_search_arms",
]

_OF_STORE = frozenset({"ExperimentStore", "open_store"})


def __getattr__(name: str) -> object:
    if name not in _OF_STORE:
        raise AttributeError(f"module 'experiments_db' has no attribute {name!r}")
    from experiments_db import store

    return getattr(store, name)
