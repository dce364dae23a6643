"""Revisions: what of a study was written last, so that a reader that looks again reads only what is new to it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "study_revisions",
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("revision", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_study_revisions_study_id_studies")),
        sa.PrimaryKeyConstraint("study_id", name=op.f("pk_study_revisions")),
    )
    for table in ("experiments", "plans", "runs"):
        column = sa.Column("revision", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True)
        op.add_column(table, column)
    for table in ("experiments", "runs"):
        op.create_index(op.f(f"ix_{table}_study_id_revision"), table, ["study_id", "revision"])
