"""An INSERT that can say what to do where a row is there already, in the words of either database.

Place in the flow: the parts of the store that insert or replace use it; SQLAlchemy has such a statement for each
dialect and none for both.
"""

from __future__ import annotations

from typing import cast

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from experiments_db.models import Base


def insert_into(row: type[Base], dialect: str) -> postgresql.Insert | sqlite.Insert:
    return (postgresql.insert if dialect == "postgresql" else sqlite.insert)(cast(Table, row.__table__))


def dialect_of(session: Session) -> str:
    return session.get_bind().dialect.name
