"""Studies with their charters, hypotheses and experiments: what is planned before anything runs.

Place in the flow: a part of ExperimentStore; the researcher's frame, plan, write_program and check nodes write here.
Writes that a crashed process may repeat are keyed: the first one stands and is returned.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from experiments_db.errors import FrozenCharter, InvalidRecord, StoreConflict, TestSplitOpened
from experiments_db.models import CharterRow, ExperimentRow, HypothesisRow, RunRow, StudyRow
from experiments_db.records import (
    Author,
    Experiment,
    ExperimentStatus,
    JsonObject,
    Operator,
    Outcome,
    StoredCharter,
    StoredHypothesis,
    Study,
    StudyStatus,
    hash_json,
)
from experiments_db.stores.base import (
    StoreBase,
    add,
    check_text,
    find_by,
    get_by,
    insert_rows,
    new_id,
    require,
    to_record,
)
from experiments_db.stores.digests import digest_to_json, take_digest
from experiments_db.stores.revisions import renumber

OPEN_STATUSES = (StudyStatus.RUNNING, StudyStatus.PAUSED)


class StudyStore(StoreBase):
    def create_study(self, topic: str, *, planner: str, settings: JsonObject | None = None) -> Study:
        """Store a new running study of `topic`; `settings` are the start settings that `resume` needs."""
        check_text(topic=topic, planner=planner)
        now = self._clock()
        row = StudyRow(
            id=new_id("st", now),
            topic=topic,
            planner=planner,
            status=StudyStatus.RUNNING,
            settings=dict(settings or {}),
            created_at=now,
            updated_at=now,
        )
        with self._write() as session:
            return add(session, row, Study)

    def get_study(self, study_id: str) -> Study:
        """Return one study. Raises RecordNotFound."""
        with self._read() as session:
            return to_record(Study, require(session, StudyRow, study_id, "study"))

    def list_studies(
        self, *, status: StudyStatus | None = None, limit: int | None = 100, offset: int = 0
    ) -> list[Study]:
        """Return studies, newest first."""
        statement = select(StudyRow).order_by(StudyRow.created_at.desc(), StudyRow.id.desc())
        if status is not None:
            statement = statement.where(StudyRow.status == status)
        return self._list(statement.limit(limit).offset(offset), Study)

    def set_study_status(self, study_id: str, status: StudyStatus, reason: str | None = None) -> Study:
        """Set any status after any other, because a stopped or failed study can be resumed. Raises RecordNotFound.

        A status that ends the study also stores the digest of its rows. Any other status removes the digest.
        """
        digest = self._take_digest(study_id) if status.is_end else None
        with self._write() as session:
            row = require(session, StudyRow, study_id, "study", lock=True)
            row.status, row.status_reason, row.updated_at = status, reason, self._clock()
            row.digest = digest
            row.finished_at = None if status in OPEN_STATUSES else row.updated_at
            return to_record(Study, row)

    def _take_digest(self, study_id: str) -> dict[str, Any]:
        # In a transaction that only reads: no other writer should wait while a long study is read.
        with self._read() as session:
            return digest_to_json(take_digest(session, study_id))

    def revise_settings(self, study_id: str, settings: JsonObject) -> Study:
        """Replace the settings that `resume` needs to carry out the study. Raises RecordNotFound."""
        with self._write() as session:
            row = require(session, StudyRow, study_id, "study", lock=True)
            row.settings, row.updated_at = dict(settings), self._clock()
            session.flush()
            return to_record(Study, row)

    def freeze_charter(self, study_id: str, document: JsonObject) -> StoredCharter:
        """Bind the study to `document`, for good. The same document again is accepted, another raises FrozenCharter."""
        try:
            content_hash = hash_json(document)
        except (TypeError, ValueError) as error:
            raise InvalidRecord(f"the charter is not JSON: {error}") from error
        values = {
            "study_id": study_id,
            "document": dict(document),
            "content_hash": content_hash,
            "created_at": self._clock(),
        }
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            insert_rows(session, CharterRow, [values], key=("study_id",))
            row = require(session, CharterRow, study_id, "charter of study")
            if row.content_hash != content_hash:
                raise FrozenCharter(f"study {study_id} has a charter already, and it differs; start a new study")
            return to_record(StoredCharter, row)

    def find_charter(self, study_id: str) -> StoredCharter | None:
        with self._read() as session:
            row = session.get(CharterRow, study_id)
            return None if row is None else to_record(StoredCharter, row)

    def open_test_split(self, study_id: str, purpose: str) -> StoredCharter:
        """Note that the test split is scored now, for `purpose` (such as "confirm run-...").

        The same purpose again is accepted, so that a crash between this and the score does not lock the study out.
        Raises TestSplitOpened for another purpose, RecordNotFound for a study without charter.
        """
        check_text(purpose=purpose)
        with self._write() as session:
            row = require(session, CharterRow, study_id, "charter of study", lock=True)
            if row.test_opened_for is None:
                row.test_opened_at, row.test_opened_for = self._clock(), purpose
            elif row.test_opened_for != purpose:
                raise TestSplitOpened(
                    f"the test split of study {study_id} was opened for {row.test_opened_for!r}; it opens only once"
                )
            return to_record(StoredCharter, row)

    def create_hypothesis(
        self,
        study_id: str,
        key: str,
        statement: str,
        *,
        rationale: str = "",
        iteration: int = 0,
        parent_id: str | None = None,
    ) -> StoredHypothesis:
        """Store a hypothesis; a repeat of `key` returns the stored one, unchanged. Raises RecordNotFound."""
        check_text(key=key, statement=statement)
        now = self._clock()
        values = {
            "id": new_id("hy", now),
            "study_id": study_id,
            "key": key,
            "iteration": iteration,
            "parent_id": parent_id,
            "statement": statement,
            "rationale": rationale,
            "created_at": now,
        }
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            if parent_id is not None:
                require(session, HypothesisRow, parent_id, "hypothesis")
            insert_rows(session, HypothesisRow, [values], key=("study_id", "key"))
            return to_record(StoredHypothesis, get_by(session, HypothesisRow, study_id=study_id, key=key))

    def judge_hypothesis(self, hypothesis_id: str, verdict: Outcome, reason: str) -> StoredHypothesis:
        """Set the verdict; a later one, on more runs, replaces it. Raises RecordNotFound."""
        with self._write() as session:
            row = require(session, HypothesisRow, hypothesis_id, "hypothesis", lock=True)
            row.verdict, row.verdict_reason = verdict, reason
            return to_record(StoredHypothesis, row)

    def list_hypotheses(self, study_id: str) -> list[StoredHypothesis]:
        """Return hypotheses in the order of creation."""
        statement = select(HypothesisRow).where(HypothesisRow.study_id == study_id)
        return self._list(statement.order_by(HypothesisRow.created_at, HypothesisRow.id), StoredHypothesis)

    def create_experiment(
        self,
        study_id: str,
        name: str,
        *,
        factors: JsonObject,
        job: JsonObject,
        program_code: str = "",
        train_environment: str | None = None,
        author: Author | None = None,
        hypothesis_id: str | None = None,
        parent_id: str | None = None,
        second_parent_id: str | None = None,
        operator: Operator | None = None,
        iteration: int = 0,
        is_baseline: bool = False,
        purpose: str = "",
        manipulation: JsonObject | None = None,
        note: str | None = None,
    ) -> Experiment:
        """Store a new arm in status `draft`; a repeat of `name` returns the stored arm, unchanged.

        Raises RecordNotFound.
        """
        check_text(name=name)
        now = self._clock()
        values: dict[str, Any] = {
            "id": new_id("ex", now),
            "study_id": study_id,
            "hypothesis_id": hypothesis_id,
            "parent_id": parent_id,
            "second_parent_id": second_parent_id,
            "operator": operator,
            "name": name,
            "iteration": iteration,
            "is_baseline": is_baseline,
            "factors": dict(factors),
            "job": dict(job),
            "program_code": program_code,
            "train_environment": train_environment,
            "author": author,
            "status": ExperimentStatus.DRAFT,
            "purpose": purpose,
            "manipulation": None if manipulation is None else dict(manipulation),
            "note": note,
            "created_at": now,
            "updated_at": now,
        }
        with self._write() as session:
            require(session, StudyRow, study_id, "study")
            if hypothesis_id is not None:
                require(session, HypothesisRow, hypothesis_id, "hypothesis")
            for parent in (parent_id, second_parent_id):
                if parent is not None:
                    require(session, ExperimentRow, parent, "experiment")
            insert_rows(session, ExperimentRow, [values], key=("study_id", "name"))
            row = get_by(session, ExperimentRow, study_id=study_id, name=name)
            renumber(session, row)
            return to_record(Experiment, row)

    def revise_experiment(
        self,
        experiment_id: str,
        *,
        job: JsonObject | None = None,
        program_code: str | None = None,
        author: Author | None = None,
        status: ExperimentStatus | None = None,
        note: str | None = None,
    ) -> Experiment:
        """Change the fields that are given. New code comes with its author; without one, nobody vouches for it.

        Job and code are fixed once a run has been claimed: StoreConflict. Raises RecordNotFound.
        """
        with self._write() as session:
            row = require(session, ExperimentRow, experiment_id, "experiment", lock=True)
            new_job = row.job if job is None else dict(job)
            new_code = row.program_code if program_code is None else program_code
            if (new_job, new_code) != (row.job, row.program_code):
                used = session.scalars(select(RunRow.id).where(RunRow.experiment_id == experiment_id).limit(1)).first()
                if used is not None:
                    raise StoreConflict(
                        f"experiment {row.name!r} has runs; its job and code are fixed, make a new arm of it"
                    )
            row.job, row.program_code, row.updated_at = new_job, new_code, self._clock()
            if program_code is not None:
                row.author = author
            row.status = row.status if status is None else status
            row.note = row.note if note is None else note
            renumber(session, row)
            return to_record(Experiment, row)

    def find_experiment(self, study_id: str, name: str) -> Experiment | None:
        with self._read() as session:
            row = find_by(session, ExperimentRow, study_id=study_id, name=name)
            return None if row is None else to_record(Experiment, row)

    def list_experiments(
        self, study_id: str, *, hypothesis_id: str | None = None, iteration: int | None = None
    ) -> list[Experiment]:
        """Return arms in the order of creation."""
        statement = select(ExperimentRow).where(ExperimentRow.study_id == study_id)
        if hypothesis_id is not None:
            statement = statement.where(ExperimentRow.hypothesis_id == hypothesis_id)
        if iteration is not None:
            statement = statement.where(ExperimentRow.iteration == iteration)
        return self._list(statement.order_by(ExperimentRow.created_at, ExperimentRow.id), Experiment)
