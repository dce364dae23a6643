"""The record of the planner's side of a study: notebook, trials, reviews and questions that wait."""

from __future__ import annotations

from dataclasses import dataclass

from experiments_db import (
    ExperimentStore,
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
class PlannerRecord:
    """The record of one study. `trials` are by order of time, those without an arm are drafts of a planner."""

    notes: tuple[NotebookEntry, ...] = ()
    trials: tuple[ProgramTrial, ...] = ()
    reviews: tuple[Review, ...] = ()
    open_questions: tuple[PlannerQuestion, ...] = ()

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
        tuple(item for item in store.list_questions(study_id) if item.status is QuestionStatus.OPEN),
    )
