"""The plans, findings and decisions of a study, iteration by iteration.

Place in the flow: a part of ExperimentStore; the researcher's plan, analyze and decide nodes write here, and plan reads
earlier findings (negative ones too) so as not to repeat them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict, Unpack

from sqlalchemy import select

from experiments_db.errors import InvalidRecord
from experiments_db.models import AnalysisRow, DecisionRow, ExperimentRow, FindingRow, PlanRow, StudyRow
from experiments_db.records import Finding, IterationDocument, JsonObject, StoredDecision, Verdict
from experiments_db.stores.base import (
    StoreBase,
    check_finite,
    check_text,
    get_by,
    insert_rows,
    new_id,
    require,
    to_record,
)
from experiments_db.stores.revisions import renumber

FINDING_KEY = ("study_id", "comparison")


class FindingOutcome(TypedDict):
    """The result of a comparison. `effect` and its interval are None where too few runs ended."""

    effect: float | None
    ci_low: float | None
    ci_high: float | None
    confidence: float
    p_value: float | None
    p_adjusted: float | None
    verdict: Verdict
    method: str
    run_ids: Sequence[str]
    summary: str
    hypothesis_id: NotRequired[str | None]
    details: NotRequired[JsonObject | None]
    recipe: NotRequired[JsonObject]


ITERATION = ("study_id", "iteration")


class FindingStore(StoreBase):
    def record_plan(self, study_id: str, iteration: int, document: JsonObject) -> None:
        """Store the plan of an iteration; a later version of the same iteration replaces it. Raises RecordNotFound."""
        self._record_iteration(PlanRow, study_id, iteration, document)

    def record_analysis(self, study_id: str, iteration: int, document: JsonObject) -> None:
        """Store the analysis of the runs so far; a later version of the same iteration replaces it.

        Raises RecordNotFound.
        """
        self._record_iteration(AnalysisRow, study_id, iteration, document)

    def find_plan(self, study_id: str, iteration: int) -> IterationDocument | None:
        with self._read() as session:
            row = session.get(PlanRow, (study_id, iteration))
            return None if row is None else to_record(IterationDocument, row)

    def find_analysis(self, study_id: str, iteration: int) -> IterationDocument | None:
        with self._read() as session:
            row = session.get(AnalysisRow, (study_id, iteration))
            return None if row is None else to_record(IterationDocument, row)

    def list_plans(self, study_id: str) -> list[IterationDocument]:
        """Return the plans of a study by iteration."""
        return self._list(
            select(PlanRow).where(PlanRow.study_id == study_id).order_by(PlanRow.iteration), IterationDocument
        )

    def list_analyses(self, study_id: str) -> list[IterationDocument]:
        """Return the analyses of a study by iteration."""
        return self._list(
            select(AnalysisRow).where(AnalysisRow.study_id == study_id).order_by(AnalysisRow.iteration),
            IterationDocument,
        )

    def find_last_analysis(self, study_id: str) -> IterationDocument | None:
        statement = select(AnalysisRow).where(AnalysisRow.study_id == study_id)
        last = self._list(statement.order_by(AnalysisRow.iteration.desc()).limit(1), IterationDocument)
        return last[0] if last else None

    def record_finding(
        self,
        study_id: str,
        *,
        iteration: int,
        experiment_id: str,
        baseline_id: str | None,
        metric: str,
        split: str,
        **outcome: Unpack[FindingOutcome],
    ) -> Finding:
        """Store a comparison; the same one of the same iteration (arms, metric, split) is replaced and keeps its id.

        Replacing serves the correction over a study's comparisons, which changes as they grow in number. Raises
        InvalidRecord for numbers that cannot be, RecordNotFound.
        """
        _check_outcome(metric, split, outcome)
        now = self._clock()
        comparison = "/".join((str(iteration), experiment_id, baseline_id or "-", metric, split))
        result: dict[str, Any] = {
            "hypothesis_id": None,
            **outcome,
            "iteration": iteration,
            "experiment_id": experiment_id,
            "baseline_id": baseline_id,
            "metric": metric,
            "split": split,
            "run_ids": list(outcome["run_ids"]),
            "details": dict(outcome.get("details") or {}),
            "recipe": dict(outcome.get("recipe") or {}),
        }
        identity = {"id": new_id("fi", now), "study_id": study_id, "comparison": comparison, "created_at": now}
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            require(session, ExperimentRow, experiment_id, "experiment")
            insert_rows(session, FindingRow, [identity | result], key=FINDING_KEY, replace=list(result))
            return to_record(Finding, get_by(session, FindingRow, study_id=study_id, comparison=comparison))

    def list_findings(
        self,
        *,
        study_id: str | None = None,
        hypothesis_id: str | None = None,
        iteration: int | None = None,
        verdict: Verdict | None = None,
        limit: int | None = None,
    ) -> list[Finding]:
        """Return findings that meet every condition given, oldest first; without `study_id`, of all studies."""
        statement = select(FindingRow).order_by(FindingRow.created_at, FindingRow.id)
        if study_id is not None:
            statement = statement.where(FindingRow.study_id == study_id)
        if hypothesis_id is not None:
            statement = statement.where(FindingRow.hypothesis_id == hypothesis_id)
        if iteration is not None:
            statement = statement.where(FindingRow.iteration == iteration)
        if verdict is not None:
            statement = statement.where(FindingRow.verdict == verdict)
        return self._list(statement.limit(limit), Finding)

    def get_finding(self, finding_id: str) -> Finding:
        """Return one finding. Raises RecordNotFound."""
        with self._read() as session:
            return to_record(Finding, require(session, FindingRow, finding_id, "finding"))

    def retract_finding(self, finding_id: str, reason: str, *, by: str | None = None) -> Finding:
        """Mark a finding as retracted, by a later finding if one contradicts it; the first reason stands.

        Raises RecordNotFound.
        """
        check_text(reason=reason)
        with self._write() as session:
            row = require(session, FindingRow, finding_id, "finding", lock=True)
            if by is not None:
                require(session, FindingRow, by, "finding")
            if row.retracted_at is None:
                row.retracted_at, row.retraction, row.retracted_by = self._clock(), reason, by
            session.flush()
            return to_record(Finding, row)

    def record_decision(
        self,
        study_id: str,
        iteration: int,
        *,
        action: str,
        reason: str,
        finding_ids: Sequence[str] = (),
        details: JsonObject | None = None,
        replace: bool = False,
    ) -> StoredDecision:
        """Store how an iteration ends. Raises RecordNotFound.

        The first decision of an iteration stands and is returned, unless `replace` is set.
        """
        check_text(action=action, reason=reason)
        values: dict[str, Any] = {
            "study_id": study_id,
            "iteration": iteration,
            "action": action,
            "reason": reason,
            "finding_ids": list(finding_ids),
            "details": dict(details or {}),
            "created_at": self._clock(),
        }
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            replaced = tuple(values.keys() - set(ITERATION)) if replace else ()
            insert_rows(session, DecisionRow, [values], key=ITERATION, replace=replaced)
            return to_record(StoredDecision, get_by(session, DecisionRow, study_id=study_id, iteration=iteration))

    def _record_iteration(
        self, row: type[PlanRow] | type[AnalysisRow], study_id: str, iteration: int, document: JsonObject
    ) -> None:
        values: dict[str, Any] = {
            "study_id": study_id,
            "iteration": iteration,
            "document": dict(document),
            "created_at": self._clock(),
        }
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            insert_rows(session, row, [values], key=ITERATION, replace=("document", "created_at"))
            if row is PlanRow:
                renumber(session, get_by(session, PlanRow, study_id=study_id, iteration=iteration))

    def list_decisions(self, study_id: str) -> list[StoredDecision]:
        """Return the decisions of a study by iteration."""
        statement = select(DecisionRow).where(DecisionRow.study_id == study_id).order_by(DecisionRow.iteration)
        return self._list(statement, StoredDecision)


def _check_outcome(metric: str, split: str, outcome: FindingOutcome) -> None:
    check_text(metric=metric, split=split, method=outcome["method"])
    check_finite(**{name: outcome[name] for name in ("effect", "ci_low", "ci_high", "p_value", "p_adjusted")})
    if not 0 < outcome["confidence"] < 1:
        raise InvalidRecord(f"confidence must be between 0 and 1, not {outcome['confidence']}")
