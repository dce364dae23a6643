"""The pages of a report: its Markdown, a template filled in with facts, and the HTML page that is made from that."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache, partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import swarm
from experiments_db import ArmFailure, BudgetKind, Event, ExploringRun, Outcome, ProgramTrial, Run, SearchArm
from researcher.charter import Charter
from researcher.judge.size_words import describe_target
from researcher.planner.texts import requests_as_text
from researcher.question.wording import describe_question
from researcher.record.budget import present_budget
from researcher.record.costs import ArmCost, AttemptCost
from researcher.record.failure_reason import in_one_line
from researcher.record.log import AUTOMATIC, claim_from_json
from researcher.report.advice import FAILED_SCORES, describe_work, limitations, list_changes, next_steps
from researcher.report.answer import answer, not_studied
from researcher.report.claims import CheckedClaim, check_claims
from researcher.report.clauses import list_clauses
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
from researcher.report.numbers.facts import ENDED_WITHOUT_SCORE, ArmFacts, StudyFacts
from researcher.report.numbers.search import JudgedAblation
from researcher.report.page import render_body
from researcher.report.recommendation import recommendation

if TYPE_CHECKING:
    from researcher.report.drawing.pictures import Picture

SEARCH_TREE = "search-tree"
"""The name of the picture that stands with the search."""
WRITER = f"Written by swarm-researcher {swarm.__version__}."
"""The line that names the version whose wording and layout a report has."""

_PATH = re.compile(r"(?<![\w:/.])/(?:[\w.@+-]+/)+([\w.@+-]+)")
"""An absolute path; what follows the host in an address is none."""

BUDGET_LINES: tuple[tuple[BudgetKind, str, str], ...] = (
    (BudgetKind.RUNS, "runs", "max_runs"),
    (BudgetKind.WALL_CLOCK_S, "wall clock (s)", "max_wall_s"),
    (BudgetKind.WORKING_S, "time in runs (s)", ""),
    (BudgetKind.GPU_HOURS, "GPU-hours", "max_gpu_hours"),
    (BudgetKind.LLM_TOKENS, "language model tokens", "max_llm_tokens"),
    (BudgetKind.COST_USD, "language model cost (US$)", "max_llm_usd"),
    (BudgetKind.MONEY, "money by the study's prices", "max_money"),
)


def render_markdown(facts: StudyFacts, pictures: Sequence[Picture]) -> str:
    """Return the report as Markdown, which names each picture by its file beside the report."""
    others = [item for item in pictures if not item.is_main]
    text = _environment().get_template("report.md.j2").render(
        _contents(facts),
        files={item.name: item.file for item in pictures},
        main_picture=next((item for item in pictures if item.is_main), None),
        pictures=[item for item in others if item.name != SEARCH_TREE],
        tree_pictures=[item for item in others if item.name == SEARCH_TREE],
    )  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def render_html(markdown: str, title: str, pictures: Sequence[Picture]) -> str:
    """Return a report as one HTML file that contains its styles and figures and loads nothing."""
    style, _, _ = PackageLoader("researcher.report").get_source(_environment(), "report.css")
    body = render_body(markdown, {item.file: item.png for item in pictures})
    # The style sheet is our own file, and the body is escaped.
    page = _environment().get_template("page.html.j2")
    return page.render(title=escape(title), style=Markup(style), body=Markup(body), writer=escape(WRITER))


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


REQUEST_CHARS = 1_000
SHOWN_ELSEWHERE = frozenset({"run.failed", "study.no_result", "arm.disqualified", "arm.rejected", "arm.withdrawn"})
"""Kinds of warnings that stand elsewhere: in the lists of trainings and arms, the answer, the decisions or reviews."""


def _sample_size(facts: StudyFacts) -> str:
    goal, size = facts.charter.sample_size, facts.sample_size
    if goal is None or size is None:
        return ""
    if size.confirms:
        return size.confirms
    target = describe_target(goal.target_effect, is_worse=size.finds_worse, margin=size.margin)
    return (
        f"The first plan has {size.seeds} runs per arm, {size.runs} in all: among "
        f"{count(size.comparisons, 'comparison')} {target} with "
        f"probability {size.power:.2f} (variance from {size.basis})."
    )


def _contents(facts: StudyFacts) -> dict[str, Any]:
    """Return everything that the template prints; it has words and layout, and computes nothing."""
    found, charter = answer(facts), facts.charter
    tree = [arm.in_search for arm in facts.arms if arm.in_search is not None]
    if facts.exploration is not None:
        tree = list(facts.exploration.tree)
    names = {arm.experiment.id: arm.name for arm in tree}
    return {
        "facts": facts,
        "writer": WRITER,
        "charter": charter,
        "reading": "" if charter.question == charter.topic else charter.question,
        "asked": [line.strip() for line in describe_question(charter)][1:],
        "not_studied": not_studied(facts),
        "answer": found,
        "lead": lead_of(found),
        "work": describe_work(facts),
        "shown": facts.conversation,
        "example": _example(facts.conversation),
        "clauses": list_clauses(facts),
        "recommendation": recommendation(facts),
        "limitations": limitations(facts),
        "next_steps": next_steps(facts),
        "failed_score": FAILED_SCORES[charter.failed_score],
        "sample_size": _sample_size(facts),
        "anchor_of": {arm.name: f"arm-{index}" for index, arm in enumerate(facts.arms, 1)},
        "rank_of": {arm.name: index for index, arm in enumerate(facts.ranked, 1)},
        "costs": _costs({arm.name: arm.cost for arm in facts.arms}),
        "explored_costs": _costs({} if facts.exploration is None else facts.exploration.costs),
        "broken": _broken(facts),
        "rejected": [arm for arm in tree if arm.failure is ArmFailure.REJECTED],
        "warnings": _warnings(facts),
        "interpretations": _interpretations(facts),
        "decisions": [(item, item.details.get("author") == AUTOMATIC) for item in facts.decisions],
        "tested": [arm for arm in facts.arms if arm.test is not None],
        "budget": _budget(facts),
        "programs": _programs(facts.arms),
        "common_job": _common_job([arm for arm in facts.arms if arm not in facts.rejected_arms]),
        "search": facts.exploration,
        "tried": _tried(facts),
        "failures": _failures(tree),
        "pretenders": [arm for arm in tree if arm.failure is ArmFailure.NOT_AS_CLAIMED],
        "checks": [(arm, _last_count(arm.trials)) for arm in tree if arm.statement],
        "asked_by": [arm for arm in tree if arm.requests],
        "reviews": [(item, names.get(item.experiment_id, "?")) for item in facts.planner.reviews],
        "trials": [(item, names.get(item.experiment_id or "", "a draft")) for item in facts.planner.trials],
        "record": facts.planner,
        "omitted": len(facts.planner.notes) - len(facts.planner.shown_notes),
        **_winner(facts),
    }


def _costs(costs: Mapping[str, ArmCost]) -> list[tuple[str, str, AttemptCost]]:
    """Return the rows of a table of attempts: each arm in training and in evaluation, as far as it is on record."""
    return [
        (name, phase, found)
        for name, cost in costs.items()
        for phase, found in (("training", cost.training), ("evaluation", cost.evaluation))
        if found is not None
    ]


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


@dataclass(frozen=True, slots=True)
class TriedArm:
    """One row of what was tried; the interval is that of the tasks of its last exploring score."""

    arm: SearchArm
    last: ExploringRun | None
    low: float | None
    high: float | None
    begun: int


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
    short = [(item.run, arm.name) for arm in explored for item in arm.runs if item.run.status in ENDED_WITHOUT_SCORE]
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


def _last_count(trials: tuple[ProgramTrial, ...]) -> str:
    """Return the passed attempts of the last trial that counted them."""
    counted = [trial for trial in trials if trial.passed is not None]
    return f"{counted[-1].passed} of {counted[-1].attempts}" if counted else ""


def _winner(facts: StudyFacts) -> dict[str, Any]:
    winner, baseline, confirmation = facts.winner, facts.baseline, facts.confirmation
    if winner is None or baseline is None or confirmation is None:
        return {"winner": None}
    return {
        "winner": winner,
        "winner_changes": list_changes(baseline, winner),
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


def _reason(text: str) -> str:
    return without_paths(in_one_line(text))


def _escape(value: object) -> Markup:
    """Return what the template prints as Markdown; only what is marked as safe stays as it is."""
    return value if isinstance(value, Markup) else Markup(escape_markdown(value))


def _code(value: object) -> Markup:
    return Markup(f"`{' '.join(str(value).replace('`', '').split())}`")


def _code_block(text: str) -> Markup:
    """Return a text as a block that Markdown shows as it is."""
    return Markup("\n".join(f"    {line}" for line in text.splitlines()))


@cache
def _environment() -> Environment:
    """Return the template environment, which is cached: compiling templates takes longer than filling them in."""
    environment = Environment(
        loader=PackageLoader("researcher.report"), autoescape=True, finalize=_escape, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(
        score=format_score, difference=format_difference, amount=format_amount, p=format_p, value=format_value,
        time=format_time, percent=format_share, kinds=count_kinds, reason=_reason, code=_code, code_block=_code_block,
        requests=partial(requests_as_text, most=REQUEST_CHARS),
        raw=Markup,
    )  # fmt: skip
    environment.globals["interval"] = format_interval  # pyright: ignore[reportArgumentType]
    return environment
