"""What the loop keeps of its own thinking: charter, plans and analyses as JSON, in and out of the database.

Place in the flow: nodes write and read these here, so that a process that takes over a study knows what the one before
it planned. This module knows nothing of graphs, servers or planners.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from experiments_db import BudgetKind, ExperimentStore, Severity
from researcher.errors import ResearchError
from researcher.types import (
    Analysis,
    Arm,
    ArmSummary,
    Budget,
    Charter,
    Claim,
    ClaimKind,
    Comparison,
    Contrast,
    DecisionRule,
    History,
    Hypothesis,
    JudgedBy,
    JudgedContrast,
    Measured,
    Outcome,
    Plan,
    Relation,
    SampleSize,
    SampleSizeGoal,
    Verdict,
)

logger = logging.getLogger(__name__)

DIAGNOSED = "run.diagnosed"

BUDGET_SPENT = "budget_spent"
"""In the details of a decision: whether nobody took it, because the budget left nothing to decide."""

_EARLIER_RULE = {"test": "paired"}
"""What the rule of a charter says that was frozen before rules named their test."""


class StudyLog:
    """The events of one study."""

    def __init__(
        self, store: ExperimentStore, study_id: str, *, on_note: Callable[[str, str], None] | None = None
    ) -> None:
        """`on_note` is told the kind and the message of each event once it is stored."""
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
        """One line for people; `kind` is its stable name. The log file gets it too."""
        logger.info("%s: %s", kind, message)
        self.store.append_event(self.study_id, kind, message, severity=severity, run_id=run_id)
        if self._on_note is not None:
            self._on_note(kind, message)

    def warn(self, kind: str, message: str, *, run_id: str | None = None) -> None:
        self.note(kind, message, run_id=run_id, severity=Severity.WARNING)

    def charter(self) -> Charter:
        """Raises ResearchError for a study that was never framed."""
        if self._charter is None:
            stored = self.store.find_charter(self.study_id)
            if stored is None:
                raise ResearchError(f"study {self.study_id} has no charter yet")
            # It is frozen, for good.
            self._charter = charter_from_json(stored.document)
        return self._charter

    def write_plan(self, plan: Plan, message: str, *, kind: str = "plan.made") -> None:
        self.store.record_plan(self.study_id, plan.iteration, plan_to_json(plan))
        self.note(kind, message)

    def write_analysis(self, iteration: int, analysis: Analysis, message: str) -> None:
        self.store.record_analysis(self.study_id, iteration, analysis_to_json(analysis))
        self.note("analysis.made", message)

    def find_plan(self, iteration: int) -> Plan | None:
        stored = self.store.find_plan(self.study_id, iteration)
        return None if stored is None else plan_from_json(stored.document)

    def find_analysis(self, iteration: int) -> Analysis | None:
        stored = self.store.find_analysis(self.study_id, iteration)
        return None if stored is None else analysis_from_json(stored.document)

    def history(self) -> History:
        """Plans and analyses of this study by iteration, and what the monitor found wrong."""
        analyses = self.store.list_analyses(self.study_id)
        diagnoses = self.store.list_events(self.study_id, kind=DIAGNOSED, limit=None)
        return History(
            plans=self._plans(),
            analyses=tuple(analysis_from_json(stored.document) for stored in analyses),
            diagnoses=tuple(event.message for event in diagnoses),
            runs_used=round(self.store.sum_budget(self.study_id)[BudgetKind.RUNS]),
        )

    def _plans(self) -> tuple[Plan, ...]:
        return tuple(plan_from_json(stored.document) for stored in self.store.list_plans(self.study_id))


def charter_to_json(charter: Charter) -> dict[str, Any]:
    return asdict(charter)


def charter_from_json(document: Mapping[str, Any]) -> Charter:
    values = dict(document)
    values.pop("asks", None)  # Earlier charters say what their study asks; plans do so now.
    values["rule"] = DecisionRule(
        **_EARLIER_RULE | values["rule"] | {"shares": tuple(values["rule"].get("shares", ()))}
    )
    if values.get("metric_range") is not None:
        values["metric_range"] = tuple(values["metric_range"])
    if values.get("sample_size") is not None:
        values["sample_size"] = SampleSizeGoal(**values["sample_size"])
    values["budget"] = Budget(**values["budget"])
    values["judged_by"] = JudgedBy(values.get("judged_by", JudgedBy.FINAL))
    for name in ("assumptions", "not_studied"):
        values[name] = tuple(values.get(name, ()))
    values.setdefault("failed_score", "missing")
    return Charter(**values)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "iteration": plan.iteration,
        "rationale": plan.rationale,
        "seeds": list(plan.seeds),
        "pools_runs": plan.pools_runs,
        "author": plan.author,
        "sample_size": None if plan.sample_size is None else asdict(plan.sample_size),
        "hypotheses": [
            {
                "statement": item.statement,
                "prediction": item.prediction,
                "arms": list(item.arms),
                "contrast": None if item.contrast is None else asdict(item.contrast),
            }
            for item in plan.hypotheses
        ],
        "arms": [
            {
                "name": arm.name,
                "factors": dict(arm.factors),
                "job": dict(arm.job),
                "rationale": arm.rationale,
                "is_baseline": arm.is_baseline,
                "parent": arm.parent,
                "environment": arm.environment,
            }
            for arm in plan.arms
        ],
    }


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    return Plan(
        iteration=data["iteration"],
        hypotheses=tuple(
            Hypothesis(item["statement"], item["prediction"], tuple(item["arms"]), _contrast(item.get("contrast")))
            for item in data["hypotheses"]
        ),
        arms=tuple(Arm(**item) for item in data["arms"]),
        seeds=tuple(data["seeds"]),
        rationale=data["rationale"],
        pools_runs=data.get("pools_runs", False),
        author=data.get("author", ""),
        sample_size=None if data.get("sample_size") is None else SampleSize(**data["sample_size"]),
    )


def analysis_to_json(analysis: Analysis) -> dict[str, Any]:
    """JSON knows no NaN (an interval of one seed): null stands for it. Keys become text."""
    return {
        "arms": [_without_nan(asdict(item)) for item in analysis.arms],
        "comparisons": [_without_nan(asdict(item)) for item in analysis.comparisons],
        "ranking": list(analysis.ranking),
        "failed": {arm: list(reasons) for arm, reasons in analysis.failed.items()},
        "contrasts": [asdict(item) for item in analysis.contrasts],
    }


def analysis_from_json(data: Mapping[str, Any]) -> Analysis:
    return Analysis(
        arms=tuple(
            ArmSummary(
                arm=item["arm"],
                scores=_by_seed(item["scores"]),
                base_scores=_by_seed(item["base_scores"]),
                mean=number(item["mean"]),
                ci_low=number(item["ci_low"]),
                ci_high=number(item["ci_high"]),
                run_ids=tuple(item["run_ids"]),
                failures={int(seed): reason for seed, reason in item.get("failures", {}).items()},
            )
            for item in data["arms"]
        ),
        comparisons=tuple(_comparison(item) for item in data["comparisons"]),
        ranking=tuple(data["ranking"]),
        failed={arm: tuple(reasons) for arm, reasons in data["failed"].items()},
        contrasts=tuple(_judged(item) for item in data.get("contrasts", ())),
    )


def claim_to_json(claim: Claim) -> dict[str, Any]:
    """JSON knows no NaN: a number that is none is no number."""
    document = asdict(claim)
    size = document["number"]
    return {**document, "arms": list(claim.arms), "number": None if size is None else finite(size)}


def claim_from_json(data: Mapping[str, Any]) -> Claim:
    values = {**data, "kind": ClaimKind(data["kind"]), "measured": Measured(data["measured"])}
    return Claim(**{**values, "arms": tuple(data["arms"])})


def number(value: float | None) -> float:
    return math.nan if value is None else value


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


_COMPARISON_NUMBERS = ("difference", "ci_low", "ci_high", "p", "p_adjusted", "correlation")


def _comparison(item: Mapping[str, Any]) -> Comparison:
    numbers = {name: number(item.get(name)) for name in _COMPARISON_NUMBERS}
    lists = {"seeds": tuple(item["seeds"]), "run_ids": tuple(item["run_ids"])}
    return Comparison(**{**item, **numbers, **lists, "verdict": Verdict(item["verdict"])})


def _contrast(item: Mapping[str, Any] | None) -> Contrast | None:
    if item is None:
        return None
    return Contrast(Relation(item["relation"]), tuple(item["arms"]), tuple(item["against"]), item["margin"])


def _judged(item: Mapping[str, Any]) -> JudgedContrast:
    contrast = _contrast(item["contrast"])
    assert contrast is not None, "only a contrast is judged"
    return JudgedContrast(**{**item, "contrast": contrast, "outcome": Outcome(item["outcome"])})


def _by_seed(scores: Mapping[str, float]) -> dict[int, float]:
    return {int(seed): score for seed, score in scores.items()}


def _without_nan(item: Mapping[str, Any]) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for name, value in item.items():
        if isinstance(value, float):
            cleaned[name] = finite(value)
        elif isinstance(value, Mapping):
            cleaned[name] = {str(key): entry for key, entry in value.items()}
        else:
            cleaned[name] = value
    return cleaned
