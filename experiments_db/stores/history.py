"""The history of a study: LLM calls, events, charges to the budget, and files.

Place in the flow: a part of ExperimentStore; every node of the researcher writes here. Calls and events are only ever
appended. A charge and an artifact are keyed, so a repeat replaces them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from experiments_db.errors import InvalidRecord
from experiments_db.models import ArtifactRow, BudgetEntryRow, LLMCallRow, RunRow, StudyEventRow, StudyRow
from experiments_db.records import Artifact, BudgetEntry, BudgetKind, Event, JsonObject, LLMCall, LLMUsage, Severity
from experiments_db.stores.base import (
    StoreBase,
    add,
    check_finite,
    check_text,
    get_by,
    insert_rows,
    new_id,
    require,
    to_record,
)

SEVERITIES = (Severity.INFO, Severity.WARNING, Severity.ERROR)
"""In rising order."""


class HistoryStore(StoreBase):
    def record_llm_call(
        self,
        study_id: str,
        *,
        node: str,
        model: str,
        prompt: str,
        response: str | None,
        input_tokens: int,
        output_tokens: int,
        cost_usd: float,
        latency_s: float,
        attempt: int = 1,
        error: str | None = None,
        prompt_hash: str | None = None,
    ) -> LLMCall:
        """Append one call, answered or not. Raises RecordNotFound."""
        check_text(node=node, model=model)
        check_finite(cost_usd=cost_usd, latency_s=latency_s)
        row = LLMCallRow(
            study_id=study_id,
            node=node,
            model=model,
            attempt=attempt,
            prompt=prompt,
            response=response,
            error=error,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cost_usd=cost_usd,
            latency_s=latency_s,
            prompt_hash=prompt_hash,
            created_at=self._clock(),
        )
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            return add(session, row, LLMCall)

    def list_llm_calls(
        self,
        study_id: str,
        *,
        node: str | None = None,
        failed: bool | None = None,
        limit: int | None = 100,
        offset: int = 0,
    ) -> list[LLMCall]:
        """Return calls, oldest first; `failed` True gives those with an error, False those without."""
        statement = select(LLMCallRow).where(LLMCallRow.study_id == study_id).order_by(LLMCallRow.id)
        if node is not None:
            statement = statement.where(LLMCallRow.node == node)
        if failed is not None:
            statement = statement.where(LLMCallRow.error.is_not(None) if failed else LLMCallRow.error.is_(None))
        return self._list(statement.limit(limit).offset(offset), LLMCall)

    def sum_llm_usage(self, study_id: str) -> LLMUsage:
        """Return totals over the calls of the study, failed ones included."""
        statement = select(
            func.count(),
            func.count(LLMCallRow.error),
            func.coalesce(func.sum(LLMCallRow.input_tokens), 0),
            func.coalesce(func.sum(LLMCallRow.output_tokens), 0),
            func.coalesce(func.sum(LLMCallRow.cost_usd), 0.0),
            func.coalesce(func.sum(LLMCallRow.latency_s), 0.0),
        ).where(LLMCallRow.study_id == study_id)
        with self._read() as session:
            calls, failed, inputs, outputs, cost, latency = session.execute(statement).one()
        # PostgreSQL sums integers into decimals.
        return LLMUsage(calls, failed, int(inputs), int(outputs), float(cost), float(latency))

    def append_event(
        self,
        study_id: str,
        kind: str,
        message: str,
        *,
        severity: Severity = Severity.INFO,
        run_id: str | None = None,
        payload: JsonObject | None = None,
    ) -> Event:
        """Append one event. Raises RecordNotFound."""
        check_text(kind=kind)
        row = StudyEventRow(
            study_id=study_id,
            run_id=run_id,
            severity=severity,
            kind=kind,
            message=message,
            payload=dict(payload or {}),
            created_at=self._clock(),
        )
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            if run_id is not None:
                require(session, RunRow, run_id, "run")
            return add(session, row, Event)

    def list_events(
        self,
        study_id: str,
        *,
        after_id: int = 0,
        kind: str | None = None,
        run_id: str | None = None,
        min_severity: Severity = Severity.INFO,
        newest_first: bool = False,
        limit: int | None = 200,
        offset: int = 0,
    ) -> list[Event]:
        """Return events with a higher id than `after_id`, oldest first unless asked otherwise.

        Pass the last id seen to follow along.
        """
        severities = SEVERITIES[SEVERITIES.index(min_severity) :]
        statement = select(StudyEventRow).where(
            StudyEventRow.study_id == study_id, StudyEventRow.id > after_id, StudyEventRow.severity.in_(severities)
        )
        if kind is not None:
            statement = statement.where(StudyEventRow.kind == kind)
        if run_id is not None:
            statement = statement.where(StudyEventRow.run_id == run_id)
        statement = statement.order_by(StudyEventRow.id.desc() if newest_first else StudyEventRow.id)
        return self._list(statement.limit(limit).offset(offset), Event)

    def charge_budget(
        self, study_id: str, kind: BudgetKind, amount: float, key: str, *, run_id: str | None = None
    ) -> BudgetEntry:
        """Charge `amount` for `key`; a repeat of the key replaces the amount, so a growing cost counts once.

        Raises InvalidRecord for an amount that is negative or not finite, RecordNotFound.
        """
        check_text(key=key)
        check_finite(amount=amount)
        if amount < 0:
            raise InvalidRecord(f"a charge cannot be negative: {kind} {amount}")
        values: dict[str, Any] = {
            "study_id": study_id,
            "kind": kind,
            "key": key,
            "amount": amount,
            "run_id": run_id,
            "created_at": self._clock(),
        }
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            unique = ("study_id", "kind", "key")
            insert_rows(session, BudgetEntryRow, [values], key=unique, replace=("amount", "run_id"))
            return to_record(BudgetEntry, get_by(session, BudgetEntryRow, study_id=study_id, kind=kind, key=key))

    def sum_budget(self, study_id: str) -> dict[BudgetKind, float]:
        """Return what the study has used of each kind of budget; 0 where nothing was charged."""
        statement = (
            select(BudgetEntryRow.kind, func.sum(BudgetEntryRow.amount))
            .where(BudgetEntryRow.study_id == study_id)
            .group_by(BudgetEntryRow.kind)
        )
        with self._read() as session:
            used = {kind: float(amount) for kind, amount in session.execute(statement)}
        return {kind: used.get(kind, 0.0) for kind in BudgetKind}

    def record_artifact(
        self, study_id: str, kind: str, path: str, *, sha256: str, size_bytes: int, run_id: str | None = None
    ) -> Artifact:
        """Record a file; a repeat of the path replaces the record. Raises RecordNotFound."""
        check_text(kind=kind, path=path)
        now = self._clock()
        values: dict[str, Any] = {
            "id": new_id("ar", now),
            "study_id": study_id,
            "run_id": run_id,
            "kind": kind,
            "path": path,
            "sha256": sha256,
            "size_bytes": size_bytes,
            "created_at": now,
        }
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            replaced = ("run_id", "kind", "sha256", "size_bytes", "created_at")
            insert_rows(session, ArtifactRow, [values], key=("study_id", "path"), replace=replaced)
            return to_record(Artifact, get_by(session, ArtifactRow, study_id=study_id, path=path))

    def list_artifacts(self, study_id: str, *, run_id: str | None = None, kind: str | None = None) -> list[Artifact]:
        """Return artifacts by path."""
        statement = select(ArtifactRow).where(ArtifactRow.study_id == study_id).order_by(ArtifactRow.path)
        if run_id is not None:
            statement = statement.where(ArtifactRow.run_id == run_id)
        if kind is not None:
            statement = statement.where(ArtifactRow.kind == kind)
        return self._list(statement, Artifact)
