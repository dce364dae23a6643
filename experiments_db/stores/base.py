"""The base of every part of the store: its transactions, its lease check, and the conversion of rows to records.

Place in the flow: between engine.py and the parts (studies, runs, measurements, findings, history, leases). It knows no
table but the leases, which each fenced write checks.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any, Self, TypeVar, cast

from sqlalchemy import Select, Table, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from experiments_db.engine import Database
from experiments_db.errors import InvalidRecord, RecordNotFound, StoreLeaseLost
from experiments_db.models import Base, ResourceLeaseRow
from experiments_db.records import Lease

RowT = TypeVar("RowT", bound=Base)
RecordT = TypeVar("RecordT")
StoreT = TypeVar("StoreT", bound="StoreBase")

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
    def _read(self) -> Generator[Session]:
        with self._database.read() as session:
            yield session

    @contextmanager
    def _write(self) -> Generator[Session]:
        with self._database.write() as session:
            if self._lease is not None:
                check_lease(session, self._lease)
            yield session

    def _list(self, statement: Select[Any], record: type[RecordT]) -> list[RecordT]:
        with self._read() as session:
            return [to_record(record, row) for row in session.scalars(statement)]


def check_lease(session: Session, lease: Lease) -> ResourceLeaseRow:
    """Return the row of a lease that is still valid, locked until the transaction ends. Raises StoreLeaseLost."""
    row = session.get(ResourceLeaseRow, lease.resource, with_for_update=True)
    if row is None or row.owner is None:
        raise StoreLeaseLost(f"the lease of {lease.owner} on {lease.resource} was released")
    if row.token != lease.token or row.owner != lease.owner:
        raise StoreLeaseLost(f"{row.owner} has taken over {lease.resource} from {lease.owner}")
    return row


def new_id(prefix: str, now: float) -> str:
    """Return `prefix-` and 13 characters: the time in milliseconds (ids sort by age), then 20 random bits.

    Two ids of one millisecond collide once in a million; the primary key then refuses the second.
    """
    number = int(now * 1000) << 20 | secrets.randbits(20)
    digits = [ID_ALPHABET[number >> shift & 31] for shift in range(60, -1, -5)]
    return f"{prefix}-{''.join(digits).lstrip('0')}"


def to_record(record: type[RecordT], row: Base) -> RecordT:
    """Return the row as a frozen record: fields and columns have the same names, JSON arrays become tuples."""
    values: dict[str, Any] = {}
    for field in fields(record):  # pyright: ignore[reportArgumentType] - every record is a dataclass
        value = getattr(row, field.name)
        values[field.name] = tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]
    return record(**values)


def require(session: Session, row: type[RowT], key: Any, noun: str, *, lock: bool = False) -> RowT:
    """Return the row with this primary key, locked for change if asked. Raises RecordNotFound."""
    found = session.get(row, key, with_for_update=lock)
    if found is None:
        raise RecordNotFound(f"there is no {noun} {key!r}")
    return found


def add(session: Session, row: Base, record: type[RecordT]) -> RecordT:
    """Insert the row and return it as stored."""
    session.add(row)
    session.flush()
    session.refresh(row)
    return to_record(record, row)


def insert_rows(
    session: Session,
    row: type[Base],
    values: Sequence[Mapping[str, Any]],
    *,
    key: Sequence[str],
    replace: Collection[str] = (),
) -> None:
    """Insert rows; where the unique columns `key` are taken, keep the stored row but for its columns `replace`."""
    if not values:
        return
    statement = insert_or_replace(row, dialect_of(session), tuple(key), tuple(replace))
    session.execute(statement, [dict(value) for value in values])


def find_by(session: Session, row: type[RowT], **columns: Any) -> RowT | None:
    """Return the row with these values, none of which is None, in these unique columns."""
    return session.scalars(_select_by(row, tuple(columns)), columns).one_or_none()


def get_by(session: Session, row: type[RowT], **columns: Any) -> RowT:
    """Return the row with these unique columns, known to exist."""
    return session.scalars(_select_by(row, tuple(columns)), columns).one()


# Building such a statement takes longer than running it.
@cache
def _select_by(row: type[Base], names: tuple[str, ...]) -> Select[Any]:
    return select(row).where(*(getattr(row, name) == bindparam(name) for name in names))


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


# Building such a statement takes as long as running it.
@cache
def insert_or_replace(
    row: type[Base], dialect: str, key: tuple[str, ...], replaced: tuple[str, ...]
) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that, if the columns `key` match a row, updates only its columns `replaced`."""
    statement = (postgresql.insert if dialect == "postgresql" else sqlite.insert)(cast(Table, row.__table__))
    if not replaced:
        return statement.on_conflict_do_nothing(index_elements=key)
    columns = {name: statement.excluded[name] for name in replaced}
    return statement.on_conflict_do_update(index_elements=key, set_=columns)


def dialect_of(session: Session) -> str:
    return session.get_bind().dialect.name
