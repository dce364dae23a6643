"""An INSERT for both databases that says what to do if the row already exists.

Place in the flow: the parts of the store that insert or replace use it. SQLAlchemy has such a statement for each
dialect, but none for both.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from experiments_db.models import Base


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
