"""The base of every part of the store: its transactions, its lease check, and reading and writing by record."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Self, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from experiments_db.engine import Database
from experiments_db.errors import InvalidRecord, RecordNotFound, StoreLeaseLost
from experiments_db.records import BudgetEntry, JsonObject, Lease
from experiments_db.tables import LEASES, ROWS, STUDIES, Rows

RecordT = TypeVar("RecordT")
StoreT = TypeVar("StoreT", bound="StoreBase")

Texts = tuple[JsonObject, ...]

ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class StoreBase:
    """A database, a clock (seconds since the epoch) and, for a fenced store, the lease its writes depend on."""

    def __init__(
        self, database: Database, *, clock: Callable[[], float] = time.time, lease: Lease | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._lease = lease

    def under(self, lease: Lease) -> Self:
        """Return the same store, fenced: each write first checks, in its own transaction, that `lease` is still valid.

        Once another owner has taken over, or the lease was released, every write raises StoreLeaseLost and stores
        nothing.
        """
        return type(self)(self._database, clock=self._clock, lease=lease)

    def seen_as(self, kind: type[StoreT]) -> StoreT:
        """Return a store of another kind on the same database, such as one that reads some values in another way."""
        return kind(self._database, clock=self._clock)

    @contextmanager
    def _read(self) -> Generator[Connection]:
        with self._database.read() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Generator[Connection]:
        with self._database.write() as connection:
            if self._lease is not None:
                check_lease(connection, self._lease)
            yield connection

    def _list(
        self,
        rows: Rows[RecordT],
        *conditions: ColumnElement[bool],
        order: Sequence[ColumnElement[Any]] = (),
        limit: int | None = None,
        offset: int = 0,
        **equal: Any,
    ) -> list[RecordT]:
        """Return the records that meet the conditions, by primary key unless ordered; `equal` None is no condition."""
        matching = (rows.c[name] == value for name, value in equal.items() if value is not None)
        statement = rows.select(*conditions, *matching).order_by(*(order or rows.table.primary_key.columns))
        with self._read() as connection:
            return [*read(connection, rows, statement.limit(limit).offset(offset))]

    def _find(self, rows: Rows[RecordT], **columns: Any) -> RecordT | None:
        with self._read() as connection:
            return find(connection, rows, **columns)

    def _get(self, rows: Rows[RecordT], key: Any) -> RecordT:
        with self._read() as connection:
            return require(connection, rows, key)

    def _get_with_text(self, rows: Rows[RecordT], key: tuple[str, str]) -> tuple[RecordT, Texts, Texts]:
        """Return an episode, its messages and its samples. Raises RecordNotFound."""
        texts = select(rows.c.messages, rows.c.samples).where(*_has_key(rows, key))
        with self._read() as connection:
            summary = require(connection, rows, key)
            return summary, *connection.execute(texts).one()


def check_lease(connection: Connection, lease: Lease) -> None:
    """Lock the row of a lease that is still valid until the transaction ends. Raises StoreLeaseLost."""
    row = find(connection, LEASES, lock=True, resource=lease.resource)
    if row is None or not row.owner:
        raise StoreLeaseLost(f"the lease of {lease.owner} on {lease.resource} was released")
    if row.token != lease.token or row.owner != lease.owner:
        raise StoreLeaseLost(f"{row.owner} has taken over {lease.resource} from {lease.owner}")


def new_id(prefix: str, now: float) -> str:
    """Return `prefix-` and 13 characters: the time in milliseconds (ids sort by age), then 20 random bits.

    Two ids of one millisecond collide once in a million; the primary key then refuses the second.
    """
    number = int(now * 1000) << 20 | secrets.randbits(20)
    digits = [ID_ALPHABET[number >> shift & 31] for shift in range(60, -1, -5)]
    return f"{prefix}-{''.join(digits).lstrip('0')}"


def read(
    connection: Connection, rows: Rows[RecordT], statement: Select[*tuple[Any, ...]], **parameters: Any
) -> tuple[RecordT, ...]:
    """Return what a statement, made by `rows.select`, finds."""
    return tuple(rows.record(*row) for row in connection.execute(statement, parameters))


def find(connection: Connection, rows: Rows[RecordT], *, lock: bool = False, **columns: Any) -> RecordT | None:
    """Return the record with these values in these unique columns, locked for change if asked."""
    row = connection.execute(_select_by(rows, tuple(columns), lock), columns).one_or_none()
    return None if row is None else rows.record(*row)


def require(connection: Connection, rows: Rows[RecordT], key: Any, *, lock: bool = False) -> RecordT:
    """Return the record with this primary key, locked for change if asked. Raises RecordNotFound."""
    found = find(connection, rows, lock=lock, **_by_key(rows, key))
    if found is None:
        raise RecordNotFound(f"there is no {rows.noun} {key!r}")
    return found


def _by_key(rows: Rows[Any], key: Any) -> dict[str, Any]:
    names = rows.table.primary_key.columns.keys()
    return dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True))  # pyright: ignore[reportUnknownArgumentType]


def _has_key(rows: Rows[Any], key: Any) -> list[ColumnElement[bool]]:
    return [rows.c[name] == value for name, value in _by_key(rows, key).items()]


# Building such a statement takes longer than running it.
@cache
def _select_by(rows: Rows[Any], names: tuple[str, ...], lock: bool) -> Select[*tuple[Any, ...]]:
    statement = rows.select(*(rows.c[name] == bindparam(name) for name in names))
    return statement.with_for_update() if lock else statement


def add(connection: Connection, rows: Rows[RecordT], values: Mapping[str, Any]) -> RecordT:
    """Insert a row and return it as stored. Raises RecordNotFound for a reference to nothing."""
    _check_references(connection, rows, values)
    statement = insert(rows.table).values(values).returning(*rows.columns)
    return _counted(connection, rows.record(*connection.execute(statement).one()))


def put(
    connection: Connection,
    rows: Rows[RecordT],
    values: Mapping[str, Any],
    *,
    key: Sequence[str],
    replace: Collection[str] = (),
) -> RecordT:
    """Insert a row, or replace its columns `replace` where the unique columns `key` are taken; return it as stored.

    Raises RecordNotFound for a reference to nothing.
    """
    _check_references(connection, rows, values)
    insert_rows(connection, rows, [values], key=key, replace=replace)
    (stored,) = read(connection, rows, _select_by(rows, tuple(key), False), **{name: values[name] for name in key})
    return _counted(connection, stored)


def change(connection: Connection, rows: Rows[RecordT], key: Any, **values: Any) -> RecordT:
    """Change columns of the row with this primary key and return it as stored. Raises RecordNotFound."""
    statement = update(rows.table).where(*_has_key(rows, key)).values(values).returning(*rows.columns)
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise RecordNotFound(f"there is no {rows.noun} {key!r}")
    return _counted(connection, rows.record(*row))


def count_write(connection: Connection, study_id: str) -> None:
    """Give a study its next revision. Every write locks its own row first, so that no two wait for each other."""
    connection.execute(_COUNT, {"of_study": study_id})


_COUNT = update(STUDIES.table).where(STUDIES.c.id == bindparam("of_study")).values(revision=STUDIES.c.revision + 1)
"""Made once, for making it takes longer than carrying it out."""


def _counted(connection: Connection, record: RecordT) -> RecordT:
    """Count the write of a record of a study. A charge is not counted: times are charged with every heartbeat."""
    study_id = getattr(record, "study_id", None)
    if study_id is not None and not isinstance(record, BudgetEntry):
        count_write(connection, study_id)
    return record


def _check_references(connection: Connection, rows: Rows[Any], values: Mapping[str, Any]) -> None:
    for reference in rows.table.foreign_keys:
        key = values.get(reference.parent.name)
        if key is not None:
            require(connection, reference.column.table.info[ROWS], key)


def insert_rows(
    connection: Connection,
    rows: Rows[Any],
    values: Sequence[Mapping[str, Any]],
    *,
    key: Sequence[str],
    replace: Collection[str] = (),
) -> None:
    """Insert rows; where the unique columns `key` are taken, keep the stored row but for its columns `replace`."""
    if values:
        statement = _insert_or_replace(rows, connection.dialect.name, tuple(key), tuple(replace))
        connection.execute(statement, [dict(value) for value in values])


# Building such a statement takes as long as running it.
@cache
def _insert_or_replace(
    rows: Rows[Any], dialect: str, key: tuple[str, ...], replaced: tuple[str, ...]
) -> postgresql.Insert | sqlite.Insert:
    statement = (postgresql.insert if dialect == "postgresql" else sqlite.insert)(rows.table)
    if not replaced:
        return statement.on_conflict_do_nothing(index_elements=key)
    columns = {name: statement.excluded[name] for name in replaced}
    return statement.on_conflict_do_update(index_elements=key, set_=columns)


def check_finite(**values: float | None) -> None:
    """Raise InvalidRecord for a NaN or infinite value, by its name."""
    for name, value in values.items():
        if value is not None and not math.isfinite(value):
            raise InvalidRecord(f"{name} must be a finite number, not {value}")


def check_text(**values: str) -> None:
    """Raise InvalidRecord for a blank text, by its name."""
    for name, value in values.items():
        if not value.strip():
            raise InvalidRecord(f"{name} must not be empty")
