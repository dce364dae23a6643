"""The log of a study: its events, and its charter, plans and analyses as JSON, in and out of the database.

Place in the flow: nodes write and read them here, so that a process that takes over a study knows what the earlier one
planned. This module knows nothing of graphs, servers or planners.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from experiments_db import BudgetKind, ExperimentStore, Severity
from researcher.analysis import Analysis
from researcher.charter import Charter
from researcher.claims import Claim
from researcher.errors import ResearchError
from researcher.history import History
from researcher.plan import Plan

logger = logging.getLogger(__name__)

DIAGNOSED, EXTENDED = "run.diagnosed", "study.extended"

DISQUALIFIED = "disqualified"
"""Key in the details of a decision: the arms that it disqualifies, with the reasons."""
AUTOMATIC = "study"
"""The author of a decision that no planner made, because nothing was left to choose."""
JUDGED = "judged"
"""Key in the details of a decision that disqualifies arms: its analysis, which is then made again without them."""
BUDGET_USED_UP = "budget_used_up"
"""Key in the details of a decision: whether an exhausted budget made it."""

_NUMBERS = (
    *("mean", "difference", "ci_low", "ci_high", "half_width", "p", "p_adjusted", "correlation", "unseen_failures"),
)
"""Fields that may be NaN."""
_PARTS = ("agent_gain", "training_gain")
"""The parts of a comparison in which every number may be NaN."""
_CHARTER, _PLAN = TypeAdapter(Charter), TypeAdapter(Plan)
_ANALYSIS, _CLAIM = TypeAdapter(Analysis), TypeAdapter(Claim)


class StudyLog:
    """The events and documents of one study."""

    def __init__(
        self, store: ExperimentStore, study_id: str, *, on_note: Callable[[str, str], None] | None = None
    ) -> None:
        """Open the log; `on_note` is called with kind and message of each event once it is stored."""
        self.store = store
        self.study_id = study_id
        self._on_note = on_note
        self._charter: Charter | None = None

    def note(
        self,
        kind: str,
        message: str,
        *,
        run_id: str | None = None,
        severity: Severity = Severity.INFO,
    ) -> None:
        """Record an event and log it; `message` is one line for people, and `kind` is its stable name."""
        logger.info("%s: %s", kind, message)
        self.store.append_event(self.study_id, kind, message, severity=severity, run_id=run_id)
        if self._on_note is not None:
            self._on_note(kind, message)

    def warn(self, kind: str, message: str, *, run_id: str | None = None) -> None:
        self.note(kind, message, run_id=run_id, severity=Severity.WARNING)

    def charter(self) -> Charter:
        """Return the frozen charter. Raises ResearchError for a study that was never framed."""
        if self._charter is None:
            stored = self.store.find_charter(self.study_id)
            if stored is None:
                raise ResearchError(f"study {self.study_id} has no charter yet")
            # A frozen charter never changes.
            self._charter = charter_from_json(stored.document)
        return self._charter

    def write_plan(self, plan: Plan, message: str, *, kind: str = "plan.made") -> None:
        self.store.record_plan(self.study_id, plan.iteration, to_json(plan))
        self.note(kind, message)

    def write_analysis(self, iteration: int, analysis: Analysis, message: str) -> None:
        self.store.record_analysis(self.study_id, iteration, to_json(analysis))
        self.note("analysis.made", message)

    def find_plan(self, iteration: int) -> Plan | None:
        stored = self.store.find_plan(self.study_id, iteration)
        return None if stored is None else plan_from_json(stored.document)

    def find_analysis(self, iteration: int) -> Analysis | None:
        stored = self.store.find_analysis(self.study_id, iteration)
        return None if stored is None else analysis_from_json(stored.document)

    def history(self) -> History:
        """Return plans and analyses of this study by iteration, the monitor's diagnoses, the notebook, and the runs."""
        analyses = self.store.list_analyses(self.study_id)
        diagnoses = self.store.list_events(self.study_id, kind=DIAGNOSED, limit=None)
        return History(
            plans=self._plans(),
            analyses=tuple(analysis_from_json(stored.document) for stored in analyses),
            diagnoses=tuple(event.message for event in diagnoses),
            runs_used=_plain_number(self.store.sum_budget(self.study_id)[BudgetKind.RUNS]),
            notes=tuple(self.store.list_notes(self.study_id)),
        )

    def _plans(self) -> tuple[Plan, ...]:
        return tuple(plan_from_json(stored.document) for stored in self.store.list_plans(self.study_id))


def to_json(value: Any) -> dict[str, Any]:
    """Return a charter, plan, analysis or claim as JSON.

    NaN, such as the interval of one seed, becomes null. Keys become text.
    """
    return to_jsonable_python(value, inf_nan_mode="null", fallback=dict)


def _plain_number(value: float) -> float:
    """Return a sum of runs without rounding errors; parts of runs add up to whole ones."""
    return round(value) if abs(value - round(value)) < 1e-6 else round(value, 6)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def charter_from_json(document: Mapping[str, Any]) -> Charter:
    return _CHARTER.validate_python(document)


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    return _PLAN.validate_python(document)


def analysis_from_json(document: Mapping[str, Any]) -> Analysis:
    numbers = {name: [_with_nan(item) for item in document[name]] for name in ("arms", "comparisons")}
    return _ANALYSIS.validate_python({**document, **numbers})


def claim_from_json(document: Mapping[str, Any]) -> Claim:
    return _CLAIM.validate_python(document)


def _with_nan(item: Mapping[str, Any]) -> dict[str, Any]:
    parts = {name: _without_null(item[name]) for name in _PARTS if name in item}
    return {**item, **parts, **{name: math.nan for name in _NUMBERS if item.get(name) is None}}


def _without_null(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part without its null entries, so that the type's defaults, which are NaN, apply."""
    return {name: value for name, value in part.items() if value is not None}
