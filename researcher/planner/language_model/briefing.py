"""The texts of prompts: settings, tasks, arms and results, and what a study has done so far."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from experiments_db import NotebookEntry, NoteKind
from prompts import load
from researcher.analysis import Analysis
from researcher.charter import (
    Asked,
    Budget,
    Charter,
    Factor,
    FrameRequest,
    Question,
    SearchRules,
    StudiedEnvironment,
    StudyKind,
)
from researcher.equal_amounts import setting_of
from researcher.history import History
from researcher.plan import Arm, Contrast, ManipulationCheck, Speaker, Stage
from researcher.planner.designs import lay_out
from researcher.planner.texts import MAX_DATA_CHARS, as_data, count_of, number, quote_data, quote_text
from researcher.program_parts import PROGRAM_PARTS
from researcher.question.factors import PROGRAM, SPECS
from researcher.question.flags import value_as_text
from researcher.question.scopes import OPEN, describe_scope
from researcher.scope import ArmPart, Scope
from researcher.tree import Expand, Move, Promote, RungScore, SearchNode, SearchTree
from swarm import TrainJob
from swarm.tasks import TASK_FAMILIES

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
_FUNCTIONS = MappingProxyType(
    {
        ArmPart.AGENT: "another agent (prompts, several tries, tools, a check of its own answer)",
        ArmPart.REWARD: "another training reward",
        ArmPart.SCHEDULE: "another order of tasks",
    }
)
TUNABLE = tuple(name for name in SPECS if name not in _NOT_TUNED)
"""The settings that an arm may change if a person named no factors."""
MAX_NOTEBOOK_CHARS = 8_000
MAX_LESSON_CHARS = 3_000
"""The part of the notebook that lessons may take; the newest entries of all kinds have the rest."""
MAX_NOTE_CHARS = 600
MAX_ARMS_SHOWN = 60
_HELD = frozenset({"total_steps", "save_freq"})
"""Settings that follow from the others, so that they say nothing about what an arm changed."""
_Z95 = 1.96


def list_open_settings(scope: Scope) -> tuple[str, ...]:
    """Return the settings that an arm may change if a person named no factors: those that the scope names, or all."""
    return tuple(name for name in scope.settings or TUNABLE if scope.allows_setting(name))


def list_settings(scope: Scope) -> str:
    """Return one line per setting that a model may choose: its name, its values and its default."""
    schema = TrainJob.model_json_schema()["properties"]
    lines = [f"- {name}: {_describe(schema[name])}" for name in list_open_settings(scope)]
    return "\n".join(lines) or "- none: arms may differ in no setting"


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
        "margin": asked.margin,
        "vary": json.dumps([_factor_as_text(factor) for factor in asked.factors]) if is_asked else None,
        "baseline": json.dumps([factor.compared_with for factor in asked.factors if factor.compared_with]),
        "scope": _scope_of_person(asked),
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
    return "\n".join(["Fixed by the person; leave it out of your answer:", *lines])


def _scope_of_person(asked: Question) -> str | None:
    """Return what a person or the words of the topic let arms differ in; None where they leave all of it open."""
    is_open = all(map(asked.scope.allows, OPEN)) and not asked.scope.settings
    return None if is_open else describe_scope(asked.scope)


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
        "most money": budget.max_money,
    }


def show_choice(charter: Charter) -> str:
    """Return the possible arms of a plan: those of a comparison, or the space of a search."""
    question = charter.asks
    if not question.factors:
        return _show_open_choice(question.scope)
    if question.kind is StudyKind.OPTIMIZE:
        lines = [f"- {_factor_as_text(factor)}" for factor in question.factors]
        return "\n".join(["An arm has one level of each of these factors, in any combination:", "", *lines])
    lines = [f"- {arm.name}: {json.dumps(_show_arm(arm, question))}" for arm in lay_out(question, charter.job)]
    return "\n".join(["The question has these arms, and a plan may have no others:", "", *lines])


def _show_open_choice(scope: Scope) -> str:
    functions = [part for part in PROGRAM_PARTS if scope.allows(part)]
    lines = [f"An arm may change these settings, and no others:\n\n{list_settings(scope)}\n"]
    if functions:
        what = " or ".join(_FUNCTIONS[part] for part in functions)
        lines.append(f"It may also have another program, with {what}: name it by what it does differently.")
    else:
        lines.append("All arms have the baseline's program: leave program out.")
    return "\n".join(lines)


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


def show_results(analysis: Analysis, about: str) -> str:
    """Return the judge's numbers, and the reasons for runs without a score."""
    if analysis.stage is Stage.EXPLORE:
        return "The last plan explored: its scores stand in the tree, and no verdict rests on them."
    lines = ["Held-out scores, measured by the evaluator (mean over seeds, interval, before training):"]
    scored = [arm for arm in analysis.arms if arm.scores]
    for arm in scored:
        before = list(arm.base_scores.values())
        base = number(sum(before) / len(before)) if before else "n/a"
        mean, low, high = map(number, (arm.mean, arm.ci_low, arm.ci_high))
        lines.append(f"- {arm.arm}: {mean} [{low}, {high}], before {base}; {count_of(len(arm.scores), 'seed')}")
    if unscored := [arm.arm for arm in analysis.arms if not arm.scores]:
        lines.append(f"- without a score: {', '.join(unscored)}")
    lines.append(
        f"Comparisons with the baseline (difference of means, interval, corrected p, and the verdict {about}):"
    )
    lines += [
        f"- {item.arm} against {item.baseline}: {number(item.difference)} [{number(item.ci_low)}, "
        f"{number(item.ci_high)}], p {number(item.p_adjusted)}, {item.verdict.value}"
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


def show_rules(charter: Charter) -> str:
    """Return how runs are measured and arms are judged, one line for each rule."""
    rule = charter.rule
    kept = (
        f"An arm is kept if its corrected p ({rule.correction}) is below {rule.alpha:g} and its difference to the "
        f"baseline is at least {rule.min_effect:g}."
    )
    if charter.margin is not None:
        kept = (
            f"An arm is equal if two one-sided tests show that it differs from the baseline by less than "
            f"{charter.margin:g}, and different if it differs by more; their corrected p ({rule.correction}) is below "
            f"{rule.alpha:g}."
        )
    lines = [
        *_measures(charter),
        f"{kept} Code decides this, never a planner.",
        f"Every arm gets the same number of: {charter.compared_at or 'steps'}"
        f"{f' ({charter.amount:g})' if charter.amount else ''}.",
    ]
    if charter.search is not None:
        lines += _search_rules(charter.search)
    return "\n".join(f"- {line}" for line in lines)


def show_measures(charter: Charter) -> str:
    """Return the rules that the author of a program needs: how runs are measured, and what an attempt may use."""
    return "\n".join(f"- {line}" for line in _measures(charter))


def _measures(charter: Charter) -> Iterator[str]:
    yield (
        f"A run is judged by: {charter.judged} ({charter.direction}), over {charter.eval_episodes} tasks of the "
        f"{charter.search_split} split, which no arm trains on."
    )
    scope = charter.asks.scope
    yield f"Arms may differ in: {describe_scope(scope)}. An arm that differs in anything else is refused."
    if charter.eval_every:
        yield f"Runs are scored in mid-training as well, every {charter.eval_every} steps."
    if charter.attempt_calls is not None:
        yield f"An attempt of any arm may make {charter.attempt_calls} model calls."
    if charter.attempt_tokens is not None:
        yield f"An attempt of any arm may sample {charter.attempt_tokens} tokens."


def _search_rules(rules: SearchRules) -> list[str]:
    rungs = ", ".join(f"{share:g}" for share in rules.rungs)
    return [
        f"Exploring runs have one seed and end at a rung: a part of the training, one of {rungs}. They are scored on "
        f"{rules.episodes} tasks, and no verdict rests on them.",
        "After the exploration, code makes the plan that confirms: the baseline, the best arm and the best arm without "
        "each of its parts, on fresh seeds and on tasks that no exploring score used.",
    ]


def show_memory(findings: Sequence[str]) -> str:
    """Return the findings of earlier studies with how to read them; empty without any."""
    if not findings:
        return ""
    text = "\n".join(" ".join(line.split()) for line in findings)
    return load("memory", findings=as_data(text[:MAX_DATA_CHARS]))


def show_notes_beside_tree(history: History) -> str:
    """Return the notebook without the scores and failures that the tree of experiments shows."""
    explored = {plan.iteration for plan in history.plans if plan.stage is Stage.EXPLORE}
    in_tree = (NoteKind.TRIED, NoteKind.FAILED)
    return show_notebook([note for note in history.notes if note.kind not in in_tree or note.iteration not in explored])


def show_notebook(notes: Sequence[NotebookEntry]) -> str:
    """Return the notebook within MAX_NOTEBOOK_CHARS: lessons and the newest entries, oldest first."""
    if not notes:
        return "The notebook is empty."
    lessons = [note for note in notes if note.kind is NoteKind.LESSON]
    kept = _newest(lessons, MAX_LESSON_CHARS)
    room = MAX_NOTEBOOK_CHARS - sum(map(len, kept.values()))
    kept |= _newest([note for note in notes if note.id not in kept], room)
    lines = [kept[note.id] for note in notes if note.id in kept]
    left_out = len(notes) - len(lines)
    more = f"\n{left_out} earlier entries are left out: the tool `notebook` shows them." if left_out else ""
    text = "\n".join(lines)
    return f"{quote_text(text)}{more}"


def _newest(notes: Sequence[NotebookEntry], room: int) -> dict[int, str]:
    """Return the newest notes that fit into a number of characters, as lines by id."""
    kept: dict[int, str] = {}
    for note in reversed(notes):
        line = f"[{note.iteration + 1}, {note.kind}, {note.author}] {' '.join(note.text.split())[:MAX_NOTE_CHARS]}\n"
        room -= len(line)
        if room < 0:
            break
        kept[note.id] = line.rstrip("\n")
    return kept


def show_tree(history: History) -> str:
    """Return the tree of experiments, one line for each arm: parents, change, scores and costs, or why it is out."""
    tree, arms = history.tree, history.arms
    if not tree.nodes:
        return "No arm has been explored yet."
    shown = _most_telling(tree)
    lines = [_show_node(node, arms) for node in tree.nodes if node.name in shown]
    left_out = len(tree.nodes) - len(lines)
    if left_out:
        lines.append(f"({left_out} arms with lower scores are left out: the tool `query` shows them.)")
    best = ", ".join(node.name for node in tree.ranked()[:3])
    failures = [f"{node.name}: {node.failure}" for node in tree.nodes if node.failure and node.name in shown]
    return "\n".join(
        [
            "Arm <- parents (operator): what it changes | rung: score [95 % interval by its tasks], before training",
            *lines,
            f"Best so far: {best or 'none has a score'}.",
            *(["Why arms are out:", quote_data(failures)] if failures else []),
        ]
    )


def _most_telling(tree: SearchTree) -> set[str]:
    """Return the names of the arms to show: the baseline, the best and the newest."""
    names = [node.name for node in tree.nodes]
    if len(names) <= MAX_ARMS_SHOWN:
        return set(names)
    best = [node.name for node in tree.ranked()[: MAX_ARMS_SHOWN // 2]]
    return {*names[:1], *best, *names[-(MAX_ARMS_SHOWN // 2) :]}


def _show_node(node: SearchNode, arms: Mapping[str, Arm]) -> str:
    origin = f" <- {' + '.join(node.parents)} ({node.operator})" if node.parents else " (the baseline)"
    arm = arms.get(node.name)
    changes = "" if arm is None else f": {describe_change(arm, arms.get(node.parents[0]) if node.parents else None)}"
    scores = "; ".join(_show_score(score) for score in node.scores) or "no score"
    return f"- {node.name}{origin}{changes} | {scores}{' | OUT' if node.failure else ''}"


def describe_change(arm: Arm, parent: Arm | None) -> str:
    """Return what an arm changes of its parent: settings, and the name of its program if that is another one."""
    program = arm.factors.get(PROGRAM)
    if parent is None:
        return f"program {json.dumps(program)}" if program else "as the study starts"
    names = sorted({*arm.job, *parent.job} - _HELD)
    changed = [f"{name}={json.dumps(arm.job.get(name))}" for name in names if arm.job.get(name) != parent.job.get(name)]
    if arm.program_of is None:
        changed.append(f"program {json.dumps(program)}" if program else "a program of its own")
    return ", ".join(changed) or "nothing"


def _show_score(score: RungScore) -> str:
    half = _Z95 * score.stderr
    interval = f"[{number(score.score - half)}, {number(score.score + half)}]"
    before = "" if score.base is None else f", before {number(score.base)}"
    seconds = "" if score.seconds is None else f", {score.seconds:.0f} s of training"
    return f"{score.share:g}: {number(score.score)} {interval}{before}{seconds}"


def show_history(history: History, about: str) -> str:
    """Return earlier plans with their results, and diagnoses of runs.

    Plans that explore are left out: they stand in the tree. `about` says what verdicts are about.
    """
    parts: list[str] = []
    for plan in history.plans:
        if plan.stage is not Stage.EXPLORE:
            arms = "; ".join(f"{arm.name} {json.dumps(dict(arm.factors))}" for arm in plan.arms)
            parts.append(f"Iteration {plan.iteration + 1} ({plan.stage}), {count_of(len(plan.seeds), 'seed')}: {arms}")
    if history.analyses and history.analyses[-1].stage is not Stage.EXPLORE:
        parts.append(show_results(history.analyses[-1], about))
    if history.attempts:
        parts.append(
            "What an attempt takes, in training and in evaluation; an arm that does more in evaluation is out:\n"
            + quote_data(history.attempts[-MAX_ARMS_SHOWN:])
        )
    if history.diagnoses:
        parts.append("What the monitor noted of runs:\n" + quote_data(history.diagnoses))
    if not history.plans:
        parts.append("Nothing has been run yet.")
    if history.base_score:
        parts.append(f"Before training, the base weights score {history.base_score} with the baseline's agent.")
    return "\n\n".join(parts)


def show_budget(charter: Charter, history: History) -> str:
    """Return what the study may use, and which part of it belongs to which stage."""
    budget = charter.budget
    used = history.planned_runs if history.runs_used is None else history.runs_used
    lines = ["The number of runs is not limited; still, ask for no more than the question needs."]
    if budget.max_runs is not None:
        lines = [f"Budget: {budget.max_runs} runs in all, of which {used:g} are used."]
    if budget.max_wall_s is not None:
        # What is used is not said: a question that is asked again must have the same text.
        lines.append(f"Time: {budget.max_wall_s / 3600:g} h of work in all, waiting for answers included.")
    if budget.max_gpu_hours is not None:
        lines.append(f"GPU-hours: {budget.max_gpu_hours:g} in all.")
    if budget.max_money is not None:
        lines.append(f"Money: {budget.max_money:g} in all, for machines and for your own tokens.")
    if charter.search is not None:
        split = charter.search.split
        lines.append(
            f"By stage: {split.exploration:.0%} for exploration, {split.confirmation:.0%} for the confirmation, "
            f"{split.test:.0%} for the test, {split.reserve:.0%} for exploring again. Exploration has "
            f"{history.runs_left:.3g} full runs left beside the baseline's own; a run that ends at a rung counts as "
            "that part of one."
        )
    return "\n".join(lines)


def show_moves(moves: Sequence[Move]) -> str:
    """Return the moves of the policy as tasks for the planner."""
    if not moves:
        return "You choose the moves: new arms, arms to train on, or the end of the exploration."
    lines = [_show_move(move) for move in moves]
    return "\n".join(["The policy has chosen these moves, and the round has these and no others:", *lines])


def _show_move(move: Move) -> str:
    match move:
        case Expand(parents, operator):
            return f"- a new arm: operator {operator}, parents {' and '.join(parents) or 'the baseline'}"
        case Promote(arm, share):
            return f"- {arm} is trained on to rung {share:g} (done by code: leave it out)"
