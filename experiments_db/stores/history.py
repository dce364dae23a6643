"""The history of a study: LLM calls, events, charges to the budget, and files.

Calls and events are only ever appended. A charge and an artifact are keyed, so a repeat replaces them.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, Unpack

from sqlalchemy import func, select

from experiments_db.errors import InvalidRecord
from experiments_db.kinds import BudgetKind, Severity
from experiments_db.records import Artifact, BudgetEntry, Event, JsonObject, LLMCall, LLMUsage
from experiments_db.stores.base import StoreBase, add, check_finite, check_text, new_id, put
from experiments_db.tables import ARTIFACTS, CHARGES, EVENTS, LLM_CALLS

SEVERITIES = (Severity.INFO, Severity.WARNING, Severity.ERROR)
"""In rising order."""


class NewCall(TypedDict):
    """The fields of a new call; `LLMCall` explains them."""

    node: str
    model: str
    prompt: str
    response: str | None
    input_tokens: int
    output_tokens: int
    cost_usd: float
    latency_s: float
    attempt: NotRequired[int]
    error: NotRequired[str | None]
    prompt_hash: NotRequired[str | None]


class HistoryStore(StoreBase):
    def record_llm_call(self, study_id: str, **call: Unpack[NewCall]) -> LLMCall:
        """Append one call, answered or not. Raises RecordNotFound."""
        check_text(node=call["node"], model=call["model"])
        check_finite(cost_usd=call["cost_usd"], latency_s=call["latency_s"])
        values = {"attempt": 1, **call, "study_id": study_id, "created_at": self._clock()}
        with self._write() as connection:
            return add(connection, LLM_CALLS, values)

    def list_llm_calls(self, study_id: str, *, limit: int | None = 100, offset: int = 0) -> list[LLMCall]:
        """Return calls, oldest first."""
        return self._list(LLM_CALLS, limit=limit, offset=offset, study_id=study_id)

    def sum_llm_usage(self, study_id: str) -> LLMUsage:
        """Return totals over the calls of the study, failed ones included."""
        call = LLM_CALLS.c
        summed = (call.input_tokens, call.output_tokens, call.cost_usd, call.latency_s)
        sums = (func.coalesce(func.sum(column), 0) for column in summed)
        statement = select(func.count(), func.count(call.error), *sums).where(call.study_id == study_id)
        with self._read() as connection:
            calls, failed, inputs, outputs, cost, latency = tuple[Any, ...](connection.execute(statement).one())
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
        values = {
            "study_id": study_id,
            "run_id": run_id,
            "severity": severity,
            "kind": kind,
            "message": message,
            "payload": payload or {},
            "created_at": self._clock(),
        }
        with self._write() as connection:
            return add(connection, EVENTS, values)

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
    ) -> list[Event]:
        """Return events with a higher id than `after_id`, oldest first unless asked otherwise.

        Pass the last id seen to follow along.
        """
        severities = SEVERITIES[SEVERITIES.index(min_severity) :]
        wanted = EVENTS.c.id > after_id, EVENTS.c.severity.in_(severities)
        order = EVENTS.c.id.desc() if newest_first else EVENTS.c.id
        return self._list(EVENTS, *wanted, order=(order,), limit=limit, study_id=study_id, kind=kind, run_id=run_id)

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
        with self._write() as connection:
            return put(connection, CHARGES, values, key=("study_id", "kind", "key"), replace=("amount", "run_id"))

    def sum_budget(self, study_id: str) -> dict[BudgetKind, float]:
        """Return what the study has used of each kind of budget; 0 where nothing was charged."""
        amount = func.sum(CHARGES.c.amount)
        statement = select(CHARGES.c.kind, amount).where(CHARGES.c.study_id == study_id).group_by(CHARGES.c.kind)
        with self._read() as connection:
            used = {kind: float(amount) for kind, amount in connection.execute(statement)}
        return {kind: used.get(kind, 0.0) for kind in BudgetKind}

    def record_artifact(
        self, study_id: str, kind: str, path: str, *, sha256: str, size_bytes: int, run_id: str | None = None
    ) -> Artifact:
        """Record a file; a repeat of the path replaces the record. Raises RecordNotFound."""
        check_text(kind=kind, path=path)
        now = self._clock()
        file = {"run_id": run_id, "kind": kind, "sha256": sha256, "size_bytes": size_bytes, "created_at": now}
        values = {"id": new_id("ar", now), "study_id": study_id, "path": path, **file}
        with self._write() as connection:
            return put(connection, ARTIFACTS, values, key=("study_id", "path"), replace=tuple(file))

    def list_artifacts(self, study_id: str, *, run_id: str | None = None, kind: str | None = None) -> list[Artifact]:
        """Return artifacts by path."""
        return self._list(ARTIFACTS, order=(ARTIFACTS.c.path,), study_id=study_id, run_id=run_id, kind=kind)
