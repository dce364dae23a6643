"""What is run for an arm is a program: its column says so."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("experiments", "client_code", new_column_name="program_code")
