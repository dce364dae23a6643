"""Iterations: plans and analyses get tables of their own, and an arm says who wrote its program.

Until here plans and analyses were events, and the author of a program was the kind of the artifact that holds it.
"""

import json
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for name in ("plans", "analyses"):
        op.create_table(
            name,
            sa.Column("study_id", sa.String(length=32), nullable=False),
            sa.Column("iteration", BIG_INTEGER, autoincrement=False, nullable=False),
            sa.Column("document", sa.JSON(), nullable=False),
            sa.Column("created_at", sa.Float(precision=53), nullable=False),
            sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f(f"fk_{name}_study_id_studies")),
            sa.PrimaryKeyConstraint("study_id", "iteration", name=op.f(f"pk_{name}")),
        )
    op.add_column("experiments", sa.Column("author", sa.String(length=32), nullable=True))
    connection = op.get_bind()
    _copy_documents(connection, "plan.made", "plan", "plans")
    _copy_documents(connection, "analysis.made", "analysis", "analyses")
    _name_authors(connection)


def _copy_documents(connection: sa.Connection, kind: str, name: str, table: str) -> None:
    """The newest version of each iteration."""
    rows = connection.execute(
        sa.text("SELECT study_id, payload, created_at FROM events WHERE kind = :kind ORDER BY id"), {"kind": kind}
    )
    newest: dict[tuple[str, int], tuple[Any, float]] = {}
    for study_id, stored, created_at in rows:
        payload = json.loads(stored) if isinstance(stored, str) else stored
        document = payload[name]
        newest[study_id, payload.get("iteration", document.get("iteration"))] = (document, created_at)
    target = sa.table(
        table,
        sa.column("study_id", sa.String),
        sa.column("iteration", sa.BigInteger),
        sa.column("document", sa.JSON),
        sa.column("created_at", sa.Float),
    )
    for (study_id, iteration), (document, created_at) in newest.items():
        values = {"study_id": study_id, "iteration": iteration, "document": document, "created_at": created_at}
        connection.execute(target.insert().values(values))


def _name_authors(connection: sa.Connection) -> None:
    """Ours is only a program that was recorded as ours, byte by byte."""
    ours = {
        (study_id, digest)
        for study_id, digest in connection.execute(
            sa.text("SELECT study_id, sha256 FROM artifacts WHERE kind = 'client.trusted'")
        )
    }
    arms = connection.execute(sa.text("SELECT id, study_id, client_code FROM experiments WHERE client_code <> ''"))
    for arm, study_id, code in arms.all():
        author = "package" if (study_id, sha256(code.encode()).hexdigest()) in ours else "language_model"
        connection.execute(
            sa.text("UPDATE experiments SET author = :author WHERE id = :arm"), {"author": author, "arm": arm}
        )
