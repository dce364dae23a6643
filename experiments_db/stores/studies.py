"""Studies with their charters, hypotheses and experiments: what is planned before anything runs.

Writes that a crashed process may repeat are keyed: the first one stands and is returned.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, Unpack

from sqlalchemy import select

from experiments_db.errors import FrozenCharter, InvalidRecord, StoreConflict, TestSplitOpened
from experiments_db.kinds import Author, ExperimentStatus, Operator, Outcome, StudyStatus
from experiments_db.records import Experiment, JsonObject, StoredCharter, StoredHypothesis, Study, hash_json
from experiments_db.stores.base import StoreBase, add, change, check_text, new_id, put, require
from experiments_db.stores.digests import digest_to_json, take_digest
from experiments_db.tables import CHARTERS, EXPERIMENTS, HYPOTHESES, RUNS, STUDIES

OPEN_STATUSES = (StudyStatus.RUNNING, StudyStatus.PAUSED)


class NewExperiment(TypedDict):
    """The fields of a new arm; `Experiment` explains them."""

    factors: JsonObject
    job: JsonObject
    program_code: NotRequired[str]
    train_environment: NotRequired[str | None]
    author: NotRequired[Author | None]
    hypothesis_id: NotRequired[str | None]
    parent_id: NotRequired[str | None]
    second_parent_id: NotRequired[str | None]
    operator: NotRequired[Operator | None]
    iteration: NotRequired[int]
    is_baseline: NotRequired[bool]
    purpose: NotRequired[str]
    manipulation: NotRequired[JsonObject | None]
    note: NotRequired[str | None]


class StudyStore(StoreBase):
    def create_study(self, topic: str, *, planner: str, settings: JsonObject | None = None) -> Study:
        """Store a new running study of `topic`; `settings` are the start settings that `resume` needs."""
        check_text(topic=topic, planner=planner)
        now = self._clock()
        values = {
            "id": new_id("st", now),
            "topic": topic,
            "planner": planner,
            "status": StudyStatus.RUNNING,
            "settings": settings or {},
            "created_at": now,
            "updated_at": now,
        }
        with self._write() as connection:
            return add(connection, STUDIES, values)

    def get_study(self, study_id: str) -> Study:
        """Return one study. Raises RecordNotFound."""
        return self._get(STUDIES, study_id)

    def list_studies(self, *, limit: int | None = 100) -> list[Study]:
        """Return studies, newest first."""
        return self._list(STUDIES, order=(STUDIES.c.created_at.desc(), STUDIES.c.id.desc()), limit=limit)

    def set_study_status(self, study_id: str, status: StudyStatus, reason: str | None = None) -> Study:
        """Set any status after any other, because a stopped or failed study can be resumed. Raises RecordNotFound.

        A status that ends the study also stores the digest of its rows. Any other status removes the digest. Each
        removes the seal, which is stored once nothing works on the study any more.
        """
        digest = self._take_digest(study_id) if status.is_end else None
        now = self._clock()
        with self._write() as connection:
            return change(
                connection,
                STUDIES,
                study_id,
                status=status,
                status_reason=reason,
                updated_at=now,
                finished_at=None if status in OPEN_STATUSES else now,
                digest=digest,
                seal=None,
            )

    def _take_digest(self, study_id: str) -> dict[str, Any]:
        # In a transaction that only reads: no other writer should wait while a long study is read.
        with self._read() as connection:
            return digest_to_json(take_digest(connection, study_id))

    def revise_settings(self, study_id: str, settings: JsonObject) -> Study:
        """Replace the settings that `resume` needs to carry out the study. Raises RecordNotFound."""
        with self._write() as connection:
            return change(connection, STUDIES, study_id, settings=settings, updated_at=self._clock())

    def freeze_charter(self, study_id: str, document: JsonObject) -> StoredCharter:
        """Bind the study to `document`, for good. The same document again is accepted, another raises FrozenCharter."""
        try:
            content_hash = hash_json(document)
        except (TypeError, ValueError) as error:
            raise InvalidRecord(f"the charter is not JSON: {error}") from error
        values = {
            "study_id": study_id,
            "document": document,
            "content_hash": content_hash,
            "created_at": self._clock(),
        }
        with self._write() as connection:
            stored = put(connection, CHARTERS, values, key=("study_id",))
        if stored.content_hash != content_hash:
            raise FrozenCharter(f"study {study_id} has a charter already, and it differs; start a new study")
        return stored

    def find_charter(self, study_id: str) -> StoredCharter | None:
        return self._find(CHARTERS, study_id=study_id)

    def open_test_split(self, study_id: str, purpose: str) -> StoredCharter:
        """Note that the test split is scored now, for `purpose` (such as "confirm run-...").

        The same purpose again is accepted, so that a crash between this and the score does not lock the study out.
        Raises TestSplitOpened for another purpose, RecordNotFound for a study without charter.
        """
        check_text(purpose=purpose)
        with self._write() as connection:
            opened_for = require(connection, CHARTERS, study_id, lock=True).test_opened_for
            if opened_for is None:
                now = self._clock()
                return change(connection, CHARTERS, study_id, test_opened_at=now, test_opened_for=purpose)
            if opened_for != purpose:
                raise TestSplitOpened(
                    f"the test split of study {study_id} was opened for {opened_for!r}; it opens only once"
                )
            return require(connection, CHARTERS, study_id)

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
        with self._write() as connection:
            return put(connection, HYPOTHESES, values, key=("study_id", "key"))

    def judge_hypothesis(self, hypothesis_id: str, verdict: Outcome, reason: str) -> StoredHypothesis:
        """Set the verdict; a later one, on more runs, replaces it. Raises RecordNotFound."""
        with self._write() as connection:
            return change(connection, HYPOTHESES, hypothesis_id, verdict=verdict, verdict_reason=reason)

    def list_hypotheses(self, study_id: str) -> list[StoredHypothesis]:
        """Return hypotheses in the order of creation."""
        return self._list(HYPOTHESES, order=(HYPOTHESES.c.created_at, HYPOTHESES.c.id), study_id=study_id)

    def create_experiment(self, study_id: str, name: str, **arm: Unpack[NewExperiment]) -> Experiment:
        """Store a new arm in status `draft`; a repeat of `name` returns the stored arm, unchanged.

        Raises RecordNotFound.
        """
        check_text(name=name)
        now = self._clock()
        values: dict[str, Any] = {
            "program_code": "",
            "iteration": 0,
            "is_baseline": False,
            "purpose": "",
            **arm,
            "id": new_id("ex", now),
            "study_id": study_id,
            "name": name,
            "status": ExperimentStatus.DRAFT,
            "created_at": now,
            "updated_at": now,
        }
        with self._write() as connection:
            return put(connection, EXPERIMENTS, values, key=("study_id", "name"))

    def revise_experiment(
        self,
        experiment_id: str,
        *,
        program_code: str | None = None,
        author: Author | None = None,
        status: ExperimentStatus | None = None,
        note: str | None = None,
    ) -> Experiment:
        """Change the fields that are given. New code comes with its author; without one, nobody vouches for it.

        The code is fixed once a run has been claimed: StoreConflict. Raises RecordNotFound.
        """
        given: dict[str, Any] = {"program_code": program_code, "status": status, "note": note}
        changes = {name: value for name, value in given.items() if value is not None}
        with self._write() as connection:
            arm = require(connection, EXPERIMENTS, experiment_id, lock=True)
            if program_code is not None:
                changes["author"] = author
                used = select(RUNS.c.id).where(RUNS.c.experiment_id == experiment_id).limit(1)
                if program_code != arm.program_code and connection.execute(used).first() is not None:
                    raise StoreConflict(f"experiment {arm.name!r} has runs; its code is fixed, make a new arm of it")
            return change(connection, EXPERIMENTS, experiment_id, updated_at=self._clock(), **changes)

    def find_experiment(self, study_id: str, name: str) -> Experiment | None:
        return self._find(EXPERIMENTS, study_id=study_id, name=name)

    def list_experiments(self, study_id: str) -> list[Experiment]:
        """Return arms in the order of creation."""
        return self._list(EXPERIMENTS, order=(EXPERIMENTS.c.created_at, EXPERIMENTS.c.id), study_id=study_id)
