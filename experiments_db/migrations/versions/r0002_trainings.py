"""Trainings as servers record them, also outside of studies."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_trainings()
    _create_of_training(
        "training_points", ["name", "step"], _name(), _step(), _value(nullable=True), _time(), without_rowid=True
    )
    _create_of_training(
        "training_scores",
        ["step"],
        _step(),
        sa.Column("mean", sa.Float(precision=53), nullable=False),
        sa.Column("stderr", sa.Float(precision=53), nullable=False),
        sa.Column("episodes", BIG_INTEGER, nullable=False),
        sa.Column("successes", BIG_INTEGER, nullable=False),
        _time(),
    )
    _create_episodes()
    _create_of_training(
        "server_events",
        ["number"],
        sa.Column("number", BIG_INTEGER, autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        _time(),
    )
    _create_of_training(
        "system_points", ["name", "recorded_at"], _name(), _time(), _value(nullable=False), without_rowid=True
    )


def _create_trainings() -> None:
    op.create_table(
        "trainings",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("home", sa.Text(), nullable=False),
        sa.Column("launch_key", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("step", BIG_INTEGER, nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("begun_at", sa.Float(precision=53), nullable=False),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trainings")),
        sa.UniqueConstraint("key", name=op.f("uq_trainings_key")),
    )
    op.create_index(op.f("ix_trainings_begun_at"), "trainings", ["begun_at"])
    op.create_index(op.f("ix_trainings_launch_key"), "trainings", ["launch_key"])


def _create_episodes() -> None:
    _create_of_training(
        "trained_episodes",
        ["episode_id"],
        sa.Column("episode_id", sa.Text(), nullable=False),
        sa.Column("step", BIG_INTEGER, nullable=False),
        sa.Column("chosen_as", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("data_source", sa.Text(), nullable=False),
        sa.Column("group_number", BIG_INTEGER, nullable=False),
        sa.Column("reward", sa.Float(precision=53), nullable=False),
        sa.Column("is_success", sa.Boolean(), nullable=True),
        sa.Column("advantage", sa.Float(precision=53), nullable=True),
        sa.Column("weight_version", BIG_INTEGER, nullable=True),
        _time(),
        sa.Column("messages", sa.JSON(), nullable=False),
        sa.Column("samples", sa.JSON(), nullable=False),
    )


def _create_of_training(table: str, key: list[str], *columns: sa.Column[Any], without_rowid: bool = False) -> None:
    """Create a table whose rows belong to a training, with a key of it and the columns `key`."""
    op.create_table(
        table,
        sa.Column("training_id", sa.String(length=32), nullable=False),
        *columns,
        sa.ForeignKeyConstraint(["training_id"], ["trainings.id"], name=op.f(f"fk_{table}_training_id_trainings")),
        sa.PrimaryKeyConstraint("training_id", *key, name=op.f(f"pk_{table}")),
        sqlite_with_rowid=not without_rowid,
    )


def _name() -> sa.Column[Any]:
    return sa.Column("name", sa.Text(), nullable=False)


def _step() -> sa.Column[Any]:
    return sa.Column("step", BIG_INTEGER, autoincrement=False, nullable=False)


def _time() -> sa.Column[Any]:
    return sa.Column("recorded_at", sa.Float(precision=53), nullable=False)


def _value(*, nullable: bool) -> sa.Column[Any]:
    return sa.Column("value", sa.Float(precision=53), nullable=nullable)
