"""Alembic's entry: runs the revisions on the connection it is given, inside that connection's transaction."""

from alembic import context

from experiments_db.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=context.config.attributes["version_table"],
    # A revision that fails halfway leaves no trace: SQLite, too, rolls schema changes back.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
