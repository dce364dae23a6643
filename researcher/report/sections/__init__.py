"""The sections of a report that tell the course and the clauses of a study."""
