"""The database of studies, with their plans, runs, measurements, findings and decisions; `open_store` opens it.

SQLAlchemy is loaded when a store is first opened: a program that only knows records and errors goes without.
"""

# ruff: noqa: I001 - `X as X` marks a public name of a typed package, and a list of names stays one statement.

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments_db.errors import (
    FrozenCharter as FrozenCharter,
    IllegalMove as IllegalMove,
    InvalidRecord as InvalidRecord,
    LeaseHeld as LeaseHeld,
    NotAStore as NotAStore,
    ReadOnlyStore as ReadOnlyStore,
    RecordNotFound as RecordNotFound,
    SchemaMismatch as SchemaMismatch,
    StoreConflict as StoreConflict,
    StoreError as StoreError,
    StoreLeaseLost as StoreLeaseLost,
    StoreUnavailable as StoreUnavailable,
    TestSplitOpened as TestSplitOpened,
)
from experiments_db.exploration import (
    RULED_OUT as RULED_OUT,
    ArmFailure as ArmFailure,
    ExploringRun as ExploringRun,
    SearchArm as SearchArm,
    lay_out_experiments as lay_out_experiments,
    read_search_arms as read_search_arms,
)
from experiments_db.kinds import (
    IN_MEAN as IN_MEAN,
    IN_MEDIAN_PAIR as IN_MEDIAN_PAIR,
    RUN_MOVES as RUN_MOVES,
    Author as Author,
    BudgetKind as BudgetKind,
    EpisodeOrder as EpisodeOrder,
    ExperimentStatus as ExperimentStatus,
    FindingKind as FindingKind,
    NoteKind as NoteKind,
    Operator as Operator,
    Outcome as Outcome,
    QuestionStatus as QuestionStatus,
    RunStatus as RunStatus,
    Severity as Severity,
    StudyStatus as StudyStatus,
    Verdict as Verdict,
)
from experiments_db.numerals import number_as_text as number_as_text
from experiments_db.opening import open_store as open_store
from experiments_db.records import (
    Artifact as Artifact,
    DetailedEvaluation as DetailedEvaluation,
    EpisodeFilter as EpisodeFilter,
    EpisodeSample as EpisodeSample,
    EpisodeSummary as EpisodeSummary,
    EvaluationSummary as EvaluationSummary,
    Event as Event,
    Experiment as Experiment,
    Finding as Finding,
    IterationDocument as IterationDocument,
    JsonObject as JsonObject,
    Lease as Lease,
    LLMCall as LLMCall,
    LLMUsage as LLMUsage,
    MetricPoint as MetricPoint,
    MetricSpan as MetricSpan,
    NotebookEntry as NotebookEntry,
    PlannerQuestion as PlannerQuestion,
    ProgramTrial as ProgramTrial,
    Review as Review,
    Run as Run,
    RunMean as RunMean,
    RunSummary as RunSummary,
    StoredCharter as StoredCharter,
    StoredDecision as StoredDecision,
    StoredHypothesis as StoredHypothesis,
    Study as Study,
    StudySeal as StudySeal,
    StudyRuns as StudyRuns,
    hash_json as hash_json,
)
from experiments_db.run_log import FILE_LOGGED as FILE_LOGGED, RunLog as RunLog, record_run as record_run
from experiments_db.study_work import (
    StudyWork as StudyWork,
    find_work as find_work,
    judge_work as judge_work,
    lease_name as lease_name,
)
from experiments_db.trainings import (
    TRAINING_SECONDS as TRAINING_SECONDS,
    sum_step_seconds as sum_step_seconds,
    LONGEST_NOTE as LONGEST_NOTE,
    MOST_TAGS as MOST_TAGS,
    NotedLedger as NotedLedger,
    RecordedTraining as RecordedTraining,
    ServerEvent as ServerEvent,
    SystemPoint as SystemPoint,
    TrainedEpisode as TrainedEpisode,
    TrainedEpisodeSummary as TrainedEpisodeSummary,
    TrainingNews as TrainingNews,
    TrainingPoint as TrainingPoint,
    TrainingScore as TrainingScore,
)

if TYPE_CHECKING:
    from experiments_db.store import ExperimentStore as ExperimentStore


def __getattr__(name: str) -> object:
    if name != "ExperimentStore":
        raise AttributeError(f"module 'experiments_db' has no attribute {name!r}")
    from experiments_db.store import ExperimentStore

    return ExperimentStore
