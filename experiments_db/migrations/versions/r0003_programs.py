"""Arms: what is run is a program, and its column says so; what is trained on may be another environment."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("experiments", "client_code", new_column_name="program_code")
    op.add_column("experiments", sa.Column("train_environment", sa.Text(), nullable=True))
