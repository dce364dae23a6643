"""How many threads compute a model on a processor, by the size of the model and of the work.

Place in the flow: the worker of the local backend asks before it samples and before it trains, the pair with vLLM
before it starts vLLM. It needs no torch.
"""

from __future__ import annotations

from swarm.processes.cores import usable_physical_cores

THREADED_PARAMETERS = 30_000_000
"""Below, threads wait for each other longer than they save when they sample a token."""
THREADED_WORK = 5_000_000_000
"""The same for a training step, in parameters times tokens."""


def choose_threads(parameters: int, at_most: int | None = None) -> int:
    """One for a small model; else as many as there are cores that this process may use, up to a limit."""
    return 1 if parameters < THREADED_PARAMETERS else _cores(at_most)


def choose_training_threads(parameters: int, tokens: int, at_most: int | None = None) -> int:
    """For a training step on so many tokens: also a small model is trained by all cores if the batch is large.

    The same batch has the same number whatever else the machine does, so that a step that is made again gives the same
    weights to the bit.
    """
    return _cores(at_most) if parameters * tokens >= THREADED_WORK else choose_threads(parameters, at_most)


def _cores(at_most: int | None) -> int:
    # Two threads on one core share what multiplies.
    usable = usable_physical_cores()
    return min(usable, at_most or usable)
