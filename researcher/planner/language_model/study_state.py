"""The texts of prompts that show a study so far: rules, notebook, tree of experiments and budget."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from experiments_db import NotebookEntry, NoteKind
from researcher.charter import Charter, SearchRules
from researcher.history import History
from researcher.plan import Arm, Stage
from researcher.planner.language_model.briefing import (
    count_of,
    number_as_words,
    quote_data,
    quote_text,
    show_results,
)
from researcher.question.factors import PROGRAM
from researcher.tree import Expand, Move, Promote, RungScore, SearchNode, SearchTree

MAX_NOTEBOOK_CHARS = 8_000
MAX_LESSON_CHARS = 3_000
"""The part of the notebook that lessons may take; the newest entries of all kinds have the rest."""
MAX_NOTE_CHARS = 600
MAX_ARMS_SHOWN = 60
_HELD = frozenset({"total_steps", "save_freq"})
"""Settings that follow from the others, so that they say nothing about what an arm changed."""
_Z95 = 1.96


def show_rules(charter: Charter) -> str:
    """Return how runs are measured and arms are judged, one line for each rule."""
    rule = charter.rule
    lines = [
        *_measures(charter),
        f"An arm is kept if its corrected p ({rule.correction}) is below {rule.alpha:g} and its difference to the "
        f"baseline is at least {rule.min_effect:g}. Code decides this, never a planner.",
        f"Every arm gets the same number of: {charter.compared_at or 'steps'}"
        f"{f' ({charter.amount:g})' if charter.amount else ''}.",
    ]
    if charter.search is not None:
        lines += _search_rules(charter.search)
    return "\n".join(f"- {line}" for line in lines)


def show_measures(charter: Charter) -> str:
    """Return how runs are measured and what an attempt may use: what the author of a program needs of the rules."""
    return "\n".join(f"- {line}" for line in _measures(charter))


def _measures(charter: Charter) -> Iterator[str]:
    yield (
        f"A run is judged by: {charter.judged} ({charter.direction}), over {charter.eval_episodes} tasks of the "
        f"{charter.search_split} split, which no arm trains on."
    )
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
    tree, arms = history.tree, planned_arms(history)
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


def planned_arms(history: History) -> dict[str, Arm]:
    """Return all arms of earlier plans by name."""
    return {arm.name: arm for plan in history.plans for arm in plan.arms}


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
    interval = f"[{number_as_words(score.score - half)}, {number_as_words(score.score + half)}]"
    before = "" if score.base is None else f", before {number_as_words(score.base)}"
    seconds = "" if score.seconds is None else f", {score.seconds:.0f} s of training"
    return f"{score.share:g}: {number_as_words(score.score)} {interval}{before}{seconds}"


def show_history(history: History) -> str:
    """Return earlier plans with their results, diagnoses of runs, and findings of earlier studies.

    Plans that explore are left out: they stand in the tree.
    """
    parts: list[str] = []
    for plan in history.plans:
        if plan.stage is not Stage.EXPLORE:
            arms = "; ".join(f"{arm.name} {json.dumps(dict(arm.factors))}" for arm in plan.arms)
            parts.append(f"Iteration {plan.iteration + 1} ({plan.stage}), {count_of(len(plan.seeds), 'seed')}: {arms}")
    if history.analyses and history.analyses[-1].stage is not Stage.EXPLORE:
        parts.append(show_results(history.analyses[-1]))
    if history.diagnoses:
        parts.append("What the monitor noted of runs:\n" + quote_data(history.diagnoses))
    if history.earlier_findings:
        parts.append("Findings of earlier studies on this task:\n" + quote_data(history.earlier_findings))
    if not history.plans:
        parts.append("Nothing has been run yet.")
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
