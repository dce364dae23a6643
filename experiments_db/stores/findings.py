"""The plans, analyses, findings and decisions of a study, iteration by iteration."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any, NotRequired, TypedDict, Unpack

from sqlalchemy import delete, or_

from experiments_db.errors import InvalidRecord
from experiments_db.kinds import FindingKind, Verdict
from experiments_db.records import Finding, IterationDocument, JsonObject, StoredDecision
from experiments_db.stores.base import (
    StoreBase,
    change,
    check_finite,
    check_text,
    count_write,
    insert_rows,
    new_id,
    put,
    require,
)
from experiments_db.tables import ANALYSES, DECISIONS, FINDINGS, PLANS, STUDIES, Rows

ITERATION = ("study_id", "iteration")
FINDING = ("study_id", "key")
COMPARISONS = (FindingKind.COMPARISON,)
_KEPT = frozenset({"id", "study_id", "key", "created_at", "retracted_at", "retraction", "retracted_by"})
"""What a finding keeps when it is stored again."""


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
    environment_name: NotRequired[str]
    environment_digest: NotRequired[str]
    model: NotRequired[str]
    scope: NotRequired[str]
    question: NotRequired[str]


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
        # The key spells out what is compared: a NULL baseline would escape a unique constraint.
        key = "/".join((str(iteration), experiment_id, baseline_id or "-", metric, split))
        result: dict[str, Any] = {
            **dict.fromkeys(("environment_name", "environment_digest", "model", "scope", "question"), ""),
            "hypothesis_id": None,
            "kind": FindingKind.COMPARISON,
            **outcome,
            "iteration": iteration,
            "experiment_id": experiment_id,
            "baseline_id": baseline_id,
            "metric": metric,
            "split": split,
            "details": outcome.get("details") or {},
            "recipe": outcome.get("recipe") or {},
        }
        identity = {"id": new_id("fi", now), "study_id": study_id, "key": key, "created_at": now}
        with self._write() as connection:
            return put(connection, FINDINGS, identity | result, key=FINDING, replace=tuple(result))

    def replace_findings(self, study_id: str, findings: Sequence[Finding]) -> None:
        """Store the findings of a study that are no comparisons, in place of those that it has.

        One with the same `key` keeps its id, its time and its retraction. Raises RecordNotFound.
        """
        now = self._clock()
        names = [field.name for field in fields(Finding)]
        rows = [
            {name: getattr(finding, name) for name in names}
            # Ids of one millisecond may be the same, so each has one of its own.
            | {"id": new_id("fi", now + index / 1000), "study_id": study_id, "created_at": now}
            for index, finding in enumerate(findings)
        ]
        gone = delete(FINDINGS.table).where(
            FINDINGS.c.study_id == study_id,
            FINDINGS.c.kind != FindingKind.COMPARISON,
            FINDINGS.c.key.not_in([finding.key for finding in findings]),
        )
        with self._write() as connection:
            require(connection, STUDIES, study_id)
            connection.execute(gone)
            insert_rows(connection, FINDINGS, rows, key=FINDING, replace=[name for name in names if name not in _KEPT])
            count_write(connection, study_id)

    def list_findings(
        self,
        *,
        study_id: str | None = None,
        iteration: int | None = None,
        verdict: Verdict | None = None,
        kinds: Collection[FindingKind] = COMPARISONS,
        questions: Collection[str] | None = None,
    ) -> list[Finding]:
        """Return findings that meet every condition given, oldest first: comparisons, unless other `kinds` are named.

        Without `study_id` those of all studies count.
        """
        conditions = [FINDINGS.c.kind.in_(kinds)]
        if questions is not None:
            conditions.append(FINDINGS.c.question.in_(questions))
        order = FINDINGS.c.created_at, FINDINGS.c.id
        return self._list(FINDINGS, *conditions, order=order, study_id=study_id, iteration=iteration, verdict=verdict)

    def list_findings_elsewhere(
        self, study_id: str, kind: FindingKind, *, environment_name: str, environment_digest: str, scope: str, most: int
    ) -> list[Finding]:
        """Return findings of one kind that other studies have on an environment of this name or digest.

        Those on the very same environment come first, then those of studies of the same scope, then the newest.
        """
        c = FINDINGS.c
        order = ((c.environment_digest == environment_digest).desc(), (c.scope == scope).desc(), c.created_at.desc())
        is_related = or_(c.environment_name == environment_name, c.environment_digest == environment_digest)
        return self._list(
            FINDINGS, is_related, c.study_id != study_id, order=(*order, c.id.desc()), limit=most, kind=kind
        )

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
