"""The record of the planner's side of a study: notebook, trials, reviews, questions and model calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from experiments_db import (
    ExperimentStore,
    LLMCall,
    NotebookEntry,
    NoteKind,
    PlannerQuestion,
    ProgramTrial,
    QuestionStatus,
    Review,
)

MOST_NOTES = 200
"""The largest number of notes in a report; lessons and the newest ones are kept."""


@dataclass(frozen=True, slots=True)
class CallKind:
    """The calls of a language model for one kind of question, made from one template.

    `prompt_hash` is that of the template; None where there is none.
    """

    node: str
    model: str
    prompt_hash: str | None
    calls: int
    failed: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PlannerRecord:
    """The record of one study. `trials` are by order of time, those without an arm are drafts of a planner."""

    notes: tuple[NotebookEntry, ...] = ()
    trials: tuple[ProgramTrial, ...] = ()
    reviews: tuple[Review, ...] = ()
    questions: tuple[PlannerQuestion, ...] = ()
    calls: tuple[CallKind, ...] = ()

    @property
    def open_questions(self) -> tuple[PlannerQuestion, ...]:
        return tuple(item for item in self.questions if item.status is QuestionStatus.OPEN)

    @property
    def lessons(self) -> tuple[NotebookEntry, ...]:
        return tuple(item for item in self.notes if item.kind is NoteKind.LESSON)

    @property
    def shown_notes(self) -> tuple[NotebookEntry, ...]:
        """All lessons and the newest other notes, oldest first, up to `MOST_NOTES`."""
        lessons = self.lessons[-MOST_NOTES:]
        others = [item for item in self.notes if item.kind is not NoteKind.LESSON]
        kept = {item.id for item in (*lessons, *others[len(others) - max(0, MOST_NOTES - len(lessons)) :])}
        return tuple(item for item in self.notes if item.id in kept) if len(self.notes) > MOST_NOTES else self.notes


def gather_planner_record(store: ExperimentStore, study_id: str) -> PlannerRecord:
    """Return the record of a study."""
    return PlannerRecord(
        tuple(store.list_notes(study_id)),
        tuple(store.list_program_trials(study_id)),
        tuple(store.list_reviews(study_id)),
        tuple(store.list_questions(study_id)),
        _by_kind(store.list_llm_calls(study_id, limit=None)),
    )


def _by_kind(calls: Iterable[LLMCall]) -> tuple[CallKind, ...]:
    grouped: dict[tuple[str, str, str | None], list[LLMCall]] = {}
    for call in calls:
        grouped.setdefault((call.node, call.model, call.prompt_hash), []).append(call)
    return tuple(
        CallKind(
            *kind,
            calls=len(made),
            failed=sum(call.error is not None for call in made),
            input_tokens=sum(call.input_tokens for call in made),
            output_tokens=sum(call.output_tokens for call in made),
            cost_usd=sum(call.cost_usd for call in made),
            seconds=sum(call.latency_s for call in made),
        )
        for kind, made in grouped.items()
    )
