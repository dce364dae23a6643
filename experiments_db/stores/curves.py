"""The curves of runs and trainings: their names, found without reading points, and their points in spans.

Place in the flow: measurements.py and trainings.py ask. The primary key of a point is run, name, step, so the next name
is one lookup in it. A run of any length therefore costs as many lookups as it has curves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from experiments_db.errors import InvalidRecord
from experiments_db.models import MetricPointRow, RunRow
from experiments_db.records import MetricSpan
from experiments_db.training_models import TrainingPointRow

Steps = tuple[int, int]
"""The first and the last step of a part of a curve."""


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


def read_spans(
    session: Session,
    point: type[MetricPointRow | TrainingPointRow],
    owner: InstrumentedAttribute[str],
    owner_ids: Collection[str],
    names: Collection[str],
    *,
    most: int,
    steps: Steps | None,
) -> list[MetricSpan]:
    """Return each curve in at most `most` spans of equal length in steps, by owner, name and step.

    `owner` is the column of `point` that names the run or the training. Without `steps`, the whole curve is read.
    Raises InvalidRecord for `most` below 1.
    """
    if most < 1:
        raise InvalidRecord(f"a curve has at least one span, not {most}")
    chosen = [owner.in_(owner_ids), point.name.in_(names)]
    if steps is not None:
        chosen.append(point.step.between(*steps))
    step = point.step
    ends = (
        select(owner.label("owner"), point.name, func.min(step).label("first"), func.max(step).label("last"))
        .where(*chosen)
        .group_by(owner, point.name)
        .subquery()
    )
    span = (step - ends.c.first) // ((ends.c.last - ends.c.first) // most + 1)
    value = point.value
    statement = (
        select(
            owner, point.name, func.min(step), func.max(step), func.avg(value), func.min(value), func.max(value),
            func.count() - func.count(value), func.max(point.recorded_at),
        )
        .join(ends, (owner == ends.c.owner) & (point.name == ends.c.name))
        .where(*chosen)
        .group_by(owner, point.name, span)
        .order_by(owner, point.name, func.min(step))
    )  # fmt: skip
    return [MetricSpan(*row) for row in session.execute(statement)]
