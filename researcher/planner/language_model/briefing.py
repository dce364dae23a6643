"""The texts of prompts: settings, tasks, arms, results, and foreign text marked as data."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from researcher.analysis import Analysis
from researcher.charter import Asked, Budget, Charter, Factor, FrameRequest, Question, StudiedEnvironment, StudyKind
from researcher.plan import Arm, Contrast, ManipulationCheck, Speaker, Stage
from researcher.planner.designs import lay_out
from researcher.question.factors import PROGRAM, SPECS
from researcher.question.flags import value_as_text
from swarm import TrainJob
from swarm.tasks import TASK_FAMILIES

MAX_DATA_CHARS = 12_000
MAX_ITEM_CHARS = 400
MAX_ITEMS = 20
MAX_CODE_CHARS = 40_000
"""The most characters of a program that a prompt shows, which is also the longest program that a check accepts."""

_NOT_TUNED = frozenset(
    {"model", "dtype", "total_steps", "max_response_length", "max_model_len", "mixture", "verl", "tool_parser",
     "reasoning_parser", "min_group"}
)  # fmt: skip
"""The factors that only a person may ask for.

The study fixes some of them. Steps and lengths would let an arm buy a better score with more training or compute."""
_SPEAKERS = MappingProxyType(
    {
        Speaker.MODEL: "the model's replies to the agent",
        Speaker.AGENT: "the agent's answers to the session",
        Speaker.ENVIRONMENT: "the messages of the session",
    }
)
TUNABLE = tuple(name for name in SPECS if name not in _NOT_TUNED)
"""The settings that an arm may change if a person named no factors."""


def list_settings() -> str:
    """Return one line per setting that a model may choose: its name, its values and its default."""
    schema = TrainJob.model_json_schema()["properties"]
    return "\n".join(f"- {name}: {_describe(schema[name])}" for name in TUNABLE)


def list_tasks(named: StudiedEnvironment | None) -> str:
    """Return the environments to choose from: the one that a person named, or the bundled ones."""
    if named is not None:
        return f"- {named.name}: {named.description or 'an environment of the person who asks'}"
    return "\n".join(f"- {family.name}: {family.description}" for family in TASK_FAMILIES.values())


def list_fixed(request: FrameRequest) -> str:
    """Return what a person has already decided."""
    asked = request.question
    is_asked = bool(asked.factors)
    fixed = {
        "family": request.family,
        "kind": asked.kind if is_asked or asked.kind is StudyKind.OPTIMIZE else None,
        "ask": None if asked.asked is Asked.EFFECT else asked.asked,
        "vary": json.dumps([_factor_as_text(factor) for factor in asked.factors]) if is_asked else None,
        "baseline": json.dumps([factor.compared_with for factor in asked.factors if factor.compared_with]),
        "design": asked.design,
        "compared_at": request.equal,
        "amount": request.amount,
        "fix": ", ".join(f"{name}={value_as_text(value)}" for name, value in asked.fixed.items()),
        "runs per arm": request.seeds,
        "steps": request.steps,
        "judged_by": request.judged_by if "judged_by" in request.fixed else None,
        "judged_level": request.judged_level,
        "eval_every": request.eval_every,
        "eval_episodes": request.eval_episodes,
        "attempt_calls": request.attempt_calls,
        "attempt_tokens": request.attempt_tokens,
        **_fixed_rules(request),
        **_limits(request.budget),
    }
    lines = [f"- {name}: {value}" for name, value in fixed.items() if value not in (None, "", "[]")]
    if not lines:
        return "Nothing else was fixed by the person."
    opening = (
        "Fixed by the person; give `kind`, `ask`, `vary` and `baseline` as they stand here, and leave the rest out:"
    )
    return "\n".join([opening, *lines])


def _fixed_rules(request: FrameRequest) -> dict[str, Any]:
    rules = request.search
    if rules is None:
        return {}
    return {name: getattr(rules, name) for name in ("policy", "proposer", "rungs", "runs") if name in request.fixed}


def _limits(budget: Budget) -> dict[str, Any]:
    """Return the limits of a study by what they limit, in the units of the command line."""
    hours = None if budget.max_wall_s is None else budget.max_wall_s / 3600
    return {
        "most runs of the study": budget.max_runs,
        "most hours": hours,
        "most GPU-hours": budget.max_gpu_hours,
        "most tokens of your own": budget.max_llm_tokens,
        "most dollars for your own tokens": budget.max_llm_usd,
    }


def show_choice(charter: Charter) -> str:
    """Return the possible arms of a plan: those of a comparison, or the space of a search."""
    question = charter.asks
    if not question.factors:
        return (
            f"An arm may change these settings, and no others:\n\n{list_settings()}\n\nIt may also have another "
            "program: name it by what it does differently."
        )
    if question.kind is StudyKind.OPTIMIZE:
        lines = [f"- {_factor_as_text(factor)}" for factor in question.factors]
        return "\n".join(["An arm has one level of each of these factors, in any combination:", "", *lines])
    lines = [f"- {arm.name}: {json.dumps(_show_arm(arm, question))}" for arm in lay_out(question, charter.job)]
    return "\n".join(["The question has these arms, and a plan may have no others:", "", *lines])


def _factor_as_text(factor: Factor) -> str:
    """Return a factor as --vary reads it, or a factor of programs by their names."""
    if any(level.settings and not level.factors.keys() <= SPECS.keys() for level in factor.levels):
        parts = [f"{level.name}: {_assigned(level.settings)}" for level in factor.levels]
        return "; ".join(parts)
    return f"{factor.name}={','.join(value_as_text(level.factors[factor.name]) for level in factor.levels)}"


def _show_arm(arm: Arm, question: Question) -> dict[str, Any]:
    # All of them, so that an arm may have any parent: what it leaves out it has from there.
    settings = {name: setting_of(arm.job, name) for name in question.varied}
    return {"settings": settings} | ({PROGRAM: arm.factors[PROGRAM]} if PROGRAM in arm.factors else {})


def _assigned(settings: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value_as_text(value)}" for name, value in settings.items())


def setting_of(job: Mapping[str, Any], name: str) -> Any:
    """Return a setting of a job, or its default if the job does not state it."""
    return job.get(name, TrainJob.model_fields[name].get_default(call_default_factory=True))


def show_job(job: Mapping[str, Any]) -> str:
    # The name under which servers file a run says nothing about its training.
    return json.dumps({name: value for name, value in job.items() if name != "project_name"}, indent=1)


def show_manipulation(check: ManipulationCheck | None) -> str:
    """Return what the transcripts of an arm must show, and how it is counted."""
    if check is None:
        return "nothing"
    if check.code:
        how = "the function `check` of its plan returns true"
    else:
        most = "" if check.at_most is None else f" and at most {check.at_most}"
        what = f"the pattern `{check.pattern}` occurs" if check.pattern else "there are messages"
        how = f"{what} at least {check.at_least}{most} times in {_SPEAKERS[check.speaker]}"
    return f"{check.statement} (an attempt passes if {how}; {check.share:.0%} of the attempts must pass)"


def show_results(analysis: Analysis) -> str:
    """Return the judge's numbers, and the reasons for runs without a score."""
    if analysis.stage is Stage.EXPLORE:
        return "The last plan explored: its scores stand in the tree, and no verdict rests on them."
    lines = ["Held-out scores, measured by the evaluator (mean over seeds, interval, before training):"]
    scored = [arm for arm in analysis.arms if arm.scores]
    for arm in scored:
        before = list(arm.base_scores.values())
        base = number_as_words(sum(before) / len(before)) if before else "n/a"
        mean, low, high = map(number_as_words, (arm.mean, arm.ci_low, arm.ci_high))
        lines.append(f"- {arm.arm}: {mean} [{low}, {high}], before {base}; {count_of(len(arm.scores), 'seed')}")
    if unscored := [arm.arm for arm in analysis.arms if not arm.scores]:
        lines.append(f"- without a score: {', '.join(unscored)}")
    lines.append("Comparisons with the baseline (difference, interval, corrected p, verdict):")
    lines += [
        f"- {item.arm} against {item.baseline}: {number_as_words(item.difference)} [{number_as_words(item.ci_low)}, "
        f"{number_as_words(item.ci_high)}], p {number_as_words(item.p_adjusted)}, {item.verdict.value}"
        f"{f' ({item.note})' if item.note else ''}"
        for item in analysis.comparisons
    ] or ["- none"]
    if analysis.contrasts:
        lines.append("What the hypotheses predicted:")
        lines += [
            f"- {_contrast_as_text(item.contrast)}: {item.outcome.value}, {item.reason}" for item in analysis.contrasts
        ]
    failed = [f"{arm}: {reason}" for arm, reasons in analysis.failed.items() for reason in reasons]
    return "\n".join([*lines, *(["Runs without a score:", quote_data(failed)] if failed else [])])


def _contrast_as_text(contrast: Contrast) -> str:
    against = f" against {', '.join(contrast.against)}" if contrast.against else ""
    return f"{contrast.relation.value}: {', '.join(contrast.arms)}{against}"


def count_of(number: int, what: str) -> str:
    """Return a number with its noun, such as "1 seed"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def quote_data(items: Iterable[str]) -> str:
    """Return foreign text between delimiters that it cannot contain.

    Each item is one capped line, and only the newest items are kept.
    """
    lines = [" ".join(item.split())[:MAX_ITEM_CHARS] for item in items][-MAX_ITEMS:]
    return quote_text("\n".join(lines))


def quote_text(text: str) -> str:
    """Return the text between delimiters, capped at its beginning: errors of programs stand at the end."""
    left_out = len(text) - MAX_DATA_CHARS
    if left_out > 0:
        text = f"[... {left_out} characters are left out ...]\n{text[-MAX_DATA_CHARS:]}"
    return _between_marks(text)


def quote_code(code: str) -> str:
    """Return a program between delimiters: all of it, up to MAX_CODE_CHARS."""
    left_out = len(code) - MAX_CODE_CHARS
    if left_out > 0:
        code = f"{code[:MAX_CODE_CHARS]}\n[... {left_out} characters are left out: the tool `code` shows them ...]"
    return _between_marks(code)


def number_as_words(value: float) -> str:
    """Return a number with four digits, or "n/a"."""
    return f"{value:.4g}" if math.isfinite(value) else "n/a"


def _between_marks(text: str) -> str:
    mark = secrets.token_hex(6)
    return f"BEGIN DATA {mark}\n{text}\nEND DATA {mark}"


def _describe(schema: Mapping[str, Any]) -> str:
    options = [schema, *schema.get("anyOf", [])]
    choices = next((option["enum"] for option in options if "enum" in option), None)
    kind = ", ".join(map(str, choices)) if choices else " or ".join(
        option["type"] for option in options if option.get("type") not in (None, "null")
    )  # fmt: skip
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = [f"{word} {option[key]}" for option in options for key, word in words.items() if key in option]
    default = schema.get("default")
    usual = "automatic" if default is None else json.dumps(default)
    return f"{kind}{''.join(f', {bound}' for bound in bounds)}; default {usual}"
