"""Decide: the planner chooses whether another plan follows; the budget and a limit on plans may overrule it."""

from __future__ import annotations

from collections.abc import Mapping

from researcher.analysis import Analysis
from researcher.charter import Charter
from researcher.claims import Claim
from researcher.errors import BudgetExceeded, PlannerError
from researcher.history import Action, Decision, History
from researcher.loop.deps import Deps, ResearchState
from researcher.loop.nodes.analyze import analyze
from researcher.loop.nodes.plan import gather_history
from researcher.memory.closing import record_closing
from researcher.record.log import (
    AUTOMATIC,
    BUDGET_USED_UP,
    CONFIRMS,
    DISQUALIFIED,
    JUDGED,
    OUT,
    SUSPECT,
    Notebook,
    describe_out,
    to_json,
)
from researcher.report.claims import check_claims
from researcher.report.numbers.gather import gather

MAX_PLANS = 50
"""The most plans of a study, for planners that never stop, whatever the budget."""
MAX_ROUNDS = 2_000
"""The same limit for a search, whose rounds of exploration may be small."""


def decide(deps: Deps, state: ResearchState) -> ResearchState:
    iteration = state["iteration"]
    charter = deps.charter()
    history = gather_history(deps, charter)
    analysis = history.analyses[-1]
    claims = _interpret(deps, charter, analysis, history)
    words = _in_words(deps, claims)
    decision = _choose(deps, state, charter, analysis, history)
    out = _known_arms(deps, charter, decision.disqualified, "rules out")
    suspect = _known_arms(deps, charter, decision.suspect, "doubts")
    stored = deps.store.record_decision(
        deps.study_id,
        iteration,
        action=decision.action.value,
        reason=decision.reason,
        finding_ids=[item.id for item in deps.store.list_findings(study_id=deps.study_id, iteration=iteration)],
        details={
            "claims": [to_json(claim) for claim in claims],
            "interpretation": words,
            "author": decision.author or deps.planner.name,
            BUDGET_USED_UP: decision.is_budget_used_up,
            DISQUALIFIED: out,
            SUSPECT: suspect,
            CONFIRMS: [to_json(item) for item in decision.confirms],
            **({JUDGED: to_json(analysis)} if out else {}),
        },
        replace=_is_reopened(deps, iteration),
    )
    deps.log.note("decision.made", f"{stored.action}: {stored.reason}")
    notebook, author = Notebook(deps.store, deps.study_id), str(stored.details["author"])
    notebook.note_reading(iteration, str(stored.details["interpretation"]), deps.planner.name)
    notebook.note_decision(iteration, stored.action, stored.reason, author, decision.lessons)
    for arm, reason in stored.details.get(DISQUALIFIED, {}).items():
        deps.log.warn(OUT, describe_out(arm, reason))
    for arm, reason in stored.details.get(SUSPECT, {}).items():
        deps.log.warn("arm.suspect", f"The planner calls {arm} suspect: {reason}")
        notebook.note_suspicion(iteration, arm, reason, author)
    if stored.details.get(DISQUALIFIED):
        analyze(deps, state)
    # A study may fail or stop before its end: what it knows by now is kept.
    record_closing(deps.log)
    if stored.action in (Action.REFINE.value, Action.CONFIRM.value):
        return {**state, "iteration": iteration + 1}
    return {**state, "is_halted": True, "is_budget_used_up": bool(stored.details.get(BUDGET_USED_UP))}


def _known_arms(deps: Deps, charter: Charter, doubted: Mapping[str, str], does: str) -> dict[str, str]:
    """Return the doubted arms that a decision may be about: known ones, except the baseline, which all others need.

    `does` is what the planner does with them, in words. No statement of a planner improves the verdict on an arm.
    """
    known = {item.name for item in deps.store.list_experiments(deps.study_id)} - {charter.baseline}
    for arm in doubted.keys() - known:
        why = "the baseline stays in" if arm == charter.baseline else "the study has no such arm"
        deps.log.warn("arm.stays", f"The planner {does} {arm}, but {why}.")
    return {arm: reason for arm, reason in doubted.items() if arm in known}


def _is_reopened(deps: Deps, iteration: int) -> bool:
    """Return whether this iteration was decided by an exhausted budget before, which has been raised since."""
    decided = (item for item in deps.store.list_decisions(deps.study_id) if item.iteration == iteration)
    return any(item.details.get(BUDGET_USED_UP) for item in decided)


def _interpret(deps: Deps, charter: Charter, analysis: Analysis, history: History) -> tuple[Claim, ...]:
    try:
        return deps.planner.interpret(charter, analysis, history)
    except PlannerError as error:
        deps.log.warn("planner.failed", f"No interpretation: {error}")
    except BudgetExceeded:
        if deps.ledger.find_exhausted() is None:
            raise
        deps.log.warn("planner.failed", "No interpretation: the time of the study is spent.")
    return ()


def _in_words(deps: Deps, claims: tuple[Claim, ...]) -> str:
    """Return the claims that the record supports, as sentences, without opinions."""
    checked = check_claims(claims, gather(deps.store, deps.study_id)) if claims else ()
    return " ".join(item.sentence for item in checked if item.sentence and not item.is_opinion)


def _choose(deps: Deps, state: ResearchState, charter: Charter, analysis: Analysis, history: History) -> Decision:
    if state["is_budget_used_up"]:
        return Decision(Action.STOP, "The budget is spent.", author=AUTOMATIC, is_budget_used_up=True)
    if reason := deps.ledger.find_exhausted():
        return Decision(Action.STOP, f"The budget is spent: {reason}", author=AUTOMATIC, is_budget_used_up=True)
    most = MAX_PLANS if charter.search is None else MAX_ROUNDS
    if len(history.plans) >= most:
        return Decision(Action.STOP, f"{most} plans have been carried out.", author=AUTOMATIC)
    try:
        return deps.planner.decide(charter, analysis, history)
    except PlannerError as error:
        deps.log.warn("planner.failed", f"No decision: {error}")
        return Decision(Action.STOP, "The planner came to no decision.", author=AUTOMATIC)
