"""The result of a study in the few lines that a terminal or a message shows, in the words of the report."""

from __future__ import annotations

from dataclasses import dataclass

from experiments_db import ExperimentStore
from researcher.charter import Charter
from researcher.report.advice import describe_runs
from researcher.report.answer import answer, not_studied
from researcher.report.formats import describe_p, format_difference, format_interval, format_score, is_known
from researcher.report.numbers.facts import ArmFacts, StudyFacts
from researcher.report.numbers.gather import gather
from researcher.report.recommendation import recommendation


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a study in a few lines.

    `verdicts` has one line per arm, best first. `runs` says how the runs ended, and `recommendation` what to do.
    `not_studied` names the parts of the topic that the study leaves out. `to_decide` is the command in the
    recommendation; empty without one.
    """

    not_studied: str
    answer: str
    verdicts: tuple[str, ...]
    runs: str
    recommendation: tuple[str, ...]
    to_decide: str = ""


def summarize(store: ExperimentStore, study_id: str) -> Summary:
    """Return the summary of a study.

    Raises StudyNotFound for a study without a charter.
    """
    facts = gather(store, study_id)
    return Summary(
        not_studied(facts),
        answer(facts),
        tuple(_verdict(arm, facts.charter) + _with_plain(facts, arm) for arm in facts.arms),
        describe_runs(facts),
        tuple(recommendation(facts)),
        "" if facts.to_decide is None else facts.to_decide.command,
    )


def _with_plain(facts: StudyFacts, arm: ArmFacts) -> str:
    """Return the mean with the baseline's agent, where some arm has another one."""
    is_shown = facts.has_other_agents and not arm.experiment.is_baseline and is_known(arm.mean_with_plain)
    return f", with the plain agent {format_score(arm.mean_with_plain)}" if is_shown else ""


def _verdict(arm: ArmFacts, charter: Charter) -> str:
    mean = f"{arm.name}: mean {format_score(arm.search.mean)}"
    if arm.experiment.is_baseline:
        return f"{mean}, the baseline"
    found = arm.comparison
    if found is None:
        return f"{mean}, {arm.verdict or 'not compared'}"
    interval = format_interval(found.ci_low, found.ci_high, signed=True)
    margin = "" if charter.margin is None else f", margin {charter.margin:g}"
    numbers = f"{format_difference(found.difference)}, {interval}, {describe_p(found.p_adjusted)}{margin}"
    verdict = arm.verdict if arm.disqualified else found.verdict.about(charter.about)
    return f"{mean}, {verdict} ({numbers})"
