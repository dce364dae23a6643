"""The execution of runs on this machine: environments, checks, training processes and storage."""
