"""The checks of every number: scores from raw rewards, then analyses, findings and verdicts from those scores.

Place in the flow: verify.py calls these once. The analyze node of the loop does its work again on a store with
recomputed scores (recomputed.py). It does so once for each iteration, with the runs that had ended by then. The checks
compare its results with what is stored, so they stay right if the judge changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments_db import ExperimentStore, Finding, IterationDocument
from researcher.charter import Charter
from researcher.execution.background import BackgroundTasks
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.analyze import analyze
from researcher.planner.rules import RulesPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.servers.server import LeaseHolder
from researcher.servers.server_pool import ServerPool
from researcher.verification.recomputed import Moment, RecomputedStore, Written, recompute
from researcher.verification.result import RecordCheck, differences

NUMBERS = ("effect", "ci_low", "ci_high", "confidence", "p_value", "p_adjusted")
NOT_COMPARED = frozenset({"id", "study_id", "created_at"})


def check_scores(store: ExperimentStore, study_id: str) -> RecordCheck:
    """Check that mean, error and successes of each score follow from the rewards of its episodes."""
    evaluations = store.list_evaluations(study_id=study_id)
    mismatches: list[str] = []
    for item in evaluations:
        where = f"{item.run_id}: {item.phase} score"
        episodes = [len(item.details.get(name, ())) for name in ("rewards", "tasks", "solved")]
        if not episodes[0] or len(set(episodes)) > 1:
            mismatches.append(f"{where}: its lists of episodes have the lengths {', '.join(map(str, episodes))}")
            continue
        found = recompute(item)
        for name in ("episodes", "successes", "mean", "stderr"):
            mismatches += differences(getattr(item, name), getattr(found, name), f"{where}: {name}")
    return RecordCheck("scores", len(evaluations), tuple(mismatches))


def check_analyses(store: ExperimentStore, study_id: str, charter: Charter) -> Iterator[RecordCheck]:
    """Check that the conclusions of each iteration follow from its runs."""
    stored = store.list_analyses(study_id)
    results = [(item, _analyze_again(store, study_id, charter, item)) for item in stored]
    findings = store.list_findings(study_id=study_id)
    yield _compare_analyses(results)
    yield _compare_findings(findings, results)
    if results:
        yield _compare_hypotheses(store, study_id, [written for _, written in results])


def _analyze_again(store: ExperimentStore, study_id: str, charter: Charter, stored: IterationDocument) -> Written:
    view = store.seen_as(RecomputedStore)
    view.moment = Moment(stored.iteration, stored.created_at)
    background = BackgroundTasks(1)
    nowhere = Path()
    deps = Deps(
        study_id=study_id,
        store=view,
        log=StudyLog(view, study_id),
        planner=RulesPlanner(),
        pool=ServerPool(home=nowhere, holder=LeaseHolder(study_id)),
        background=background,
        ledger=BudgetLedger(view, study_id, charter.budget),
        sandbox=None,
        home=nowhere,
    )
    try:
        analyze(deps, {**first_state(study_id), "iteration": stored.iteration})
    finally:
        background.join()
    return view.written


def _compare_analyses(results: list[tuple[IterationDocument, Written]]) -> RecordCheck:
    mismatches: list[str] = []
    for stored, written in results:
        mismatches += differences(stored.document, written.analysis, f"analysis {stored.iteration + 1}")
    return RecordCheck("analyses", len(results), tuple(mismatches))


def _compare_findings(findings: list[Finding], results: list[tuple[IterationDocument, Written]]) -> RecordCheck:
    mismatches: list[str] = []
    # A later analysis replaces the findings of an earlier one about a disqualified arm.
    newest = {key: values for _, written in results for key, values in written.findings.items()}
    for finding in findings:
        again = newest.get((finding.iteration, finding.experiment_id))
        if again is None:
            mismatches.append(f"{finding.id} compares what no analysis compared")
        else:
            stored = {name: getattr(finding, name) for name in again if name not in NOT_COMPARED}
            mismatches += differences(_plain(stored), _plain(again), finding.id)
    stored_keys = {(finding.iteration, finding.experiment_id) for finding in findings}
    lost = [key for key in newest if key not in stored_keys]
    mismatches += [f"analysis {number + 1}: the finding on {arm} is not on record" for number, arm in lost]
    return RecordCheck("findings", len(findings), tuple(mismatches))


def _compare_hypotheses(store: ExperimentStore, study_id: str, results: Sequence[Written]) -> RecordCheck:
    """Compare the verdicts of hypotheses.

    Each analysis judges its own plan, and revokes verdicts on disqualified arms.
    """
    stored = store.list_hypotheses(study_id)
    judged = {name: verdict for written in results for name, verdict in written.hypotheses.items()}
    mismatches: list[str] = []
    for item in stored:
        if (again := judged.get(item.id)) is None:
            if item.verdict is not None:
                mismatches.append(f"hypothesis {item.key} has the verdict {item.verdict}, which no run gives it")
            continue
        mismatches += differences(item.verdict, again[0], f"hypothesis {item.key}: verdict")
        mismatches += differences(item.verdict_reason, again[1], f"hypothesis {item.key}: reason")
    return RecordCheck("hypotheses", len(stored), tuple(mismatches))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values as in JSON: no NaN, no tuples."""
    return {
        name: None
        if isinstance(value, float) and not math.isfinite(value)
        else list(value)
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }
