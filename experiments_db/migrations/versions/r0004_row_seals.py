"""Seals: a digest of each row from here on, so that a change made past this program shows. Older rows have none."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "row_seals",
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("row_key", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_row_seals_study_id_studies")),
        sa.PrimaryKeyConstraint("study_id", "kind", "row_key", name=op.f("pk_row_seals")),
    )
    op.create_index(op.f("ix_row_seals_kind_row_key"), "row_seals", ["kind", "row_key"])
