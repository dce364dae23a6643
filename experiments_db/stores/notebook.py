"""The planner's side of a study: its notebook, trials of programs, questions to an external planner, and reviews.

Entries of the notebook and trials are only ever appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict, Unpack

from sqlalchemy import Connection

from experiments_db.errors import StoreConflict
from experiments_db.kinds import TOOL, NoteKind, QuestionStatus
from experiments_db.records import JsonObject, NotebookEntry, PlannerQuestion, ProgramTrial, Review
from experiments_db.stores.base import StoreBase, add, change, check_finite, check_text, put, read, require
from experiments_db.tables import NOTES, QUESTIONS, REVIEWS, STUDIES, TRIALS

WAITING = (QuestionStatus.OPEN, QuestionStatus.ANSWERED)
IS_TOOL = QUESTIONS.c.node.like(f"{TOOL}%")


class NewTrial(TypedDict):
    """The fields of a new trial; `ProgramTrial` explains them."""

    code_digest: str
    attempts: int
    broken: int
    seconds: float
    experiment_id: NotRequired[str | None]
    mean: NotRequired[float | None]
    mean_reward: NotRequired[float | None]
    calls: NotRequired[float | None]
    tokens: NotRequired[float | None]
    passed: NotRequired[int | None]
    blank_gain: NotRequired[float | None]
    error: NotRequired[str | None]
    transcripts: NotRequired[Sequence[JsonObject]]


class NotebookStore(StoreBase):
    def write_note(
        self, study_id: str, key: str, kind: NoteKind, text: str, *, iteration: int, author: str
    ) -> NotebookEntry:
        """Append an entry to the notebook; a repeat of `key` returns the stored one. Raises RecordNotFound."""
        check_text(key=key, text=text, author=author)
        values = {
            "study_id": study_id,
            "key": key,
            "iteration": iteration,
            "kind": kind,
            "author": author,
            "text": text,
            "created_at": self._clock(),
        }
        with self._write() as connection:
            return put(connection, NOTES, values, key=("study_id", "key"))

    def list_notes(self, study_id: str, *, kind: NoteKind | None = None) -> list[NotebookEntry]:
        """Return the entries of the notebook, oldest first."""
        return self._list(NOTES, study_id=study_id, kind=kind)

    def record_program_trial(self, study_id: str, **trial: Unpack[NewTrial]) -> ProgramTrial:
        """Append a trial of a program. Raises RecordNotFound."""
        check_text(code_digest=trial["code_digest"])
        check_finite(**{name: trial.get(name) for name in ("mean", "mean_reward", "calls", "tokens", "seconds")})
        values = {"transcripts": (), **trial, "study_id": study_id, "created_at": self._clock()}
        with self._write() as connection:
            return add(connection, TRIALS, values)

    def list_program_trials(self, study_id: str, *, experiment_id: str | None = None) -> list[ProgramTrial]:
        """Return trials of programs, oldest first."""
        return self._list(TRIALS, study_id=study_id, experiment_id=experiment_id)

    def ask_planner(self, study_id: str, node: str, prompt: str, *, deadline: float | None = None) -> PlannerQuestion:
        """Return the study's open question of this kind and prompt, or ask it; older open ones expire.

        The deadline of a question that is asked again is the new one. Raises RecordNotFound.
        """
        check_text(node=node, prompt=prompt)
        waiting = QUESTIONS.select(QUESTIONS.c.study_id == study_id, QUESTIONS.c.status.in_(WAITING), ~IS_TOOL)
        with self._write() as connection:
            require(connection, STUDIES, study_id, lock=True)
            for question in read(connection, QUESTIONS, waiting):
                if (question.node, question.prompt) == (node, prompt):
                    return change(connection, QUESTIONS, question.id, deadline=deadline)
                change(connection, QUESTIONS, question.id, status=QuestionStatus.EXPIRED)
            return add(connection, QUESTIONS, self._new_question(study_id, node, prompt, deadline))

    def request_tool(self, study_id: str, tool: str, arguments: str, *, deadline: float) -> PlannerQuestion:
        """Store a call of a tool that the study's process carries out while it waits for an answer.

        Its result comes by `answer_question`. Raises RecordNotFound.
        """
        check_text(tool=tool, arguments=arguments)
        with self._write() as connection:
            return add(connection, QUESTIONS, self._new_question(study_id, f"{TOOL}{tool}", arguments, deadline))

    def _new_question(self, study_id: str, node: str, prompt: str, deadline: float | None) -> dict[str, Any]:
        return {
            "study_id": study_id,
            "node": node,
            "prompt": prompt,
            "status": QuestionStatus.OPEN,
            "deadline": deadline,
            "created_at": self._clock(),
        }

    def answer_question(self, question_id: int, answer: str) -> PlannerQuestion:
        """Store an answer to an open question. Raises RecordNotFound, and StoreConflict if it is not open."""
        check_text(answer=answer)
        with self._write() as connection:
            status = _lock_question(connection, question_id).status
            if status is not QuestionStatus.OPEN:
                raise StoreConflict(f"question {question_id} is {status}: it takes no answer")
            answered = {"status": QuestionStatus.ANSWERED, "answer": answer, "answered_at": self._clock()}
            return change(connection, QUESTIONS, question_id, **answered)

    def close_question(
        self, question_id: int, *, objection: str | None = None, is_expired: bool = False
    ) -> PlannerQuestion:
        """Accept the answer of a question, reopen it with an objection, or let it expire if it has no answer.

        Raises RecordNotFound.
        """
        with self._write() as connection:
            question = _lock_question(connection, question_id)
            if is_expired:
                if question.status is not QuestionStatus.OPEN:
                    return question
                return change(connection, QUESTIONS, question_id, status=QuestionStatus.EXPIRED)
            if objection is not None:
                return change(connection, QUESTIONS, question_id, status=QuestionStatus.OPEN, objection=objection)
            return change(connection, QUESTIONS, question_id, status=QuestionStatus.ACCEPTED)

    def get_question(self, question_id: int) -> PlannerQuestion:
        """Return one question. Raises RecordNotFound."""
        return self._get(QUESTIONS, question_id)

    def list_questions(self, study_id: str) -> list[PlannerQuestion]:
        """Return the questions to an external planner, oldest first."""
        return self._list(QUESTIONS, ~IS_TOOL, study_id=study_id)

    def find_waiting_question(self, study_id: str) -> PlannerQuestion | None:
        """Return the question that the study waits with: an open one, or one whose answer it has not read yet."""
        waiting = [item for item in self.list_questions(study_id) if item.status in WAITING]
        return waiting[-1] if waiting else None

    def list_tool_requests(self, study_id: str) -> list[PlannerQuestion]:
        """Return the open tool requests of a study, oldest first."""
        return self._list(QUESTIONS, IS_TOOL, study_id=study_id, status=QuestionStatus.OPEN)

    def record_review(
        self, study_id: str, iteration: int, experiment_id: str, *, reviewer: str, objections: Sequence[JsonObject]
    ) -> Review:
        """Store a review of an arm; the first one of an iteration stands. Raises RecordNotFound."""
        check_text(reviewer=reviewer)
        values = {
            "study_id": study_id,
            "iteration": iteration,
            "experiment_id": experiment_id,
            "reviewer": reviewer,
            "objections": objections,
            "is_withdrawn": False,
            "created_at": self._clock(),
        }
        with self._write() as connection:
            return put(connection, REVIEWS, values, key=("study_id", "iteration", "experiment_id"))

    def respond_to_review(self, review_id: int, response: str, *, is_withdrawn: bool) -> Review:
        """Store the planner's answer to a review; the first one stands. Raises RecordNotFound."""
        check_text(response=response)
        with self._write() as connection:
            review = require(connection, REVIEWS, review_id, lock=True)
            if review.response is not None:
                return review
            return change(connection, REVIEWS, review_id, response=response, is_withdrawn=is_withdrawn)

    def list_reviews(self, study_id: str) -> list[Review]:
        """Return reviews, oldest first."""
        return self._list(REVIEWS, study_id=study_id)


def _lock_question(connection: Connection, question_id: int) -> PlannerQuestion:
    """Lock the study before its question, as whoever asks the next one does."""
    require(connection, STUDIES, require(connection, QUESTIONS, question_id).study_id, lock=True)
    return require(connection, QUESTIONS, question_id, lock=True)
