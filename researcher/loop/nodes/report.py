"""Report: written from the database alone, as Markdown and HTML."""

from __future__ import annotations

from pathlib import Path

from experiments_db import StudyStatus
from researcher.loop.deps import Deps, ResearchState
from researcher.memory.closing import record_closing
from researcher.record.log import StudyLog, keep_file
from researcher.report.write import build_report
from researcher.study.ending import REPORTED, judge_ending


def report(deps: Deps, state: ResearchState) -> ResearchState:
    # The findings come before the status, with which the digest of the rows is stored. The status comes before the
    # report, which would call its own study unfinished.
    record_closing(deps.log)
    ending = judge_ending(deps.store, deps.study_id, is_budget_used_up=state["is_budget_used_up"])
    deps.store.set_study_status(deps.study_id, ending.status, ending.reason)
    # A study shorter than a heartbeat has no time on record yet.
    deps.ledger.charge_time()
    path = write_report(deps.log, deps.home)
    if ending.status is StudyStatus.FAILED:
        deps.log.warn("study.no_result", f"The study has no result: {ending.reason}")
    deps.log.note(REPORTED, f"Report: {path}")
    return state


def write_report(log: StudyLog, folder: Path) -> Path:
    """Write the report of a study below its folder, record its files, and return the path of the Markdown.

    Raises StudyNotFound for a study without a charter.
    """
    paths = build_report(log.store, log.study_id, folder / "report")
    for kind, path in (("report.markdown", paths.markdown), ("report.html", paths.html)):
        keep_file(log.store, log.study_id, path, kind)
    for figure in paths.figures:
        keep_file(log.store, log.study_id, figure, "report.figure")
    for table in paths.data:
        keep_file(log.store, log.study_id, table, "report.data")
    return paths.markdown
