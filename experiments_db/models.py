"""The tables: SQLAlchemy models whose columns carry the names of the records' fields.

Place in the flow: only the store's own modules use them. records.py explains their fields. A change here comes with a
new file in migrations/versions; a test compares the two.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Dialect,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from experiments_db.records import (
    Author,
    BudgetKind,
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

ID_LENGTH = 32
ENUM_LENGTH = 32


def _member_values(values: type[StrEnum]) -> list[str]:
    return [member.value for member in values]


def _enum(values: type[StrEnum]) -> Enum:
    # Stored as the value, without a CHECK constraint: a new member then needs no change of the table.
    return Enum(values, native_enum=False, length=ENUM_LENGTH, values_callable=_member_values)


class Json(TypeDecorator[Any]):
    """A JSON column that refuses a value that is not JSON before anything is sent; None is NULL."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is not None:
            # An error in here is reported as one of the statement; the drivers' own serializing is not.
            json.dumps(value, allow_nan=False)
        return value


class PlainText(TypeDecorator[str]):
    """A text column that holds the same text on every database.

    PostgreSQL cannot store the character NUL, which output of programs and language models may contain. The symbol for
    NUL (U+2400) stands in its place.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\x00", "\u2400")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: Json,
        list[Any]: Json,
        str: PlainText,
        # Seeds and sizes exceed 32 bits; only plain INTEGER numbers rows by itself on SQLite, where it has 64 bits.
        int: BigInteger().with_variant(Integer, "sqlite"),
        float: Float(53),
        StudyStatus: _enum(StudyStatus),
        ExperimentStatus: _enum(ExperimentStatus),
        Author: _enum(Author),
        NoteKind: _enum(NoteKind),
        Operator: _enum(Operator),
        QuestionStatus: _enum(QuestionStatus),
        RunStatus: _enum(RunStatus),
        Verdict: _enum(Verdict),
        Outcome: _enum(Outcome),
        Severity: _enum(Severity),
        BudgetKind: _enum(BudgetKind),
    }


def _id() -> Mapped[str]:
    return mapped_column(String(ID_LENGTH), primary_key=True)


def _reference(column: str, *, index: bool = False) -> Mapped[Any]:
    return mapped_column(String(ID_LENGTH), ForeignKey(column), index=index)


class StudyRow(Base):
    """A study. stores/digests.py explains `digest`; stores/revisions.py explains `revision`, the last one given."""

    __tablename__ = "studies"

    id: Mapped[str] = _id()
    topic: Mapped[str]
    planner: Mapped[str]
    status: Mapped[StudyStatus]
    status_reason: Mapped[str | None]
    settings: Mapped[dict[str, Any]]
    created_at: Mapped[float] = mapped_column(index=True)
    updated_at: Mapped[float]
    finished_at: Mapped[float | None]
    digest: Mapped[dict[str, Any] | None]
    revision: Mapped[int] = mapped_column(default=0)


class CharterRow(Base):
    __tablename__ = "charters"

    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    document: Mapped[dict[str, Any]]
    content_hash: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float]
    test_opened_at: Mapped[float | None]
    test_opened_for: Mapped[str | None]


class HypothesisRow(Base):
    __tablename__ = "hypotheses"
    __table_args__ = (UniqueConstraint("study_id", "key"),)

    id: Mapped[str] = _id()
    study_id: Mapped[str] = _reference("studies.id")
    key: Mapped[str]
    iteration: Mapped[int]
    parent_id: Mapped[str | None] = _reference("hypotheses.id")
    statement: Mapped[str]
    rationale: Mapped[str]
    verdict: Mapped[Outcome | None]
    verdict_reason: Mapped[str | None]
    created_at: Mapped[float]


class ExperimentRow(Base):
    __tablename__ = "experiments"
    __table_args__ = (UniqueConstraint("study_id", "name"), Index(None, "study_id", "revision"))

    id: Mapped[str] = _id()
    study_id: Mapped[str] = _reference("studies.id")
    hypothesis_id: Mapped[str | None] = _reference("hypotheses.id", index=True)
    parent_id: Mapped[str | None] = _reference("experiments.id")
    second_parent_id: Mapped[str | None] = _reference("experiments.id")
    operator: Mapped[Operator | None]
    name: Mapped[str]
    iteration: Mapped[int]
    is_baseline: Mapped[bool]
    factors: Mapped[dict[str, Any]]
    job: Mapped[dict[str, Any]]
    program_code: Mapped[str]
    train_environment: Mapped[str | None]
    author: Mapped[Author | None]
    status: Mapped[ExperimentStatus]
    purpose: Mapped[str]
    manipulation: Mapped[dict[str, Any] | None]
    note: Mapped[str | None]
    created_at: Mapped[float]
    updated_at: Mapped[float]
    revision: Mapped[int] = mapped_column(default=0)


class PlanRow(Base):
    __tablename__ = "plans"

    study_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("studies.id"), primary_key=True)
    iteration: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    document: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    revision: Mapped[int] = mapped_column(default=0)


class AnalysisRow(Base):
    __tablename__ = "analyses"

    study_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("studies.id"), primary_key=True)
    iteration: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    document: Mapped[dict[str, Any]]
    created_at: Mapped[float]


class RunRow(Base):
    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("experiment_id", "seed", "rung", "attempt"),
        UniqueConstraint("idempotency_key"),
        Index(None, "study_id", "created_at"),
        Index(None, "study_id", "revision"),
    )

    id: Mapped[str] = _id()
    study_id: Mapped[str] = _reference("studies.id")
    experiment_id: Mapped[str] = _reference("experiments.id")
    seed: Mapped[int]
    rung: Mapped[int]
    attempt: Mapped[int]
    idempotency_key: Mapped[str]
    status: Mapped[RunStatus]
    server_url: Mapped[str | None]
    external_ids: Mapped[dict[str, Any]]
    job: Mapped[dict[str, Any]]
    environment: Mapped[dict[str, Any]]
    base_weight_version: Mapped[int | None]
    final_weight_version: Mapped[int | None]
    pid: Mapped[int | None]
    log_path: Mapped[str | None]
    exit_reason: Mapped[str | None]
    diagnosis: Mapped[dict[str, Any] | None]
    training_cost: Mapped[dict[str, Any] | None]
    created_at: Mapped[float]
    updated_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    revision: Mapped[int] = mapped_column(default=0)


class MetricPointRow(Base):
    __tablename__ = "metric_points"
    # The key is the whole row but for its value: without a rowid SQLite stores each point once instead of twice.
    __table_args__ = ({"sqlite_with_rowid": False},)

    run_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("runs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float | None]
    recorded_at: Mapped[float]


class RunEvaluationRow(Base):
    __tablename__ = "evaluations"
    __table_args__ = (UniqueConstraint("run_id", "phase", "split"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = _reference("runs.id")
    phase: Mapped[str]
    split: Mapped[str]
    metric: Mapped[str]
    weight_version: Mapped[int]
    episodes: Mapped[int]
    successes: Mapped[int]
    mean: Mapped[float]
    stderr: Mapped[float]
    evaluator_hash: Mapped[str]
    details: Mapped[dict[str, Any]]
    created_at: Mapped[float]


class EpisodeSampleRow(Base):
    __tablename__ = "episode_samples"

    run_id: Mapped[str] = mapped_column(String(ID_LENGTH), ForeignKey("runs.id"), primary_key=True)
    episode_id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    split: Mapped[str]
    step: Mapped[int]
    task_id: Mapped[str]
    reward: Mapped[float | None]
    is_success: Mapped[bool | None]
    advantage: Mapped[float | None]
    weight_version: Mapped[int | None]
    messages: Mapped[list[Any]]
    samples: Mapped[list[Any]]
    created_at: Mapped[float]


class FindingRow(Base):
    __tablename__ = "findings"
    # `comparison` spells out iteration, arms, metric and split: a NULL baseline would escape a plain unique constraint.
    __table_args__ = (UniqueConstraint("study_id", "comparison"),)

    id: Mapped[str] = _id()
    study_id: Mapped[str] = _reference("studies.id")
    comparison: Mapped[str]
    hypothesis_id: Mapped[str | None] = _reference("hypotheses.id", index=True)
    iteration: Mapped[int]
    experiment_id: Mapped[str] = _reference("experiments.id")
    baseline_id: Mapped[str | None] = _reference("experiments.id")
    metric: Mapped[str]
    split: Mapped[str]
    effect: Mapped[float | None]
    ci_low: Mapped[float | None]
    ci_high: Mapped[float | None]
    confidence: Mapped[float]
    p_value: Mapped[float | None]
    p_adjusted: Mapped[float | None]
    verdict: Mapped[Verdict]
    method: Mapped[str]
    run_ids: Mapped[list[Any]]
    summary: Mapped[str]
    details: Mapped[dict[str, Any]]
    recipe: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    retracted_at: Mapped[float | None]
    retraction: Mapped[str | None]
    retracted_by: Mapped[str | None] = _reference("findings.id")


class NotebookRow(Base):
    __tablename__ = "notebook"
    __table_args__ = (UniqueConstraint("study_id", "key"), Index(None, "study_id", "id"))

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = _reference("studies.id")
    key: Mapped[str]
    iteration: Mapped[int]
    kind: Mapped[NoteKind]
    author: Mapped[str]
    text: Mapped[str]
    created_at: Mapped[float]


class ProgramTrialRow(Base):
    __tablename__ = "program_trials"
    __table_args__ = (Index(None, "study_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = _reference("studies.id")
    experiment_id: Mapped[str | None] = _reference("experiments.id", index=True)
    code_digest: Mapped[str] = mapped_column(String(64))
    attempts: Mapped[int]
    broken: Mapped[int]
    mean: Mapped[float | None]
    mean_reward: Mapped[float | None]
    calls: Mapped[float | None]
    tokens: Mapped[float | None]
    seconds: Mapped[float]
    passed: Mapped[int | None]
    blank_gain: Mapped[float | None]
    error: Mapped[str | None]
    transcripts: Mapped[list[Any]]
    created_at: Mapped[float]


class PlannerQuestionRow(Base):
    __tablename__ = "planner_questions"
    __table_args__ = (Index(None, "study_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = _reference("studies.id")
    node: Mapped[str]
    prompt: Mapped[str]
    status: Mapped[QuestionStatus]
    answer: Mapped[str | None]
    objection: Mapped[str | None]
    deadline: Mapped[float | None]
    created_at: Mapped[float]
    answered_at: Mapped[float | None]


class ReviewRow(Base):
    __tablename__ = "reviews"
    __table_args__ = (UniqueConstraint("study_id", "iteration", "experiment_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = _reference("studies.id")
    iteration: Mapped[int]
    experiment_id: Mapped[str] = _reference("experiments.id")
    reviewer: Mapped[str]
    objections: Mapped[list[Any]]
    response: Mapped[str | None]
    is_withdrawn: Mapped[bool]
    created_at: Mapped[float]


class DecisionRow(Base):
    __tablename__ = "decisions"
    __table_args__ = (UniqueConstraint("study_id", "iteration"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = _reference("studies.id")
    iteration: Mapped[int]
    action: Mapped[str]
    reason: Mapped[str]
    finding_ids: Mapped[list[Any]]
    details: Mapped[dict[str, Any]]
    created_at: Mapped[float]


class LLMCallRow(Base):
    __tablename__ = "llm_calls"
    __table_args__ = (Index(None, "study_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = _reference("studies.id")
    node: Mapped[str]
    model: Mapped[str]
    attempt: Mapped[int]
    prompt: Mapped[str]
    response: Mapped[str | None]
    error: Mapped[str | None]
    input_tokens: Mapped[int]
    output_tokens: Mapped[int]
    cost_usd: Mapped[float]
    latency_s: Mapped[float]
    prompt_hash: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float]


class StudyEventRow(Base):
    __tablename__ = "events"
    __table_args__ = (Index(None, "study_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = _reference("studies.id")
    run_id: Mapped[str | None] = _reference("runs.id", index=True)
    severity: Mapped[Severity]
    kind: Mapped[str]
    message: Mapped[str]
    payload: Mapped[dict[str, Any]]
    created_at: Mapped[float]


class BudgetEntryRow(Base):
    __tablename__ = "budget_entries"
    __table_args__ = (UniqueConstraint("study_id", "kind", "key"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = _reference("studies.id")
    kind: Mapped[BudgetKind]
    key: Mapped[str]
    amount: Mapped[float]
    run_id: Mapped[str | None] = _reference("runs.id")
    created_at: Mapped[float]


class ArtifactRow(Base):
    __tablename__ = "artifacts"
    __table_args__ = (UniqueConstraint("study_id", "path"),)

    id: Mapped[str] = _id()
    study_id: Mapped[str] = _reference("studies.id")
    run_id: Mapped[str | None] = _reference("runs.id", index=True)
    kind: Mapped[str]
    path: Mapped[str]
    sha256: Mapped[str] = mapped_column(String(64))
    size_bytes: Mapped[int]
    created_at: Mapped[float]


class ResourceLeaseRow(Base):
    __tablename__ = "leases"

    resource: Mapped[str] = mapped_column(primary_key=True)
    # No owner means released; the row stays so that `token` never runs backwards.
    owner: Mapped[str | None]
    token: Mapped[int]
    ttl_s: Mapped[float]
    acquired_at: Mapped[float]
    heartbeat_at: Mapped[float]
