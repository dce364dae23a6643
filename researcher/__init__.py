"""The autonomous researcher: topic in, planned and judged training runs, report out."""
