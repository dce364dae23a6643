"""Decide: the planner says whether another plan follows; the budget and a limit on plans have the last word."""

from __future__ import annotations

from researcher.errors import BudgetExceeded, PlannerError
from researcher.loop.deps import Deps
from researcher.loop.state import ResearchState
from researcher.types import Action, Analysis, Charter, Decision, History

MAX_PLANS = 50
"""A planner that never stops is stopped here, whatever its budget."""


def decide(deps: Deps, state: ResearchState) -> ResearchState:
    iteration = state["iteration"]
    charter, history = deps.log.charter(), deps.log.history()
    analysis = history.analyses[-1]
    interpretation = _interpret(deps, charter, analysis, history)
    decision = _choose(deps, state, charter, analysis, history)
    stored = deps.store.record_decision(
        deps.study_id,
        iteration,
        action=decision.action.value,
        reason=decision.reason,
        finding_ids=[item.id for item in deps.store.list_findings(study_id=deps.study_id, iteration=iteration)],
        details={"interpretation": interpretation},
    )
    deps.log.note("decision.made", f"{stored.action}: {stored.reason}")
    if stored.action == Action.REFINE.value:
        return {**state, "iteration": iteration + 1}
    return {**state, "is_halted": True}


def _interpret(deps: Deps, charter: Charter, analysis: Analysis, history: History) -> str:
    try:
        return deps.planner.interpret(charter, analysis, history)
    except (PlannerError, BudgetExceeded) as error:
        deps.log.warn("brain.failed", f"No interpretation: {error}")
        return "No interpretation."


def _choose(deps: Deps, state: ResearchState, charter: Charter, analysis: Analysis, history: History) -> Decision:
    if state["is_spent"]:
        return Decision(Action.STOP, "The budget is spent.")
    if len(history.plans) >= MAX_PLANS:
        return Decision(Action.STOP, f"{MAX_PLANS} plans have been carried out.")
    try:
        return deps.planner.decide(charter, analysis, history)
    except (PlannerError, BudgetExceeded) as error:
        deps.log.warn("brain.failed", f"No decision: {error}")
        return Decision(Action.STOP, "The planner came to no decision.")
