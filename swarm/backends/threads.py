"""The number of threads for a model on a CPU, by the size of the model and of the work."""

from __future__ import annotations

from swarm.processes.cores import usable_physical_cores

THREADED_PARAMETERS = 30_000_000
"""For fewer parameters, threads cost more time than they save when they sample a token."""
THREADED_WORK = 5_000_000_000
"""The same limit for a training step, in parameters times tokens."""


def choose_threads(parameters: int, at_most: int | None = None) -> int:
    """Return 1 for a small model, otherwise the number of cores that this process may use, up to a limit."""
    return 1 if parameters < THREADED_PARAMETERS else _cores(at_most)


def choose_training_threads(parameters: int, tokens: int, at_most: int | None = None) -> int:
    """Return the number of threads for a training step on this many tokens.

    A large batch uses all cores for a small model as well. The same batch always has the same number, whatever else the
    machine does. A step that is trained again therefore gives the same weights bit for bit.
    """
    return _cores(at_most) if parameters * tokens >= THREADED_WORK else choose_threads(parameters, at_most)


def _cores(at_most: int | None) -> int:
    # Two threads on one core share its multipliers.
    usable = usable_physical_cores()
    return min(usable, at_most or usable)
