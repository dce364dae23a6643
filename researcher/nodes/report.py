"""Report: written from the database alone, as Markdown and HTML."""

from __future__ import annotations

from researcher.deps import Deps
from researcher.harness import keep_file
from researcher.report.build import build_report
from researcher.state import ResearchState


def report(deps: Deps, state: ResearchState) -> ResearchState:
    paths = build_report(deps.store, deps.study_id, deps.home / "report")
    for kind, path in (("report.markdown", paths.markdown), ("report.html", paths.html)):
        keep_file(deps.store, deps.study_id, path, kind)
    for figure in paths.figures:
        keep_file(deps.store, deps.study_id, figure, "report.figure")
    deps.journal.note("report.written", f"Report: {paths.markdown}")
    return state
