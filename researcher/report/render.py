"""The pages of a report: two templates, filled in with facts.

Place in the flow: `write.py` hands in the facts and the pictures, and writes the result. All text of a person or a
model is escaped: by Jinja's autoescape in HTML, by `escape_markdown` in Markdown. This module reads no database and
counts nothing.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import swarm
from experiments_db import BudgetKind, Event
from researcher.judge.power import describe_target
from researcher.question.wording import describe_question
from researcher.record.budget import present_budget
from researcher.record.failure_reason import in_one_line
from researcher.record.log import AUTOMATIC, claim_from_json
from researcher.report.claims import CheckedClaim, check_claims
from researcher.report.conversation import ShownConversation
from researcher.report.formats import (
    count,
    count_kinds,
    escape_markdown,
    format_amount,
    format_difference,
    format_interval,
    format_p,
    format_score,
    format_share,
    format_time,
    format_value,
)
from researcher.report.headline import answer, not_studied
from researcher.report.numbers.facts import ArmFacts, StudyFacts
from researcher.report.numbers.learning_speed import compare_speed
from researcher.report.overview import FAILED_SCORES, describe_work, limitations, recommendation
from researcher.report.sections.search_page import search_page

if TYPE_CHECKING:
    from researcher.report.drawing.figures import Picture

SEARCH_TREE = "search-tree"
"""The name of the picture that stands with the search."""
WRITER = f"Written by swarm-researcher {swarm.__version__}."
"""The line that names the version whose wording and layout a report has."""

_PATH = re.compile(r"(?<![\w:/.])/(?:[\w.@+-]+/)+([\w.@+-]+)")
"""An absolute path; what follows the host in an address is none."""
_NUMBER = re.compile(r"\S{0,15}\d\S{0,15}")

BUDGET_LINES: tuple[tuple[BudgetKind, str, str], ...] = (
    (BudgetKind.RUNS, "runs", "max_runs"),
    (BudgetKind.WALL_CLOCK_S, "wall clock (s)", "max_wall_s"),
    (BudgetKind.WORKING_S, "time in runs (s)", ""),
    (BudgetKind.GPU_HOURS, "GPU-hours", "max_gpu_hours"),
    (BudgetKind.LLM_TOKENS, "language model tokens", "max_llm_tokens"),
    (BudgetKind.COST_USD, "language model cost (US$)", "max_llm_usd"),
)


def render_markdown(facts: StudyFacts, pictures: Sequence[Picture], files: Mapping[str, str]) -> str:
    """Return the report as Markdown.

    `files` maps a picture's name to its path beside the report.
    """
    text = (
        _environment(autoescape=False)
        .get_template("report.md.j2")
        .render(_page(facts), **_pictures(pictures), files=files)
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def render_html(facts: StudyFacts, pictures: Sequence[Picture]) -> str:
    """Return the report as one HTML file that contains its styles and figures and loads nothing."""
    environment = _environment(autoescape=True)
    style, _, _ = environment.loader.get_source(environment, "report.css") if environment.loader else ("", None, None)
    page = environment.get_template("report.html.j2")
    # The style sheet is our own file; everything else on the page is escaped.
    return page.render(_page(facts), **_pictures(pictures), style=Markup(style))


def _pictures(pictures: Sequence[Picture]) -> dict[str, Any]:
    """Return the main picture, the tree of experiments, which stands with the search, and the other pictures."""
    others = [item for item in pictures if not item.is_main]
    return {
        "main_picture": next((item for item in pictures if item.is_main), None),
        "pictures": [item for item in others if item.name != SEARCH_TREE],
        "tree_pictures": [item for item in others if item.name == SEARCH_TREE],
    }


def lead_of(answer: str) -> str:
    """Return the beginning of an answer, which the page shows in bold: up to the first colon or full stop."""
    found = re.match(r".*?[.:](?= |$)", answer)
    return found[0] if found else answer


def without_paths(text: str) -> str:
    """Return a text with the names of files in place of their paths, which lead nowhere on another machine."""
    return _PATH.sub(r"\1", text)


def _example(shown: ShownConversation | None) -> str:
    """Return how the kept tasks changed, and by which rule one of them was chosen."""
    if shown is None:
        return ""
    kept = shown.rose + shown.fell + shown.same
    changed = f"rose on {shown.rose}, fell on {shown.fell} and is the same on {shown.same}"
    before, after = shown.before.score or 0.0, shown.after.score or 0.0
    which = "of those on which it is the same" if before == after else (
        f"of those on which it {'rose' if after > before else 'fell'}"
    )  # fmt: skip
    if kept == 1:
        return "The attempts at one task are kept."
    return f"Of the {kept} tasks whose attempts are kept, the score {changed}; this is the first {which}."


_METHOD = "The runs of an arm and of the baseline are independent samples with variances of their own (Welch's t)"
SHOWN_ELSEWHERE = frozenset({"run.failed", "study.no_result", "arm.disqualified", "arm.rejected", "arm.withdrawn"})
"""Kinds of warnings that stand elsewhere: in the lists of trainings and arms, the answer, the decisions or reviews."""


def _sample_size(facts: StudyFacts) -> str:
    goal, size = facts.charter.sample_size, facts.sample_size
    if goal is None or size is None:
        return ""
    if size.confirms:
        return size.confirms
    target = describe_target(goal.target_effect, is_worse=size.finds_worse)
    return (
        f"The first plan has {size.seeds} runs per arm, {size.runs} in all: among "
        f"{count(size.comparisons, 'comparison')} {target} is found with "
        f"probability {size.power:.2f} (variance from {size.basis})."
    )


def _base_scores(facts: StudyFacts) -> str:
    measured, runs = facts.base_measured
    if measured == runs:
        return "The score before training was measured for each run."
    return (
        f"The score before training was measured {count(measured, 'time')} for {count(runs, 'training')}: those that "
        "begin with the same weights, played by the same agent, share one."
    )


def _page(facts: StudyFacts) -> dict[str, Any]:
    """Return everything that both templates print; they contain words and layout, no computation."""
    found, charter = answer(facts), facts.charter
    return {
        "facts": facts,
        "writer": WRITER,
        "charter": charter,
        "reading": "" if charter.question == charter.topic else charter.question,
        "asked": [line.strip() for line in describe_question(charter)][1:] if charter.asks.factors else [],
        "not_studied": not_studied(facts),
        "compared_at": charter.compared_at,
        "answer": found,
        "lead": lead_of(found),
        "work": describe_work(facts),
        "shown": facts.conversation,
        "example": _example(facts.conversation),
        "recommendation": recommendation(facts),
        "limitations": limitations(facts),
        "base_scores": _base_scores(facts),
        "method": _METHOD,
        "failed_score": FAILED_SCORES[charter.failed_score],
        "sample_size": _sample_size(facts),
        "arms": [(f"arm-{index}", arm) for index, arm in enumerate(facts.arms, 1)],
        "anchor_of": {arm.name: f"arm-{index}" for index, arm in enumerate(facts.arms, 1)},
        "rank_of": {arm.name: index for index, arm in enumerate(facts.ranked, 1)},
        "costs": [
            (arm, phase, cost)
            for arm in facts.arms
            for phase, cost in (("training", arm.cost.training), ("evaluation", arm.cost.evaluation))
            if cost is not None
        ],
        "warnings": _warnings(facts),
        "interpretations": _interpretations(facts),
        "decisions": [(item, item.details.get("author") == AUTOMATIC) for item in facts.decisions],
        "speed": compare_speed({arm.name: list(arm.held_out.values()) for arm in facts.arms}, charter.baseline),
        "tested": [arm for arm in facts.arms if arm.test is not None],
        "budget": _budget(facts),
        "programs": _programs(facts.arms),
        **search_page(facts),
        "common_job": _common_job([arm for arm in facts.arms if arm not in facts.rejected_arms]),
    }


def _warnings(facts: StudyFacts) -> list[tuple[Event, int]]:
    """Return the warnings that stand nowhere else, each once with how often it came."""
    shown = [item for item in facts.warnings if item.kind not in SHOWN_ELSEWHERE]
    times = Counter((item.kind, item.message) for item in shown)
    first = {(item.kind, item.message): item for item in reversed(shown)}
    return [(first[key], number) for key, number in times.items()]


def _interpretations(facts: StudyFacts) -> list[tuple[int, tuple[CheckedClaim, ...]]]:
    """Return the planner's claims by iteration, checked against the record at that time."""
    return [
        (item.iteration, check_claims(map(claim_from_json, claims), facts.at_decisions.get(item.iteration, facts)))
        for item in facts.decisions
        if (claims := item.details.get("claims"))
    ]


def _budget(facts: StudyFacts) -> list[tuple[str, str, str]]:
    """Return the lines of the budget, with the present limits; the charter has the limits at the beginning."""
    limits = present_budget(facts.study.settings, facts.charter.budget)
    lines: list[tuple[str, str, str]] = []
    for kind, label, limit_name in BUDGET_LINES:
        limit = getattr(limits, limit_name) if limit_name else None
        used = facts.used.get(kind)
        if used or limit is not None:
            amount = used or 0
            shown = f"{amount:,.0f}" if amount >= 1000 else f"{amount:.4g}"
            lines.append((label, shown, "none" if limit is None else f"{limit:,g}"))
    return lines


@dataclass(frozen=True, slots=True)
class _ProgramText:
    """A program and the arms that ran it.

    `diff` is its difference from the baseline's program; empty for that program itself.
    """

    digest: str
    code: str
    diff: str
    arms: tuple[str, ...]


def _programs(arms: Sequence[ArmFacts]) -> list[_ProgramText]:
    """Return each distinct program once."""
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
    """Return the settings that every arm shares; the page shows the others with their arm."""
    jobs = [arm.experiment.job for arm in arms]
    if not jobs:
        return {}
    return {key: value for key, value in jobs[0].items() if all(key in job and job[key] == value for job in jobs)}


def _reason(text: str) -> str:
    return without_paths(in_one_line(text))


def _unbroken(text: str) -> Markup:
    """Return a text in which no line ends within a word with a digit, such as 1e-5."""
    words = (
        Markup('<span class="nowrap">{}</span>').format(word) if _NUMBER.fullmatch(word) else escape(word)
        for word in text.split(" ")
    )
    return Markup(" ").join(words)


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


@cache
def _environment(*, autoescape: bool) -> Environment:
    """Return the template environment, which is cached: compiling templates takes longer than filling them in."""
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
        reason=_reason,
        text=escape_markdown,
        data_url=_data_url,
        unbroken=_unbroken,
    )
    environment.filters.update(percent=format_share, kinds=count_kinds)
    environment.globals["interval"] = format_interval  # pyright: ignore[reportArgumentType]
    return environment
