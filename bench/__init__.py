"""The speed of the service: one module per benchmark, each with a `run(seconds)` that returns its results."""
