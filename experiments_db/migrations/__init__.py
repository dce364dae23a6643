"""Alembic revisions of the database of studies, applied by experiments_db/schema.py when a store is opened."""
