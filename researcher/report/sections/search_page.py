"""What both templates print of a search and of the planner's side of a study.

Place in the flow: render.py adds it to its page. It puts facts into rows and sentences, and it reads no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from statistics import NormalDist
from typing import Any

from experiments_db import ArmFailure, ExploringRun, Outcome, ProgramTrial, Run, RunStatus, SearchArm
from researcher.charter import Charter
from researcher.report.changes import list_changes
from researcher.report.formats import count, format_amount
from researcher.report.numbers.confirmation import JudgedAblation
from researcher.report.numbers.exploration import StageUse
from researcher.report.numbers.facts import StudyFacts
from researcher.report.sections.clauses import list_clauses
from researcher.report.sections.next_steps import next_steps

BROKEN = (RunStatus.FAILED, RunStatus.STOPPED)


@dataclass(frozen=True, slots=True)
class TriedArm:
    """One row of what was tried; the interval is that of the tasks of its last exploring score."""

    arm: SearchArm
    last: ExploringRun | None
    low: float | None
    high: float | None
    begun: int


def search_page(facts: StudyFacts) -> dict[str, Any]:
    """Return the parts of the page by name; those of a search are empty for a comparing study."""
    tree = [arm.in_search for arm in facts.arms if arm.in_search is not None]
    if facts.exploration is not None:
        tree = list(facts.exploration.tree)
    names = {arm.experiment.id: arm.name for arm in tree}
    return {
        "clauses": list_clauses(facts),
        "search": facts.exploration,
        "broken": _broken(facts),
        "rejected": [arm for arm in tree if arm.failure is ArmFailure.REJECTED],
        "tried": _tried(facts),
        "failures": _failures(tree),
        "stages": [_stage(item) for item in facts.exploration.stages] if facts.exploration is not None else [],
        "pretenders": [arm for arm in tree if arm.failure is ArmFailure.NOT_AS_CLAIMED],
        "checks": [(arm, _last_count(arm.trials)) for arm in tree if arm.statement],
        "reviews": [(item, names.get(item.experiment_id, "?")) for item in facts.planner.reviews],
        "trials": [(item, names.get(item.experiment_id or "", "a draft")) for item in facts.planner.trials],
        "record": facts.planner,
        "omitted": len(facts.planner.notes) - len(facts.planner.shown_notes),
        "next_steps": next_steps(facts),
        **_winner(facts),
    }


def _tried(facts: StudyFacts) -> list[TriedArm]:
    if facts.exploration is None:
        return []
    rows: list[TriedArm] = []
    for arm in facts.exploration.explored:
        low, high = _interval(facts.charter, arm.last)
        rows.append(TriedArm(arm, arm.last, low, high, sum(item.cost > 0 for item in arm.runs)))
    return rows


def _broken(facts: StudyFacts) -> list[tuple[Run, str]]:
    """Return the trainings that ended without a score of their own, with their arms, short runs first."""
    explored = [] if facts.exploration is None else facts.exploration.tree
    short = [(item.run, arm.name) for arm in explored for item in arm.runs if item.run.status in BROKEN]
    return [*short, *((item.run, item.arm) for item in facts.broken_trainings)]


def _interval(charter: Charter, item: ExploringRun | None) -> tuple[float | None, float | None]:
    """Return the interval of an exploring score by its number of tasks alone, within the range of the metric."""
    if item is None or item.score is None or item.stderr is None:
        return None, None
    half = NormalDist().inv_cdf(1 - charter.rule.alpha / 2) * item.stderr
    low, high = charter.metric_range or (item.score - half, item.score + half)
    return max(low, item.score - half), min(high, item.score + half)


def _failures(tree: Iterable[SearchArm]) -> Mapping[ArmFailure, list[SearchArm]]:
    found: dict[ArmFailure, list[SearchArm]] = {}
    for arm in tree:
        if arm.failure is not None:
            found.setdefault(arm.failure, []).append(arm)
    return found


def _stage(item: StageUse) -> tuple[str, str, str, str, str]:
    return (
        item.stage,
        f"{100 * item.part:g} %",
        "–" if item.runs is None else f"{item.runs:.4g}",
        "–" if item.most_runs is None else f"{item.most_runs:.4g}",
        "–" if item.seconds is None else format_amount(item.seconds),
    )


def _last_count(trials: tuple[ProgramTrial, ...]) -> str:
    """Return the passed attempts of the last trial that counted them."""
    counted = [trial for trial in trials if trial.passed is not None]
    return f"{counted[-1].passed} of {counted[-1].attempts}" if counted else ""


def _winner(facts: StudyFacts) -> dict[str, Any]:
    winner, baseline, confirmation = facts.winner, facts.baseline, facts.confirmation
    if winner is None or baseline is None or confirmation is None:
        return {"winner": None}
    old, new = (arm.experiment.program_code.splitlines() for arm in (baseline, winner))
    return {
        "winner": winner,
        "winner_changes": list_changes(baseline, winner),
        "winner_diff": "\n".join(unified_diff(old, new, baseline.name, winner.name, lineterm="")),
        "winner_costs": [(arm, arm.cost.evaluation) for arm in (winner, baseline) if arm.cost.evaluation is not None],
        "ablations": [(item, _needs(item, is_kept=winner.is_kept)) for item in confirmation.ablations],
        "ablation_note": " ".join(_ablation_note(facts)),
    }


def _needs(item: JudgedAblation, *, is_kept: bool) -> str:
    """Return whether the gain needs the part, in words."""
    if not is_kept:
        return "not judged: the whole is not shown to be better"
    match item.outcome:
        case Outcome.SUPPORTED:
            return "the gain needs this part"
        case Outcome.REFUTED:
            return "the gain does not need this part"
        case Outcome.UNDECIDED:
            return "not decided"
        case None:
            return "not judged"


def _ablation_note(facts: StudyFacts) -> Iterator[str]:
    assert facts.confirmation is not None, "the caller has a winner"
    seeds = len(facts.winner.search.scores) if facts.winner is not None else 0
    yield f"Each part was taken away alone; {count(seeds, 'fresh seed')}. Intervals are not corrected, outcomes are."
