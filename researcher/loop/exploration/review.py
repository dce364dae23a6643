"""Review: a second look at the arm that leads, before it is confirmed.

Place in the flow: explore.py asks for the leader of the exploration. Objections are stored and go to the planner once.
If it withdraws the arm, the arm is out for good. A review that is on record is not made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments_db import Review
from researcher.charter import Charter
from researcher.errors import PlannerError
from researcher.history import History, Objection, ObjectionKind
from researcher.loop.deps import Deps
from researcher.record.log import to_json
from researcher.record.notebook import Notebook


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
