"""The tables: the fields of a record are the columns of its table, and its keys and indexes are declared here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache, cached_property
from hashlib import sha256
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Dialect,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    select,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.types import TypeEngine

from experiments_db.records import (
    Artifact,
    BudgetEntry,
    DetailedEvaluation,
    EpisodeSummary,
    EvaluationSummary,
    Event,
    Experiment,
    Finding,
    IterationDocument,
    Lease,
    LLMCall,
    MetricPoint,
    NotebookEntry,
    PlannerQuestion,
    ProgramTrial,
    Review,
    Run,
    RunSummary,
    StoredCharter,
    StoredDecision,
    StoredHypothesis,
    Study,
)
from experiments_db.trainings import (
    NotedLedger,
    RecordedTraining,
    ServerEvent,
    SystemPoint,
    TrainedEpisodeSummary,
    TrainingPoint,
    TrainingScore,
)

RecordT = TypeVar("RecordT")
OtherT = TypeVar("OtherT")

ENUM_LENGTH = 32


class Json(TypeDecorator[Any]):
    """A JSON column that refuses a value that is not JSON before anything is sent; None is NULL, an array a tuple."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        plain: type[Any] = dict if isinstance(value, Mapping) else list
        document = plain(value)
        # An error in here is reported as one of the statement; the drivers' own serializing is not.
        json.dumps(document, allow_nan=False)
        return document

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


class PlainText(TypeDecorator[str]):
    """A text column that holds the same text on every database.

    PostgreSQL cannot store the character NUL, which output of programs and language models may contain. The symbol for
    NUL (U+2400) stands in its place.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\x00", "\u2400")


TYPES: Mapping[Any, TypeEngine[Any]] = {
    str: PlainText(),
    # Seeds and sizes exceed 32 bits; only plain INTEGER numbers rows by itself on SQLite, where it has 64 bits.
    int: BigInteger().with_variant(Integer, "sqlite"),
    float: Float(53),
    bool: Boolean(),
    Mapping: Json(),
    tuple: Json(),
}
"""Column types by the type of a field."""

REFERENCES = {
    "study_id": "studies.id",
    "hypothesis_id": "hypotheses.id",
    "experiment_id": "experiments.id",
    "baseline_id": "experiments.id",
    "run_id": "runs.id",
    "training_id": "trainings.id",
    "retracted_by": "findings.id",
}
"""What the fields of these names refer to, in every table."""

ROWS = "rows"
"""Where a table names its `Rows`."""

METADATA = MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s"})


@dataclass(frozen=True, eq=False)
class Rows(Generic[RecordT]):
    """A table, read as records of one class. `noun` is the word for one row in messages."""

    table: Table
    record: type[RecordT]
    noun: str

    @property
    def c(self) -> ReadOnlyColumnCollection[str, Column[Any]]:
        return self.table.c

    @cached_property
    def columns(self) -> tuple[Column[Any], ...]:
        return tuple(self.table.c[field.name] for field in fields(self.record))  # pyright: ignore[reportArgumentType]

    def read_as(self, record: type[OtherT]) -> Rows[OtherT]:
        """Return the same rows as records with fewer fields."""
        return Rows(self.table, record, self.noun)

    def select(self, *conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
        return select(*self.columns).where(*conditions)


def _rows(
    name: str,
    record: type[RecordT],
    noun: str,
    *others: Column[Any] | UniqueConstraint | Index,
    key: tuple[str, ...] = ("id",),
    parents: tuple[str, ...] = (),
    **options: Any,
) -> Rows[RecordT]:
    """Declare a table with a column for each field of the record; `parents` are fields that refer to the same table."""
    references = REFERENCES | dict.fromkeys(parents, f"{name}.id")
    columns = [
        _column(field, hint, references.get(field), is_key=field in key)
        for field, hint in get_type_hints(record).items()
    ]
    rows = Rows(Table(name, METADATA, *columns, *others, **options), record, noun)
    rows.table.info[ROWS] = rows
    return rows


def _column(name: str, hint: Any, reference: str | None, *, is_key: bool) -> Column[Any]:
    union = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    (plain,) = (part for part in union if part is not NoneType)
    kind = get_origin(plain) or plain
    return Column(
        name,
        _enum(plain) if isinstance(plain, type) and issubclass(plain, StrEnum) else TYPES[kind],
        *(() if reference is None else (ForeignKey(reference),)),
        primary_key=is_key,
        nullable=NoneType in union,
    )


def _member_values(values: type[StrEnum]) -> list[str]:
    return [member.value for member in values]


def _enum(values: type[StrEnum]) -> Enum:
    # Stored as the value, without a CHECK constraint: a new member then needs no change of the table.
    return Enum(values, native_enum=False, length=ENUM_LENGTH, values_callable=_member_values)


STUDIES = _rows(
    "studies", Study, "study", Column("digest", Json), Column("seal", Json),
    Column("revision", TYPES[int], nullable=False, default=0), Index(None, "created_at"),
)  # fmt: skip
CHARTERS = _rows("charters", StoredCharter, "charter of study", key=("study_id",))
HYPOTHESES = _rows(
    "hypotheses", StoredHypothesis, "hypothesis", UniqueConstraint("study_id", "key"), parents=("parent_id",)
)
EXPERIMENTS = _rows(
    "experiments", Experiment, "experiment", UniqueConstraint("study_id", "name"),
    Index(None, "hypothesis_id"), parents=("parent_id", "second_parent_id"),
)  # fmt: skip
PLANS = _rows("plans", IterationDocument, "plan", key=("study_id", "iteration"))
ANALYSES = _rows("analyses", IterationDocument, "analysis", key=("study_id", "iteration"))
RUNS = _rows(
    "runs", Run, "run", UniqueConstraint("experiment_id", "seed", "rung", "attempt"),
    UniqueConstraint("idempotency_key"), Index(None, "study_id", "created_at"),
)  # fmt: skip
RUN_SUMMARIES = RUNS.read_as(RunSummary)
# The key of a point is the whole row but for its value: without a rowid SQLite stores each point once instead of twice.
METRIC_POINTS = _rows("metric_points", MetricPoint, "point", key=("run_id", "name", "step"), sqlite_with_rowid=False)
EVALUATIONS = _rows("evaluations", DetailedEvaluation, "evaluation", UniqueConstraint("run_id", "phase", "split"))
EVALUATION_SUMMARIES = EVALUATIONS.read_as(EvaluationSummary)
EPISODES = _rows(
    "episode_samples", EpisodeSummary, "episode", Column("messages", Json, nullable=False),
    Column("samples", Json, nullable=False), key=("run_id", "episode_id"),
)  # fmt: skip
FINDINGS = _rows(
    "findings", Finding, "finding", UniqueConstraint("study_id", "key"), Index(None, "hypothesis_id"),
    Index(None, "environment_name", "kind"), Index(None, "environment_digest", "kind"), Index(None, "question"),
)  # fmt: skip
NOTES = _rows("notebook", NotebookEntry, "note", UniqueConstraint("study_id", "key"), Index(None, "study_id", "id"))
TRIALS = _rows("program_trials", ProgramTrial, "trial", Index(None, "study_id", "id"), Index(None, "experiment_id"))
QUESTIONS = _rows("planner_questions", PlannerQuestion, "question", Index(None, "study_id", "id"))
REVIEWS = _rows("reviews", Review, "review", UniqueConstraint("study_id", "iteration", "experiment_id"))
DECISIONS = _rows("decisions", StoredDecision, "decision", UniqueConstraint("study_id", "iteration"))
LLM_CALLS = _rows("llm_calls", LLMCall, "call", Index(None, "study_id", "id"))
EVENTS = _rows("events", Event, "event", Index(None, "study_id", "id"), Index(None, "run_id"))
CHARGES = _rows("budget_entries", BudgetEntry, "charge", UniqueConstraint("study_id", "kind", "key"))
ARTIFACTS = _rows("artifacts", Artifact, "artifact", UniqueConstraint("study_id", "path"), Index(None, "run_id"))
# The row of a lease that was released stays, with an empty owner, so that `token` never runs backwards.
LEASES = _rows("leases", Lease, "lease", key=("resource",))
TRAININGS = _rows(
    "trainings", RecordedTraining, "training", UniqueConstraint("key"), Index(None, "launch_key"),
    Index(None, "begun_at"),
)  # fmt: skip
TRAINING_POINTS = _rows(
    "training_points", TrainingPoint, "point", key=("training_id", "name", "step"), sqlite_with_rowid=False
)
TRAINING_SCORES = _rows("training_scores", TrainingScore, "score", key=("training_id", "step"))
TRAINED_EPISODES = _rows(
    "trained_episodes", TrainedEpisodeSummary, "episode", Column("messages", Json, nullable=False),
    Column("samples", Json, nullable=False), key=("training_id", "episode_id"),
)  # fmt: skip
SERVER_EVENTS = _rows("server_events", ServerEvent, "event", key=("training_id", "number"))
SYSTEM_POINTS = _rows(
    "system_points", SystemPoint, "reading", key=("training_id", "name", "recorded_at"), sqlite_with_rowid=False
)

NOTED_LEDGERS = _rows("noted_ledgers", NotedLedger, "ledger", key=("ledger_id",))


@cache
def schema_digest() -> str:
    """Return a digest of the tables, which differs if a column has another name, type or place in a key."""
    columns = [
        (table.name, column.name, type(column.type).__name__, bool(column.nullable), column.primary_key)
        for table in METADATA.sorted_tables
        for column in table.c
    ]
    return sha256(json.dumps(columns).encode()).hexdigest()[:12]
