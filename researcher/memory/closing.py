"""The findings that a study leaves beside its comparisons: predictions, doubts, lessons and what was only explored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments_db import (
    Experiment,
    ExperimentStatus,
    ExperimentStore,
    Finding,
    FindingKind,
    NoteKind,
    Outcome,
    StoredHypothesis,
    Verdict,
)
from researcher.charter import Charter
from researcher.memory.recipe import Recipe, make_recipe
from researcher.memory.standing import describe_changes, describe_effect
from researcher.memory.subject import StudySubject, subject_of
from researcher.record.log import StudyLog
from researcher.record.scores import find_excluded, find_suspects
from researcher.search.record import read_tree
from researcher.tree import SearchNode, SearchTree


def record_closing(log: StudyLog) -> None:
    """Store what the study knows beside its comparisons, in place of what it knew before; a repeat changes nothing."""
    log.store.replace_findings(log.study_id, list_closing(log.store, log.study_id))


def list_closing(store: ExperimentStore, study_id: str) -> tuple[Finding, ...]:
    """Return what follows from the record of a study beside its comparisons; ids and times are left out."""
    charter = StudyLog(store, study_id).charter()
    arms = {item.name: item for item in store.list_experiments(study_id)}
    compared = {item.experiment_id: item for item in store.list_findings(study_id=study_id) if item.effect is not None}
    record = _Record(
        study_id, charter, subject_of(charter), arms, compared, read_tree(store, study_id, charter),
        find_excluded(store, study_id),
    )  # fmt: skip
    lessons = {item.text: item for item in reversed(store.list_notes(study_id, kind=NoteKind.LESSON))}
    return (
        *map(record.of_prediction, store.list_hypotheses(study_id)),
        *record.of_suspects(find_suspects(store, study_id)),
        *record.of_excluded(),
        *(
            record.finding(FindingKind.LESSON, note.key, note.iteration, note.text, details={"author": note.author})
            for note in reversed(lessons.values())
        ),
        *record.of_explored(),
    )


@dataclass(frozen=True, slots=True)
class _Record:
    """The record of a study, from which its findings are made.

    `arms` are by name. `compared` has comparisons by the id of their arm. `excluded` has the reasons by excluded arm.
    """

    study_id: str
    charter: Charter
    subject: StudySubject
    arms: Mapping[str, Experiment]
    compared: Mapping[str | None, Finding]
    tree: SearchTree
    excluded: Mapping[str, str]

    def finding(self, kind: FindingKind, key: str, iteration: int, summary: str, **others: Any) -> Finding:
        """Return a finding on which nothing was decided; `others` are its fields that are usually empty."""
        empty = dict.fromkeys(("experiment_id", "baseline_id", "hypothesis_id", "effect", "ci_low", "ci_high"))
        values = {**empty, "p_value": None, "p_adjusted": None, "details": {}, **others}
        return Finding(
            id="",
            study_id=self.study_id,
            iteration=iteration,
            metric=self.charter.judged,
            split=self.charter.search_split,
            confidence=self.charter.confidence,
            verdict=Verdict.INCONCLUSIVE,
            method="",
            run_ids=(),
            summary=summary,
            recipe={},
            created_at=0.0,
            kind=kind,
            key=f"{kind}/{key}",
            **asdict(self.subject),
            **values,
        )

    def of_prediction(self, item: StoredHypothesis) -> Finding:
        predicted = f"{item.statement} {item.rationale or ''}".strip()
        if item.verdict is None:
            happened = "nothing judged it"
        else:
            word = "not decided" if item.verdict is Outcome.UNDECIDED else item.verdict.value
            happened = f"{word}: {(item.verdict_reason or 'no reason is on record').rstrip('.')}"
        return self.finding(
            FindingKind.PREDICTION,
            item.key,
            item.iteration,
            f"predicted: {predicted} | happened: {happened}",
            hypothesis_id=item.id,
            details={"outcome": item.verdict, "author": self.charter.planner},
        )

    def of_suspects(self, suspects: Mapping[str, str]) -> Iterator[Finding]:
        for name, reason in suspects.items():
            if (arm := self.arms.get(name)) is None or name in self.excluded:
                continue
            judged = self.compared.get(arm.id)
            found = "" if judged is None else f"{describe_effect(judged)}, {judged.verdict.value}; "
            text = f"{found}its planner calls it suspect: {reason.rstrip('.')}"
            yield self._of_arm(FindingKind.SUSPECT, arm, text, reason=reason)

    def of_excluded(self) -> Iterator[Finding]:
        for name, reason in self.excluded.items():
            if (arm := self.arms.get(name)) is None or arm.is_baseline:
                continue
            node = self.tree.find(name)
            score = "" if node is None or node.last is None else f"{self._describe_score(node)}; "
            text = f"{score}out of the ranking: {reason.rstrip('.')}"
            yield self._of_arm(FindingKind.DISQUALIFIED, arm, text, reason=reason)

    def of_explored(self) -> Iterator[Finding]:
        """Yield the explored arms that no comparison is about, without those that the check did not let run."""
        for node in self.tree.nodes:
            arm = self.arms[node.name]
            is_told = node.name in self.excluded or arm.id in self.compared or arm.is_baseline
            if is_told or arm.status is ExperimentStatus.INVALID:
                continue
            difference = self._difference(node)
            text = f"{self._describe_score(node)}; 1 seed, not confirmed"
            yield self._of_arm(FindingKind.EXPLORED, arm, text, effect=difference)

    def _of_arm(
        self, kind: FindingKind, arm: Experiment, text: str, *, effect: float | None = None, reason: str = ""
    ) -> Finding:
        baseline = self.arms.get(self.charter.baseline)
        recipe = None if baseline is None else make_recipe(self.charter, arm, baseline, 0)
        what = arm.name if recipe is None else f"{arm.name} ({describe_changes(recipe)})"
        return self.finding(
            kind,
            arm.name,
            arm.iteration,
            f"{what}: {text}{describe_purpose(arm)}",
            experiment_id=arm.id,
            baseline_id=None if baseline is None else baseline.id,
            effect=effect,
            details={"changes": [] if recipe is None else _changes(recipe), "reason": reason},
        )

    def _describe_score(self, node: SearchNode) -> str:
        if node.last is None:
            return f"no score: {node.failure or 'it was not scored'}"
        difference = self._difference(node)
        against = "" if difference is None else f", {difference:+.3f} against {self.charter.baseline} there"
        failed = f" ({node.failure})" if node.failure and node.name not in self.excluded else ""
        return f"score {node.last.score:.3f} after {node.last.share:.0%} of its training{against}{failed}"

    def _difference(self, node: SearchNode) -> float | None:
        """Return the difference of an arm's last score from the baseline's at the same rung."""
        baseline = self.tree.find(self.charter.baseline)
        other = None if baseline is None or node.last is None else baseline.at(node.last.share)
        return None if other is None or node.last is None else node.last.score - other.score


def describe_purpose(arm: Experiment) -> str:
    """Return what an arm is for, in the words of its planner, to end a sentence with; empty without a purpose."""
    return f"; its purpose: {arm.purpose.rstrip('.')}" if arm.purpose else ""


def _changes(recipe: Recipe) -> list[str]:
    """Return the names of what an arm changes."""
    program = ["program"] if recipe.arm.program != recipe.baseline.program else []
    return [*dict.fromkeys((*recipe.factors, *recipe.differences, *program))]
