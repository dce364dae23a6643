"""The entries that the loop writes into the notebook of a study: what was planned, tried, found and decided.

Place in the flow: nodes write here, and planners read all of it with the history. Every entry has a key that follows
from what it is about, so a node that is repeated writes it once. This module decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments_db import ExperimentStore, NoteKind, Outcome, Review, Run
from researcher.analysis import Analysis
from researcher.charter import Charter
from researcher.plan import Plan, Stage
from researcher.record.log import AUTOMATIC
from researcher.tree import RungScore, SearchNode


@dataclass(frozen=True, slots=True)
class Notebook:
    """The notebook of one study."""

    store: ExperimentStore
    study_id: str

    def note_plan(self, planned: Plan) -> None:
        """Note why a plan was made, what it predicts, and what its planner wants to remember."""
        number = planned.iteration
        self._write(f"plan/{number}", NoteKind.REASON, planned.rationale, number, planned.author)
        for index, item in enumerate(planned.hypotheses):
            text = item.statement + (f" Predicted: {item.prediction}" if item.prediction else "")
            self._write(f"plan/{number}/{index}", NoteKind.HYPOTHESIS, text, number, planned.author)
        self._note_lessons("plan", planned.lessons, number, planned.author)

    def note_rejected(self, iteration: int, arm: str, problem: str) -> None:
        """Note why the check did not let an arm run."""
        self._write(f"check/{arm}", NoteKind.FAILED, f"{arm}: {problem}", iteration, AUTOMATIC)

    def note_failed_run(self, run: Run, name: str, sentence: str) -> None:
        """Note why a run has ended without a score."""
        plans = self.store.list_plans(self.study_id)
        iteration = max((item.iteration for item in plans), default=0)
        self._write(f"run/{run.id}", NoteKind.FAILED, f"{name}: {sentence}", iteration, AUTOMATIC)

    def note_results(self, charter: Charter, planned: Plan, analysis: Analysis) -> None:
        """Note the scores of a plan's arms, and what became of its predictions."""
        number = planned.iteration
        tried = _explored(planned, analysis) if planned.stage is Stage.EXPLORE else _judged(charter, planned, analysis)
        for arm, text in tried.items():
            self._write(f"tried/{number}/{arm}", NoteKind.TRIED, text, number, AUTOMATIC)
        statements = {f"h{number}.{index}": item.statement for index, item in enumerate(planned.hypotheses)}
        for item in analysis.contrasts:
            if item.key in statements:
                word = "not decided" if item.outcome is Outcome.UNDECIDED else item.outcome.value
                text = f"{word}: {statements[item.key]} {item.reason}"
                self._write(f"outcome/{item.key}", NoteKind.OUTCOME, text, number, AUTOMATIC)

    def note_decision(self, iteration: int, action: str, reason: str, author: str, lessons: Sequence[str] = ()) -> None:
        """Note what follows an iteration, why, and what the planner wants to remember."""
        self._write(f"decision/{iteration}", NoteKind.REASON, f"{action}: {reason}", iteration, author)
        self._note_lessons("decision", lessons, iteration, author)

    def note_reading(self, iteration: int, text: str, author: str) -> None:
        """Note what a planner makes of the results, as far as the record supports it."""
        self._write(f"reading/{iteration}", NoteKind.READING, text, iteration, author)

    def note_review(self, review: Review, arm: str) -> None:
        """Note the objections to an arm."""
        for index, item in enumerate(review.objections):
            text = f"{arm}: {item['sentence']}{' (grave)' if item['is_grave'] else ''}"
            self._write(f"review/{review.id}/{index}", NoteKind.OBJECTION, text, review.iteration, review.reviewer)

    def _note_lessons(self, of: str, lessons: Sequence[str], iteration: int, author: str) -> None:
        for index, lesson in enumerate(lessons):
            self._write(f"lesson/{of}/{iteration}/{index}", NoteKind.LESSON, lesson, iteration, author)

    def _write(self, key: str, kind: NoteKind, text: str, iteration: int, author: str) -> None:
        if text.strip():
            self.store.write_note(self.study_id, key, kind, text, iteration=iteration, author=author or AUTOMATIC)


def _explored(planned: Plan, analysis: Analysis) -> Mapping[str, str]:
    nodes = {node.name: node for node in analysis.explored}
    return {
        arm.name: _describe_node(node, node.last)
        for arm in planned.arms
        if (node := nodes.get(arm.name)) is not None and node.last is not None
    }


def _describe_node(node: SearchNode, last: RungScore) -> str:
    origin = f" ({node.operator} of {' and '.join(node.parents)})" if node.operator else ""
    before = "" if last.base is None else f", {last.base:.3f} before training"
    out = f"; out: {node.failure}" if node.failure else ""
    return (
        f"{node.name}{origin}: score {last.score:.3f} (standard error {last.stderr:.3f}{before}) at step {last.steps}, "
        f"{last.share:.0%} of its training, for {last.share:.2g} full runs{out}"
    )


def _judged(charter: Charter, planned: Plan, analysis: Analysis) -> Mapping[str, str]:
    verdicts = {item.arm: item for item in analysis.comparisons}
    found: dict[str, str] = {}
    names = {arm.name for arm in planned.arms}
    for summary in analysis.arms:
        if summary.arm not in names or math.isnan(summary.mean):
            continue
        text = f"{summary.arm}: {summary.mean:.3f} over {len(summary.scores)} seeds"
        comparison = verdicts.get(summary.arm)
        if comparison is not None and not math.isnan(comparison.difference):
            text += f", {comparison.difference:+.3f} against {charter.baseline}: {comparison.verdict.value}"
        found[summary.arm] = text
    return found
