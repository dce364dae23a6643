"""What the loop keeps of its own thinking: charter, plans and analyses as JSON, in and out of the database.

Place in the flow: nodes write and read these here, so that a process that takes over a study knows what the one before
it planned. This module knows nothing of graphs, servers or planners.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from experiments_db import Event, ExperimentStore, Severity
from researcher.errors import ResearchError
from researcher.types import (
    Analysis,
    Arm,
    ArmSummary,
    Budget,
    Charter,
    Comparison,
    DecisionRule,
    History,
    Hypothesis,
    Plan,
    Verdict,
)

logger = logging.getLogger(__name__)

PLAN_MADE = "plan.made"
ANALYSIS_MADE = "analysis.made"
DIAGNOSED = "run.diagnosed"
_PAGE = 500


class StudyLog:
    """The events of one study."""

    def __init__(self, store: ExperimentStore, study_id: str) -> None:
        self._store = store
        self._study_id = study_id

    def note(
        self,
        kind: str,
        message: str,
        *,
        run_id: str | None = None,
        severity: Severity = Severity.INFO,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """One line for people; `kind` is its stable name. The log file gets it too."""
        logger.info("%s: %s", kind, message)
        self._store.append_event(self._study_id, kind, message, severity=severity, run_id=run_id, payload=payload)

    def warn(self, kind: str, message: str, *, run_id: str | None = None) -> None:
        self.note(kind, message, run_id=run_id, severity=Severity.WARNING)

    def charter(self) -> Charter:
        """Raises ResearchError for a study that was never framed."""
        stored = self._store.find_charter(self._study_id)
        if stored is None:
            raise ResearchError(f"study {self._study_id} has no charter yet")
        return charter_from_json(stored.document)

    def write_plan(self, plan: Plan, message: str) -> None:
        self.note(PLAN_MADE, message, payload={"plan": plan_to_json(plan)})

    def write_analysis(self, iteration: int, analysis: Analysis, message: str) -> None:
        self.note(ANALYSIS_MADE, message, payload={"iteration": iteration, "analysis": analysis_to_json(analysis)})

    def find_plan(self, iteration: int) -> Plan | None:
        return next((plan for plan in self.history().plans if plan.iteration == iteration), None)

    def history(self) -> History:
        """Plans and analyses of this study, the newest version of each, and what the monitor found wrong."""
        plans: dict[int, Plan] = {}
        analyses: dict[int, Analysis] = {}
        diagnoses: list[str] = []
        for event in self._events():
            if event.kind == PLAN_MADE:
                plan = plan_from_json(event.payload["plan"])
                plans[plan.iteration] = plan
            elif event.kind == ANALYSIS_MADE:
                analyses[event.payload["iteration"]] = analysis_from_json(event.payload["analysis"])
            elif event.kind == DIAGNOSED:
                diagnoses.append(event.message)
        return History(
            plans=tuple(plans[key] for key in sorted(plans)),
            analyses=tuple(analyses[key] for key in sorted(analyses)),
            diagnoses=tuple(diagnoses),
        )

    def _events(self) -> list[Event]:
        events: list[Event] = []
        while page := self._store.list_events(self._study_id, after_id=events[-1].id if events else 0, limit=_PAGE):
            events.extend(page)
        return events


def charter_to_json(charter: Charter) -> dict[str, Any]:
    return asdict(charter)


def charter_from_json(document: Mapping[str, Any]) -> Charter:
    values = dict(document)
    values["rule"] = DecisionRule(**values["rule"])
    values["budget"] = Budget(**values["budget"])
    values["assumptions"] = tuple(values["assumptions"])
    return Charter(**values)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "iteration": plan.iteration,
        "rationale": plan.rationale,
        "seeds": list(plan.seeds),
        "hypotheses": [
            {"statement": item.statement, "prediction": item.prediction, "arms": list(item.arms)}
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
            }
            for arm in plan.arms
        ],
    }


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    return Plan(
        iteration=data["iteration"],
        hypotheses=tuple(
            Hypothesis(item["statement"], item["prediction"], tuple(item["arms"])) for item in data["hypotheses"]
        ),
        arms=tuple(Arm(**item) for item in data["arms"]),
        seeds=tuple(data["seeds"]),
        rationale=data["rationale"],
    )


def analysis_to_json(analysis: Analysis) -> dict[str, Any]:
    """JSON knows no NaN (an interval of one seed): null stands for it. Keys become text."""
    return {
        "arms": [_without_nan(asdict(item)) for item in analysis.arms],
        "comparisons": [_without_nan(asdict(item)) for item in analysis.comparisons],
        "ranking": list(analysis.ranking),
        "failed": {arm: list(reasons) for arm, reasons in analysis.failed.items()},
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
            )
            for item in data["arms"]
        ),
        comparisons=tuple(_comparison(item) for item in data["comparisons"]),
        ranking=tuple(data["ranking"]),
        failed={arm: tuple(reasons) for arm, reasons in data["failed"].items()},
    )


def number(value: float | None) -> float:
    return math.nan if value is None else value


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _comparison(item: Mapping[str, Any]) -> Comparison:
    values = {name: number(item[name]) for name in ("difference", "ci_low", "ci_high", "p", "p_adjusted")}
    return Comparison(
        arm=item["arm"],
        baseline=item["baseline"],
        seeds=tuple(item["seeds"]),
        verdict=Verdict(item["verdict"]),
        run_ids=tuple(item["run_ids"]),
        **values,
    )


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
