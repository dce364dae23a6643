"""Facts to text: how numbers, names and verdicts are written, and the two templates that put them on a page.

Place in the flow: `write.py` hands in the facts and the pictures and writes what comes out. Whatever a person or a
model wrote is escaped: by Jinja's autoescape in HTML, by `escape_markdown` in Markdown. This module reads no database.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import unified_diff
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import swarm
from experiments_db import BudgetKind, Decision, Finding, number_as_text
from researcher.execution.failure_reason import in_one_line
from researcher.judge.sample_size import describe
from researcher.report.claims import CheckedClaim, check_claims, check_text
from researcher.report.facts import ArmFacts, StudyFacts
from researcher.report.learning_speed import compare_speed
from researcher.report.overview import abstract, limitations, recommendation
from researcher.study.budget import present_budget
from researcher.study.ending import headline
from researcher.study.log import claim_from_json
from researcher.types import Outcome, Relation

if TYPE_CHECKING:
    from researcher.report.figures import Picture

WRITER = f"Written by swarm-researcher {swarm.__version__}."
"""Says which version's words and layout a report has."""

MISSING = "n/a"
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_\[\]{}|#~$!])")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})

BUDGET_LINES: tuple[tuple[BudgetKind, str, str], ...] = (
    (BudgetKind.RUNS, "runs", "max_runs"),
    (BudgetKind.WALL_CLOCK_S, "wall clock (s)", "max_wall_s"),
    (BudgetKind.WORKING_S, "time in runs (s)", ""),
    (BudgetKind.GPU_HOURS, "GPU-hours", "max_gpu_hours"),
    (BudgetKind.LLM_TOKENS, "language model tokens", "max_llm_tokens"),
    (BudgetKind.COST_USD, "language model cost (US$)", "max_llm_usd"),
)


def render_markdown(facts: StudyFacts, pictures: Sequence[Picture], files: Mapping[str, str]) -> str:
    """`files` maps a picture's name to its path beside the report."""
    text = (
        _environment(autoescape=False).get_template("report.md.j2").render(_page(facts), pictures=pictures, files=files)
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def render_html(facts: StudyFacts, pictures: Sequence[Picture]) -> str:
    """One file: styles and figures are in it, and it loads nothing."""
    environment = _environment(autoescape=True)
    style, _, _ = environment.loader.get_source(environment, "report.css") if environment.loader else ("", None, None)
    page = environment.get_template("report.html.j2")
    # The style sheet is our own file; everything else on the page is escaped.
    return page.render(_page(facts), pictures=pictures, style=Markup(style))


def escape_markdown(value: object) -> str:
    """Text that Markdown shows as it is, on one line, in a table cell or elsewhere."""
    line = " ".join(str(value).split()).translate(_ENTITIES)
    return _MARKDOWN_SPECIAL.sub(r"\\\1", line)


def format_score(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:.3f}"


def format_difference(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:+.3f}"


def format_p(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return MISSING
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def format_interval(low: float | None, high: float | None, *, signed: bool = False) -> str:
    write = format_difference if signed else format_score
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    return f"{write(low)} to {write(high)}"


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return number_as_text(value)
    return value if isinstance(value, str) else json.dumps(value)


def format_time(seconds: float | None) -> str:
    return MISSING if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_amount(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def not_studied(facts: StudyFacts) -> str:
    """What the topic asked and the study leaves out, in one sentence; empty where it leaves nothing out."""
    named = ", ".join(facts.charter.not_studied)
    return f"Not studied, though the topic asks for it: {named}." if named else ""


def answer(facts: StudyFacts) -> str:
    """The judge's verdict in words; it follows from the findings and the judged contrasts alone. A study that failed
    says so first, and nothing else if it compared nothing."""
    if failed := headline(facts.study):
        is_anything_compared = any(item.effect is not None for item in facts.findings)
        return f"{failed} {_answer_so_far(facts)}" if is_anything_compared else failed
    return _answer_so_far(facts)


def _answer_so_far(facts: StudyFacts) -> str:
    baseline = facts.baseline
    if baseline is None or not baseline.search.scores:
        return f"No answer: the baseline {facts.charter.baseline} has no finished run to compare with."
    if not facts.findings:
        return "No answer yet: nothing has been compared with the baseline."
    return " ".join([_answer_by_verdict(facts, baseline), *_answer_by_contrasts(facts)])


def _answer_by_verdict(facts: StudyFacts, baseline: ArmFacts) -> str:
    rule = facts.charter.rule
    kept = [arm for arm in facts.arms if arm.finding is not None and arm.finding.verdict == "keep"]
    if not kept:
        return (
            f"No arm beats the baseline {baseline.name} (mean {format_score(baseline.search.mean)}) by the charter's "
            f"rule (at least {rule.min_effect:g}, p below {rule.alpha:g}): {_count_verdicts(facts.findings)}."
        )
    best = kept[0]
    others = f" ({len(kept) - 1} more kept)" if len(kept) > 1 else ""
    if facts.contradicted == best.name and (sealed := facts.sealed) is not None:
        return (
            f"No improvement is shown: {best.name} was better than {baseline.name} on the {facts.charter.search_split} "
            f"split, {_effect_of(facts, best.finding)}, and the sealed {facts.charter.sealed_split} split contradicts "
            f"it: {format_difference(sealed.difference)} "
            f"({format_interval(sealed.ci_low, sealed.ci_high, signed=True)})."
        )
    return (
        f"{best.name} is better than {baseline.name}{others}: {_effect_of(facts, best.finding)}, a mean of "
        f"{format_score(best.search.mean)} against {format_score(baseline.search.mean)}."
    )


_ANSWERS: Mapping[Relation, Mapping[Outcome, str]] = {
    Relation.BEST: {
        Outcome.SUPPORTED: "{winner} is the best setting",
        Outcome.REFUTED: "The leading settings are alike",
        Outcome.UNDECIDED: "Which setting is best is not decided",
    },
    Relation.MATTERS_MORE: {
        Outcome.SUPPORTED: "{statement}",
        Outcome.REFUTED: "It is the other way round than this: {statement}",
        Outcome.UNDECIDED: "Not decided: {statement}",
    },
    Relation.INTERACTION: {
        Outcome.SUPPORTED: "{statement}",
        Outcome.REFUTED: "Not so: {statement}",
        Outcome.UNDECIDED: "Not decided: {statement}",
    },
    Relation.EQUIVALENT: {
        Outcome.SUPPORTED: "{statement}",
        Outcome.REFUTED: "Not so: {statement}",
        Outcome.UNDECIDED: "Not decided: {statement}",
    },
}


def _answer_by_contrasts(facts: StudyFacts) -> Iterator[str]:
    """One sentence for each hypothesis that asks more than whether an arm beats the baseline."""
    statements = {item.key: item.statement for item in facts.hypotheses}
    for item in facts.contrasts:
        sentence = _ANSWERS.get(item.contrast.relation, {}).get(item.outcome)
        if sentence is not None:
            said = sentence.format(winner=item.winner, statement=statements.get(item.key, "the hypothesis").rstrip("."))
            yield f"{said} ({item.reason.rstrip('.')})."


def _effect_of(facts: StudyFacts, finding: Finding | None) -> str:
    assert finding is not None, "only a finding makes an arm kept"
    return (
        f"{format_difference(finding.effect)} ({100 * finding.confidence:g} % interval "
        f"{format_interval(finding.ci_low, finding.ci_high, signed=True)}, p = {format_p(finding.p_adjusted)} after "
        f"{facts.charter.rule.correction.capitalize()}'s correction over {_count_comparisons(facts)})"
    ).replace("p = <", "p < ")


def _count_comparisons(facts: StudyFacts) -> str:
    count = len(facts.findings)
    among = " and for the share of alpha that each plan has" if len(facts.charter.rule.shares) > 1 else ""
    return f"{count} comparison{'' if count == 1 else 's'}{among}"


def _count_verdicts(findings: Iterable[Finding]) -> str:
    by_verdict: dict[str, list[str]] = {}
    for finding in findings:
        by_verdict.setdefault(finding.verdict, []).append(finding.id)
    return ", ".join(f"{len(ids)} {'rejected' if name == 'reject' else name}" for name, ids in by_verdict.items())


_METHOD = "The runs of an arm and of the baseline are independent samples with variances of their own (Welch's t)"
_FAILED_SCORES = {
    "base": "counts with the score that it had before training",
    "worst": "counts with the worst score",
}


def _sample_size(facts: StudyFacts) -> str:
    goal, size = facts.charter.sample_size, facts.sample_size
    return "" if goal is None or size is None else describe(goal, size)


def _page(facts: StudyFacts) -> dict[str, Any]:
    """All that both templates print; they hold words and layout, no computation."""
    found = answer(facts)
    return {
        "facts": facts,
        "writer": WRITER,
        "charter": facts.charter,
        "not_studied": not_studied(facts),
        "compared_at": facts.charter.compared_at,
        "answer": found,
        "abstract": abstract(facts, found),
        "recommendation": recommendation(facts),
        "limitations": limitations(facts),
        "comparisons": _count_comparisons(facts),
        "method": _METHOD,
        "failed_score": _FAILED_SCORES[facts.charter.failed_score],
        "sample_size": _sample_size(facts),
        "arms": [(f"arm-{index}", arm) for index, arm in enumerate(facts.arms, 1)],
        "anchor_of": {arm.name: f"arm-{index}" for index, arm in enumerate(facts.arms, 1)},
        "interpretations": _interpretations(facts),
        "decisions": [(item, _reason(facts, item)) for item in facts.decisions],
        "speed": compare_speed({arm.name: list(arm.held_out.values()) for arm in facts.arms}, facts.charter.baseline),
        "sealed": [arm for arm in facts.arms if arm.sealed is not None],
        "budget": _budget(facts),
        "programs": _programs(facts.arms),
        "common_job": _common_job([arm for arm in facts.arms if arm not in facts.rejected_arms]),
    }


def _interpretations(facts: StudyFacts) -> list[tuple[int, tuple[CheckedClaim, ...]]]:
    """By iteration, checked against the record as it was then. Studies of earlier versions have prose, in which claims
    are looked for."""
    found: list[tuple[int, tuple[CheckedClaim, ...]]] = []
    for item in facts.decisions:
        then = facts.at_decisions.get(item.iteration, facts)
        claims, prose = item.details.get("claims"), item.details.get("interpretation")
        if claims is not None:
            found.append((item.iteration, check_claims(map(claim_from_json, claims), then)))
        elif isinstance(prose, str) and prose.strip():
            found.append((item.iteration, check_text(prose, then)))
    return [(number, checked) for number, checked in found if checked]


def _reason(facts: StudyFacts, decision: Decision) -> tuple[CheckedClaim, ...]:
    """A model's reasons are checked like its interpretations; a rule's need no check."""
    if str(decision.details.get("author") or facts.charter.brain).startswith("llm:"):
        return check_text(decision.reason, facts.at_decisions.get(decision.iteration, facts))
    return (CheckedClaim(decision.reason),)


def _budget(facts: StudyFacts) -> list[tuple[str, str, str]]:
    """With the limits as they are now; the charter has those that the study began with."""
    limits = present_budget(facts.study.settings, facts.charter.budget)
    lines: list[tuple[str, str, str]] = []
    for kind, label, limit_name in BUDGET_LINES:
        limit = getattr(limits, limit_name) if limit_name else None
        spent = facts.spent.get(kind)
        if spent or limit is not None:
            lines.append((label, f"{spent or 0:,.4g}", "none" if limit is None else f"{limit:,g}"))
    return lines


@dataclass(frozen=True, slots=True)
class _ProgramText:
    """A program and the arms that ran it. `diff` is what it has changed of the baseline's, empty for that itself."""

    digest: str
    code: str
    diff: str
    arms: tuple[str, ...]


def _programs(arms: Sequence[ArmFacts]) -> list[_ProgramText]:
    """Each distinct program once."""
    baseline = next((arm for arm in arms if arm.experiment.is_baseline), None)
    found: dict[str, list[ArmFacts]] = {}
    for arm in arms:
        if arm.experiment.program_code:
            found.setdefault(arm.code_hash, []).append(arm)
    return [
        _ProgramText(digest, ran[0].experiment.program_code, _diff(baseline, ran[0]), tuple(arm.name for arm in ran))
        for digest, ran in found.items()
    ]


def _diff(baseline: ArmFacts | None, arm: ArmFacts) -> str:
    if baseline is None:
        return ""
    old, new = (each.experiment.program_code.splitlines() for each in (baseline, arm))
    return "\n".join(unified_diff(old, new, baseline.name, arm.name, lineterm=""))


def _common_job(arms: Sequence[ArmFacts]) -> dict[str, Any]:
    """The settings that every arm shares; what differs stands with the arm."""
    jobs = [arm.experiment.job for arm in arms]
    if not jobs:
        return {}
    return {key: value for key, value in jobs[0].items() if all(key in job and job[key] == value for job in jobs)}


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


@cache
def _environment(*, autoescape: bool) -> Environment:
    """It keeps its templates: compiling them takes longer than filling them in."""
    environment = Environment(
        loader=PackageLoader("researcher.report"), autoescape=autoescape, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(
        score=format_score,
        difference=format_difference,
        amount=format_amount,
        p=format_p,
        value=format_value,
        time=format_time,
        reason=in_one_line,
        text=escape_markdown,
        data_url=_data_url,
    )
    environment.globals["interval"] = format_interval  # pyright: ignore[reportArgumentType]
    return environment
