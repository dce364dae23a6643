"""The record of one study in the database: what the loop writes of it, and what everybody reads."""
