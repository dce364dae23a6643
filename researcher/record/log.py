"""The log of a study: its events, its documents as JSON, and its notebook."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from experiments_db import BudgetKind, ExperimentStore, NoteKind, Outcome, Review, Run, Severity
from researcher.analysis import Analysis
from researcher.charter import Charter
from researcher.claims import Claim
from researcher.errors import ResearchError
from researcher.history import History
from researcher.plan import Hypothesis, Plan, Stage
from researcher.tree import RungScore, SearchNode

logger = logging.getLogger(__name__)

DIAGNOSED = "run.diagnosed"

OUT = "arm.disqualified"
"""The kind of the event that an arm is out of the ranking, with the reason."""
DISQUALIFIED = "disqualified"
"""Key in the details of a decision: the arms that it disqualifies, with the reasons."""
SUSPECT = "suspect"
"""Key in the details of a decision: the arms that its planner does not trust, with the reasons."""
AUTOMATIC = "study"
"""The author of a decision that no planner made, because nothing was left to choose."""
CONFIRMS = "confirms"
"""Key in the details of a decision: the hypotheses about the arms to confirm once the exploration ends."""
JUDGED = "judged"
"""Key in the details of a decision that disqualifies arms: its analysis, which is then made again without them."""
BUDGET_USED_UP = "budget_used_up"
"""Key in the details of a decision: whether an exhausted budget made it."""

_CHARTER, _PLAN = TypeAdapter(Charter), TypeAdapter(Plan)
_ANALYSIS, _CLAIM = TypeAdapter(Analysis), TypeAdapter(Claim)
_HYPOTHESES = TypeAdapter(tuple[Hypothesis, ...])


def describe_out(arm: str, reason: str) -> str:
    return f"{arm} is out: {reason}"


class StudyLog:
    """The events and documents of one study."""

    def __init__(
        self, store: ExperimentStore, study_id: str, *, on_note: Callable[[str, str], None] | None = None
    ) -> None:
        """Open the log; `on_note` is called with kind and message of each event once it is stored."""
        self.store = store
        self.study_id = study_id
        self._on_note = on_note
        self._charter: Charter | None = None

    def note(
        self,
        kind: str,
        message: str,
        *,
        run_id: str | None = None,
        severity: Severity = Severity.INFO,
    ) -> None:
        """Record an event and log it; `message` is one line for people, and `kind` is its stable name."""
        logger.info("%s: %s", kind, message)
        self.store.append_event(self.study_id, kind, message, severity=severity, run_id=run_id)
        if self._on_note is not None:
            self._on_note(kind, message)

    def warn(self, kind: str, message: str, *, run_id: str | None = None) -> None:
        self.note(kind, message, run_id=run_id, severity=Severity.WARNING)

    def charter(self) -> Charter:
        """Return the frozen charter. Raises ResearchError for a study that was never framed."""
        if self._charter is None:
            stored = self.store.find_charter(self.study_id)
            if stored is None:
                raise ResearchError(f"study {self.study_id} has no charter yet")
            # A frozen charter never changes.
            self._charter = charter_from_json(stored.document)
        return self._charter

    def write_plan(self, plan: Plan, message: str, *, kind: str = "plan.made") -> None:
        self.store.record_plan(self.study_id, plan.iteration, to_json(plan))
        self.note(kind, message)

    def write_analysis(self, iteration: int, analysis: Analysis, message: str) -> None:
        self.store.record_analysis(self.study_id, iteration, to_json(analysis))
        self.note("analysis.made", message)

    def find_plan(self, iteration: int) -> Plan | None:
        stored = self.store.find_plan(self.study_id, iteration)
        return None if stored is None else plan_from_json(stored.document)

    def find_analysis(self, iteration: int) -> Analysis | None:
        stored = self.store.find_analysis(self.study_id, iteration)
        return None if stored is None else analysis_from_json(stored.document)

    def history(self) -> History:
        """Return plans and analyses of this study by iteration, the monitor's diagnoses, the notebook, and the runs."""
        analyses = self.store.list_analyses(self.study_id)
        diagnoses = self.store.list_events(self.study_id, kind=DIAGNOSED, limit=None)
        return History(
            plans=self._plans(),
            analyses=tuple(analysis_from_json(stored.document) for stored in analyses),
            diagnoses=tuple(event.message for event in diagnoses),
            runs_used=_plain_number(self.store.sum_budget(self.study_id)[BudgetKind.RUNS]),
            notes=tuple(self.store.list_notes(self.study_id)),
        )

    def _plans(self) -> tuple[Plan, ...]:
        return tuple(plan_from_json(stored.document) for stored in self.store.list_plans(self.study_id))


def keep_file(store: ExperimentStore, study_id: str, path: Path, kind: str, *, run_id: str | None = None) -> None:
    """Record a file of a study with its hash; a file that does not exist is left out."""
    if path.is_file():
        content = path.read_bytes()
        store.record_artifact(
            study_id,
            kind,
            str(path.resolve()),
            sha256=sha256(content).hexdigest(),
            size_bytes=len(content),
            run_id=run_id,
        )


def to_json(value: Any) -> dict[str, Any]:
    """Return a charter, plan, analysis or claim as JSON.

    NaN, such as the interval of one seed, becomes null. Keys become text.
    """
    return to_jsonable_python(value, inf_nan_mode="null", fallback=dict)


def _plain_number(value: float) -> float:
    """Return a sum of runs without rounding errors; parts of runs add up to whole ones."""
    return round(value) if abs(value - round(value)) < 1e-6 else round(value, 6)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def charter_from_json(document: Mapping[str, Any]) -> Charter:
    return _CHARTER.validate_python(document)


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    return _PLAN.validate_python(document)


def hypotheses_from_json(documents: Sequence[Mapping[str, Any]]) -> tuple[Hypothesis, ...]:
    return _HYPOTHESES.validate_python(documents)


def analysis_from_json(document: Mapping[str, Any]) -> Analysis:
    return _ANALYSIS.validate_python(document)


def claim_from_json(document: Mapping[str, Any]) -> Claim:
    return _CLAIM.validate_python(document)


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

    def note_style(self, iteration: int, arm: str, text: str) -> None:
        """Note what a linter finds in the program of an arm that may run."""
        self._write(f"style/{arm}", NoteKind.OBJECTION, f"{arm}: style: {text}", iteration, AUTOMATIC)

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

    def note_suspicion(self, iteration: int, arm: str, reason: str, author: str) -> None:
        """Note why a planner does not trust an arm."""
        self._write(f"suspect/{iteration}/{arm}", NoteKind.OBJECTION, f"{arm} is suspect: {reason}", iteration, author)

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
            verdict = comparison.verdict.about(charter.about)
            text += f", {comparison.difference:+.3f} against {charter.baseline}: {verdict}"
        found[summary.arm] = text
    return found
