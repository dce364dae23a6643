"""The arms that are out of a study, with the reasons.

Place in the flow: the nodes and the report ask here. An arm is out if a decision disqualified it, if it was withdrawn
after a review, or if it is not what it claims to be. This module judges nothing.
"""

from __future__ import annotations

from experiments_db import ArmFailure, ExperimentStore, read_search_arms
from researcher.study.log import StudyLog


def find_excluded(store: ExperimentStore, study_id: str, until: int | None = None) -> dict[str, str]:
    """Return the excluded arms with their reasons, of all iterations or of those up to one.

    A check of transcripts counts from the beginning, because an arm that is something else always was.
    """
    by_review = {
        review.experiment_id for review in store.list_reviews(study_id) if until is None or review.iteration <= until
    }
    found = StudyLog(store, study_id).disqualified(until)
    for arm in read_search_arms(store, study_id):
        is_withdrawn = arm.failure is ArmFailure.WITHDRAWN and arm.experiment.id in by_review
        if is_withdrawn or arm.failure is ArmFailure.NOT_AS_CLAIMED:
            found.setdefault(arm.name, f"{arm.failure}: {arm.reason}")
    return found
