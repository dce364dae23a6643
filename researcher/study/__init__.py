"""A study as people see it: its settings, its present state, its end and its continuation."""
