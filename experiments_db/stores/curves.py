"""The names of the curves of a run, found without reading their points.

Place in the flow: measurements.py asks. The primary key of a point is run, name, step, so the next name is one lookup
in it. A run of any length therefore costs as many lookups as it has curves.
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
    """Return the statement that finds run ids and names of curves.

    It is cached, because building it takes longer than running it.
    """
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
