"""Which curves a run has, without a look at their points.

Place in the flow: measurements.py asks. The primary key of a point is run, name, step; so the next name after one is a
single look into it, and a run of any length costs as many looks as it has curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import Session

from experiments_db.models import MetricPointRow, RunRow


def read_curves(session: Session, run_ids: Sequence[str]) -> list[tuple[str, str]]:
    """Return run id and name of every curve of these runs."""
    return [(run_id, name) for run_id, name in session.execute(select_curves(), {"run_ids": run_ids})]


@cache
def select_curves() -> Select[str, str]:
    """Return the statement that asks for them. It is made once, for making it takes longer than its answer."""
    first = select(func.min(MetricPointRow.name)).where(MetricPointRow.run_id == RunRow.id).correlate(RunRow)
    chosen = RunRow.id.in_(bindparam("run_ids", expanding=True))
    found = select(RunRow.id.label("run_id"), first.scalar_subquery().label("name")).where(chosen)
    curves = found.cte("curves", recursive=True)
    following = (
        select(func.min(MetricPointRow.name))
        .where(MetricPointRow.run_id == curves.c.run_id, MetricPointRow.name > curves.c.name)
        .correlate(curves)
    )
    curves = curves.union_all(select(curves.c.run_id, following.scalar_subquery()).where(curves.c.name.is_not(None)))
    return select(curves.c.run_id, curves.c.name).where(curves.c.name.is_not(None))
