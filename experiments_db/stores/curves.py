"""The curves of runs and trainings: their names, found without reading points, their last points, and their spans.

The primary key of a point is run, name, step, so the next name is one lookup in it. A run of any length therefore costs
as many lookups as it has curves.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from sqlalchemy import Connection, FromClause, Select, bindparam, func, select

from experiments_db.errors import InvalidRecord
from experiments_db.records import MetricSpan
from experiments_db.tables import METRIC_POINTS, RUNS, TRAINING_POINTS, TRAININGS, Rows

Steps = tuple[int, int]
"""The first and the last step of a part of a curve."""

OWNERS: dict[Rows[Any], tuple[str, Rows[Any]]] = {
    METRIC_POINTS: ("run_id", RUNS),
    TRAINING_POINTS: ("training_id", TRAININGS),
}
"""For each table of points the column that names their run or training, and the table of these."""


# Building this statement takes longer than running it.
@cache
def select_curves(points: Rows[Any]) -> Select[*tuple[Any, ...]]:
    """Return the statement that finds owner and name of every curve of the parameter `owner_ids`."""
    of, owners = OWNERS[points]
    owner = points.c[of]
    first = select(func.min(points.c.name)).where(owner == owners.c.id).correlate(owners.table).scalar_subquery()
    chosen = owners.c.id.in_(bindparam("owner_ids", expanding=True))
    curves = select(owners.c.id.label("owner"), first.label("name")).where(chosen).cte("curves", recursive=True)
    following = (
        select(func.min(points.c.name))
        .where(owner == curves.c.owner, points.c.name > curves.c.name)
        .correlate(curves)
        .scalar_subquery()
    )
    curves = curves.union_all(select(curves.c.owner, following).where(curves.c.name.is_not(None)))
    return select(curves.c.owner, curves.c.name).where(curves.c.name.is_not(None))


def read_names(connection: Connection, points: Rows[Any], owner_ids: Collection[str]) -> set[str]:
    """Return the names of the curves that any of these runs or trainings has."""
    return {name for _, name in connection.execute(select_curves(points), {"owner_ids": list(owner_ids)})}


def select_last(points: Rows[Any], curves: FromClause) -> Select[*tuple[Any, ...]]:
    """Select the last point of each curve by one lookup in the primary key, whatever the curve's length."""
    owner = points.c[OWNERS[points][0]]
    last = (
        select(func.max(points.c.step))
        .where(owner == curves.c.owner, points.c.name == curves.c.name)
        .correlate(curves)
        .scalar_subquery()
    )
    point = (owner == curves.c.owner) & (points.c.name == curves.c.name) & (points.c.step == last)
    return points.select().select_from(curves.join(points.table, point))


def read_spans(
    connection: Connection,
    points: Rows[Any],
    owner_ids: Collection[str],
    names: Collection[str],
    *,
    most: int,
    steps: Steps | None,
) -> list[MetricSpan]:
    """Return each curve in at most `most` spans of equal length in steps, by owner, name and step.

    Without `steps`, the whole curve is read. Raises InvalidRecord for `most` below 1.
    """
    if most < 1:
        raise InvalidRecord(f"a curve has at least one span, not {most}")
    owner, name, step, value = points.c[OWNERS[points][0]], points.c.name, points.c.step, points.c.value
    chosen = [owner.in_(owner_ids), name.in_(names)]
    if steps is not None:
        chosen.append(step.between(*steps))
    ends = (
        select(owner.label("owner"), name, func.min(step).label("first"), func.max(step).label("last"))
        .where(*chosen)
        .group_by(owner, name)
        .subquery()
    )
    span = (step - ends.c.first) // ((ends.c.last - ends.c.first) // most + 1)
    statement = (
        select(
            owner, name, func.min(step), func.max(step), func.avg(value), func.min(value), func.max(value),
            func.count() - func.count(value), func.max(points.c.recorded_at),
        )
        .join(ends, (owner == ends.c.owner) & (name == ends.c.name))
        .where(*chosen)
        .group_by(owner, name, span)
        .order_by(owner, name, func.min(step))
    )  # fmt: skip
    return [MetricSpan(*row) for row in connection.execute(statement)]
