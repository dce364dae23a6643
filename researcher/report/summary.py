"""What a study found, in the few lines that a terminal shows at its end.

Place in the flow: the CLI asks once a study is finished. The words are those of the report: verdicts come from the
findings, and nothing is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments_db import ExperimentStore
from researcher.report.facts import ArmFacts, StudyFacts, gather
from researcher.report.render import answer, format_difference, format_interval, format_p, format_score, not_studied


@dataclass(frozen=True, slots=True)
class Summary:
    """`verdicts` has one line per arm, best first. `not_studied` is what the topic asked and the study leaves out."""

    not_studied: str
    answer: str
    verdicts: tuple[str, ...]


def summarize(store: ExperimentStore, study_id: str) -> Summary:
    """Raises StudyNotFound for a study without a charter."""
    facts = gather(store, study_id)
    return Summary(not_studied(facts), answer(facts), tuple(_verdict(facts, arm) for arm in facts.arms))


def _verdict(facts: StudyFacts, arm: ArmFacts) -> str:
    mean = f"{arm.name}: mean {format_score(arm.search.mean if arm.search.scores else None)}"
    if arm is facts.baseline:
        return f"{mean}, the baseline"
    finding = arm.finding
    if finding is None:
        return f"{mean}, not compared"
    interval = format_interval(finding.ci_low, finding.ci_high, signed=True)
    p = f"p = {format_p(finding.p_adjusted)}".replace("= <", "< ")
    return f"{mean}, {finding.verdict} ({format_difference(finding.effect)}, {interval}, {p})"
