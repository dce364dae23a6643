"""Seals: a digest of each row of a study, written in the transaction that stores the row, so that a later change shows.

Place in the flow: `StoreBase` watches every write through a `Watch`; `SealStore.check_rows` compares. Whoever changes a
row past this package leaves its seal as it was. A row whose seal is broken is never sealed anew, whatever is written to
it later, and a row that an earlier version stored without a seal stays without one.

The points of a run's curves have one seal for each step, all other rows one each. A column that is NULL is no part of a
digest, so a migration may add columns; one that changes what is stored has to write the seals of it as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, cast

from sqlalchemy import RowMapping, Select, Table, bindparam, event, inspect, select, tuple_
from sqlalchemy.orm import Session

from experiments_db.inserts import dialect_of, insert_or_replace
from experiments_db.models import (
    AnalysisRow,
    ArtifactRow,
    Base,
    BudgetEntryRow,
    CharterRow,
    DecisionRow,
    EpisodeSampleRow,
    EvaluationRow,
    EventRow,
    ExperimentRow,
    FindingRow,
    HypothesisRow,
    LLMCallRow,
    MetricPointRow,
    PlanRow,
    RowSealRow,
    RunRow,
    StudyRow,
)
from experiments_db.records import hash_json
from experiments_db.stores.curves import read_curves
from experiments_db.stores.touched import Touched

Key: TypeAlias = tuple[Any, ...]

SEALED: tuple[type[Base], ...] = (
    StudyRow, CharterRow, HypothesisRow, ExperimentRow, PlanRow, AnalysisRow, RunRow, MetricPointRow, EvaluationRow,
    EpisodeSampleRow, FindingRow, DecisionRow, LLMCallRow, EventRow, BudgetEntryRow, ArtifactRow,
)  # fmt: skip
BEGUN = "begun"
"""The seal that a study has from its begin on: each of its rows must then have one."""

REVISION = "revision"
"""A column that moves on without a change of the row; no digest holds it."""

_STEP_KEY = ("run_id", "step")
_CHUNK = 200
_WATCH = "experiments_db.watch"


class Watch:
    """What one transaction stores, and which of it may be sealed at its end."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_intact: dict[tuple[type[Base], Key], bool] = {}
        self._written: list[tuple[type[Base], tuple[str, ...], set[Key]]] = []
        self._new: list[Base] = []
        session.info[_WATCH] = self
        event.listen(session, "before_flush", self._before_flush)

    def note(self, row: type[Base], columns: Sequence[str], values: Iterable[Mapping[str, Any]]) -> None:
        """Rows that are about to be inserted or replaced, known by these columns, which are unique."""
        if row not in SEALED:
            return
        columns = _STEP_KEY if row is MetricPointRow else tuple(columns)
        wanted = {tuple(value[name] for name in columns) for value in values}
        self._written.append((row, columns, wanted))
        groups = read_groups(self._session, row, columns, wanted)
        seals = _read_seals(self._session, row, groups)
        for key, rows in groups.items():
            # A row that this transaction has stored before has no seal yet, so what was found of it first stands.
            self._is_intact.setdefault((row, key), seals.get(name_of(key)) == digest_of(rows))

    def seal(self) -> None:
        """Seal what the transaction stored and nobody had changed before, and number all of it. Call it at its end."""
        self._session.flush()
        for instance in self._new:
            columns = key_columns(type(instance))
            self._written.append((type(instance), columns, {tuple(getattr(instance, name) for name in columns)}))
        touched = Touched()
        for row, columns, wanted in self._written:
            groups = read_groups(self._session, row, columns, wanted)
            studies = _studies_of(self._session, row, groups)
            for key, rows in groups.items():
                touched.add(row, studies[key], rows)
            intact = {key: rows for key, rows in groups.items() if self._is_intact.get((row, key), True)}
            self._write(row, intact, studies)
        touched.number(self._session)

    def _before_flush(self, session: Session, *_: object) -> None:
        self._new += [instance for instance in session.new if isinstance(instance, SEALED)]
        for instance in session.dirty:
            if isinstance(instance, SEALED) and session.is_modified(instance):
                identity = inspect(instance).identity or ()
                columns = key_columns(type(instance))
                self.note(type(instance), columns, [dict(zip(columns, identity, strict=True))])

    def _write(self, row: type[Base], groups: Mapping[Key, Sequence[RowMapping]], studies: Mapping[Key, str]) -> None:
        values = [
            {"study_id": studies[key], "kind": row.__tablename__, "row_key": name_of(key), "digest": digest_of(rows)}
            for key, rows in groups.items()
        ]
        if row is StudyRow:
            begun = [key for key in groups if self._is_intact.get((row, key)) is None]
            values += [{"study_id": key[0], "kind": BEGUN, "row_key": "", "digest": hash_json({})} for key in begun]
        write_seals(self._session, values)


def watch_of(session: Session) -> Watch | None:
    """The watch over this session's transaction; None in one that only reads."""
    return session.info.get(_WATCH)


def key_columns(row: type[Base]) -> tuple[str, ...]:
    """The columns by which a seal knows its row."""
    if row is MetricPointRow:
        return _STEP_KEY
    return tuple(column.name for column in cast(Table, row.__table__).primary_key.columns)


def read_groups(
    session: Session, row: type[Base], columns: Sequence[str], wanted: Iterable[Key]
) -> dict[Key, list[RowMapping]]:
    """The rows that have these values in these columns, by the key of their seal."""
    if row is MetricPointRow:
        return _read_steps(session, wanted)
    listed = sorted(wanted, key=repr)
    found: dict[Key, list[RowMapping]] = defaultdict(list)
    statement = _select_rows(row, tuple(columns))
    for start in range(0, len(listed), _CHUNK):
        for stored in session.execute(statement, {"wanted": listed[start : start + _CHUNK]}).mappings():
            found[tuple(stored[name] for name in key_columns(row))].append(stored)
    return found


# Every write needs this statement and the next ones, and to make one takes longer than to carry it out.
@cache
def _select_rows(row: type[Base], columns: tuple[str, ...]) -> Select[Any]:
    """The rows of a table whose `columns` are among those that its parameter `wanted` lists."""
    table = cast(Table, row.__table__)
    present = tuple_(*(table.c[name] for name in columns))
    return select(table).where(present.in_(bindparam("wanted", expanding=True)))


def _read_steps(session: Session, wanted: Iterable[Key]) -> dict[Key, list[RowMapping]]:
    """All points of these steps, curve by curve: by its steps alone the whole of a run would be read."""
    table = cast(Table, MetricPointRow.__table__)
    steps: dict[str, list[int]] = defaultdict(list)
    for run_id, step in sorted(wanted):
        steps[run_id].append(step)
    found: dict[Key, list[RowMapping]] = defaultdict(list)
    for run_id, listed in steps.items():
        names = [name for _, name in read_curves(session, [run_id])]
        of_run = select(table).where(table.c.run_id == run_id, table.c.name.in_(names))
        for start in range(0, len(listed), _CHUNK):
            chosen = listed[start : start + _CHUNK]
            among = set(chosen)
            for stored in session.execute(of_run.where(table.c.step.between(chosen[0], chosen[-1]))).mappings():
                if stored["step"] in among:
                    found[run_id, stored["step"]].append(stored)
    return found


def digest_of(rows: Sequence[RowMapping]) -> str:
    """The digest of all rows that share a seal; their order does not matter."""
    documents = [{name: value for name, value in row.items() if value is not None and name != REVISION} for row in rows]
    return hash_json({"rows": sorted(documents, key=lambda item: str(item.get("name", "")))})


def name_of(key: Key) -> str:
    return "/".join(map(str, key))


def write_seals(session: Session, values: Sequence[Mapping[str, Any]]) -> None:
    if not values:
        return
    columns = ("study_id", "kind", "row_key")
    statement = insert_or_replace(RowSealRow, dialect_of(session), columns, ("digest",))
    session.execute(statement, [dict(value) for value in values])


def _read_seals(session: Session, row: type[Base], keys: Iterable[Key]) -> dict[str, str]:
    """Digests by the name of the row's key."""
    names = [name_of(key) for key in keys]
    found: dict[str, str] = {}
    for start in range(0, len(names), _CHUNK):
        values = {"of_kind": row.__tablename__, "names": names[start : start + _CHUNK]}
        found.update((name, digest) for name, digest in session.execute(_select_seals(), values))
    return found


@cache
def _select_seals() -> Select[str, str]:
    seals = cast(Table, RowSealRow.__table__).c
    is_wanted = (seals.kind == bindparam("of_kind")) & seals.row_key.in_(bindparam("names", expanding=True))
    return select(seals.row_key, seals.digest).where(is_wanted)


def _studies_of(session: Session, row: type[Base], groups: Mapping[Key, Sequence[RowMapping]]) -> dict[Key, str]:
    """The study that each row belongs to."""
    if row is StudyRow:
        return {key: str(key[0]) for key in groups}
    firsts = {key: rows[0] for key, rows in groups.items()}
    if "study_id" in cast(Table, row.__table__).c:
        return {key: str(first["study_id"]) for key, first in firsts.items()}
    runs = {str(first["run_id"]) for first in firsts.values()}
    found = session.execute(_select_studies(), {"run_ids": sorted(runs)})
    by_run = {str(run): str(study) for run, study in found}
    return {key: by_run[first["run_id"]] for key, first in firsts.items()}


@cache
def _select_studies() -> Select[str, str]:
    runs = cast(Table, RunRow.__table__).c
    return select(runs.id, runs.study_id).where(runs.id.in_(bindparam("run_ids", expanding=True)))
