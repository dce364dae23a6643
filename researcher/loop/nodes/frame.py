"""Frame: the topic becomes a charter, frozen before anything runs."""

from __future__ import annotations

from researcher.loop.deps import Deps
from researcher.loop.state import ResearchState
from researcher.study.log import charter_to_json
from researcher.types import FrameRequest


def frame(deps: Deps, state: ResearchState, request: FrameRequest) -> ResearchState:
    if deps.store.find_charter(deps.study_id) is None:
        charter = deps.planner.frame(request)
        deps.store.freeze_charter(deps.study_id, charter_to_json(charter))
        deps.log.note("charter.frozen", f"{charter.question} (task {charter.task}, baseline {charter.baseline})")
        for assumption in charter.assumptions:
            deps.log.note("charter.assumption", assumption)
    return state
