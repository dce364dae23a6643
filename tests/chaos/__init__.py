"""Studies that run unattended, under faults that come at random."""
