"""The current run of a job, as all parts of the server share it: its job, the state of the engine, its evaluations."""
