"""Tables of trainings and runs: filter expressions, rows and groups."""
