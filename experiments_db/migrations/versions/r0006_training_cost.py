"""Training cost: what the training episodes of a run have spent on the model, from the ledger of its server."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("training_cost", sa.JSON(), nullable=True))
