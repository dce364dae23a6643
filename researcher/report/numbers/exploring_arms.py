"""The facts of arms as a decision after a round of exploration saw them: one score each, at the highest rung so far.

Place in the flow: facts.py asks for them, so that what a planner says of exploring scores is checked against these.
Nothing here is a claim of the study.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from experiments_db import SearchArm, StoredDecision
from researcher.charter import Charter
from researcher.judge import Runs, summarize_arm
from researcher.judge.samples import ScoredRun
from researcher.report.numbers.counts import RunCounts, list_outcomes
from researcher.report.numbers.judged_arms import rank_arms

if TYPE_CHECKING:
    from researcher.report.numbers.facts import ArmFacts


def exploring_arms(arms: Iterable[ArmFacts], decision: StoredDecision, charter: Charter) -> tuple[ArmFacts, ...]:
    """Return the arms that had been planned by a decision, ranked by their exploring scores."""
    finals = charter.of_scores
    found: list[ArmFacts] = []
    for arm in arms:
        if arm.in_search is None or not arm.in_search.is_explored or arm.experiment.iteration > decision.iteration:
            continue
        scored = _scored_by(arm.in_search, decision.created_at)
        untrained = {seed: replace(run, score=run.base) for seed, run in scored.items() if run.base is not None}
        begun = [item.run for item in arm.in_search.runs if item.run.created_at <= decision.created_at]
        found.append(
            replace(
                arm,
                search=summarize_arm(arm.name, scored, finals),
                base=summarize_arm(arm.name, untrained, finals),
                test=None,
                runs=(),
                counts=RunCounts(list_outcomes(arm.experiment, begun, scored)),
            )
        )
    return rank_arms(found, finals)


def _scored_by(arm: SearchArm, at: float) -> Runs:
    """Return the score at the highest rung that was known at a time, by its seed."""
    known = [item for item in arm.scored if item.run.finished_at is not None and item.run.finished_at <= at]
    if not known or known[-1].score is None:
        return {}
    last = known[-1]
    noise = (last.stderr or 0.0) ** 2
    return {last.run.seed: ScoredRun(last.run.id, known[-1].score, noise, base=last.base, base_noise=noise)}
