"""Report: written from the database alone, as Markdown and HTML."""

from __future__ import annotations

from experiments_db import StudyStatus
from researcher.evaluator import keep_file
from researcher.loop.deps import Deps
from researcher.loop.state import ResearchState
from researcher.report.write import build_report


def report(deps: Deps, state: ResearchState) -> ResearchState:
    # First, so that the report does not call a study unfinished that it is the end of.
    reason = "the budget is spent, the report is written" if state["is_spent"] else "the report is written"
    deps.store.set_study_status(deps.study_id, StudyStatus.FINISHED, reason)
    paths = build_report(deps.store, deps.study_id, deps.home / "report")
    for kind, path in (("report.markdown", paths.markdown), ("report.html", paths.html)):
        keep_file(deps.store, deps.study_id, path, kind)
    for figure in paths.figures:
        keep_file(deps.store, deps.study_id, figure, "report.figure")
    for table in paths.data:
        keep_file(deps.store, deps.study_id, table, "report.data")
    deps.log.note("report.written", f"Report: {paths.markdown}")
    return state
