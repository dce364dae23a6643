"""The tables of trainings as servers record them, with columns by the names of the records' fields.

Place in the flow: beside models.py, whose base and column types they share. trainings.py explains their fields.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from experiments_db.models import ID_LENGTH, Base


def _of_training() -> Mapped[str]:
    return mapped_column(String(ID_LENGTH), ForeignKey("trainings.id"), primary_key=True)


class TrainingRow(Base):
    __tablename__ = "trainings"

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    project: Mapped[str]
    experiment: Mapped[str]
    model: Mapped[str]
    engine: Mapped[str]
    settings: Mapped[dict[str, Any]]
    changes: Mapped[dict[str, Any]]
    home: Mapped[str]
    launch_key: Mapped[str | None] = mapped_column(index=True)
    status: Mapped[str]
    reason: Mapped[str | None]
    step: Mapped[int]
    tags: Mapped[list[Any]]
    note: Mapped[str]
    begun_at: Mapped[float] = mapped_column(index=True)
    updated_at: Mapped[float]


class TrainingPointRow(Base):
    __tablename__ = "training_points"
    # The key is the whole row but for its value: without a rowid SQLite stores each point once instead of twice.
    __table_args__ = ({"sqlite_with_rowid": False},)

    training_id: Mapped[str] = _of_training()
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float | None]
    recorded_at: Mapped[float]


class TrainingScoreRow(Base):
    __tablename__ = "training_scores"

    training_id: Mapped[str] = _of_training()
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    mean: Mapped[float]
    stderr: Mapped[float]
    episodes: Mapped[int]
    successes: Mapped[int]
    recorded_at: Mapped[float]


class TrainedEpisodeRow(Base):
    __tablename__ = "trained_episodes"

    training_id: Mapped[str] = _of_training()
    episode_id: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int]
    chosen_as: Mapped[str]
    task_id: Mapped[str]
    data_source: Mapped[str]
    group_number: Mapped[int]
    reward: Mapped[float]
    is_success: Mapped[bool | None]
    advantage: Mapped[float | None]
    weight_version: Mapped[int | None]
    recorded_at: Mapped[float]
    messages: Mapped[list[Any]]
    samples: Mapped[list[Any]]


class ServerEventRow(Base):
    __tablename__ = "server_events"

    training_id: Mapped[str] = _of_training()
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    detail: Mapped[dict[str, Any]]
    recorded_at: Mapped[float]


class SystemPointRow(Base):
    __tablename__ = "system_points"
    __table_args__ = ({"sqlite_with_rowid": False},)

    training_id: Mapped[str] = _of_training()
    name: Mapped[str] = mapped_column(primary_key=True)
    recorded_at: Mapped[float] = mapped_column(primary_key=True)
    value: Mapped[float]
