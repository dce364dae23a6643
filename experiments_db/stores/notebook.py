"""The planner's side of a study: its notebook, trials of programs, questions to an external planner, and reviews.

Place in the flow: a part of ExperimentStore. Nodes and planners of the researcher write here; prompts, the report and
the explorer read it. Entries of the notebook and trials are only ever appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from experiments_db.errors import StoreConflict
from experiments_db.models import (
    ExperimentRow,
    NotebookRow,
    PlannerQuestionRow,
    ProgramTrialRow,
    ReviewRow,
    StudyRow,
)
from experiments_db.records import (
    TOOL,
    JsonObject,
    NotebookEntry,
    NoteKind,
    PlannerQuestion,
    ProgramTrial,
    QuestionStatus,
    Review,
)
from experiments_db.stores.base import (
    StoreBase,
    add,
    check_finite,
    check_text,
    get_by,
    insert_rows,
    require,
    to_record,
)

REVIEWED = ("study_id", "iteration", "experiment_id")
WAITING = (QuestionStatus.OPEN, QuestionStatus.ANSWERED)


class NotebookStore(StoreBase):
    def write_note(
        self, study_id: str, key: str, kind: NoteKind, text: str, *, iteration: int, author: str
    ) -> NotebookEntry:
        """Append an entry to the notebook; a repeat of `key` returns the stored one. Raises RecordNotFound."""
        check_text(key=key, text=text, author=author)
        values: dict[str, Any] = {
            "study_id": study_id,
            "key": key,
            "iteration": iteration,
            "kind": kind,
            "author": author,
            "text": text,
            "created_at": self._clock(),
        }
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            insert_rows(session, NotebookRow, [values], key=("study_id", "key"))
            return to_record(NotebookEntry, get_by(session, NotebookRow, study_id=study_id, key=key))

    def list_notes(self, study_id: str, *, kind: NoteKind | None = None) -> list[NotebookEntry]:
        """Return the entries of the notebook, oldest first."""
        statement = select(NotebookRow).where(NotebookRow.study_id == study_id).order_by(NotebookRow.id)
        if kind is not None:
            statement = statement.where(NotebookRow.kind == kind)
        return self._list(statement, NotebookEntry)

    def record_program_trial(
        self,
        study_id: str,
        *,
        code_digest: str,
        attempts: int,
        broken: int,
        seconds: float,
        experiment_id: str | None = None,
        mean: float | None = None,
        mean_reward: float | None = None,
        calls: float | None = None,
        tokens: float | None = None,
        passed: int | None = None,
        blank_gain: float | None = None,
        error: str | None = None,
        transcripts: Sequence[JsonObject] = (),
    ) -> ProgramTrial:
        """Append a trial of a program. Raises RecordNotFound."""
        check_text(code_digest=code_digest)
        check_finite(mean=mean, mean_reward=mean_reward, calls=calls, tokens=tokens, seconds=seconds)
        row = ProgramTrialRow(
            study_id=study_id,
            experiment_id=experiment_id,
            code_digest=code_digest,
            attempts=attempts,
            broken=broken,
            mean=mean,
            mean_reward=mean_reward,
            calls=calls,
            tokens=tokens,
            seconds=seconds,
            passed=passed,
            blank_gain=blank_gain,
            error=error,
            transcripts=[dict(each) for each in transcripts],
            created_at=self._clock(),
        )
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            if experiment_id is not None:
                require(session, ExperimentRow, experiment_id, "experiment")
            return add(session, row, ProgramTrial)

    def list_program_trials(self, study_id: str, *, experiment_id: str | None = None) -> list[ProgramTrial]:
        """Return trials of programs, oldest first."""
        statement = select(ProgramTrialRow).where(ProgramTrialRow.study_id == study_id).order_by(ProgramTrialRow.id)
        if experiment_id is not None:
            statement = statement.where(ProgramTrialRow.experiment_id == experiment_id)
        return self._list(statement, ProgramTrial)

    def ask_planner(self, study_id: str, node: str, prompt: str, *, deadline: float | None = None) -> PlannerQuestion:
        """Return the study's open question of this kind and prompt, or ask it; older open ones expire.

        The deadline of a question that is asked again is the new one. Raises RecordNotFound.
        """
        check_text(node=node, prompt=prompt)
        with self._write() as session:
            require(session, StudyRow, study_id, "study", lock=True)
            waiting = select(PlannerQuestionRow).where(
                PlannerQuestionRow.study_id == study_id,
                PlannerQuestionRow.status.in_(WAITING),
                PlannerQuestionRow.node.not_like(f"{TOOL}%"),
            )
            for row in session.scalars(waiting):
                if (row.node, row.prompt) == (node, prompt):
                    row.deadline = deadline
                    session.flush()
                    return to_record(PlannerQuestion, row)
                row.status = QuestionStatus.EXPIRED
            row = PlannerQuestionRow(
                study_id=study_id,
                node=node,
                prompt=prompt,
                status=QuestionStatus.OPEN,
                deadline=deadline,
                created_at=self._clock(),
            )
            return add(session, row, PlannerQuestion)

    def answer_question(self, question_id: int, answer: str) -> PlannerQuestion:
        """Store an answer to an open question. Raises RecordNotFound, and StoreConflict if it is not open."""
        check_text(answer=answer)
        with self._write() as session:
            row = require(session, PlannerQuestionRow, question_id, "question", lock=True)
            if row.status is not QuestionStatus.OPEN:
                raise StoreConflict(f"question {question_id} is {row.status}: it takes no answer")
            row.status, row.answer, row.answered_at = QuestionStatus.ANSWERED, answer, self._clock()
            session.flush()
            return to_record(PlannerQuestion, row)

    def close_question(
        self, question_id: int, *, objection: str | None = None, is_expired: bool = False
    ) -> PlannerQuestion:
        """Accept the answer of a question, reopen it with an objection, or let it expire if it has no answer.

        Raises RecordNotFound.
        """
        with self._write() as session:
            row = require(session, PlannerQuestionRow, question_id, "question", lock=True)
            if is_expired:
                row.status = QuestionStatus.EXPIRED if row.status is QuestionStatus.OPEN else row.status
            elif objection is not None:
                row.status, row.objection = QuestionStatus.OPEN, objection
            else:
                row.status = QuestionStatus.ACCEPTED
            session.flush()
            return to_record(PlannerQuestion, row)

    def get_question(self, question_id: int) -> PlannerQuestion:
        """Return one question. Raises RecordNotFound."""
        with self._read() as session:
            return to_record(PlannerQuestion, require(session, PlannerQuestionRow, question_id, "question"))

    def list_questions(self, study_id: str, *, status: QuestionStatus | None = None) -> list[PlannerQuestion]:
        """Return the questions to an external planner, oldest first."""
        statement = select(PlannerQuestionRow).where(
            PlannerQuestionRow.study_id == study_id, PlannerQuestionRow.node.not_like(f"{TOOL}%")
        )
        if status is not None:
            statement = statement.where(PlannerQuestionRow.status == status)
        return self._list(statement.order_by(PlannerQuestionRow.id), PlannerQuestion)

    def find_waiting_question(self, study_id: str) -> PlannerQuestion | None:
        """Return the question that the study waits with: an open one, or one whose answer it has not read yet."""
        waiting = [item for item in self.list_questions(study_id) if item.status in WAITING]
        return waiting[-1] if waiting else None

    def request_tool(self, study_id: str, tool: str, arguments: str, *, deadline: float) -> PlannerQuestion:
        """Store a call of a tool that the study's process carries out while it waits for an answer.

        Its result comes by `answer_question`. Raises RecordNotFound.
        """
        check_text(tool=tool, arguments=arguments)
        row = PlannerQuestionRow(
            study_id=study_id,
            node=f"{TOOL}{tool}",
            prompt=arguments,
            status=QuestionStatus.OPEN,
            deadline=deadline,
            created_at=self._clock(),
        )
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            return add(session, row, PlannerQuestion)

    def list_tool_requests(self, study_id: str) -> list[PlannerQuestion]:
        """Return the open tool requests of a study, oldest first."""
        statement = select(PlannerQuestionRow).where(
            PlannerQuestionRow.study_id == study_id,
            PlannerQuestionRow.node.like(f"{TOOL}%"),
            PlannerQuestionRow.status == QuestionStatus.OPEN,
        )
        return self._list(statement.order_by(PlannerQuestionRow.id), PlannerQuestion)

    def record_review(
        self, study_id: str, iteration: int, experiment_id: str, *, reviewer: str, objections: Sequence[JsonObject]
    ) -> Review:
        """Store a review of an arm; the first one of an iteration stands. Raises RecordNotFound."""
        check_text(reviewer=reviewer)
        values: dict[str, Any] = {
            "study_id": study_id,
            "iteration": iteration,
            "experiment_id": experiment_id,
            "reviewer": reviewer,
            "objections": [dict(each) for each in objections],
            "response": None,
            "is_withdrawn": False,
            "created_at": self._clock(),
        }
        with self._write() as session:
            require(session, ExperimentRow, experiment_id, "experiment")
            insert_rows(session, ReviewRow, [values], key=REVIEWED)
            found = {name: values[name] for name in REVIEWED}
            return to_record(Review, get_by(session, ReviewRow, **found))

    def respond_to_review(self, review_id: int, response: str, *, is_withdrawn: bool) -> Review:
        """Store the planner's answer to a review; the first one stands. Raises RecordNotFound."""
        check_text(response=response)
        with self._write() as session:
            row = require(session, ReviewRow, review_id, "review", lock=True)
            if row.response is None:
                row.response, row.is_withdrawn = response, is_withdrawn
            session.flush()
            return to_record(Review, row)

    def list_reviews(self, study_id: str) -> list[Review]:
        """Return reviews, oldest first."""
        return self._list(select(ReviewRow).where(ReviewRow.study_id == study_id).order_by(ReviewRow.id), Review)
