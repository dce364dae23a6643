"""The plans, analyses, findings and decisions of a study, iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict, Unpack

from experiments_db.errors import InvalidRecord
from experiments_db.kinds import Verdict
from experiments_db.records import Finding, IterationDocument, JsonObject, StoredDecision
from experiments_db.stores.base import (
    StoreBase,
    change,
    check_finite,
    check_text,
    new_id,
    put,
    require,
)
from experiments_db.tables import ANALYSES, DECISIONS, FINDINGS, PLANS, Rows

ITERATION = ("study_id", "iteration")


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


class FindingStore(StoreBase):
    def record_plan(self, study_id: str, iteration: int, document: JsonObject) -> None:
        """Store the plan of an iteration; a later version of the same iteration replaces it. Raises RecordNotFound."""
        self._record_iteration(PLANS, study_id, iteration, document)

    def record_analysis(self, study_id: str, iteration: int, document: JsonObject) -> None:
        """Store the analysis of the runs so far; a later version of the same iteration replaces it.

        Raises RecordNotFound.
        """
        self._record_iteration(ANALYSES, study_id, iteration, document)

    def _record_iteration(
        self, rows: Rows[IterationDocument], study_id: str, iteration: int, document: JsonObject
    ) -> None:
        values: dict[str, Any] = {
            "study_id": study_id,
            "iteration": iteration,
            "document": document,
            "created_at": self._clock(),
        }
        with self._write() as connection:
            put(connection, rows, values, key=ITERATION, replace=("document", "created_at"))

    def find_plan(self, study_id: str, iteration: int) -> IterationDocument | None:
        return self._find(PLANS, study_id=study_id, iteration=iteration)

    def find_analysis(self, study_id: str, iteration: int) -> IterationDocument | None:
        return self._find(ANALYSES, study_id=study_id, iteration=iteration)

    def list_plans(self, study_id: str) -> list[IterationDocument]:
        """Return the plans of a study by iteration."""
        return self._list(PLANS, study_id=study_id)

    def list_analyses(self, study_id: str) -> list[IterationDocument]:
        """Return the analyses of a study by iteration."""
        return self._list(ANALYSES, study_id=study_id)

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
        check_text(metric=metric, split=split, method=outcome["method"])
        check_finite(**{name: outcome[name] for name in ("effect", "ci_low", "ci_high", "p_value", "p_adjusted")})
        if not 0 < outcome["confidence"] < 1:
            raise InvalidRecord(f"confidence must be between 0 and 1, not {outcome['confidence']}")
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
            "details": outcome.get("details") or {},
            "recipe": outcome.get("recipe") or {},
        }
        identity = {"id": new_id("fi", now), "study_id": study_id, "comparison": comparison, "created_at": now}
        with self._write() as connection:
            key = ("study_id", "comparison")
            return put(connection, FINDINGS, identity | result, key=key, replace=tuple(result))

    def list_findings(
        self, *, study_id: str | None = None, iteration: int | None = None, verdict: Verdict | None = None
    ) -> list[Finding]:
        """Return findings that meet every condition given, oldest first; without `study_id`, of all studies."""
        order = FINDINGS.c.created_at, FINDINGS.c.id
        return self._list(FINDINGS, order=order, study_id=study_id, iteration=iteration, verdict=verdict)

    def get_finding(self, finding_id: str) -> Finding:
        """Return one finding. Raises RecordNotFound."""
        return self._get(FINDINGS, finding_id)

    def retract_finding(self, finding_id: str, reason: str, *, by: str | None = None) -> Finding:
        """Mark a finding as retracted, by a later finding if one contradicts it; the first reason stands.

        Raises RecordNotFound.
        """
        check_text(reason=reason)
        with self._write() as connection:
            finding = require(connection, FINDINGS, finding_id, lock=True)
            if by is not None:
                require(connection, FINDINGS, by)
            if finding.retracted_at is not None:
                return finding
            retracted = {"retracted_at": self._clock(), "retraction": reason, "retracted_by": by}
            return change(connection, FINDINGS, finding_id, **retracted)

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
        decision: dict[str, Any] = {
            "action": action,
            "reason": reason,
            "finding_ids": finding_ids,
            "details": details or {},
            "created_at": self._clock(),
        }
        values = {"study_id": study_id, "iteration": iteration, **decision}
        with self._write() as connection:
            return put(connection, DECISIONS, values, key=ITERATION, replace=tuple(decision) if replace else ())

    def list_decisions(self, study_id: str) -> list[StoredDecision]:
        """Return the decisions of a study by iteration."""
        return self._list(DECISIONS, order=(DECISIONS.c.iteration,), study_id=study_id)
