"""The next plan of a search: another round of exploration, or the confirmation of its best arms after a review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments_db import BudgetKind, Operator, Review
from researcher.charter import Charter, SearchRules
from researcher.errors import PlannerError, ResearchError
from researcher.history import Action, History, Objection, ObjectionKind
from researcher.judge.gatekeeping import share_of_alpha
from researcher.loop.deps import Deps
from researcher.plan import Hypothesis, Plan, Stage
from researcher.planner.tools.base import ToolRefused
from researcher.question.factors import PROGRAM
from researcher.question.scopes import describe_scope
from researcher.record.log import CONFIRMS, Notebook, StudyLog, hypotheses_from_json, to_json
from researcher.record.runs import list_all_trials
from researcher.search.confirmation import plan_confirmation
from researcher.search.hypotheses import check_confirmed, usual_hypotheses
from researcher.search.proposers import PROPOSERS
from researcher.search.record import read_tree
from researcher.search.rounds import TOLERANCE, begin_tree, check_round
from researcher.search.rules import count_explored, default_space, find_time_used_up, runs_for_claim, runs_left
from researcher.tree import Expand, Move, SearchTree

MAX_REVIEWED = 3
"""How often arms to confirm are named, if a planner withdraws one after its review."""
MAX_ANSWERS = 2
"""How often a planner is asked for a round, if what it answers cannot be carried out."""
MAX_EMPTY_ROUNDS = 3
"""The rounds in a row without a new score after which exploration ends."""


def add_exploration(deps: Deps, charter: Charter, history: History) -> History:
    """Return the history with the tree of the exploration and the full runs that it may still use."""
    rules = charter.search
    if rules is None:
        return history
    tree = begin_tree(read_tree(deps.store, deps.study_id, charter), charter)
    left = runs_left(
        charter,
        rules,
        explored=count_explored(list_all_trials(deps.store, deps.study_id)),
        used=deps.ledger.used()[BudgetKind.RUNS],
        claims=history.claims,
    )
    return replace(history, tree=tree, runs_left=max(0.0, left - _kept_for_baseline(charter, rules, tree)))


def _kept_for_baseline(charter: Charter, rules: SearchRules, tree: SearchTree) -> float:
    """Return what it costs to train the baseline on to the last rung, which the best arm may come to."""
    node = tree.find(charter.baseline)
    if node is None or node.failure:
        return 0.0
    return rules.rungs[-1] - (rules.rungs[0] if node.last is None else node.last.share)


def next_plan(deps: Deps, charter: Charter, rules: SearchRules, history: History) -> Plan | None:
    """Return the next plan of a search; None ends the study, after an event that says why."""
    claims = history.claims
    if not share_of_alpha(charter.rule, claims):
        deps.log.note("plan.empty", f"{claims} confirmations have used all of alpha, so the study ends here.")
        return None
    reason, named = _why_confirm(deps, charter, rules, history), tuple[Hypothesis, ...]()
    if not reason:
        planned = _plan_round(deps, charter, rules, history)
        if planned is not None and planned.arms:
            return planned
        reason, named = "there are no further moves", planned.hypotheses if planned is not None else ()
    if history.plans and history.plans[-1].stage is Stage.CLAIM:
        deps.log.note("plan.empty", f"Nothing more is explored after the confirmation: {reason}.")
        return None
    deps.log.note("explore.ended", f"The exploration ends: {reason}.")
    return _confirm(deps, charter, rules, history, named or _named_before(deps, history))


def _why_confirm(deps: Deps, charter: Charter, rules: SearchRules, history: History) -> str:
    """Return why the exploration has ended; empty if it goes on."""
    used, claims = deps.ledger.used(), history.claims
    decisions = {item.iteration: item for item in deps.store.list_decisions(deps.study_id)}
    last = decisions.get(len(history.plans) - 1)
    if last is not None and last.action == Action.CONFIRM.value:
        return "the planner has decided to confirm"
    baseline = history.tree.find(charter.baseline)
    if baseline is not None and baseline.failure:
        return f"{charter.baseline}, with which all arms are compared, is out: {baseline.failure}"
    if history.runs_left < _cheapest_step(rules) - TOLERANCE:
        return f"it has used its {rules.runs:g} full runs, as far as a round can"
    if used_up := find_time_used_up(charter, rules, used, claims=claims):
        return used_up
    rounds = [item for item in history.analyses if item.stage is Stage.EXPLORE][-MAX_EMPTY_ROUNDS - 1 :]
    scores = [sum(len(node.scores) for node in item.explored) for item in rounds]
    if len(scores) > MAX_EMPTY_ROUNDS and len(set(scores)) == 1:
        return f"{MAX_EMPTY_ROUNDS} rounds in a row have brought no new score"
    return ""


def _cheapest_step(rules: SearchRules) -> float:
    """Return the full runs that the shortest way from one rung to the next counts as."""
    return min(share - before for before, share in zip((0.0, *rules.rungs), rules.rungs, strict=False))


def _plan_round(deps: Deps, charter: Charter, rules: SearchRules, history: History) -> Plan | None:
    """Return the next round, without arms if the planner ends the exploration; None if nobody has a further move.

    Raises PlannerError if the first round cannot be carried out.
    """
    choose = deps.build_policy(charter, rules)
    moves: tuple[Move, ...] = ()
    if choose is not None:
        moves = choose(history.tree, rules.rungs, history.runs_left, max(1, len(deps.pool.slots)))
        if not moves:
            return None
    for attempt in range(MAX_ANSWERS):
        try:
            planned = check_round(charter, history, moves, deps.planner.explore(charter, history, moves))
        except PlannerError as error:
            deps.log.warn("planner.failed", f"No round of exploration: {error}")
            if attempt == MAX_ANSWERS - 1 and not history.plans:
                raise
        else:
            return planned
    return None


def _named_before(deps: Deps, history: History) -> tuple[Hypothesis, ...]:
    """Return the hypotheses that the planner named last since the confirmation before; empty if it named none."""
    last = max((plan.iteration for plan in history.plans if plan.stage is Stage.CLAIM), default=-1)
    decisions = (item for item in deps.store.list_decisions(deps.study_id) if item.iteration >= last)
    for decision in sorted(decisions, key=lambda item: -item.iteration):
        if named := hypotheses_from_json(decision.details.get(CONFIRMS) or ()):
            return named
    return ()


def _confirm(
    deps: Deps, charter: Charter, rules: SearchRules, history: History, named: tuple[Hypothesis, ...]
) -> Plan | None:
    """Return the plan that confirms the named arms or the usual ones, without those withdrawn after a review."""
    used, claims = deps.ledger.used()[BudgetKind.RUNS], history.claims
    most = runs_for_claim(charter, rules, used=used, claims=claims)
    if most is not None and most < 2 * charter.rule.min_seeds:
        deps.log.warn("budget.used_up", f"No confirmation: {most} runs of --max-runs are left for it.")
        return None
    left: list[Hypothesis] = []
    for _ in range(MAX_REVIEWED):
        hypotheses = _hypotheses(deps, charter, history, named)
        if not hypotheses:
            deps.log.note("explore.nothing_better", f"No arm explored better than {charter.baseline}.")
            return None
        left = [item for item in hypotheses if not is_withdrawn(deps, charter, history, item.arms[0])]
        if len(left) == len(hypotheses):
            break
        history = add_exploration(deps, charter, history)
    if not left:
        deps.log.warn("explore.withdrawn", f"{MAX_REVIEWED} leaders were withdrawn after a review: none is confirmed.")
        return None
    return plan_confirmation(charter, history, left, deps.store.list_experiments(deps.study_id), most_runs=most)


def _hypotheses(deps: Deps, charter: Charter, history: History, named: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Return the named hypotheses without those whose arms are out, or the usual ones if none is left."""
    out = {node.name: node.failure for node in history.tree.nodes if node.failure}
    for arm in [arm for item in named for arm in item.arms if arm in out]:
        deps.log.note("confirm.left_out", f"{arm} is not confirmed: {out[arm]}")
    try:
        if found := check_confirmed(charter, history, [item for item in named if not out.keys() & {*item.arms}]):
            return found
    except PlannerError as error:
        deps.log.warn("planner.failed", f"The usual arms are confirmed, not the named ones: {error}")
    return usual_hypotheses(charter, history, of_each_kind=charter.planner == "rules")


def is_withdrawn(deps: Deps, charter: Charter, history: History, arm: str) -> bool:
    """Have an arm reviewed; return whether the planner withdraws it because of the objections."""
    experiment = deps.store.find_experiment(deps.study_id, arm)
    if deps.reviewer is None or experiment is None:
        return False
    iteration = len(history.plans)
    known = (item for item in deps.store.list_reviews(deps.study_id) if item.experiment_id == experiment.id)
    review = next((item for item in known if item.iteration == iteration), None)
    if review is None:
        try:
            objections = deps.reviewer.review(charter, arm)
        except PlannerError as error:
            deps.log.warn("review.failed", f"{arm} was not reviewed: {error}")
            return False
        review = deps.store.record_review(
            deps.study_id,
            iteration,
            experiment.id,
            reviewer=deps.reviewer.name,
            objections=[to_json(item) for item in objections],
        )
        deps.log.note("review.made", f"{review.reviewer} on {arm}: {_in_words(objections) or 'no objection'}")
    Notebook(deps.store, deps.study_id).note_review(review, arm)
    if review.objections and review.response is None:
        review = _ask_for_response(deps, charter, history, arm, review)
    return review.is_withdrawn


def _ask_for_response(deps: Deps, charter: Charter, history: History, arm: str, review: Review) -> Review:
    """Store the planner's answer to a review; without one, the arm stays in."""
    objections = tuple(objection_from_json(item) for item in review.objections)
    try:
        response = deps.planner.respond(charter, arm, objections, history)
    except PlannerError as error:
        deps.log.warn("planner.failed", f"No answer to the review of {arm}: {error}")
        return review
    if response.is_withdrawn:
        deps.log.warn("arm.withdrawn", f"{arm} is withdrawn: {response.text}")
    return deps.store.respond_to_review(review.id, response.text, is_withdrawn=response.is_withdrawn)


def objection_from_json(document: Mapping[str, Any]) -> Objection:
    """Return an objection as it was stored."""
    return Objection(ObjectionKind(document["kind"]), document["sentence"], document["is_grave"])


def _in_words(objections: Sequence[Objection]) -> str:
    return "; ".join(item.sentence for item in objections)


def propose_next(log: StudyLog, operator: Operator, parents: tuple[str, ...]) -> Mapping[str, str] | None:
    """Return levels by factor for an arm that is derived from parents; None if the space is used up.

    A search that names no factors has the space of the `rules` planner, without its programs. Raises ToolRefused for a
    study that explores nothing, and for a parent that is no arm.
    """
    try:
        charter = log.charter()
    except ResearchError as error:
        raise ToolRefused(f"nothing can be proposed yet: {error}") from error
    if charter.search is None:
        raise ToolRefused("this study compares the arms of its question, so there is nothing to propose")
    tree = read_tree(log.store, log.study_id, charter)
    if unknown := [parent for parent in parents if tree.find(parent) is None]:
        known = ", ".join(node.name for node in tree.nodes) or "none yet"
        raise ToolRefused(f"there is no arm {', '.join(unknown)}; there are: {known}")
    space = charter.asks.factors or default_space(charter.job, (), charter.asks.fixed, charter.asks.scope)
    settings = tuple(factor for factor in space if factor.name != PROGRAM)
    if not space:
        raise ToolRefused(
            f"arms may differ in {describe_scope(charter.asks.scope)} alone: there are no settings to try"
        )
    return PROPOSERS[charter.search.proposer](tree, settings or space, Expand(parents, operator), ())
